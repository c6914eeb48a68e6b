"""Merge official address files: drop duplicates, add the post office's rows, apply daily changes.

The last daily change of a building or additional lot counts. Abolished buildings are kept, since letters still go to
their addresses, and some have a successor.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import polars as pl

from bansong.base.errors import GazetteerError, Problem
from bansong.base.messages import Listed, gettext, gettext_noop
from bansong.engine.address.regions import present_day as regions_present_day
from bansong.reference.address_files import DAY, DELETE, DONG, ID, INSERT, LOT, Content, Kind, SourceFile

DISTRICT_GIVEN_TWICE: Final = Problem(
    "gazetteer.district_given_twice",
    "{district} is in two files, {names}; give each province once, of the newest month",
)
LOTS_WITHOUT_BUILDINGS: Final = Problem(
    "gazetteer.lots_without_buildings",
    "{shown}: {orphans:,} of {height:,} additional lots belong to buildings that no file has; a rnaddrkor_*.txt file "
    "is missing, cut off, or of another month: give the full set of one month",
)

_DELETES = [int(reason) for reason in DELETE]
_INSERTS = [int(reason) for reason in INSERT]
_HEIR: Final = {"id_high": "heir_high", "id_low": "heir_low"}
_PLACE: Final = (*LOT, DAY)
REGION: Final = ("sido", "sigungu")
_LOTS: Final = {
    **dict.fromkeys((*ID, "dong_code"), pl.UInt64),
    **{"san": pl.UInt8, "lot_main": pl.UInt32, "lot_sub": pl.UInt32, "reason": pl.UInt8},
}
_ORPHANS_SHARE: Final = 20
_ORPHANS_ALWAYS: Final = 10
_MAX_FILES_SHOWN: Final = 5


def changed_rows(rows: pl.DataFrame, events: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame, dict[str, int]]:
    """Apply daily changes in order; return the buildings, the abolished ones with their successors, and counts."""
    # a day may be applied twice: updates of unknown buildings insert, inserts of known buildings replace
    last = events.unique(list(ID), keep="last", maintain_order=True)
    there = last.join(rows.select(ID), on=list(ID), how="semi")
    gone = last["reason"].is_in(_DELETES)
    goes_from_here = there["reason"].is_in(_DELETES)
    counts = {
        gettext_noop("inserted"): last.height - int(gone.sum()) - int((~goes_from_here).sum()),
        gettext_noop("updated"): int((~goes_from_here).sum()),
        gettext_noop("deleted"): int(goes_from_here.sum()),
        gettext_noop("deleted but not there"): int(gone.sum()) - int(goes_from_here.sum()),
    }
    kept = rows.join(last.select(ID), on=list(ID), how="anti", maintain_order="left")
    came = last.filter(~gone)
    moved = rows.join(came.select(ID), on=list(ID), how="semi").with_columns(
        *(pl.col(name).alias(heir) for name, heir in _HEIR.items())
    )
    return pl.concat([kept, came.select(rows.columns)]), pl.concat([_abolished_rows(last), moved]), counts


def _abolished_rows(last: pl.DataFrame) -> pl.DataFrame:
    """Return the deleted buildings; their successor is the only new building on the same lot on the same day."""
    gone, came = (last.filter(pl.col("reason").is_in(reasons)) for reasons in (_DELETES, _INSERTS))
    alone = came.filter((pl.col("lot_main") > 0) & (pl.len().over(_PLACE) == 1))
    heirs = alone.select(*_PLACE, *(pl.col(name).alias(heir) for name, heir in _HEIR.items()))
    return gone.join(heirs, on=list(_PLACE), how="left", maintain_order="left").drop("dong_code", DAY)


def changed_lots(lots: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
    """Apply daily changes to additional lots."""
    pair = [*ID, *LOT]  # a change concerns a building and a lot
    last = events.unique(pair, keep="last", maintain_order=True)
    kept = lots.join(last.select(pair), on=pair, how="anti", maintain_order="left")
    return pl.concat([kept, last.filter(~pl.col("reason").is_in(_DELETES))])


@dataclass(slots=True)
class Together:
    """Merged rows of all address files, with present-day names of regions."""

    rows: pl.DataFrame  # buildings
    lots: pl.DataFrame  # additional lots
    streets: pl.DataFrame
    lot_dongs: pl.DataFrame
    gone: pl.DataFrame | None = None  # buildings abolished by daily changes; heir: the successor, null if uncertain
    duplicates: int = 0
    changes: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def of_street(self, rows: pl.DataFrame, name: str) -> pl.Series:
        """Return the column ``name`` of each row's street; the number of a street is its index in ``streets``."""
        return self.streets[name].gather(rows["street"])


