"""Build a gazetteer from official address files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any, Final

import polars as pl

from bansong.base.after_fork import refuse_after_fork
from bansong.base.display import Progress, Shown
from bansong.base.errors import GazetteerError, Problem, UsageError
from bansong.base.messages import Listed, Phrase, gettext, gettext_of, ngettext
from bansong.base.publish import publish_file
from bansong.engine.address.gazetteer import FORMAT, METADATA_KEY, SCHEMA, SECTIONS, building_key, compact_name, lot_key
from bansong.reference.address_files import (
    DONG,
    ID,
    LOT,
    REFUSED_SHOWN,
    Content,
    Kind,
    SourceFile,
    find_sources,
    format_counts,
)
from bansong.reference.merge import REGION, Together, present_day, put_together
from bansong.tables.detect import FORMATS, open_table

_MAX_FILES_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class GazetteerReport(Shown):
    """The report of building a gazetteer: rows read and refused (with ``examples``), what it contains."""

    output: str
    version: str
    sources: tuple[dict[str, object], ...]
    passed_over: tuple[str, ...]
    read: dict[str, int]
    refused: dict[str, int]
    examples: tuple[str, ...]
    duplicates: int
    changes: dict[str, int]
    abolished: int
    notes: tuple[str, ...]
    buildings: int
    lots: int
    additional_lots: int
    roads: int
    dongs: int
    administrative: int
    districts: int
    provinces: dict[str, int]

    def as_dict(self) -> dict[str, object]:
        return asdict(self)

    def _describe(self) -> Iterator[tuple[str, str]]:
        read = gettext("{counts} from {files} file(s)", counts=format_counts(self.read), files=len(self.sources))
        yield gettext("rows read"), read
        buildings = gettext_of(self, "{buildings:,} on {roads:,} roads in {districts:,} district(s)")
        yield gettext("buildings"), buildings
        yield gettext("provinces"), format_counts(self.provinces)
        yield gettext("lots"), gettext_of(self, "{lots:,}, {additional_lots:,} of them additional")
        yield gettext("dongs"), gettext_of(self, "{legal:,} legal, {administrative:,} administrative", legal=self.dongs)
        if any(self.changes.values()):
            yield gettext("changes"), format_counts(self.changes)
            yield gettext("abolished"), gettext_of(self, "{abolished:,} addresses that are known to be gone")
        yield from self._left_lines()
        yield from ((gettext("note"), note) for note in self.notes)
        yield gettext("version"), self.version
        yield gettext("output"), self.output

    def _left_lines(self) -> Iterator[tuple[str, str]]:
        if self.duplicates:
            repeated = ngettext(
                "{count:,} row of the same management number",
                "{count:,} rows of the same management number",
                self.duplicates,
            )
            yield gettext("repeated"), repeated
        if self.refused:
            lacking = {gettext("no {what}", what=gettext(what)): count for what, count in self.refused.items()}
            yield gettext("refused"), format_counts(lacking)
            yield from (("", example) for example in self.examples)
            if more := sum(self.refused.values()) - len(self.examples):
                yield "", gettext("and {more:,} more", more=more)
        if self.passed_over:
            named, more = ", ".join(self.passed_over[:_MAX_FILES_NAMED]), len(self.passed_over) - _MAX_FILES_NAMED
            others = gettext(" and {count:,} more", count=more) if more > 0 else ""
            yield gettext("passed over"), f"{named}{others}"


OUTPUT_NOT_PARQUET: Final = Problem(
    "gazetteer.output_not_parquet", "{output}: a gazetteer is a Parquet file; call it .parquet"
)
BUILDING_FILES_MISSING: Final = Problem(
    "gazetteer.building_files_missing",
    "no file with buildings was given, only {there}; give the rnaddrkor_*.txt files of the full set as well",
)
DATE_NOT_NAMED: Final = Problem(
    "gazetteer.date_not_named",
    "{name}: there is no day in its name or its folder's, so the order of the daily changes "
    "is not known; put it as YYYYMMDD into the name of the file or folder",
)
SOURCE_COLUMN_MISSING: Final = Problem(
    "gazetteer.source_column_missing", "{name}: has no column {missing}; the official file KIKmix.YYYYMMDD.xlsx has"
)

_TOWN: Final = ("sido", "sigungu", "emd")
_GROUP: Final = 1 << 20
_COMPRESSION_LEVEL: Final = 6
_BEHIND_STREET: Final = 10**11
_ROAD_NUMBERS: Final = 10**7
_ORDER: Final[tuple[Kind, ...]] = ("buildings", "postal", "lots", "changes", "lot changes", "admins")
_MAP: Final = {"시도명": "sido", "시군구명": "sigungu", "읍면동명": "admin", "동리명": "legal", "말소일자": "ended"}


class PlaceNumbers:
    """Numbers regions, dongs and roads in the order of their names, whatever the order of the files."""

    def __init__(self, streets: pl.DataFrame, lot_dongs: pl.DataFrame) -> None:
        names = [*_TOWN, "ri"]
        towns = pl.concat([streets.select(DONG), lot_dongs.select(DONG)])
        self.regions = streets.select(REGION).unique().sort(REGION).with_row_index("region")
        dongs = (
            towns.group_by(names)
            .agg(pl.col("dong_code").min().alias("code"))
            .join(self.regions, on=REGION)
            .sort("region", "emd", "ri")
            .with_row_index("dong")
        )
        self.named_dongs = dongs
        self.dongs = dongs.select("dong", "region", "emd", "ri", "code")
        several = pl.col("road_code").filter("in_use").n_unique() > 1
        roads = streets.group_by(*REGION, pl.col("road").alias("name")).agg(several.alias("several"))
        roads = roads.join(self.regions, on=REGION).sort("region", "name").with_row_index("road")
        self.roads = roads.select("road", "region", "name", compact_name(pl.col("name")).alias("road_key"), "several")
        self.street = (
            streets.join(dongs.select(*names, "dong", "region"), on=names, how="left", maintain_order="left")
            .rename({"road": "name"})
            .join(roads.select("region", "name", "road"), on=["region", "name"], how="left", maintain_order="left")
            .select("street", "dong", "road", "region", "road_code")
        )
        codes = towns.unique("dong_code", keep="last", maintain_order=True)
        self.codes = codes.join(dongs.select(*names, "dong"), on=names).select("dong_code", "dong")


def building_section(rows: pl.DataFrame, places: PlaceNumbers) -> pl.DataFrame:
    """Return the buildings with ``key``, ``dong``, ``region``, sorted by key; a building's number is its index."""
    return (
        rows.join(places.street, on="street", how="left")
        .with_columns(
            building_key(*(pl.col(name) for name in ("road", "under", "main", "sub"))).alias("key"), _street_code()
        )
        .drop("street", "road", "road_code", "under", "main", "sub", "reason")
        .sort("key", *ID)
    )


