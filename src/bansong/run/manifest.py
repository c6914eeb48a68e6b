"""Write and find manifests of runs; open the enriched file of a run."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import polars as pl

from bansong.base import business_number
from bansong.base.errors import ColumnError, LabelError, OutputError, Problem, UsageError
from bansong.base.files import as_path, create_private, describe_given, is_remote, make_folders, state_directory
from bansong.base.messages import Option, Phrase, count_rows, describe_os_error, gettext_noop, gettext_of
from bansong.base.options import ENGINE_KINDS, ReadOptions
from bansong.base.publish import is_foreign, record_of_name, same_file
from bansong.base.remote import fetch_file
from bansong.base.schema import ADDED_COLUMNS, HEADERS, REASON_SEPARATOR, RECORD_COLUMNS, Choice, code_expr
from bansong.engine.records import DIGITS
from bansong.engine.text import without_space
from bansong.history.letters import list_columns
from bansong.run.accounting import DIGEST
from bansong.run.report import Report
from bansong.tables.detect import FILE_OPTIONS, open_table, reading
from bansong.tables.earlier_columns import EarlierColumns, find_earlier_columns
from bansong.tables.headers import level_of
from bansong.tables.nested import choose_nested, unfold
from bansong.tables.roles import role_cell
from bansong.tables.table import AS_FOUND, Table

FOLDER_UNMAKEABLE: Final = Problem(
    "manifest.folder_unmakeable", "{folder}: cannot be made for the run's manifest: {reason}; give `manifest='PATH'`"
)
FILE_UNWRITABLE: Final = Problem("manifest.file_unwritable", "{path}: cannot be written: {reason}")


def default_manifest(run_id: str) -> Path:
    """Return the path of a run's manifest in the state directory; create the folder."""
    path = manifest_of(run_id)
    try:
        make_folders(path.parent)
    except OSError as error:
        raise OutputError(FOLDER_UNMAKEABLE, folder=path.parent, reason=describe_os_error(error)) from error
    return path


def record_of(report: Report) -> dict[str, object]:
    """Return the manifest of a run over one table."""
    return report.as_dict() | {"inputs": [*report.merged] or [{"path": report.input, "sha256": report.input_sha256}]}


def write_manifest(record: Mapping[str, object], path: Path) -> None:
    """Write the record of a run as JSON; raise :class:`OutputError`."""
    try:
        text = json.dumps(record, ensure_ascii=False, indent=2) + "\n"
        path.write_text(text, encoding="utf-8", errors="backslashreplace")  # the name of a file may be no valid text
    except OSError as error:
        raise OutputError(FILE_UNWRITABLE, path=record["manifest"], reason=describe_os_error(error)) from error


# Digests of what was written show a later run which cells people changed.
DECIDED: Final = "decided:"  # prefix of Boolean columns: whether people decided on the action, or the address, of a row
_MOST_ROWS: Final = 500_000  # people edit no larger lists by hand; a million take 80 MB more
_RECORDS_KEPT: Final = 8  # of an output, as runs that fail leave one, too
_BYTES_KEPT: Final = 1 << 29  # of all
_MADE_BY: Final = f"{pl.__version__} 2"  # hashes differ from release to release; 2: each includes the row's


def row_digests(names: Collection[str]) -> dict[str, pl.Expr]:
    """Return digests (UInt64) of a row's number, name and address; of its action, corrected address and postal code."""

    def text(name: str) -> pl.Expr:
        return (pl.col(name).cast(pl.String) if name in names else pl.lit("")).fill_null("").alias(name)

    number = pl.coalesce(DIGITS, text("b_no")).alias("b_no") if DIGITS in names else text("b_no")
    row = pl.struct(number, *(without_space(text(name)) for name in ("name", "address"))).hash()
    found = {  # each with the row's, else whoever hashes all addresses there are could read them back
        "row": row,
        "action": pl.struct(row.alias("row"), text("action")).hash(),
        "fixed_address": pl.struct(row.alias("row"), text("fixed_zipcode"), text("fixed_address")).hash(),
        "address": pl.struct(row.alias("row"), text("fixed_address")).hash(),  # these two also of what people decided
        "zipcode": pl.struct(row.alias("row"), text("fixed_zipcode")).hash(),
    }
    for name in found:
        if f"{DECIDED}{name}" in names:  # differs from whatever we write
            found[name] = pl.when(f"{DECIDED}{name}").then(pl.lit(0, pl.UInt64)).otherwise(found[name])
    return found