def put_together(content: Content, found: list[SourceFile]) -> Together:
    """Merge the rows of all address files; raise :class:`GazetteerError` if they contradict each other."""
    streets = present_day(pl.concat(content.streets), "emd")
    _refuse_twice(streets, content, found)
    dongs = present_day(pl.concat(content.dongs), "emd") if content.dongs else streets.head(0)
    lots = pl.DataFrame(schema=_LOTS)
    made = Together(pl.DataFrame(), lots, streets, dongs.select(DONG).unique(maintain_order=True))
    _add_buildings(made, content)
    _add_lots(made, content, found)
    _apply_changes(made, content)
    _say_old_changes(made, found)
    _keep_streets(made)
    districts = made.streets.select(REGION).unique()
    made.lot_dongs = made.lot_dongs.join(districts, on=list(REGION), how="semi", maintain_order="left")
    return made


def _keep_streets(made: Together) -> None:
    in_use = made.streets["street"].is_in(made.rows["street"].unique().implode())
    streets = made.streets.with_columns(in_use.alias("in_use"))
    if made.gone is not None:
        districts = streets.filter("in_use").select(REGION).unique()
        made.gone = made.gone.join(
            streets.join(districts, on=list(REGION), how="semi").select("street"), on="street", how="semi"
        )
        in_use |= streets["street"].is_in(made.gone["street"].unique().implode())
    made.streets = streets.filter(in_use)


def present_day(frame: pl.DataFrame, town: str) -> pl.DataFrame:
    """Replace names of province, district and town (column ``town``) by the present-day names."""
    names = [*REGION, town]
    old = frame.select(names).unique()
    new = old.with_columns(regions_present_day(pl.col("sido"), pl.col("sigungu"), pl.col(town)).alias("new"))
    fields = dict(zip(("sido", "sigungu", "emd"), names, strict=True))
    new = new.select(
        *names, *(pl.col("new").struct.field(field).alias(f"new {name}") for field, name in fields.items())
    )
    found = frame.join(new, on=names, how="left", maintain_order="left")
    return found.with_columns(pl.col(f"new {name}").alias(name) for name in names).select(frame.columns)


def _refuse_twice(streets: pl.DataFrame, content: Content, found: list[SourceFile]) -> None:
    """Refuse a district that is in two files, which may be of different months."""
    places = streets.select(pl.concat_str(REGION, separator=" ").str.strip_chars().alias("district"), "source")
    for kind in ("buildings", "postal"):
        _refuse_districts_twice(places, found, kind)
    if content.lot_districts:  # by the building's district, since an additional lot may lie in another province
        code = "district " + pl.col("district").cast(pl.String)
        _refuse_districts_twice(pl.concat(content.lot_districts).with_columns(code.alias("district")), found, "lots")


def _refuse_districts_twice(places: pl.DataFrame, found: list[SourceFile], kind: Kind) -> None:
    numbers = [number for number, source in enumerate(found) if source.kind == kind]
    given = places.filter(pl.col("source").is_in(numbers)).group_by("district").agg(pl.col("source").unique().sort())
    twice = given.filter(pl.col("source").list.len() > 1).sort("district")
    if twice.height:
        district, files = twice.row(0)
        names = Listed([found[number].name for number in files[:2]], gettext_noop(" and "))
        raise GazetteerError(DISTRICT_GIVEN_TWICE, district=district, names=names)