def _street_code() -> pl.Expr:
    """Return the code of district, town and road in a management number; null if it is composed otherwise."""
    street = pl.col("id_high") * 100 + pl.col("id_low") // _BEHIND_STREET
    numbers = (pl.col("under").cast(pl.UInt64) * 100_000 + pl.col("main")) * 100_000 + pl.col("sub")
    same_road = street % _ROAD_NUMBERS == pl.col("road_code") % _ROAD_NUMBERS
    return pl.when(same_road & (pl.col("id_low") % _BEHIND_STREET == numbers)).then(street).alias("street_code")


def lot_section(found: pl.DataFrame, additional: pl.DataFrame, places: PlaceNumbers) -> pl.DataFrame:
    """Return the representative and additional lots of buildings, sorted by key; one that is both is representative."""
    place = found.with_row_index("building")
    parts = [pl.col(name) for name in ("dong", *LOT[1:])]
    own = place.filter(pl.col("lot_main") > 0).select(
        lot_key(*parts).alias("key"), "building", pl.lit(True).alias("representative")
    )
    more = (
        additional.filter(pl.col("lot_main") > 0)
        .join(place.select("building", *ID), on=list(ID))
        .join(places.codes, on="dong_code")
        .select(lot_key(*parts).alias("key"), "building", pl.lit(False).alias("representative"))
        .unique()
        .join(own, on=["key", "building"], how="anti")
    )
    return pl.concat([own, more]).sort("key", "representative", "building", descending=[False, True, False])


def gone_section(abolished: pl.DataFrame | None, found: pl.DataFrame, places: PlaceNumbers) -> pl.DataFrame:
    """Return the keys of abolished addresses, with the building that succeeds them if it is certain."""
    empty = pl.DataFrame(schema={"key": pl.UInt64, "building": pl.UInt32})
    if abolished is None:
        return empty
    place = found.with_row_index("building")
    heirs = place.select("building", *(pl.col(name).alias(name.replace("id", "heir")) for name in ID))
    keys = (
        abolished.join(places.street, on="street")
        .with_columns(building_key(*(pl.col(name) for name in ("road", "under", "main", "sub"))).alias("key"))
        .join(place.select("key"), on="key", how="anti")
        .join(heirs, on=["heir_high", "heir_low"], how="left")
    )
    same = pl.col("building").n_unique() == 1
    return keys.group_by("key").agg(pl.when(same).then(pl.col("building").first())).sort("key").select(empty.columns)


