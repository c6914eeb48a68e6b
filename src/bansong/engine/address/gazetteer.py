"""The Parquet file of official addresses: sections, each in its own row groups, with today's names."""

# pyarrow decodes: polars' decoder ends the process on some damaged pages

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from bansong.base.errors import GazetteerError, Problem
from bansong.base.messages import Phrase, describe_os_error, gettext_noop
from bansong.engine.address.batches import built_once
from bansong.engine.text import parse_json_object

if TYPE_CHECKING:
    import pyarrow.parquet as pq


KEYS_DAMAGED: Final = Problem(
    "gazetteer.keys_damaged", "{path}: the gazetteer is damaged, build it again: its keys are not as it says"
)
GAZETTEER_DAMAGED: Final = Problem(
    "gazetteer.gazetteer_damaged", "{path}: the gazetteer is damaged, build it again: {reason}"
)
NOT_GAZETTEER: Final = Problem("gazetteer.not_gazetteer", "{path}: is a Parquet file but not a gazetteer; {remedy}")
FORMAT_NOT_SUPPORTED: Final = Problem(
    "gazetteer.format_not_supported", "{path}: is a gazetteer of another format ({form}, not {format}); {remedy}"
)
VERSION_MISSING: Final = Problem(
    "gazetteer.version_missing", "{path}: is a gazetteer without its version or number of buildings; {remedy}"
)
SECTIONS_MISSING: Final = Problem("gazetteer.sections_missing", "{path}: is a gazetteer without its sections; {remedy}")
GAZETTEER_MISSING: Final = Problem("gazetteer.gazetteer_missing", "{path}: there is no such gazetteer file; {remedy}")
ROWS_MISSING: Final = Problem(
    "gazetteer.rows_missing", "{path}: the gazetteer is damaged (rows are missing); build it again"
)
GAZETTEER_REPLACED: Final = Problem(
    "gazetteer.gazetteer_replaced",
    "{path}: was replaced by version {version} while version {used_version} was in use; open it again",
)
GAZETTEER_UNREADABLE: Final = Problem("gazetteer.gazetteer_unreadable", "{path}: cannot be read: {value}")
NOT_PARQUET: Final = Problem(
    "gazetteer.not_parquet", "{path}: is not a gazetteer, or is cut off (no Parquet file); {remedy}"
)

FORMAT: Final = 3  # files of formats 1 and 2 still open, without later sections and columns: see `_LATER`
METADATA_KEY: Final = "bizverify.gazetteer"
SECTIONS: Final[dict[str, tuple[str, ...]]] = {
    "region": ("region", "sido", "sigungu"),
    "dong": ("dong", "region", "emd", "ri", "code"),
    "admin": ("region", "name", "dong"),
    "road": ("road", "region", "name", "road_key", "several"),
    "building": ("key", "zipcode", "dong", "apartment", "name", "street_code"),
    "lot": ("key", "building", "representative"),
    "gone": ("key", "building"),
}
SCHEMA: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "section": pl.String,
    "region": pl.UInt32,
    "sido": pl.String,
    "sigungu": pl.String,
    "dong": pl.UInt32,
    "emd": pl.String,
    "ri": pl.String,
    "code": pl.UInt64,
    "name": pl.String,
    "road": pl.UInt32,
    "road_key": pl.String,
    "key": pl.UInt64,
    "zipcode": pl.UInt32,
    "apartment": pl.Boolean,
    "building": pl.UInt32,
    "representative": pl.Boolean,
    "several": pl.Boolean,
    "street_code": pl.UInt64,
}
# sections and columns that files of a format lack
_LATER: Final = {1: {"gone", "several", "street_code"}, 2: {"street_code"}, FORMAT: set[str]()}
NUMBER_LIMIT: Final = 1 << 17  # main and additional numbers of buildings and lots are below this
_SIGN_WEIGHT: Final = NUMBER_LIMIT << 17

_REMEDY: Final = gettext_noop("build one with: bansong data build-gazetteer SRC…")
_MAX_LOADED: Final = 2
_FRESH_DAYS: Final = 92
_lock: Final = threading.Lock()
_loaded: Final[dict[tuple[str, str], Tables]] = {}


