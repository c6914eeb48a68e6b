"""Build a registry from files, fetch one from the tax authority, refresh reference files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal

import polars as pl

from bansong.base.after_fork import refuse_after_fork
from bansong.base.cancel import CancelToken, run_async
from bansong.base.display import Progress, Shown
from bansong.base.errors import AuthenticationError, GazetteerError, Problem, RegistryError, UsageError
from bansong.base.files import sha256_of
from bansong.base.messages import gettext, gettext_noop, gettext_of, ngettext, parameter
from bansong.base.options import ReadOptions, StatusOptions
from bansong.base.publish import publish_file, same_file
from bansong.base.schema import REASON_SEPARATOR, Choice, seoul_day
from bansong.engine.address.gazetteer import Gazetteer
from bansong.engine.overlays import StatusOverlay
from bansong.engine.registry import (
    ATTACHED_MORE,
    FORMAT,
    METADATA_KEY,
    MORE,
    SCHEMA,
    STATUSES,
    Registry,
    observations,
    snapshot,
)
from bansong.engine.risk.reasons import BY_NTS
from bansong.engine.text import day_expr, day_given, parse_json_object
from bansong.reference.address_files import SourceFile, files_below, find_sources, format_counts
from bansong.reference.fetch import StatusFetch, fetch_statuses
from bansong.reference.gazetteer import build_gazetteer
from bansong.reference.status_store import StatusStore
from bansong.tables.columns import choose_columns
from bansong.tables.detect import EXTENSIONS, FORMATS, ONLY_ENCODING, open_table, reading
from bansong.tables.earlier_columns import find_earlier_columns
from bansong.tables.roles import role_cell
from bansong.tables.table import Table

OUTPUT_NOT_PARQUET: Final = Problem(
    "registry.output_not_parquet", "{output}: a registry is a Parquet file; call it .parquet"
)
NO_SOURCE_GIVEN: Final = Problem("registry.no_source_given", "no source was given")
STATUS_COLUMN_MISSING: Final = Problem(
    "registry.status_column_missing",
    "{name}: no column with a status was found; the headers are: {headers}; name it with "
    "`columns={{'status': 'HEADER'}}`",
)
NO_USABLE_ROW: Final = Problem("registry.no_usable_row", "no row of {counts:,} has a usable number and a known status")
FOLDER_WITHOUT_TABLES: Final = Problem(
    "registry.folder_without_tables", "{source}: the folder holds no table; {extensions} are read"
)
OUTPUT_IS_SOURCE: Final = Problem(
    "registry.output_is_source", "{output}: is one of the sources; give the registry a name of its own"
)

ROLES: Final = ("b_no", "status", "since", "opened", "as_of", *MORE)
_UNKNOWN_WORDS_SHOWN: Final = 20
_UNDATED: Final = "undated"
# day of the status in the reasons of an enriched file
_DAY_OF_STATUS: Final = r"\[status [-+][0-9]+\] [^|]*\((?:registry|nts), ([0-9]{4}-[0-9]{2}-[0-9]{2})[,)]"


@dataclass(frozen=True, slots=True)
class RegistryReport(Shown):
    """The report of building a registry: rows read and left out, businesses kept."""

    output: str
    version: str
    sources: tuple[str, ...]
    columns: tuple[Mapping[str, Choice], ...]
    rows: int
    left_out: dict[str, int]  # rows by problem
    unknown_words: dict[str, int]  # unknown words for a status
    duplicates: int
    businesses: int
    by_status: dict[str, int]
    known_besides: dict[str, int]  # businesses with known `taxation`, `merged`, `name`
    strange_words: dict[str, int]  # unknown words for taxation or merging
    newest: date | None  # newest day of a status
    undated: int  # businesses whose status has no day, so that no row is sent because of it

    def as_dict(self) -> dict[str, object]:
        return asdict(self) | {"newest": self.newest.isoformat() if self.newest else None}

    def _describe(self) -> Iterator[tuple[str, str]]:
        counts = gettext("{counts} from {files} file(s)", counts=format(self.rows, ","), files=len(self.sources))
        yield gettext("rows read"), counts
        yield gettext("businesses"), f"{self.businesses:,} ({format_counts(self.by_status)})"
        yield gettext("repeated"), gettext_of(self, "{duplicates:,} older rows of the same number")
        newest = gettext_of(self, "{newest} at the newest") if self.newest else gettext("a day that no source tells")
        yield gettext("statuses of"), newest
        if self.undated:
            remedy = gettext(
                "no ground for sending; {parameter} tells it where you know it", parameter=parameter("as_of")
            )
            undated = ngettext(
                "{count:,} status: {remedy}", "{count:,} statuses: {remedy}", self.undated, remedy=remedy
            )
            yield gettext("without a day"), undated
        if self.known_besides:
            yield gettext("known besides"), format_counts(self.known_besides)
        if self.left_out:
            yield gettext("left out"), format_counts(self.left_out)
        if self.unknown_words:
            yield gettext("unknown words"), format_counts(self.unknown_words)
        if self.strange_words:
            strange = gettext("{counts} (said of taxation or merging)", counts=format_counts(self.strange_words))
            yield gettext("passed over"), strange
        yield gettext("output"), self.output


def build_registry(
    sources: Iterable[str | Path],
    output: str | Path,
    *,
    columns: Mapping[str, str] | None = None,
    as_of: date | str | None = None,
    encoding: str | None = None,
    delimiter: str | None = None,
) -> RegistryReport:
    """Build a registry from files, or folders of files, with a number and a status column.

    It takes any table that :func:`bansong.enrich` reads: lists of statuses, mail-order registry CSVs, enriched files.
    Columns are found from the headers (roles ``b_no``, ``status``, ``since``, ``opened``, ``as_of``, optional
    ``taxation``, ``merged``, ``name``; ``columns`` overrides). A repeated number gets the status of its newest
    ``as_of``, on a tie that of the later row, and the newest taxation and name. Without that column, statuses are of
    the day ``as_of``, by default that of the file's last change (in Korea). In enriched files, the reasons date each
    status, and names are not taken, since they are those of a customer list. Rows without a usable number or a known
    status are left out and counted.

    In folders, hidden files, Excel's lock files and ``output`` are skipped. ``output`` must end in ``.parquet`` and be
    no source. ``encoding`` and ``delimiter``: for CSV files. Raises :class:`RegistryError`,
    :class:`bansong.errors.InputError`, :class:`~bansong.errors.OutputError`, :class:`~bansong.errors.UsageError`.
    """
    refuse_after_fork()
    output, fresh = Path(output), day_given("as_of", as_of)
    check_registry_name(output)
    paths = _files(sources, output)
    with ExitStack() as resources:
        tables = [_open_source(path, encoding, delimiter, resources) for path in paths]
        chosen = [_columns(table, columns) for table in tables]
        parts = [
            _observe_rows(table, choice, _known_on(table, choice, path, fresh))
            for table, choice, path in zip(tables, chosen, paths, strict=True)
        ]
        rows = pl.concat(parts)
        counts = _counts(rows)
        usable = counts.pop("usable")
        if not usable:
            raise RegistryError(NO_USABLE_ROW, counts=counts["rows"])
        said = {role for choice in chosen for role in choice}
        found = snapshot(rows.filter(pl.col("problem").is_null()), said)
        digest = hashlib.sha256(b"".join(bytes.fromhex(sha256_of(path)) for path in paths)).hexdigest()[:8]
        version = f"{counts['newest'] or _UNDATED}-{digest}"
        written = _publish(found, output, version, [path.name for path in paths])
    businesses = sum(written["by_status"].values())
    return RegistryReport(
        output=str(output),
        version=version,
        sources=tuple(map(str, paths)),
        columns=tuple(chosen),
        duplicates=usable - businesses,
        businesses=businesses,
        **counts,
        **written,
    )


def check_registry_name(output: Path) -> None:
    """Raise :class:`UsageError` unless the name of a registry ends in ``.parquet``."""
    if output.suffix.lower() not in FORMATS["parquet"].extensions:
        raise UsageError(OUTPUT_NOT_PARQUET, output=output)


def _publish(found: pl.LazyFrame, output: Path, version: str, sources: Iterable[str]) -> dict[str, Any]:
    """Write a registry without its empty columns; return the fields of the report about businesses."""
    frame = found.collect(engine="streaming")
    known = {name: frame.height - frame[name].null_count() for name in MORE if name in frame}
    frame = frame.drop([name for name, count in known.items() if not count])
    about = {
        "format": FORMAT,
        "version": version,
        "built": datetime.now(UTC).isoformat(timespec="seconds"),
        "sources": list(sources),
        "rows": frame.height,
    }
    with publish_file(output) as temporary:
        frame.write_parquet(temporary, metadata={METADATA_KEY: json.dumps(about, ensure_ascii=False)})
    return {
        "by_status": {status: int((frame["biz_status"] == status).sum()) for status in STATUSES},
        "known_besides": {name: count for name, count in known.items() if count},
        "undated": frame["as_of"].null_count(),
    }


def _open_source(path: Path, encoding: str | None, delimiter: str | None, resources: ExitStack) -> Table:
    format = EXTENSIONS.get(path.suffix.lower())
    if format is None or not format.takes("delimiter"):
        encoding = delimiter = None
    read = ReadOptions(encoding=encoding, delimiter=delimiter)
    table = resources.enter_context(open_table(path, read, options=ONLY_ENCODING))
    resources.enter_context(reading(table))
    return table


def _files(sources: Iterable[str | Path], output: Path) -> list[Path]:
    paths: list[Path] = []
    for source in map(Path, sources):
        if source.is_dir():
            inside = [
                path
                for path in files_below(source)
                if path.suffix.lower() in EXTENSIONS and not same_file(path, output)
            ]
            if not inside:
                raise RegistryError(FOLDER_WITHOUT_TABLES, source=source, extensions=", ".join(EXTENSIONS))
            paths += inside
        elif same_file(source, output):
            raise UsageError(OUTPUT_IS_SOURCE, output=output)
        else:
            paths.append(source)
    if not paths:
        raise RegistryError(NO_SOURCE_GIVEN)
    return paths


def _columns(table: Table, given: Mapping[str, str] | None) -> dict[str, Choice]:
    earlier = find_earlier_columns(table, "")
    ours = earlier.nine
    chosen = choose_columns(table, ROLES, given, earlier.places).columns
    if "biz_status" in ours and "status" not in (given or {}):
        chosen["status"] = Choice(ours["biz_status"], "biz_status", 1.0, "header")
    if ours and "name" not in (given or {}):
        chosen.pop("name", None)  # a name from a customer list, perhaps not the registered one
    if "status" not in chosen:
        raise RegistryError(STATUS_COLUMN_MISSING, name=table.name, headers=", ".join(table.headers))
    return chosen


def _observe_rows(table: Table, chosen: Mapping[str, Choice], as_of: pl.Expr) -> pl.LazyFrame:
    cells = {f"read:{role}": role_cell(table, role, choice) for role, choice in chosen.items()}
    ids = {role: f"read:{role}" for role in chosen}
    return observations(
        table.frame.with_columns(**cells),
        b_no=ids["b_no"],
        status=ids["status"],
        since=ids.get("since"),
        opened=ids.get("opened"),
        as_of=as_of,
        **{role: ids.get(role) for role in MORE},
    )


def _known_on(table: Table, chosen: Mapping[str, Choice], path: Path, as_of: date | None) -> pl.Expr:
    """Return the day of each row's status (Date), as :func:`build_registry` says; null if unknown."""
    ours = find_earlier_columns(table, "").nine
    if "as_of" in chosen:
        day = day_expr(pl.col(table.ids[chosen["as_of"].column]))
    elif ours and "reasons" not in ours:  # without reasons, the statuses of an enriched file have no day
        day = pl.lit(as_of, pl.Date)
    elif ours:
        reasons = pl.col(table.ids[ours["reasons"]])
        if isinstance(table.frame.collect_schema()[table.ids[ours["reasons"]]], pl.List):
            reasons = reasons.list.join(REASON_SEPARATOR, ignore_nulls=True)
        day = reasons.cast(pl.String).str.extract(_DAY_OF_STATUS).str.to_date("%Y-%m-%d", strict=False)
        day = day.fill_null(pl.lit(as_of, pl.Date))
    else:
        day = pl.lit(as_of or seoul_day(path.stat().st_mtime))
    tomorrow = datetime.now(UTC).date() + timedelta(days=1)  # a later day is wrong: time zones differ by less
    return pl.when(day.is_between(date.min, tomorrow)).then(day)


