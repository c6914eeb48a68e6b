"""The columns of an output: the user's, the nine answer columns, and extra ones."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import polars as pl

from bansong.base.errors import LabelError, Notice, OutputError, Problem, UsageError
from bansong.base.files import as_path, is_remote, path_on_disk
from bansong.base.messages import Lang, Option, Phrase, count_rows, gettext, gettext_noop
from bansong.base.publish import backed_up, find_foreign, publish_file, same_file
from bansong.base.schema import (
    ADDED_COLUMNS,
    EXTRA_COLUMNS,
    FILE,
    FILE_HEADERS,
    HEADERS,
    KOREAN_ROLES,
    LABEL_COLUMNS,
    language_of_columns,
)
from bansong.engine.address.attach import building_code
from bansong.engine.address.gazetteer import Gazetteer
from bansong.engine.local import DISTRICT_CODE, MATCH_LEVEL, NUMBER, PLACE
from bansong.engine.records import ROW_ID, find_repeated, look_up
from bansong.run import accounting
from bansong.run.accounting import kept_alert
from bansong.tables import detect
from bansong.tables.earlier_columns import find_earlier_columns
from bansong.tables.streams import url_of
from bansong.tables.table import Enriched, Format, Planned, Table

IN_PLACE_AND_OUTPUT: Final = Problem(
    "outputs.in_place_and_output", "`in_place=True` replaces the input; do not name an output as well"
)
BACKUP_NOT_NEEDED: Final = Problem(
    "outputs.backup_not_needed", "`backup=False` is for `in_place=True`: nothing else replaces the input"
)
URL_NOT_WRITABLE: Final = Problem(
    "outputs.url_not_writable", "{url}: is a URL, and of those only s3://, gs:// and az:// are written"
)
OBJECT_BACKUP_IMPOSSIBLE: Final = Problem(
    "outputs.object_backup_impossible",
    "{path}: an object gets no copy beside it when it is replaced; turn on the versions of its bucket, and "
    "give `backup=False`",
)
OPTION_NEEDS_CSV: Final = Problem(
    "outputs.option_needs_csv", "{path}: {option} is for CSV files, this output is {format}"
)
OPTION_NEEDS_WORKBOOK: Final = Problem(
    "outputs.option_needs_workbook", "{path}: {option} is for workbooks, this output is {format}"
)
INPUT_OPEN: Final = Problem(
    "alert.input_open",
    "{path} seems to be open ({lock} lies beside it): what is not saved there was not read; save it and run again",
)
OUTPUT_OPEN: Final = Problem(
    "alert.output_open",
    "{path} seems to be open ({lock} lies beside it): close it without saving, or the old one replaces this run's",
)
COLUMN_DOUBLED: Final = Problem(
    "alert.column_doubled", "the file has a column {theirs!r} of its own; it is kept, ours is {ours!r}"
)


@dataclass(frozen=True, slots=True)
class Target:
    """Path and format of an output."""

    path: Path
    format: Format
    encoding: str | None
    backup: bool
    summary: bool
    streamed: bool = False  # to be sent to standard output
    private: bool = False  # a temporary file of the run

    @property
    def name(self) -> str:
        return str(detect.STREAM if self.streamed else self.path)


def choose_target(path: Path, format: Format, output: str | Path | None, in_place: bool, **options: Any) -> Target:
    """Choose path and format of an output; raise :class:`UsageError` or :class:`OutputError` if impossible."""
    if in_place:
        if output is not None:
            raise UsageError(IN_PLACE_AND_OUTPUT)
        detect.refuse_in_place(path, format)
        if options["backup"] and is_remote(path):
            raise UsageError(OBJECT_BACKUP_IMPOSSIBLE, path=path)
        target = Target(path, format, **options)
    else:
        if not options["backup"]:
            raise UsageError(BACKUP_NOT_NEEDED)
        place = as_path(output) if output is not None else path_on_disk(detect.default_output(path, format))
        if not is_remote(place) and (url := url_of(place)) and not place.parent.is_dir():
            raise OutputError(URL_NOT_WRITABLE, url=url)
        target = Target(place, detect.output_format(place), **options | {"backup": False})
    name = target.format.name
    if target.encoding is not None and not target.format.takes("encoding"):
        raise UsageError(OPTION_NEEDS_CSV, path=target.path, option=Option("output_encoding"), format=name)
    if target.summary and not target.format.can.summary:
        raise UsageError(OPTION_NEEDS_WORKBOOK, path=target.path, option=Option("summary"), format=name)
    return target


def choose_stream(path: Path, format: Format, folder: Path, **options: Any) -> Target:
    """Choose a file in ``folder`` to be sent to standard output in the input's format, as :func:`choose_target`."""
    target = choose_target(
        path, format, folder / detect.default_output(detect.INPUT_NAME, format).name, in_place=False, **options
    )
    detect.check_terminal(target.format)
    return replace(target, streamed=True, private=True)