@dataclass(frozen=True, slots=True)
class Gazetteer:
    """An opened gazetteer: cheap, picklable, read on demand.

    ``version``: its name in reports and manifests; ``buildings``: their number; ``about``: its metadata: ``sources``
    (name, size, date), ``provinces`` (buildings of each), ``lots``, ``sections``, and in later formats ``source_date``
    (the newest), ``kinds`` (of the sources) and ``building_codes`` (buildings with a known official number).
    """

    path: Path
    version: str
    buildings: int
    about: Mapping[str, Any] = field(compare=False, repr=False)

    @classmethod
    def open(cls, path: str | Path) -> Gazetteer:
        """Open a gazetteer built by ``bansong data build-gazetteer``; raise :class:`GazetteerError`."""
        path = Path(path)
        if not path.is_file():
            from bansong.tables.streams import refuse_url

            refuse_url(path, GazetteerError)
            raise GazetteerError(GAZETTEER_MISSING, path=path, remedy=Phrase(_REMEDY))
        with _parquet(path) as file:
            about = _about(path, file)
        return cls(path, about["version"], about["buildings"], about)

    @property
    def source_date(self) -> date | None:
        """The newest date of its sources; ``None`` if unknown."""
        found = self.about.get("source_date")
        return date.fromisoformat(found) if isinstance(found, str) else None

    @property
    def has_building_codes(self) -> bool:
        """Whether the gazetteer has the official numbers of buildings (from file format 3 on)."""
        return bool(self.about.get("building_codes"))

    def cautions(self, today: date) -> tuple[str, ...]:
        """Return warnings about old or missing sources, each with the remedy."""
        found = []
        if self.source_date is not None and (today - self.source_date).days > _FRESH_DAYS:
            found.append(
                Phrase(
                    "{path}: the gazetteer's addresses are of {source_date:%Y-%m}, older than 3 months, so newer "
                    "roads and buildings are missing; build it again from this month's files (business.juso.go.kr)",
                    path=self.path,
                    source_date=self.source_date,
                )
            )
        kinds = self.about.get("kinds")
        if isinstance(kinds, list) and "lots" not in kinds:
            found.append(
                Phrase(
                    "{path}: the gazetteer was built without the files of additional lots, so addresses by such a "
                    "lot are not found; build it again with jibun_rnaddrkor_*.txt, which comes in the same download",
                    path=self.path,
                )
            )
        return tuple(found)

    def check(self) -> None:
        """Read the whole file; raise :class:`GazetteerError` if it is damaged."""
        import pyarrow as pa

        with _parquet(self.path) as file:
            found = _about(self.path, file)
            try:
                rows = sum(file.read_row_group(group).num_rows for group in range(file.num_row_groups))
            except (pa.ArrowException, OSError) as error:
                raise _damage_error(self.path, error) from error
        if rows != sum(section["rows"] for section in found["sections"].values()):
            raise GazetteerError(ROWS_MISSING, path=self.path)

    @property
    def tables(self) -> Tables:
        """The whole gazetteer in memory, loaded once per process; raises :class:`GazetteerError`."""
        wanted = (str(self.path), self.version)
        if (found := _loaded.get(wanted)) is not None:
            return found
        found = Tables(self)  # without the lock, for which polars' threads would wait
        with _lock:
            while len(_loaded) >= _MAX_LOADED and wanted not in _loaded:
                _loaded.pop(next(iter(_loaded)))
            return _loaded.setdefault(wanted, found)


class _Names:
    def __init__(self, gazetteer: Gazetteer) -> None:
        self._gazetteer = gazetteer
        self.regions = read_section(gazetteer, "region")  # sigungu is "" in a province without districts
        self.dongs = read_section(gazetteer, "dong")  # ri is "" for none, code the 법정동코드
        self.admins = read_section(gazetteer, "admin")  # a line for each legal dong of a 행정동
        # key is the `compact_name` of the name; several: it stands for several roads of that name
        self.roads = read_section(gazetteer, "road").rename({"road_key": "key"})


class Tables(_Names):
    """A gazetteer in memory, immutable and thread-safe; names and lots are read at their first use."""

    def __init__(self, gazetteer: Gazetteer) -> None:
        super().__init__(gazetteer)
        # one place a building; keys are sorted and may repeat (two roads of one name in one district)
        buildings = read_section(gazetteer, "building", ("key", "zipcode", "dong", "apartment"))
        self.building_key = buildings["key"].set_sorted()
        self.building_zip = buildings["zipcode"]
        self.building_dong = buildings["dong"]
        self.building_apartment = buildings["apartment"]
        # keys of abolished addresses, each with the place of its successor, null if uncertain
        gone = read_section(gazetteer, "gone")
        self.gone_key = gone["key"].set_sorted()
        self.gone_building = gone["building"]

    @built_once
    def building_name(self) -> pl.Series:
        return read_section(self._gazetteer, "building", ("name",)).to_series()

    @built_once
    def building_street(self) -> pl.Series:
        """The first fifteen digits of the building's official number (UInt64), null if unknown."""
        return read_section(self._gazetteer, "building", ("street_code",)).to_series()

    @built_once
    def lots(self) -> pl.DataFrame:
        """Lots by sorted `lot_key`, a line per building; `representative`: whether it is the building's main lot."""
        return read_section(self._gazetteer, "lot").with_columns(pl.col("key").set_sorted())


