"""One file in, one file out: what `enrich` does with a single input."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from bansong.cloud.remote_files import InputData, fetch_file
from bansong.cloud.remote_path import as_path, is_remote
from bansong.enrichment.enrichment_run import EnrichmentRun
from bansong.enrichment.prepared_table import prepare_output
from bansong.enrichment.run_inputs import files_read
from bansong.errors import Problem, UsageError
from bansong.labels.history import LabelHistory
from bansong.options import ALL_SHEETS, ReadOptions, WriteOptions
from bansong.progress.display import Progress
from bansong.report import Report
from bansong.report_page.page import check_page
from bansong.run.engine import Engine, RunContext
from bansong.run.output_layout import Target, choose_stream, choose_target, keep_apart
from bansong.run.run_start import RunStart
from bansong.run.side_files import SideFiles
from bansong.storage.filesystem import private_folder
from bansong.tables import Table, open_table, reading
from bansong.tables.standard_streams import STREAM, keep_input, name_input
from bansong.translation import Option

if TYPE_CHECKING:
    from bansong.cancellation import CancelToken
    from bansong.options import StatusOptions

SHEETS_NOT_LISTED: Final = Problem(
    "report.sheets_not_listed", "several sheets have a report each: give the input in a list"
)
INPUT_FORMAT_NEEDLESS: Final = Problem(
    "inputs.input_format_needless", "`input_format=` is for standard input; of a file, the name and the content tell it"
)
SPLIT_WITHOUT_OUTPUT: Final = Problem(
    "outputs.split_without_output", "`split=` writes files beside the output; name the output"
)
STDIN_IN_PLACE: Final = Problem("outputs.stdin_in_place", "`in_place=True` replaces a file, and standard input is none")
REVIEW_WITHOUT_NUMBERS: Final = Problem(
    "options.review_without_numbers",
    "{table}: holds no business numbers, by which the choices of a review are known again; leave out {review}",
)


def enrich_file(
    path: Path,
    output: str | Path | None,
    engine: Engine,
    read: ReadOptions,
    write: WriteOptions,
    *,
    start: RunStart,
    known: LabelHistory | None = None,
    model: Path | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
    cancel: CancelToken | None = None,
    status: StatusOptions | None = None,
    observe: Callable[[pl.LazyFrame], pl.LazyFrame] | None = None,
    inspect: Callable[[pl.LazyFrame], None] | None = None,
) -> Report:
    """Verify the rows of a file with an engine and publish the output, or plan that; return what was done.

    ``observe`` puts itself between the answered rows and what is written, and changes neither. ``inspect`` gets the
    rows before anybody is asked, and raises for rows that are not to be verified. ``status``: how the tax
    authority is asked for statuses, ``None`` if it is not. ``known``: what the label store has of earlier letters.
    ``model``: the file of the scorecard, which is not to be replaced.

    Raises :class:`bansong.errors.BansongError`: nothing was published then.
    """
    if not isinstance(read.sheet, str | None) or read.sheet == ALL_SHEETS:
        raise UsageError(SHEETS_NOT_LISTED)
    if read.input_format is not None and path != STREAM:
        raise UsageError(INPUT_FORMAT_NEEDLESS)
    with ExitStack() as resources:
        data = InputData(keep_input(resources)) if path == STREAM else resources.enter_context(fetch_file(path))
        table = resources.enter_context(open_input(path, data.path, read, read.sheet))
        target = _target_of(path, output, table, write, resources)
        record = as_path(write.manifest) if write.manifest is not None else None
        sides = SideFiles.of(write, target, engine.local.gazetteer if engine.kind.answers_locally else None)
        if sides.page is not None:
            check_page(sides.page)
        files = files_read(engine, model, status)
        keep_apart(
            {"input": path if is_remote(path) else data.path, **files},
            {"output": target.path, "manifest": record, **sides.paths_by_use()},
            write.in_place,
        )
        prepared = prepare_output(table, target, read, write, engine.kind)
        if sides.review is not None and prepared.is_address_list:
            raise UsageError(REVIEW_WITHOUT_NUMBERS, table=table.name, review=Option("review"))
        prepared = replace(prepared, rows=engine.prepare(prepared.rows))
        context = RunContext(
            str(path),
            start.run_id,
            priority=prepared.priority_column(engine),
            progress=progress,
            cancel=cancel,
            resources=resources,
            unix_time=start.unix_time,
        )
        run = EnrichmentRun(
            path, start, engine, prepared, context, known, write.with_outcomes, sides, observe=observe, data=data
        )
        with reading(table), engine.local.running():
            if inspect is not None:
                inspect(prepared.rows)
            if status is not None and not prepared.is_address_list:
                run = run.with_statuses(status, planned=dry_run)
            return run.plan() if dry_run else run.carry_out(target, record)


def open_input(path: Path, data: Path, read: ReadOptions, sheet: str | None) -> AbstractContextManager[Table]:
    """Open the table of an input as the options say; ``path`` is what it is called, ``data`` where it is."""
    return open_table(
        name_input(read.input_format) if path == STREAM else path,
        sheet=sheet,
        encoding=read.encoding,
        json_path=read.json_path,
        has_header=read.has_header,
        delimiter=read.delimiter,
        data=data,
    )


def _target_of(
    path: Path, output: str | Path | None, table: Table, write: WriteOptions, resources: ExitStack
) -> Target:
    """Where the output of an input goes: to standard output where that is said, or where it came from standard input.

    What is written beside the output needs a file to be beside.
    """
    options: dict[str, Any] = {"encoding": write.output_encoding, "backup": write.backup, "summary": write.summary}
    streamed = output is not None and Path(output) == STREAM
    if not streamed and (output is not None or path != STREAM):
        return choose_target(path, table.format, output, write.in_place, **options)
    if write.split:
        raise UsageError(SPLIT_WITHOUT_OUTPUT)
    if write.in_place:
        raise UsageError(STDIN_IN_PLACE)
    return choose_stream(path, table.format, resources.enter_context(private_folder()), **options)