def _counts(rows: pl.LazyFrame) -> dict[str, Any]:
    usable = pl.col("problem").is_null()
    totals, problems, words, strange = pl.collect_all(
        [
            rows.select(pl.len(), usable.sum().alias("usable"), pl.col("as_of").filter(usable).max()),
            rows.filter(~usable).group_by("problem").len().sort("len", "problem", descending=[True, False]),
            _words(rows.filter(pl.col("problem") == "unknown_status"), "word"),
            _words(rows.filter(usable & pl.col("strange").is_not_null()), "strange"),
        ],
        engine="streaming",
    )
    total, good, newest = totals.row(0)
    return {
        "rows": total,
        "usable": good,
        "newest": newest,
        "left_out": dict(problems.iter_rows()),
        "unknown_words": dict(words.iter_rows()),
        "strange_words": dict(strange.iter_rows()),
    }


def _words(rows: pl.LazyFrame, column: str) -> pl.LazyFrame:
    counted = rows.group_by(column).len().sort("len", column, descending=[True, False])
    return counted.head(_UNKNOWN_WORDS_SHOWN)


SOURCE: Final = "nts"
Watch = Callable[[StatusFetch], None]


@dataclass(frozen=True, slots=True)
class FetchedRegistry:
    """The report of fetching statuses, and of the registry written from them, if any."""

    fetch: StatusFetch
    output: str | None = None
    version: str | None = None
    businesses: int = 0
    by_status: dict[str, int] | None = None
    updated: int = 0  # businesses with a status of another day

    @property
    def exit_code(self) -> int:
        """0 if all statuses are fresh, 4 for a refused key, 5 if numbers are left for a later run."""
        return self.fetch.exit_code

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> list[tuple[str, str]]:
        return list(self._describe())

    def _describe(self) -> Iterator[tuple[str, str]]:
        fetch = self.fetch
        yield gettext("numbers"), gettext_of(fetch, "{numbers:,}, {from_store:,} of them fresh before")
        yield gettext("asked nts"), str(fetch)
        if fetch.budget_left is not None:
            yield gettext("budget left"), gettext("{numbers:,} numbers today", numbers=fetch.budget_left)
        for problem, count in fetch.problems.items():
            yield gettext("passed over"), gettext("{rows:,} rows: {problem}", rows=count, problem=gettext(problem))
        if fetch.oldest is not None:
            yield gettext("oldest status"), str(fetch.oldest)
        if self.by_status is not None:
            yield gettext("businesses"), f"{self.businesses:,} ({format_counts(self.by_status)})"
        if fetch.halt is not None:
            is_refused = fetch.exit_code == AuthenticationError.exit_code
            yield gettext("refused") if is_refused else gettext("paused"), fetch.halt
        yield gettext("output"), self.output or gettext("nothing was written")