def lay_out_columns(
    headers: Sequence[str],
    prefix: str,
    ours: Mapping[str, int],
    kept: Collection[int],
    names: Sequence[str] = ADDED_COLUMNS,
    lang: Lang = "en",
) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    """Return (column, header) of each output column, first those at the input's positions ``kept``; and warnings."""
    # Columns of an earlier enrichment or labelling (``ours``: contract name → position) are replaced in place. If a
    # user's column has our name, upper or lower case, ours is called ``<name>_bv``, then ``<name>_bv2`` and so on.
    replaced = {place: name for name, place in ours.items()}
    columns = [(replaced.get(place, f"c{place}"), header) for place, header in enumerate(headers) if place in kept]
    taken = {header.casefold() for _, header in columns}  # Excel tables and SQL take `Grade` and `grade` for one
    warnings = []
    for name in names:
        if name in ours:
            continue
        wanted = f"{prefix}{FILE_HEADERS[lang] if name == FILE else HEADERS[lang][name]}"
        header, again = wanted, 1
        while header.casefold() in taken:
            header, again = f"{wanted}_bv{again if again > 1 else ''}", again + 1
        if again > 1:
            both = {"theirs": wanted, "ours": header}
            # an alert in an earlier output, where the user's column may be mistaken for ours
            warnings.append(Notice(COLUMN_DOUBLED, **both) if ours else Phrase(COLUMN_DOUBLED.text, **both))
        columns.append((name, header))
    return tuple(columns), tuple(warnings)


def refuse_wide(table: Table, target: Target, prefix: str) -> None:
    """Refuse an output with too many columns for its format, before columns are chosen (which takes seconds)."""
    if target.format.can.max_columns is not None:
        ours = find_earlier_columns(table, prefix).nine
        target.format.refuse_wide(len(table.headers) + len(set(ADDED_COLUMNS) - ours.keys()))


def find_losses(
    table: Table,
    target: Target,
    in_place: bool,
    layout: Sequence[tuple[str, str]],
    *,
    leaves_out: bool,
    header_unsure: bool,
) -> tuple[str, ...]:
    """Return warnings about parts of the input that the output lacks or changes."""
    headers = tuple(header for _, header in layout)
    planned = Planned(target.path, headers, leaves_out=leaves_out, in_place=in_place, summary=target.summary)
    with detect.reading(table):
        changes = target.format.verbs.check(table, planned)
    return (*_losses_above(table, target, leaves_out=leaves_out, header_unsure=header_unsure), *changes)


def _losses_above(table: Table, target: Target, *, leaves_out: bool, header_unsure: bool) -> Iterator[str]:
    anew = leaves_out or table.source is None  # of .xls and the like, and of a sheet without a header
    left_behind = table.format.can.left_behind
    rebuilt = bool(left_behind) and anew and target.format.can.titles
    if rebuilt:
        yield Phrase(left_behind)
    kept = rebuilt or table.format is target.format
    if header_unsure and table.above and kept:
        yield Phrase(
            "{count:,} line above the header's last: kept as they are, and not verified",
            "{count:,} lines above the header's last: kept as they are, and not verified",
            count=table.above,
        )
    elif rebuilt or not kept:
        yield from _note_lost_lines(table, titles=not rebuilt)