def with_digests(answers: pl.LazyFrame, rows: int) -> tuple[pl.LazyFrame, list[pl.Expr]]:
    """Add the digests of rows, unless they are too many to be edited; return aggregations for :func:`remember_rows`."""
    found = row_digests(answers.collect_schema().names()) if rows <= _MOST_ROWS else {}
    digests = {f"{DIGEST}{name}": digest for name, digest in found.items()}
    return answers.with_columns(**digests), [pl.col(name).implode() for name in digests]


def remember_rows(
    tally: pl.DataFrame, output: Path | None, headers: Sequence[str], *, decided: bool
) -> Mapping[str, Any]:
    """Record the digests of a run's tally in the state directory; return the tally's other figures."""
    # ``headers``: without those that people added; ``decided``: the output holds what people wrote
    digests = tally.select(f"^{DIGEST}.*$")
    if digests.width and output is not None:
        name, folder = record_of_name(output), os.path.dirname(os.path.realpath(output))  # noqa: PTH120
        place = f"{name.name}.{hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]}"
        record = name.with_name(f"{place}.{secrets.token_hex(4)}{'.decided' if decided else ''}.parquet")
        # without a record, the next run says that it has none; polars tells in its own errors of a full disk
        with suppress(OSError, pl.exceptions.PolarsError):
            make_folders(record.parent)
            os.close(create_private(record))
            about = {"headers": json.dumps(headers), "made_by": _MADE_BY}
            rows = digests.explode(digests.columns).rename(lambda name: name.removeprefix(DIGEST))
            rows.write_parquet(record, compression="lz4", metadata=about)
            all_, size = records_of(None), 0
            for one in all_:
                size += one.stat().st_size
                if size > _BYTES_KEPT:
                    one.unlink()
            for one in [one for one in all_ if one.name.startswith(place)][_RECORDS_KEPT:]:
                one.unlink(missing_ok=True)
    return tally.drop(digests.columns).row(0, named=True)


def records_of(output: Path | None) -> list[Path]:
    """Return the records of all outputs with this file name, in whatever folder; without one, all. Newest first."""
    name, found = record_of_name(output).name if output else "", list[tuple[int, Path]]()
    for path in (state_directory() / "written").glob(f"{name}*.parquet"):
        with suppress(FileNotFoundError):  # another run removes old ones
            found.append((path.stat().st_mtime_ns, path))
    return [path for _, path in sorted(found, reverse=True)]


def agreements(record: pl.DataFrame, prefix: str) -> tuple[pl.Expr, dict[str, pl.Expr]]:
    """Return whether rows with digests (after ``prefix``) are in a record; and which of their cells are as recorded."""
    same = {name: pl.col(f"{prefix}{name}").is_in(record[name].implode()) for name in record.columns}
    return same.pop("row"), same


def find_record(rows: pl.DataFrame, output: Path | None, prefix: str) -> tuple[pl.DataFrame | None, set[str]]:
    """Return the record of an output, or of any, that agrees with most cells of these rows; and the headers then."""
    best, headers, most = None, set[str](), 0
    for path in records_of(output):
        try:
            about, record = pl.read_parquet_metadata(path), pl.read_parquet(path)
        except (OSError, pl.exceptions.PolarsError):  # of a killed run
            continue
        known, same = agreements(record, prefix)
        there, *cells = rows.select(known.sum(), same["action"].sum(), same["fixed_address"].sum()).row(0)
        if about["made_by"] == _MADE_BY and 2 * there >= rows.height and there + sum(cells) > most:
            best, headers, most = record, {*json.loads(about["headers"])}, there + sum(cells)
    return best, headers