def _add_buildings(made: Together, content: Content) -> None:
    official, postal = (_rows(content, kind) for kind in ("buildings", "postal"))
    if official is None or postal is None:
        made.rows = _unique(made, pl.concat(rows for rows in (official, postal) if rows is not None))
        return
    official = _unique(made, official)
    postal = _unique(made, postal)
    provinces = made.of_street(official, "sido").unique()
    beside = made.of_street(postal, "sido").is_in(provinces.implode())
    alone = postal.filter(~beside)
    named, count = _add_postal_names(made, official, postal.filter(beside))
    made.rows = pl.concat([named, alone])
    made.notes.append(
        gettext(
            "the postal files gave {count:,} names of buildings; {others:,} buildings of other provinces; where both "
            "have a building, the address agency's file counts",
            count=count,
            others=alone.height,
        )
        if alone.height
        else gettext(
            "the postal files gave {count:,} names of buildings; where both have a building, the address agency's file "
            "counts",
            count=count,
        )
    )


def _unique(made: Together, rows: pl.DataFrame) -> pl.DataFrame:
    once = rows.unique(list(ID), keep="first", maintain_order=True)
    made.duplicates += rows.height - once.height
    return once


def _add_postal_names(made: Together, official: pl.DataFrame, postal: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    number = ["road_code", "under", "main", "sub"]
    names = (
        postal.with_columns(made.of_street(postal, "road_code"))
        .filter(pl.col("name").is_not_null())
        .select(*number, pl.col("name").alias("postal"))
        .unique(number, keep="first", maintain_order=True)
    )
    found = official.with_columns(made.of_street(official, "road_code")).join(
        names, on=number, how="left", maintain_order="left"
    )
    count = int((found["name"].is_null() & found["postal"].is_not_null()).sum())
    return found.with_columns(pl.coalesce("name", "postal").alias("name")).select(official.columns), count


def _add_lots(made: Together, content: Content, found: list[SourceFile]) -> None:
    lots = _rows(content, "lots")
    if lots is None:
        return
    pair = (*ID, *LOT)
    once = lots.unique(list(pair), keep="first", maintain_order=True)
    made.duplicates += lots.height - once.height
    made.lots = once.join(made.rows.select(ID), on=list(ID), how="semi", maintain_order="left")
    orphans = once.height - made.lots.height
    if orphans > max(_ORPHANS_ALWAYS, once.height // _ORPHANS_SHARE):
        files = [source.name for source in found if source.kind == "lots"]
        shown = ", ".join(files[:_MAX_FILES_SHOWN]) + (", …" if len(files) > _MAX_FILES_SHOWN else "")
        raise GazetteerError(LOTS_WITHOUT_BUILDINGS, shown=shown, orphans=orphans, height=once.height)
    if orphans:
        note = gettext_noop("{orphans:,} additional lots belong to buildings that no file has; they are left out")
        made.notes.append(gettext(note, orphans=orphans))


def _apply_changes(made: Together, content: Content) -> None:
    """Apply the changes of the provinces whose buildings were given; change files are of the whole country."""
    events = _rows(content, "changes")
    if events is not None:
        provinces = made.of_street(made.rows, "sido").unique()
        here = made.of_street(events, "sido").is_in(provinces.implode())
        made.rows, made.gone, made.changes = changed_rows(made.rows, events.filter(here))
        made.changes[gettext_noop("of other provinces")] = events.height - int(here.sum())
    more = _rows(content, "lot changes")
    if more is not None:
        here_too = more.join(made.rows.select(ID), on=list(ID), how="semi", maintain_order="left")
        made.lots = changed_lots(made.lots, here_too)
        made.changes[gettext_noop("lots changed")] = here_too.height


def _say_old_changes(made: Together, found: list[SourceFile]) -> None:
    full = [source.dated for source in found if source.kind in ("buildings", "postal") and source.dated is not None]
    old = [source for source in found if source.kind == "changes" and full and (source.dated or max(full)) < max(full)]
    if old:
        made.notes.append(
            gettext(
                "{count:,} daily file(s), the first {short}, are older than the buildings of {full}: "
                "they may have undone what is newer; give only the days after the full set",
                count=len(old),
                short=old[0].short,
                full=max(full),
            )
        )


def _rows(content: Content, kind: Kind) -> pl.DataFrame | None:
    frames = content.rows.get(kind)
    return pl.concat(frames) if frames else None