def _note_lost_lines(table: Table, *, titles: bool) -> Iterator[str]:
    joined = table.above - table.titles + 1
    if joined > 1:
        yield Phrase("the {count} lines of the header are one line in the output", count=joined)
    if table.titles and titles:
        own = Phrase("a workbook") if table.format.can.left_behind else Phrase("the input's own format")
        yield Phrase(
            "{count:,} title line above the header not in the output; in {again} it has all lines",
            "{count:,} title lines above the header not in the output; in {again} it has all lines",
            count=table.titles,
            again=own,
        )


def open_elsewhere(source: Path | None, target: Target) -> Iterator[Notice]:
    """Yield alerts if a lock file shows that input or output is open in Excel or LibreOffice."""
    if source is not None and (lock := _lock_beside(source)):
        yield Notice(INPUT_OPEN, path=source, lock=lock.name)
    if not target.private and target.path != source and (lock := _lock_beside(target.path)):
        yield Notice(OUTPUT_OPEN, path=target.path, lock=lock.name)


def _lock_beside(path: Path) -> Path | None:
    if is_remote(path):
        return None
    locks = (path.with_name(f"~${path.name}"), path.with_name(f".~lock.{path.name}#"))
    return next((lock for lock in locks if os.path.lexists(lock)), None)


def keep_apart(read: Mapping[str, Path | None], written: Mapping[str, Path | None], in_place: bool) -> None:
    """Refuse a file that is both read and written, or written twice; only ``in_place`` allows input as output."""
    others = dict(read)
    for use, path in written.items():
        for other, taken in others.items():
            allowed = in_place and (use, other) == ("output", "input")
            if path is not None and taken is not None and not allowed and same_file(path, taken):
                names = {"path": path, "other": _use(other), "use": _use(use)}
                text = gettext("{path}: is the {other} itself; give another {use}", **names)
                if (use, other) == ("output", "input"):
                    text = gettext(
                        "{path}: is the {other} itself; give another {use}, or `in_place=True` to replace it", **names
                    )
                raise UsageError(text)
        others[use] = path


_USES: Final = (  # words for uses of files that are translated
    *(gettext_noop("input"), gettext_noop("output"), gettext_noop("manifest"), gettext_noop("registry")),
    *(gettext_noop("statuses"), gettext_noop("gazetteer"), gettext_noop("model"), gettext_noop("ledger")),
    *(gettext_noop("letter list"), gettext_noop("report"), gettext_noop("review"), gettext_noop("status store")),
    gettext_noop("key file"),
)


def _use(name: str) -> str:
    return gettext(name) if name in _USES else name


# `row_id` of the first row with the same number and corrected address; null in all other rows
FIRST: Final = "bv:first"

_PLACE: Final = "place"


def with_duplicates(answers: pl.LazyFrame) -> pl.LazyFrame:
    """Add the column :data:`FIRST` (UInt32), the first row with the same number and address, or null."""
    # this reads the rows and holds 20 bytes per row
    from bansong.history.letters import place_key

    # equal rows have the same number and the same address key, of the corrected address if there is one
    names = answers.collect_schema().names()
    if NUMBER not in names or "address" not in names:
        return answers.with_columns(pl.lit(None, pl.UInt32).alias(FIRST))
    key = place_key(pl.col("address"), pl.col("fixed_address"))
    number = pl.when(pl.col("row_status") != "invalid").then(NUMBER).alias(NUMBER)
    found = answers.select(number, pl.when(key.is_not_null()).then(key.hash()).alias(_PLACE))
    first = find_first_rows(found.collect(engine="streaming"))
    return answers.with_columns(look_up(first).alias(FIRST))