def fetch_registry(
    numbers: pl.Series, output: Path, sources: Sequence[str], options: StatusOptions, *, watch: Watch | None = None
) -> FetchedRegistry:
    """Fetch the stale statuses of ``numbers`` (UInt64), then write all stored ones of these to a registry."""
    fetch = _fetch(numbers, None, options, watch)
    with StatusStore(options.store) as store:
        found = store.read(numbers.unique()).sort("b_no")
    if found.is_empty():
        return FetchedRegistry(fetch)
    return _publish_fetched(found, output, sources, fetch, found.height)


def refresh_registry(path: Path, options: StatusOptions, *, watch: Watch | None = None) -> FetchedRegistry:
    """Fetch the stale statuses of a registry and replace its file; data that the tax authority does not give stay."""
    registry = Registry.open(path)
    registry.check()
    before = pl.read_parquet(path, columns=["b_no", "as_of"], glob=False)
    fetch = _fetch(before["b_no"], before, options, watch)
    with StatusStore(options.store) as store:
        overlay = StatusOverlay(store.read(before["b_no"]))
    merged = overlay.attach(before.lazy().select("b_no"), "b_no", registry).drop(BY_NTS.values()).collect()
    merged = merged.rename({ours: theirs for theirs, ours in ATTACHED_MORE.items()}, strict=False)
    merged = merged.select(*SCHEMA, *(name for name in ATTACHED_MORE if name in merged.columns))
    updated = int((merged["as_of"].ne_missing(before["as_of"])).sum())
    if not updated:
        return FetchedRegistry(fetch)
    with path.open("rb") as file:
        about = parse_json_object(pl.read_parquet_metadata(file).get(METADATA_KEY, ""))
    sources = [str(source) for source in about.get("sources", []) if source != SOURCE]
    return _publish_fetched(merged, path, sources, fetch, updated)