def may_hold_decisions(output: Path, recorded: Path) -> bool:
    """Whether people changed an output, ``recorded`` under a name, or an earlier run kept in it what they changed."""
    # the newest record may be of a run that failed, or of an output with this name in another folder
    if is_remote(output) or not output.is_file():
        return False
    return is_foreign(output) or any(record.match("*.decided.parquet") for record in records_of(recorded))


RUN_AMBIGUOUS: Final = Problem(
    "mailings.run_ambiguous",
    "run {run} wrote {count:,} tables; give the id of one as `run=`, or its file as `file=`: {parts}",
)
MANIFEST_MISSING: Final = Problem(
    "mailings.manifest_missing",
    "{parameter}: there is no manifest {manifest}; give `run=` the path of the manifest, or `file=` "
    "with the enriched file",
)
MANIFEST_FOREIGN: Final = Problem(
    "mailings.manifest_foreign",
    "{manifest}: is not the manifest of a run of enrich; give `file=` with the enriched file",
)
RUN_OUTPUT_GONE: Final = Problem(
    "mailings.run_output_gone",
    "run {run_id} wrote {output}, which is not there any more; if it was moved, give it with `file=` "
    "as well: {parameter} `file='PATH'`",
)
RUN_UNKNOWN: Final = Problem(
    "mailings.run_unknown",
    "{parameter}: is no run's id, nor the path of a manifest; the report of `enrich` ends with it",
)

Alternatives = tuple[tuple[str, ...], ...]  # headers of a role: alternatives, each of columns that are joined
_SHOWN: Final = 5
_RUN_ID: Final = re.compile(r"[0-9A-Za-z-]+")


@dataclass(frozen=True, slots=True)
class Enrichment:
    """A table of an enrichment run, read from the manifest; ``id`` is unique among the run's tables."""

    id: str
    run_id: str
    input: str
    output: str
    sheet: str | None
    engine: str
    model: str
    rows: int
    started: datetime
    headers: dict[str, Alternatives]


def is_manifest(path: Path) -> bool:
    """Return whether a file is the manifest of a run."""
    return _may_be_manifest(path) and bool(_read_manifest(path))


def _may_be_manifest(path: Path) -> bool:
    return path.suffix == ".json" and (is_remote(path) or path.is_file())


def manifest_of(run_id: str) -> Path:
    """Return the default path of a run's manifest."""
    return state_directory() / "runs" / f"{run_id}.json"


def find_run(run: str | Path, file: Path | None) -> Enrichment:
    """Find a run's table by id or manifest of the run; of several tables, the one that was written to ``file``."""
    manifest, part = as_path(run), None
    if not _may_be_manifest(manifest):
        if not _RUN_ID.fullmatch(str(run)):
            raise LabelError(RUN_UNKNOWN, parameter=Option("run", describe_given(run)))
        manifest = manifest_of(str(run))
        whole, _, place = str(run).rpartition("-")
        if not manifest.is_file() and place.isdecimal() and manifest_of(whole).is_file():
            manifest, part = manifest_of(whole), str(run)
    if not _may_be_manifest(manifest):
        raise LabelError(MANIFEST_MISSING, parameter=Option("run", str(run)), manifest=manifest)
    found = _read_manifest(manifest)
    if not found:
        raise LabelError(MANIFEST_FOREIGN, manifest=manifest)
    meant = [one for one in found if part in (None, one.id)]
    if file is not None and len(meant) > 1:
        meant = [one for one in meant if same_file(as_path(one.output), file)]
    if len(meant) == 1:
        return meant[0]
    parts = ", ".join(f"{one.id} ({one.output}{f' [{one.sheet}]' if one.sheet else ''})" for one in found[:_SHOWN])
    parts = f"{parts}, …" if len(found) > _SHOWN else parts
    raise LabelError(RUN_AMBIGUOUS, run=found[0].run_id, count=len(found), parts=parts)


def _read_manifest(path: Path) -> list[Enrichment]:
    try:
        with fetch_file(path) as data:
            found: dict[str, Any] = json.loads(data.path.read_text(encoding="utf-8"))
        return [_enrichment_of(one) for one in found.get("parts", [found])]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []


def _enrichment_of(found: Mapping[str, Any]) -> Enrichment:
    return Enrichment(
        id=str(found.get("id", found["run_id"])),
        run_id=str(found["run_id"]),
        input=str(found["input"]),
        output=str(found["output"]),
        sheet=found.get("sheet"),
        engine=str(found["engine"]),
        model=str(found["versions"]["model"]),
        rows=int(found["rows"]),
        started=datetime.fromisoformat(found["started"]),
        headers={role: _headers_of(choice) for role, choice in found["columns"].items()},
    )


def last_runs(source: str, *, before: str | None = None) -> Iterator[Enrichment]:
    """Yield the runs over an input, newest first, whose output is still there and not that of a later run."""
    # ``before``: id of a run; only older runs are yielded
    replaced, manifests = set[str](), _manifests()
    ids = [manifest.stem for manifest in manifests]
    if before in ids:
        newer = ids[: ids.index(before) + 1]
    else:  # not written yet: the run is under way
        newer = [run_id for run_id in ids if before and _second(run_id) > _second(before)]
    for manifest in manifests:
        for one in _read_manifest(manifest):
            is_earlier = manifest.stem not in newer
            if is_earlier and one.input == source and one.output not in replaced and Path(one.output).is_file():
                yield one
            replaced.add(one.output)


def output_of(by: Enrichment) -> Path:
    """Return the output of a run; raise :class:`LabelError` if it is gone."""
    path = as_path(by.output)
    if not is_remote(path) and not path.is_file():
        raise LabelError(RUN_OUTPUT_GONE, run_id=by.run_id, output=by.output, parameter=Option("run", by.run_id))
    return path


def find_writer(path: Path, rows: int, name: str) -> tuple[Enrichment | None, tuple[str, ...]]:
    """Find in the manifests the last run that wrote a table; without one, return a note on what is unknown."""
    for found in (one for manifest in _manifests() for one in _read_manifest(manifest)):
        if not same_file(Path(found.output), path) or (found.sheet and not name.endswith(f"[{found.sheet}]")):
            continue
        if found.rows == rows:
            return found, ()
        note = gettext_of(
            found,
            "{path} has {rows}, run {run_id} wrote {found_rows:,}: it is taken for a file of its own, and which "
            "model answered is not known",
            path=path,
            rows=count_rows(rows),
            found_rows=found.rows,
        )
        return None, (note,)
    note = Phrase("no run is known that wrote {path}: which model answered is read from the reasons alone", path=path)
    return None, (note,)


def _manifests() -> list[Path]:
    # the newest first; within a second by modification time, since the rest of an id is random
    folder = state_directory() / "runs"
    found = folder.glob("*.json") if folder.is_dir() else ()
    return sorted(found, key=lambda path: (_second(path.stem), path.stat().st_mtime_ns), reverse=True)


def _second(run_id: str) -> str:
    return run_id.partition("-")[0]


def _headers_of(choice: Mapping[str, Any]) -> Alternatives:
    own = tuple(str(part["header"]) for part in (choice, *choice.get("joined", ())))
    return (own, *(one for other in choice.get("otherwise", ()) for one in _headers_of(other)))


ADDED_COLUMNS_MISSING: Final = Problem(
    "mailings.added_columns_missing",
    "{name}: has not the nine columns ({first_column} … {last_column}) that enrichment adds; "
    "give the file that `bansong enrich` wrote, with all of them",
)
MAILING_NOT_GIVEN: Final = Problem(
    "mailings.mailing_not_given", "say which mailing the outcomes are of: `run='ID'`, or `file=` with the enriched file"
)
ROW_COUNT_DIFFERS: Final = Problem(
    "mailings.row_count_differs",
    "{path}: has {rows}, run {run_id} wrote {enriched_rows:,}; give the file as it was written",
)

_LIST_OF_LETTERS: Final = gettext_noop(
    "{path}: is a list of letters: without probabilities nothing is learned, and without business numbers no later run "
    "knows what came back; for both, record what `output=` writes once more, with the enriched file as `file=`"
)

