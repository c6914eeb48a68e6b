"""From rows of the official files to the sections of a gazetteer: numbered, sorted, written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import polars as pl

from bizverify.engine.address.gazetteer import (
    METADATA_KEY,
    SCHEMA,
    SECTIONS,
    building_key,
    compact_name,
    lot_key,
)
from bizverify.reference.juso import DONG, ID, LOT

REGION: Final = ("sido", "sigungu")
_TOWN: Final = ("sido", "sigungu", "emd")
_GROUP: Final = 1 << 20
_LEVEL: Final = 6


class PlaceNumbers:
    """The numbers of regions, dongs and roads, given in the order of their names whatever the order of the files.

    ``streets`` (with present-day names) are those that buildings use (``in_use``) or used, ``lot_dongs`` those that
    additional lots lie in.
    """

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
            .select("street", "dong", "road", "region")
        )
        codes = towns.unique("dong_code", keep="last", maintain_order=True)
        self.codes = codes.join(dongs.select(*names, "dong"), on=names).select("dong_code", "dong")


def buildings(rows: pl.DataFrame, places: PlaceNumbers) -> pl.DataFrame:
    """The rows in the order of their keys, with ``key``, ``dong`` and ``region``; the place is the row's number."""
    return (
        rows.join(places.street, on="street", how="left")
        .with_columns(building_key(*(pl.col(name) for name in ("road", "under", "main", "sub"))).alias("key"))
        .drop("street", "road", "under", "main", "sub", "reason")
        .sort("key", *ID)
    )


def lots(found: pl.DataFrame, additional: pl.DataFrame, places: PlaceNumbers) -> pl.DataFrame:
    """All lots of the buildings, by key. An additional lot that is the representative one, too, is that."""
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


def abolished_addresses(abolished: pl.DataFrame | None, found: pl.DataFrame, places: PlaceNumbers) -> pl.DataFrame:
    """The keys of abolished addresses that no building has, with the successor if all who had one have the same."""
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


def admins(of_rows: pl.DataFrame, of_map: pl.DataFrame | None, places: PlaceNumbers) -> pl.DataFrame:
    """Which legal dongs an administrative one has, from the buildings' own column and from the official map."""
    named = places.named_dongs
    names = [*_TOWN, "ri"]
    found = [of_rows.join(named, on=names).select("region", "admin", "dong")]
    if of_map is not None:
        whole = named.filter(pl.col("ri") == "")
        village = named.filter(pl.col("ri") != "")
        found.append(of_map.join(whole, left_on=[*REGION, "legal"], right_on=list(_TOWN)).select(found[0].columns))
        found.append(
            of_map.join(village, left_on=[*REGION, "admin", "legal"], right_on=names, coalesce=False).select(
                found[0].columns
            )
        )
    pairs = pl.concat(found).select("region", compact_name(pl.col("admin")).alias("name"), "dong")
    return pairs.unique().sort("region", "name", "dong")


def write(sections: Mapping[str, pl.DataFrame], about: dict[str, Any], path: Path) -> None:
    """Write the sections, each in row groups of its own; the same sections give the same bytes."""
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
        compression_level=_LEVEL,
        use_dictionary=[name for name in schema.names if name not in ("key", "building")],
        column_encoding={"key": "DELTA_BINARY_PACKED"},
        write_page_checksum=True,
        store_schema=True,
    ) as writer:
        for name, frame in sections.items():
            for part in frame.select(SECTIONS[name]).iter_slices(_GROUP):
                columns = part.with_columns(pl.lit(name).alias("section")).to_arrow(
                    compat_level=pl.CompatLevel.oldest()
                )
                arrays = [
                    columns[field.name].cast(field.type) if field.name in columns.column_names
                    else pa.nulls(part.height, field.type)
                    for field in schema
                ]  # fmt: skip
                writer.write_table(pa.Table.from_arrays(arrays, schema=schema), row_group_size=_GROUP)