def _fetch(numbers: pl.Series, known: pl.DataFrame | None, options: StatusOptions, watch: Watch | None) -> StatusFetch:
    """Call :func:`fetch_statuses` from blocking code; Ctrl-C waits for open calls."""
    token = CancelToken()
    seen: list[StatusFetch] = []

    def watch_all(report: StatusFetch) -> None:
        seen[:] = [report]
        if watch is not None:
            watch(report)

    try:
        return run_async(lambda: fetch_statuses(numbers, options, known=known, watch=watch_all, cancel=token), token)
    except KeyboardInterrupt:
        answered = seen[0].answered if seen else 0
        note = gettext("{answered:,} statuses of this run are stored; the same command goes on", answered=answered)
        raise KeyboardInterrupt(note) from None


def _publish_fetched(
    found: pl.DataFrame, output: Path, sources: Sequence[str], fetch: StatusFetch, updated: int
) -> FetchedRegistry:
    check_registry_name(output)
    newest = found.select(pl.col("as_of").max()).item()
    version = f"{newest or _UNDATED}-{found.hash_rows(0).sum() % 2**32:08x}"
    written = _publish(found.lazy(), output, version, [*sources, SOURCE])
    by_status = {status: count for status, count in written["by_status"].items() if count}
    return FetchedRegistry(fetch, str(output), version, found.height, by_status, updated)