LETTER_SCHEMA: Final = {  # rows of an enriched file; `b_no` is ten digits, `reasons` one text
    "row_id": pl.UInt32,
    "b_no": pl.String,
    "address": pl.String,
    "fixed_address": pl.String,
    "bounce_prob": pl.Float64,
    "grade": pl.String,
    "action": pl.String,
    "reasons": pl.String,
}
_IDENTITY: Final = ("b_no", "address", "bounce_prob", "grade", "action", "reasons")


@dataclass(frozen=True, slots=True)
class OpenMailing:
    """An open enriched file, and the run that wrote it."""

    id: str  # id of the run, numbered if it has several tables; if unknown, a hash of the answers
    table: Table
    prefix: str
    letters: pl.LazyFrame  # columns of LETTER_SCHEMA
    rows: int
    columns: Mapping[str, str]
    by: Enrichment | None  # the run that wrote it
    notes: tuple[str, ...]
    key: Choice | None = None  # the column of the customer's key

    @property
    def path(self) -> Path:
        assert self.table.path is not None  # noqa: S101 - it was opened by its path
        return self.table.path

    @property
    def name(self) -> str:
        return self.table.name

    @property
    def run_id(self) -> str | None:
        return self.by.run_id if self.by else None

    @property
    def engine(self) -> str | None:
        return self.by.engine if self.by else None

    @property
    def model(self) -> str | None:
        return self.by.model if self.by and not self.is_bought else None

    @property
    def is_bought(self) -> bool:
        """Whether all answers in the file come from the service."""
        kind = ENGINE_KINDS.get(self.engine or "")
        return kind is not None and not kind.answers_locally

    @property
    def is_address_list(self) -> bool:
        """Whether the file has no business numbers, so that outcomes need a ``row_id``."""
        headers = {*self.columns, *(self.by.headers if self.by else ())}
        return "b_no" not in headers and "address" in self.columns

    @property
    def has_jobs(self) -> bool:
        kind = ENGINE_KINDS.get(self.engine or "")
        return kind is not None and kind.has_jobs


@contextmanager
def open_mailing(
    run: str | Path | None,
    file: str | Path | None,
    read: ReadOptions = AS_FOUND,
    *,
    besides: Sequence[str] = (),
    key: str | None = None,
) -> Iterator[OpenMailing]:
    """Open an enriched file, given as ``file`` or by its ``run`` (id or path of a manifest)."""
    # ``besides``: further columns for the frame of letters; with letter_id, ``file`` may be a list of letters.
    # ``key``: header of the column with the customer's key, by default found
    given = as_path(file) if file is not None else None
    by = find_run(run, given) if run is not None else None
    path = output_of(by) if given is None and by is not None else given
    if path is None:
        raise UsageError(MAILING_NOT_GIVEN)
    read = replace(read, sheet=by.sheet) if read.sheet is None and by is not None else read
    with open_table(path, read, options=FILE_OPTIONS) as table:
        prefix, ours = _find_our_columns(table, or_list="letter_id" in besides)
        with reading(table):
            rows = table.count()
        table, notes = replace(table, rows=rows), tuple[str, ...]()
        if by is not None and rows != by.rows:
            found = {"rows": count_rows(rows), "run_id": by.run_id, "enriched_rows": by.rows}
            raise LabelError(ROW_COUNT_DIFFERS, path=path, **found)
        if is_list := not ours.nine:
            notes = (Phrase(_LIST_OF_LETTERS, path=path),)
        elif by is None:
            by, notes = find_writer(path, rows, table.name)
        unfolded, columns = _record_columns(table, ours.places, by)
        taken = {*ours.places, *(part.column for choice in columns.values() for part in choice.parts)}
        naming = list_columns(unfolded, taken, key) if "key" in besides else {}
        recipient = {"name": naming["recipient"]} if "recipient" in naming else {}
        letters = _letters(unfolded, ours.nine, naming | recipient | columns, besides)
        letters = letters.with_columns(pl.lit("send").alias("action")) if is_list else letters
        with reading(table):
            id_ = by.id if by else _content_id(letters)
        places = {role: choice.spell(lambda part: f"#{part.column + 1}") for role, choice in columns.items()}
        try:
            yield OpenMailing(id_, table, prefix, letters, rows, places, by, notes, naming.get("key"))
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException):  # PanicException is no Exception
            with reading(table):  # name the file only if reading it alone fails
                letters.select(pl.all().null_count()).collect(engine="streaming")
            raise