def find_first_rows(found: pl.DataFrame) -> pl.Series:
    """Return for each row the position of the first equal row before it, or null."""
    often = find_repeated(found[NUMBER], 2)
    alike = [NUMBER, _PLACE]
    some = found.with_row_index(ROW_ID).filter(pl.col(NUMBER).is_in(often.implode())).drop_nulls()
    firsts = some.group_by(alike).agg(pl.col(ROW_ID).min().alias(FIRST), pl.len().alias("rows"))
    again = some.join(firsts.filter(pl.col("rows") > 1), on=alike).filter(pl.col(ROW_ID) != pl.col(FIRST))
    nothing = pl.repeat(None, found.height, dtype=pl.UInt32, eager=True)
    return nothing.scatter(again[ROW_ID], again[FIRST])


_SOURCES: Final = {"match_level": MATCH_LEVEL, "district_code": DISTRICT_CODE}
_BUILDING_CODE: Final = "building_code"
_NO_CODES: Final = gettext_noop(
    "building_code: empty, since {path} holds no numbers of buildings; build the gazetteer again from rnaddrkor_*.txt"
)


def checked_extra_columns(asked: Sequence[str]) -> tuple[str, ...]:
    """Return the known extra columns in their order; raise :class:`UsageError` for unknown ones."""
    given = [part.strip() for one in ([asked] if isinstance(asked, str) else asked) for part in one.split(",")]
    if unknown := [name for name in given if name not in EXTRA_COLUMNS]:
        known = ", ".join(EXTRA_COLUMNS)
        text = gettext("`extra_columns=`: there is no column {name!r}; there are {known}", name=unknown[0], known=known)
        raise UsageError(text)
    return tuple(name for name in EXTRA_COLUMNS if name in given)


def with_extra_columns(answers: pl.LazyFrame, names: Sequence[str], gazetteer: Gazetteer | None) -> pl.LazyFrame:
    """Add the extra columns ``names``; columns without a source are null."""
    there = answers.collect_schema().names()
    nothing = pl.lit(None, pl.String)
    columns = {name: pl.col(source) if source in there else nothing for name, source in _SOURCES.items()}
    found = gazetteer is not None and PLACE in there
    columns[_BUILDING_CODE] = building_code(gazetteer, pl.col(PLACE)) if gazetteer and found else nothing
    columns["duplicate_of"] = (pl.col(FIRST) + 1) if FIRST in there else pl.lit(None, pl.UInt32)
    return answers.with_columns(columns[name].alias(name) for name in names)


def unknown_extra_columns(names: Sequence[str], gazetteer: Gazetteer | None) -> tuple[str, ...]:
    """Return a warning about extra columns that stay empty, without a gazetteer or with an old one."""
    empty = [name for name in names if name in (*_SOURCES, _BUILDING_CODE)]
    if gazetteer is not None:
        lacks_codes = _BUILDING_CODE in empty and not gazetteer.has_building_codes
        return (Phrase(_NO_CODES, path=gazetteer.path),) if lacks_codes else ()
    if not empty:
        return ()
    return (Phrase("{names}: empty, since no address is looked up; give `gazetteer=`", names=", ".join(empty)),)


COLUMN_MISSING: Final = Problem(
    "labels.column_missing", "{name}: the labels have no column {missing!r}; they need {names}"
)
ROW_LABELLED_TWICE: Final = Problem(
    "labels.row_labelled_twice", "{name}: row {twice} has several labels; decide which is right"
)
ROW_BEYOND_FILE: Final = Problem(
    "labels.row_beyond_file",
    "{name}: a label is about row {beyond}, the file has {rows} (from 0); give the file that was mailed",
)

log = logging.getLogger(__name__)

