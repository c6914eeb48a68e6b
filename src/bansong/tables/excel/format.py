"""Excel workbooks: read any (``limits``, ``read``), extend the user's own (``splice``), ``create`` new ones."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Final
from zipfile import ZipFile

import polars as pl
import polars.selectors as cs

from bansong.base.errors import OutputError, Problem, UsageError
from bansong.base.messages import parameter
from bansong.base.options import ReadOptions
from bansong.base.schema import OUR_COLUMNS
from bansong.tables.excel import limits as limits_check
from bansong.tables.excel.create import count_rows, create_workbook
from bansong.tables.excel.limits import decodable_xls, decodable_xlsb
from bansong.tables.excel.package import refuse_other_kind
from bansong.tables.excel.proof import prove_created
from bansong.tables.excel.read import Sheet, read_old, read_xlsx, time_notes, with_extension
from bansong.tables.excel.splice import extend_workbook
from bansong.tables.streams import File
from bansong.tables.table import (
    Enriched,
    Planned,
    Table,
    Verbs,
    Written,
    contract_name,
    flat,
    is_added,
    refuse_binary,
    typed_columns,
    typed_id,
)

WORKBOOK_NOT_KEPT: Final = Problem(
    "outputs.workbook_not_kept",
    "{path}: with {option} the output is a new workbook, without its other sheets, formulas, charts and "
    "formats; name it with `output=`",
)
SUMMARY_SHEET_IMPOSSIBLE: Final = Problem(
    "excel.summary_sheet_impossible",
    "a summary sheet cannot be added to a workbook of yours without changing other parts of "
    "it; leave `summary=True` out, or write a new workbook from a CSV",
)
MACROS_NOT_WRITTEN: Final = Problem(
    "excel.macros_not_written",
    "a new workbook holds no macros, Excel would not open it as {suffix}; give `output='OUT.xlsx'`",
)


class XlsxVerbs(Verbs):
    """Workbooks of Excel 2007 and later, with or without macros."""

    def read(self, file: File, wanted: ReadOptions, resources: ExitStack) -> Table:
        named = with_extension(file, self.format, resources)
        return read_xlsx(named, file, self.format, wanted, resources)

    def check(self, table: Table, planned: Planned) -> tuple[str, ...]:
        anew = planned.leaves_out or table.source is None  # a sheet without a header has no source
        if planned.in_place and anew and table.format is self.format:
            option = parameter("select") if planned.leaves_out else parameter("has_header", False)
            raise UsageError(WORKBOOK_NOT_KEPT, path=planned.path, option=option)
        if isinstance(table.source, Sheet) and table.file is not None and not planned.leaves_out:
            _refuse_splice(table.file, planned.path, summary=planned.summary)
        else:
            _refuse_macros(planned.path)
        self.format.refuse_wide(len(planned.headers))
        return ()

    def splice(self, result: Enriched, target: Path) -> Written | None:
        source, file = result.table.source, result.table.file
        if not isinstance(source, Sheet) or file is None or not _keeps_all(result):
            return None
        _refuse_splice(file, target, summary=result.summary is not None)
        added = [column for column, _ in result.layout if is_added(column)]
        # the user's styles, which the new cells get, show no dates
        cells = result.frame.select(added).with_columns(cs.date().dt.to_string("iso"))
        frame, tally = pl.collect_all([cells, result.tally], engine="streaming")
        return Written(tally, extend_workbook(result, frame, file, source, target))

    def render(self, result: Enriched, target: Path) -> Written:
        _refuse_macros(target)
        typed = typed_columns(result)
        cells = result.frame.select(*(column for column, _ in result.layout), *map(typed_id, typed))
        refuse_binary(result.with_titles(lists=False), "Excel")
        frame, tally = pl.collect_all([flat(cells), result.tally], engine="streaming")
        frame = frame.drop(name for name in map(typed_id, typed) if not frame[name].any())
        sheets = create_workbook(result, frame, result.summary(tally) if result.summary else (), target)
        prove_created(result, sheets, target)
        return Written(tally)

    def count(self, result: Enriched, path: Path) -> int:
        return count_rows(result.table, path)


class XlsVerbs(Verbs):
    """Workbooks of Excel 97 to 2003; read only."""

    def read(self, file: File, wanted: ReadOptions, resources: ExitStack) -> Table:
        named = with_extension(file, self.format, resources)
        return read_old(decodable_xls(named, resources), file, self.format, wanted)


class XlsbVerbs(Verbs):
    """Binary workbooks; read only."""

    def read(self, file: File, wanted: ReadOptions, resources: ExitStack) -> Table:
        named = with_extension(file, self.format, resources)
        limits_check.check_zip(file.path, named.data, xml=False)
        return read_old(decodable_xlsb(named, resources), file, self.format, wanted)


class OdsVerbs(Verbs):
    """OpenDocument spreadsheets; read only."""

    def read(self, file: File, wanted: ReadOptions, resources: ExitStack) -> Table:
        named = with_extension(file, self.format, resources)
        parts = limits_check.check_zip(file.path, named.data, xml=True)
        return read_old(named, file, self.format, wanted, time_notes(parts))


def _refuse_splice(file: File, target: Path, *, summary: bool) -> None:
    if summary:
        raise OutputError(SUMMARY_SHEET_IMPOSSIBLE)
    with ZipFile(file.data) as archive:
        refuse_other_kind(archive, target)


def _refuse_macros(target: Path) -> None:
    if target.suffix.lower() != ".xlsx":
        raise OutputError(MACROS_NOT_WRITTEN, suffix=target.suffix)


def _keeps_all(result: Enriched) -> bool:
    own = result.layout[: len(result.table.headers)]
    return [header for _, header in own] == list(result.table.headers) and all(
        contract_name(column) in (f"c{place}", *OUR_COLUMNS) for place, (column, _) in enumerate(own)
    )