def read_section(
    gazetteer: Gazetteer, name: str, columns: tuple[str, ...] | None = None, groups: Sequence[int] | None = None
) -> pl.DataFrame:
    """Read ``columns`` of a section (default: all) from its row ``groups`` (default: all), as one chunk."""
    import pyarrow as pa

    path = gazetteer.path
    with _parquet(path) as file:
        about = _about(path, file)
        if about["version"] != gazetteer.version:
            raise GazetteerError(
                GAZETTEER_REPLACED, path=path, version=about["version"], used_version=gazetteer.version
            )
        later = _LATER[about["format"]]
        first, last = about["sections"].get(name, {"groups": (0, 0)})["groups"]
        wanted = range(first, last) if groups is None else [first + group for group in groups]
        columns = columns or SECTIONS[name]
        there = [column for column in columns if column not in later]
        try:
            found = file.read_row_groups(list(wanted), columns=there)
            frame = pl.DataFrame(found).rechunk()  # one piece: it is searched
        except (pa.ArrowException, OSError, pl.exceptions.PanicException) as error:
            raise _damage_error(path, error) from error
        frame = frame.with_columns(pl.lit(None).alias(column) for column in columns if column in later)
    return frame.select(pl.col(column).cast(SCHEMA[column]) for column in columns)


def _read_key_ranges(gazetteer: Gazetteer, name: str) -> pl.DataFrame:
    # `first`, `last` key and `rows` of each row group of a section sorted by `key`, from the footer
    with _parquet(gazetteer.path) as file:
        section = _about(gazetteer.path, file)["sections"].get(name, {"groups": (0, 0), "rows": 0})
        key, groups = file.schema_arrow.names.index("key"), map(file.metadata.row_group, range(*section["groups"]))
        ranges = [(stats.min, stats.max, group.num_rows) for group in groups if (stats := group.column(key).statistics)]
    bounds = [bound for first, last, _ in ranges for bound in (first, last)]
    if None in bounds or bounds != sorted(bounds) or sum(rows for *_, rows in ranges) != section["rows"]:
        raise GazetteerError(KEYS_DAMAGED, path=gazetteer.path)
    return pl.DataFrame(ranges, schema={"first": pl.UInt64, "last": pl.UInt64, "rows": pl.UInt32}, orient="row")


def compact_name(text: pl.Expr) -> pl.Expr:
    """Return a road's name for comparison: NFKC, without white space, dots and middle dots."""
    return text.str.normalize("NFKC").str.replace_all(r"[\s.·ㆍ‧・・•]", "")


def building_key(road: pl.Expr, under: pl.Expr, main: pl.Expr, sub: pl.Expr) -> pl.Expr:
    """Pack road, 지하여부 and number into one UInt64; null if one is null or a number is too large to exist."""
    packed = sub.cast(pl.UInt64)
    for part, weight in ((road, _SIGN_WEIGHT << 2), (under, _SIGN_WEIGHT), (main, NUMBER_LIMIT)):
        packed = packed + part.cast(pl.UInt64) * pl.lit(weight, pl.UInt64)
    return pl.when((main < NUMBER_LIMIT) & (sub < NUMBER_LIMIT) & (under < 4)).then(packed)


lot_key: Final = building_key  # of legal dong, 산여부 and lot number