LABEL_DTYPES: Final[dict[str, pl.DataType]] = {
    ROW_ID: pl.UInt32(),
    "bounced": pl.Boolean(),
    "bounce_reason": pl.String(),
    "bounced_at": pl.Date(),
}


def write_labels(
    table: Table,
    output: Path,
    labels: pl.DataFrame,
    *,
    output_encoding: str | None = None,
    prefix: str = "",
    warned: Callable[[str], None],
) -> None:
    """Write an enriched file with the outcomes of its letters in three more columns; publish nothing after an error."""
    # ``labels``: LABEL_DTYPES, at most one a row; other rows get nulls. Columns of an earlier labelling are replaced in
    # place. ``output`` may be the file itself. ``prefix``: that of the enrichment; ``warned`` gets each warning.
    with detect.reading(table):
        labels = check_labels(labels, table)
        target, over = label_target(table, output, output_encoding)
        earlier = find_earlier_columns(table, prefix)
        korean = KOREAN_ROLES["letter_id"] in table.headers  # of a list of letters
        lang = language_of_columns(table.headers, earlier.nine) or ("ko" if korean else "en")
        every = range(len(table.headers))
        layout, notes = lay_out_columns(table.headers, prefix, earlier.labels, every, LABEL_COLUMNS, lang)
        for note in (*notes, *find_losses(table, target, over, layout, leaves_out=False, header_unsure=False)):
            warned(note)
        joined = table.frame.with_row_index(ROW_ID).join(labels.lazy(), on=ROW_ID, how="left", maintain_order="left")
        rows = accounting.number_rows(joined)
        with ExitStack() as backups, publish_file(output) as temporary:
            tally = rows.select(*accounting.order_counts(), pl.col("bounced").count().alias("labelled"))
            result = Enriched(table, rows, layout, tally, warn=warned)
            counts, count_written = detect.write_table(result, temporary, target.format, target.encoding)
            found = counts.row(0, named=True)
            lost = labels["bounced"].count() - found["labelled"]
            missing = Phrase("{count:,} label", "{count:,} labels", count=lost)
            faults = [Phrase("in no row: {labels}", labels=missing)] if lost else []
            accounting.check_rows(
                table.count(), found["rows"], count_written(), *faults, in_order=bool(found["in_order"])
            )
            foreign = find_foreign({output: temporary}, extends=over)
            for path in [] if over else foreign:
                warned(kept_alert(path, backups.enter_context(backed_up(path, path))))
    log.info("%s: %d of %d rows have a label", output, found["labelled"], found["rows"])


def check_labels(labels: pl.DataFrame, table: Table) -> pl.DataFrame:
    """Return the labels in their dtypes; raise :class:`LabelError` unless each belongs to one row of the table."""
    if missing := [name for name in LABEL_DTYPES if name not in labels.columns]:
        raise LabelError(COLUMN_MISSING, name=table.name, missing=missing[0], names=", ".join(LABEL_DTYPES))
    labels = labels.select(pl.col(name).cast(dtype) for name, dtype in LABEL_DTYPES.items())
    twice = labels.filter(pl.col(ROW_ID).is_duplicated())
    if not twice.is_empty():
        raise LabelError(ROW_LABELLED_TWICE, name=table.name, twice=twice[ROW_ID][0])
    rows = table.count()
    beyond = labels.filter(pl.col(ROW_ID).is_null() | (pl.col(ROW_ID) >= rows))
    if not beyond.is_empty():
        raise LabelError(ROW_BEYOND_FILE, name=table.name, beyond=beyond[ROW_ID][0], rows=count_rows(rows))
    return labels


def label_target(table: Table, output: Path, encoding: str | None = None) -> tuple[Target, bool]:
    """Return the output for labelled rows, and whether it replaces the table's file."""
    assert table.path is not None  # noqa: S101 - a mailing is a file
    over = same_file(table.path, output)
    other = None if over else output
    return choose_target(table.path, table.format, other, over, encoding=encoding, backup=True, summary=False), over