def _find_our_columns(table: Table, *, or_list: bool) -> tuple[str, EarlierColumns]:
    # ``or_list``: a list of letters has none
    ends = [re.sub(r"_bv[0-9]*$", "", header) for header in table.headers]
    firsts = [headers[ADDED_COLUMNS[0]] for headers in HEADERS.values()]
    prefixes = {end.removesuffix(first) for end in ends for first in firsts if end.endswith(first)}
    for prefix in sorted(prefixes, key=len):
        with reading(table):
            ours = find_earlier_columns(table, prefix)
        if ours.is_whole:
            return prefix, ours
    if or_list and any(level_of("letter_id", header) for header in table.headers):
        return "", EarlierColumns()
    first, *_, last = ADDED_COLUMNS
    raise LabelError(ADDED_COLUMNS_MISSING, name=table.name, first_column=first, last_column=last)


def _letters(
    table: Table, ours: Mapping[str, int], chosen: Mapping[str, Choice], besides: Sequence[str] = ()
) -> pl.LazyFrame:
    ids, schema = table.ids, table.frame.collect_schema()
    places = {name: ids[place] for name, place in ours.items()}
    record = {role: role_cell(table, role, choice) for role, choice in chosen.items()}
    nested = [name for name, dtype in schema.items() if dtype == pl.List(pl.String)]

    def text(role: str) -> pl.Expr:
        if role in record:
            return record[role].cast(pl.String)
        if role not in places:
            return pl.lit(None, pl.String)
        column = pl.col(places[role])
        return column.list.join(REASON_SEPARATOR) if places[role] in nested else code_expr(column.cast(pl.String), role)

    digits = business_number.compact_expr(record["b_no"]) if "b_no" in record else pl.lit(None, pl.String)
    rows = table.frame.with_row_index("row_id").select(
        pl.col("row_id").cast(pl.UInt32),
        digits.alias("b_no"),
        text("address").alias("address"),
        text("fixed_address").alias("fixed_address"),
        text("bounce_prob").cast(pl.Float64, strict=False).alias("bounce_prob"),
        *(pl.when(text(name) != "").then(text(name)).alias(name) for name in ("grade", "action", "reasons")),
        *(text(name).alias(name) for name in besides),
    )
    return rows.select([*LETTER_SCHEMA, *besides])


def _record_columns(table: Table, ours: frozenset[int], by: Enrichment | None) -> tuple[Table, dict[str, Choice]]:
    """Find the columns of number, name and address by the headers that the run chose, where these are unique."""
    headers = unfold(table).headers
    users = [header for place, header in enumerate(headers) if place not in ours]
    known = {role: by.headers[role] for role in RECORD_COLUMNS if by and role in by.headers}
    given: dict[str, str] = {
        role: "|".join("+".join(f"#{headers.index(header) + 1}" for header in parts) for parts in alternatives)
        for role, alternatives in known.items()
        if all(header and users.count(header) == 1 for parts in alternatives for header in parts)
    }
    try:
        with reading(table):
            unfolded, chosen = choose_nested(table, RECORD_COLUMNS, given, ours, address_list=True)
    except ColumnError as error:
        if error.missing != "b_no":
            raise
        return table, {}  # --select left the numbers out: outcomes can still name rows by row_id
    return unfolded, dict(chosen.columns)


class _HashingFile:
    def __init__(self) -> None:
        self.sha256 = hashlib.sha256()

    def write(self, data: bytes) -> int:
        self.sha256.update(data)
        return len(data)

    def flush(self) -> None:
        """Do nothing, as no data is buffered."""


def _content_id(letters: pl.LazyFrame) -> str:
    # equal for equal answers, whatever the format and encoding of the file
    hashed = _HashingFile()
    letters.select(_IDENTITY).sink_csv(hashed, maintain_order=True, engine="streaming")  # type: ignore[call-overload]
    return hashed.sha256.hexdigest()[:16]