def unpack_numbers(key: pl.Expr) -> tuple[pl.Expr, pl.Expr, pl.Expr]:
    """Return underground flag, main number and sub-number of a building key."""
    return (key // _SIGN_WEIGHT) % 4, (key // NUMBER_LIMIT) % NUMBER_LIMIT, key % NUMBER_LIMIT


def _parquet(path: Path) -> pq.ParquetFile:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(path, page_checksum_verification=True)
    except (FileNotFoundError, PermissionError) as error:
        raise GazetteerError(GAZETTEER_UNREADABLE, path=path, value=describe_os_error(error)) from error
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise GazetteerError(NOT_PARQUET, path=path, remedy=Phrase(_REMEDY)) from error


def _about(path: Path, file: pq.ParquetFile) -> dict[str, Any]:
    text = (file.metadata.metadata or {}).get(METADATA_KEY.encode())
    if text is None:
        raise GazetteerError(NOT_GAZETTEER, path=path, remedy=Phrase(_REMEDY))
    about = parse_json_object(text)
    form = about.get("format")
    later = _LATER.get(form) if isinstance(form, int) else None
    if later is None or set(file.schema_arrow.names) != set(SCHEMA) - later:
        raise GazetteerError(FORMAT_NOT_SUPPORTED, path=path, form=form, format=FORMAT, remedy=Phrase(_REMEDY))
    if not isinstance(about.get("version"), str) or not isinstance(about.get("buildings"), int):
        raise GazetteerError(VERSION_MISSING, path=path, remedy=Phrase(_REMEDY))
    if not _are_sections(about.get("sections"), [name for name in SECTIONS if name not in later], file):
        raise GazetteerError(SECTIONS_MISSING, path=path, remedy=Phrase(_REMEDY))
    return about


def _are_sections(sections: object, names: list[str], file: pq.ParquetFile) -> bool:
    # all of them, each with consecutive row groups and its number of rows
    if not isinstance(sections, dict) or list(sections) != names:
        return False
    last = 0
    for section in sections.values():
        match section:
            case {"groups": [int(first), int(end)], "rows": int()} if first == last <= end:
                last = end
            case _:
                return False
    groups: int = file.num_row_groups
    return last == groups


def _damage_error(path: Path, error: Exception) -> GazetteerError:
    return GazetteerError(GAZETTEER_DAMAGED, path=path, reason=str(error).splitlines()[0])


class StoredSection:
    """A section of the file, sorted by ``key``; row groups are read when needed, and kept. ``place``: row number."""

    def __init__(self, gazetteer: Gazetteer, name: str) -> None:
        self._gazetteer, self._name = gazetteer, name
        self._ranges = _read_key_ranges(gazetteer, name)
        self._starts = self._ranges["rows"].cum_sum() - self._ranges["rows"]
        self._read: dict[tuple[int, str], pl.Series] = {}

    def column(self, name: str) -> pl.Series:
        return self._read_groups(name, range(self._ranges.height))

    def gather(self, name: str, places: pl.Series) -> pl.Series:
        if places.null_count() == len(places):
            return pl.Series(name, [None], SCHEMA[name]).new_from_index(0, len(places))
        group = self._starts.search_sorted(places.fill_null(strategy="min"), side="right") - 1
        groups = group.unique().sort()
        lines = self._ranges["rows"][groups]
        shift = self._starts[groups] - (lines.cum_sum() - lines)
        return self._read_groups(name, groups)[places - shift[groups.search_sorted(group)]]

    def between(self, first: pl.Series, last: pl.Series) -> pl.DataFrame:
        """Return ``place`` and ``key`` of the row groups that may hold keys from ``first`` to ``last``, in order."""
        lows, highs, count = self._ranges["first"], self._ranges["last"], self._ranges.height
        before_first, behind_last = lows.search_sorted(first, side="right"), lows.search_sorted(last, side="right")
        span = pl.select(
            begin=pl.min_horizontal(highs.search_sorted(first), before_first.clip(1) - 1),
            end=pl.max_horizontal(highs.search_sorted(last) + 1, behind_last).clip(upper_bound=count),
        )
        groups = span.select(pl.int_ranges("begin", "end", dtype=pl.UInt32).explode().drop_nulls().unique().sort())
        parts = [
            pl.DataFrame({"key": self._group("key", group)}).with_row_index("place", int(self._starts[group]))
            for group in groups.to_series()
        ]
        return pl.concat([pl.DataFrame(schema={"place": pl.UInt32, "key": pl.UInt64}), *parts])

    def _read_groups(self, name: str, groups: pl.Series | range) -> pl.Series:
        return pl.concat([self._group(name, group) for group in groups])

    def _group(self, name: str, group: int) -> pl.Series:
        if (found := self._read.get((group, name))) is None:
            found = read_section(self._gazetteer, self._name, (name,), [group]).to_series()
            first, last, rows = self._ranges.row(group)
            if len(found) != rows or (name == "key" and (found[0], found[-1]) != (first, last)):
                raise GazetteerError(KEYS_DAMAGED, path=self._gazetteer.path)
            self._read[group, name] = found
        return found


class StoredColumn:
    """A column of a stored section: ``column[rows]`` (UInt32; null gives null) reads only the row groups needed."""

    def __init__(self, section: StoredSection, name: str) -> None:
        self._section, self._name = section, name

    def __getitem__(self, places: pl.Series) -> pl.Series:
        return self._section.gather(self._name, places)


class StoredTables(_Names):
    """A substitute for :class:`Tables` that reads buildings and lots from the file when needed."""

    def __init__(self, gazetteer: Gazetteer) -> None:
        super().__init__(gazetteer)
        self.buildings = StoredSection(gazetteer, "building")
        self.lots = StoredSection(gazetteer, "lot")
        self.gone = StoredSection(gazetteer, "gone")
        self.building_key = StoredColumn(self.buildings, "key")
        self.building_zip = StoredColumn(self.buildings, "zipcode")
        self.building_dong = StoredColumn(self.buildings, "dong")
        self.building_apartment = StoredColumn(self.buildings, "apartment")
        self.building_name = StoredColumn(self.buildings, "name")
        self.building_street = StoredColumn(self.buildings, "street_code")