EARLIER_SOURCES_MISSING: Final = Problem(
    "data.earlier_sources_missing",
    "{path}: was built from {lost}, too, which are not among the files given, so their addresses would be lost; put "
    "them there, or build it with `bansong data build-gazetteer`",
)

_DOWNLOAD: Final = gettext_noop(
    "download this month's 도로명주소 한글 전체분 from https://business.juso.go.kr into that folder"
)
BY_HAND: Final = {
    gettext_noop("mail-order registry"): gettext_noop(
        "download 통신판매사업자 from https://www.ftc.go.kr, then `bansong data build-registry`"
    ),
    gettext_noop("all of them"): gettext_noop("step by step: docs/data-sources.md"),
}


@dataclass(frozen=True, slots=True)
class DataUpdate:
    """The result of updating one reference file."""

    what: str
    path: str
    state: Literal["refreshed", "current"]
    said: str  # description of the file now
    remedy: str | None = None  # what the user should do next
    exit_code: int = 0


def update_registry(path: Path, options: StatusOptions, *, watch: Watch | None = None) -> DataUpdate:
    """Refresh the statuses of the registry at ``path``."""
    report = refresh_registry(path, options, watch=watch)
    said = ngettext(
        "{count:,} status of a newer day, {fetch}",
        "{count:,} statuses of a newer day, {fetch}",
        report.updated,
        fetch=report.fetch,
    )
    remedy = None if report.fetch.halt is None else gettext("{halt}; the same command goes on", halt=report.fetch.halt)
    state: Literal["refreshed", "current"] = "current" if report.output is None else "refreshed"
    return DataUpdate("registry", str(path), state, said, remedy, report.exit_code)


def update_gazetteer(path: Path, addresses: Sequence[Path], *, progress: Progress | None = None) -> DataUpdate:
    """Build the gazetteer at ``path`` if the address files are newer, or if there is none."""
    found, _ = find_sources(addresses, path)
    before = Gazetteer.open(path) if path.exists() else None
    if before is not None and not _is_newer(found, before):
        said = gettext(
            "built from these files or newer ones (addresses of {source_date})",
            source_date=before.source_date or gettext("a day that is not known"),
        )
        return DataUpdate("gazetteer", str(path), "current", said, gettext(_DOWNLOAD))
    needed = [one["name"] for one in _sources(before) if one["kind"] in ("buildings", "lots")] if before else []
    # a missing file would mean missing provinces
    if lost := [name for name in needed if name not in {one.short for one in found}]:
        raise GazetteerError(EARLIER_SOURCES_MISSING, path=path, lost=", ".join(lost))
    report = build_gazetteer(addresses, path, progress=progress)
    count, version = report.buildings, report.version
    said = ngettext("{count:,} building, {version}", "{count:,} buildings, {version}", count, version=version)
    return DataUpdate("gazetteer", str(path), "refreshed", said)


def _is_newer(found: Sequence[SourceFile], before: Gazetteer) -> bool:
    """Whether files are newer than the gazetteer: by the dates in their names, else by names, sizes and mtime."""
    days = [one.named for one in found if one.named is not None]
    if days and before.source_date is not None and max(days) != before.source_date:
        return max(days) > before.source_date
    if {(one.short, one.kind, one.size) for one in found} == {
        (one["name"], one["kind"], one["size"]) for one in _sources(before)
    }:
        return False
    built = before.path.stat().st_mtime
    return any(one.path.stat().st_mtime > built for one in found)


def _sources(gazetteer: Gazetteer) -> list[dict[str, Any]]:
    found = gazetteer.about.get("sources")
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