def admin_section(of_rows: pl.DataFrame, of_map: pl.DataFrame | None, places: PlaceNumbers) -> pl.DataFrame:
    """Return the legal dongs of each administrative dong, from the buildings and the official map."""
    named = places.named_dongs
    names = [*_TOWN, "ri"]
    found = [of_rows.join(named, on=names).select("region", "admin", "dong")]
    if of_map is not None:
        whole = named.filter(pl.col("ri") == "")
        village = named.filter(pl.col("ri") != "")
        in_town = of_map.join(whole, left_on=[*REGION, "legal"], right_on=list(_TOWN))
        in_village = of_map.join(village, left_on=[*REGION, "admin", "legal"], right_on=names, coalesce=False)
        found += [part.select(found[0].columns) for part in (in_town, in_village)]
    pairs = pl.concat(found).select("region", compact_name(pl.col("admin")).alias("name"), "dong")
    return pairs.unique().sort("region", "name", "dong")


def write_sections(sections: Mapping[str, pl.DataFrame], about: dict[str, Any], path: Path) -> None:
    """Write a gazetteer, each section in row groups of its own; equal sections give equal bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    spans, groups = {}, 0
    for name, frame in sections.items():
        count = -(-frame.height // _GROUP)
        spans[name] = {"groups": [groups, groups + count], "rows": frame.height}
        groups += count
    text = json.dumps(about | {"sections": spans}, ensure_ascii=False)
    schema = pl.DataFrame(schema=SCHEMA).to_arrow(compat_level=pl.CompatLevel.oldest()).schema
    schema = schema.with_metadata({METADATA_KEY: text})
    with pq.ParquetWriter(
        path,
        schema,
        compression="zstd",
        compression_level=_COMPRESSION_LEVEL,
        use_dictionary=[name for name in schema.names if name not in ("key", "building")],
        column_encoding={"key": "DELTA_BINARY_PACKED"},
        write_page_checksum=True,
        store_schema=True,
    ) as writer:
        for name, frame in sections.items():
            for part in frame.select(SECTIONS[name]).iter_slices(_GROUP):
                named = part.with_columns(pl.lit(name).alias("section"))
                columns = named.to_arrow(compat_level=pl.CompatLevel.oldest())
                arrays = [
                    columns[field.name].cast(field.type) if field.name in columns.column_names
                    else pa.nulls(part.height, field.type)
                    for field in schema
                ]  # fmt: skip
                writer.write_table(pa.Table.from_arrays(arrays, schema=schema), row_group_size=_GROUP)


def build_gazetteer(
    sources: Iterable[str | Path], output: str | Path, *, progress: Progress | None = None
) -> GazetteerReport:
    """Build a gazetteer from official address files: ``sources`` are files, folders and zips, as downloaded.

    It reads ``rnaddrkor_*.txt`` (buildings), ``jibun_rnaddrkor_*.txt`` (additional lots), daily changes of both (in the
    order of the dates in their names), the post office's ``zipcode_DB`` (instead of the buildings, or for names that
    they lack), ``KIKmix*.xlsx`` (legal dongs of administrative dongs). Regions get their present-day names. Unusable
    rows are left out, counted and listed; a damaged file, one with more than 1 % of them, and a district of two files
    are errors. ``progress`` is called with the megabytes read and their total. The same files give the same bytes.
    Raises :class:`GazetteerError`, :class:`~bansong.errors.OutputError`, :class:`~bansong.errors.UsageError`.
    """
    refuse_after_fork()
    output = Path(output)
    if output.suffix.lower() not in FORMATS["parquet"].extensions:
        raise UsageError(OUTPUT_NOT_PARQUET, output=output)
    found, others = find_sources(sources, output)
    _refuse_undated(found)
    found.sort(key=lambda source: (_ORDER.index(source.kind), source.named or date.min, source.short))
    with publish_file(output) as temporary:
        content = _read(found, progress)
        of_map = _administrative(found)
        together = put_together(content, found)
        made = _sections(together, content, of_map)
        about = _about(found, made)
        write_sections(made, about, temporary)
    return GazetteerReport(
        output=str(output),
        sources=tuple(about["sources"]),
        passed_over=tuple(others),
        read=content.read,
        refused=content.refused,
        examples=tuple(content.examples[:REFUSED_SHOWN]),
        duplicates=together.duplicates,
        changes=together.changes,
        notes=tuple(together.notes),
        additional_lots=int((~made["lot"]["representative"]).sum()),
        roads=made["road"].height,
        dongs=made["dong"].height,
        administrative=made["admin"].select("region", "name").n_unique(),
        districts=made["region"].height,
        **{name: about[name] for name in ("version", "buildings", "lots", "abolished", "provinces")},
    )


def _refuse_undated(found: list[SourceFile]) -> None:
    for kind in ("changes", "lot changes"):
        days = [source for source in found if source.kind == kind]
        undated = [source for source in days if source.named is None]
        if undated and len(days) > 1:
            raise GazetteerError(DATE_NOT_NAMED, name=undated[0].name)


def _read(found: list[SourceFile], progress: Progress | None) -> Content:
    content = Content()
    total, done = sum(source.size for source in found), 0

    def advance(size: int) -> None:
        nonlocal done
        done = min(done + size, total)
        if progress is not None:
            progress(done // 1_000_000, total // 1_000_000)

    for number, source in enumerate(found):
        if source.kind != "admins":
            content.add(source, number, advance)
    if "buildings" not in content.rows and "postal" not in content.rows:
        there = Listed([Phrase(kind) for kind in dict.fromkeys(source.kind for source in found)], ", ")
        raise GazetteerError(BUILDING_FILES_MISSING, there=there)
    return content


def _administrative(found: list[SourceFile]) -> pl.DataFrame | None:
    parts = []
    for source in found:
        if source.kind != "admins":
            continue
        with open_table(source.path, options={}) as table:
            missing = [header for header in _MAP if header not in table.headers]
            if missing:
                raise GazetteerError(SOURCE_COLUMN_MISSING, name=source.name, missing=", ".join(missing))
            ids = {name: table.ids[table.headers.index(header)] for header, name in _MAP.items()}
            text = [pl.col(column).cast(pl.String).fill_null("").alias(name) for name, column in ids.items()]
            frame = table.frame.select(text).filter(pl.col("ended") == "", pl.col("admin") != "").collect()
        source.digest = hashlib.sha256(source.path.read_bytes()).hexdigest()
        parts.append(frame.drop("ended"))
    return present_day(pl.concat(parts), "admin") if parts else None


def _sections(together: Together, content: Content, of_map: pl.DataFrame | None) -> dict[str, pl.DataFrame]:
    places = PlaceNumbers(together.streets, together.lot_dongs)
    of_rows = present_day(pl.concat(content.admins).unique(maintain_order=True), "emd")
    found = building_section(together.rows, places)
    return {
        "region": places.regions,
        "dong": places.dongs,
        "admin": admin_section(of_rows, of_map, places),
        "road": places.roads,
        "building": found,
        "lot": lot_section(found, together.lots, places),
        "gone": gone_section(together.gone, found, places),
    }


def _about(found: list[SourceFile], made: dict[str, pl.DataFrame]) -> dict[str, Any]:
    dates = [source.dated for source in found if source.dated is not None and source.kind != "admins"]
    newest = max([one.dated for one in found if one.dated is not None] or [one.changed for one in found])
    counts = made["building"].group_by("region").len().join(made["region"], on="region").group_by("sido")
    return {
        "format": FORMAT,
        "version": f"{newest}-{_digest(found, made)}",
        "sources": [
            {"name": one.short, "kind": one.kind, "size": one.size, "date": str(one.dated or one.changed)}
            for one in found
        ],
        "source_date": max(dates).isoformat() if dates else None,
        "kinds": sorted({source.kind for source in found}),
        "provinces": dict(counts.agg(pl.col("len").sum()).sort("sido").iter_rows()),
        "buildings": made["building"].height,
        "building_codes": made["building"]["street_code"].count(),
        "lots": made["lot"].height,
        "abolished": made["gone"].height,
    }


def _digest(found: list[SourceFile], made: dict[str, pl.DataFrame]) -> str:
    """Hash the files and the resulting names, since another release may know newer names of regions."""
    digest = hashlib.sha256(f"{FORMAT} {sorted(f'{source.kind} {source.digest}' for source in found)}".encode())
    for name in ("region", "dong", "admin", "road"):
        digest.update(made[name].write_csv().encode())
    return digest.hexdigest()[:8]
