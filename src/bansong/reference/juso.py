"""Read the official address files into compact frames.

Columns follow the layouts that the address agency (business.juso.go.kr) and the post office publish. All use ``|`` and
no quoting: a quotation mark is part of a name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

import polars as pl

from bansong.engine.address.gazetteer import NUMBER_LIMIT
from bansong.errors import GazetteerError, Problem
from bansong.reference.source_files import COLUMNS, Kind, SourceFile, lines
from bansong.translation import Phrase, gettext_noop

COLUMN_COUNT_WRONG: Final = Problem(
    "gazetteer.column_count_wrong", "{name}, line {first:,}: {columns} columns instead of {wanted} ({line!r}); {remedy}"
)
SOURCE_FILE_EMPTY: Final = Problem("gazetteer.source_file_empty", "{name}: holds no rows; download it again")
SOURCE_ROWS_UNUSABLE: Final = Problem(
    "gazetteer.source_rows_unusable",
    "{name}: {bad:,} of {rows:,} rows cannot be used, so the file is not what it should be; the first: {example}",
)

INSERT: Final = ("31", "33")
UPDATE: Final = ("34", "35", "36")
DELETE: Final = ("63", "64")
STREET: Final = ("dong_code", "sido", "sigungu", "emd", "ri", "road_code", "road")
DONG: Final = ("dong_code", "sido", "sigungu", "emd", "ri")
LOT: Final = ("dong_code", "san", "lot_main", "lot_sub")
ID: Final = ("id_high", "id_low")
DAY: Final = "day"
REFUSED_SHOWN: Final = 20

_RNADDR: Final = {
    0: "id", 1: "dong_code", 2: "sido", 3: "sigungu", 4: "emd", 5: "ri", 6: "san", 7: "lot_main", 8: "lot_sub",
    9: "road_code", 10: "road", 11: "under", 12: "main", 13: "sub", 15: "admin", 16: "zipcode", 18: "effective",
    19: "apartment", 20: "reason", 21: "register_name", 22: "building_name",
}  # fmt: skip
_JIBUN: Final = {
    0: "id", 1: "dong_code", 2: "sido", 3: "sigungu", 4: "emd", 5: "ri", 6: "san", 7: "lot_main", 8: "lot_sub",
    13: "reason",
}  # fmt: skip
_POSTAL: Final = {
    0: "zipcode", 1: "sido", 3: "sigungu", 5: "town", 7: "road_code", 8: "road", 10: "under", 11: "main", 12: "sub",
    13: "id", 15: "building_name", 16: "dong_code", 17: "emd", 18: "ri", 19: "admin", 20: "san", 21: "lot_main",
    23: "lot_sub",
}  # fmt: skip
_LAYOUTS: Final[dict[Kind, dict[int, str]]] = {
    "buildings": _RNADDR,
    "changes": _RNADDR,
    "lots": _JIBUN,
    "lot changes": _JIBUN,
    "postal": _POSTAL,
}
Refused = tuple[dict[str, int], pl.DataFrame]
"""Rows of a block by problem, and the first of them."""
_BELOW_DISTRICT: Final = 10**8
"""The upper half of a management number divided by this is the building's district, five digits."""
_NO_DATA: Final = b"no data"
_NEITHER_BAR_NOR_END: Final = bytes(byte for byte in range(256) if byte not in b"|\n")
_REFUSED_SHARE: Final = 100
_REFUSED_ALWAYS: Final = 10


@dataclass(slots=True)
class Content:
    """The content of the files; rows point to ``streets``, ``dongs``, ``admins`` by number or code.

    ``rows``: street UInt32, id_high, id_low UInt64, under UInt8, main, sub, zipcode UInt32, apartment Boolean, name
    String, san UInt8, lot_main, lot_sub UInt32, reason UInt8 (0 in a full file). ``lots``: id_high, id_low, dong_code
    UInt64, san, lot_main, lot_sub, reason, and the names in ``dongs``. Daily changes of buildings also have dong_code
    and ``day`` (UInt16, the number of their file).
    """

    rows: dict[Kind, list[pl.DataFrame]] = field(default_factory=dict)
    streets: list[pl.DataFrame] = field(default_factory=list)
    dongs: list[pl.DataFrame] = field(default_factory=list)
    lot_districts: list[pl.DataFrame] = field(default_factory=list)
    admins: list[pl.DataFrame] = field(default_factory=list)
    read: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    examples: list[str] = field(default_factory=list)
    street_count: int = 0

    def add(self, source: SourceFile, number: int, advance: Callable[[int], None]) -> None:
        """Read one file; ``advance`` gets the bytes read. Raises :class:`GazetteerError` with file and line."""
        frames = []
        rows = 0
        refused: list[Refused] = []
        for first, text, frame in _frames(source):
            rows += frame.height
            good = self._sorted_out(source, frame, first, refused)
            frames.append(self._compact(source, number, good))
            advance(len(text))
        if not rows and source.kind in ("buildings", "postal"):
            raise GazetteerError(SOURCE_FILE_EMPTY, name=source.name)
        bad = sum(sum(counts.values()) for counts, _ in refused)
        if bad > max(_REFUSED_ALWAYS, rows // _REFUSED_SHARE):
            raise GazetteerError(
                SOURCE_ROWS_UNUSABLE,
                name=source.name,
                bad=bad,
                rows=rows,
                example=_example(refused[0][1].row(0, named=True)),
            )
        for counts, first_ones in refused:
            self._note(source, counts, first_ones)
        self.read[source.kind] = self.read.get(source.kind, 0) + rows
        self.rows.setdefault(source.kind, []).extend(frames)

    def _sorted_out(self, source: SourceFile, frame: pl.DataFrame, first: int, refused: list[Refused]) -> pl.DataFrame:
        judged = frame.with_row_index("line", first).with_columns(_problem(source.kind).alias("problem"))
        bad = judged.filter(pl.col("problem").is_not_null())
        if bad.height:
            counts = dict(bad["problem"].value_counts(sort=True).iter_rows())
            refused.append((counts, bad.head(REFUSED_SHOWN)))  # all of them might be more than memory holds
            judged = judged.filter(pl.col("problem").is_null())
        if "effective" in frame.columns:
            _date_of(source, judged["effective"].max())
        return judged.drop("problem", "line").with_columns(_numbers(frame.columns))

    def _compact(self, source: SourceFile, number: int, frame: pl.DataFrame) -> pl.DataFrame:
        if source.kind in ("lots", "lot changes"):
            self.dongs.append(frame.select(DONG).unique(maintain_order=True))
            districts = frame.select((pl.col("id_high") // _BELOW_DISTRICT).alias("district")).unique(
                maintain_order=True
            )
            self.lot_districts.append(districts.with_columns(pl.lit(number, pl.UInt16).alias("source")))
            return frame.select(*ID, *LOT, "reason")
        streets = frame.select(STREET).unique(maintain_order=True).with_row_index("street", self.street_count)
        frame = frame.join(streets, on=list(STREET), how="left", maintain_order="left")
        self.street_count += streets.height
        self.streets.append(streets.with_columns(pl.lit(number, pl.UInt16).alias("source")))
        admins = frame.select(*DONG, "admin").filter(pl.col("admin") != "").unique(maintain_order=True)
        self.admins.append(admins)
        of_change = [pl.col("dong_code"), pl.lit(number, pl.UInt16).alias(DAY)] if source.kind == "changes" else []
        return frame.select(
            "street",
            *ID,
            "under",
            "main",
            "sub",
            "zipcode",
            "apartment",
            "name",
            "san",
            "lot_main",
            "lot_sub",
            "reason",
            *of_change,
        )

    def _note(self, source: SourceFile, counts: dict[str, int], first_ones: pl.DataFrame) -> None:
        for problem, count in counts.items():
            self.refused[problem] = self.refused.get(problem, 0) + count
        for row in first_ones.head(REFUSED_SHOWN - len(self.examples)).iter_rows(named=True):
            self.examples.append(f"{source.name}, {_example(row)}")


def _frames(source: SourceFile) -> Iterator[tuple[int, bytes, pl.DataFrame]]:
    layout = _LAYOUTS[source.kind]
    wanted = COLUMNS[source.kind]
    for first, text in lines(source):
        if first == 1 and text[:16].strip().lower() == _NO_DATA:
            return
        if first == 1 and source.kind == "postal":
            text = text[text.index(b"\n") + 1 :]
            first += 1
        if not text.strip():
            continue
        text = text.rstrip(b"\n") + b"\n"
        if text.translate(None, _NEITHER_BAR_NOR_END) != (b"|" * (wanted - 1) + b"\n") * text.count(b"\n"):
            raise _explain_ragged(source, text, first, wanted)
        try:
            frame = pl.read_csv(
                text,
                separator="|",
                has_header=False,
                quote_char=None,
                infer_schema=False,
                schema={f"column_{place + 1}": pl.String for place in range(wanted)},
                columns=[f"column_{place + 1}" for place in sorted(layout)],
            )
        except pl.exceptions.PolarsError as error:
            raise _explain_ragged(source, text, first, wanted) from error
        frame.columns = [layout[place] for place in sorted(layout)]
        yield first, text, frame


def _explain_ragged(source: SourceFile, text: bytes, first: int, wanted: int) -> GazetteerError:
    rows = pl.Series("text", text.decode().rstrip("\n").split("\n"))
    found = rows.to_frame().with_columns(pl.col("text").str.count_matches("|", literal=True).alias("bars") + 1)
    place = int((found["bars"] != wanted).arg_max() or 0)
    line, columns = found.row(place)
    if place == rows.len() - 1 and columns < wanted and columns > 1:
        remedy = Phrase("its last line is cut off, so the file is truncated: download it again")
    else:
        remedy = Phrase("it is damaged, or not the official file: download it again")
    return GazetteerError(
        COLUMN_COUNT_WRONG,
        name=source.name,
        first=first + place,
        columns=columns,
        wanted=wanted,
        line=line[:40],
        remedy=remedy,
    )


def _problem(kind: Kind) -> pl.Expr:
    towns = ["town"] if kind == "postal" else []
    tests = [
        ("management number", "id", _digits("id", 1, 26)),
        (gettext_noop("legal dong code"), "dong_code", _digits("dong_code", 10, 10)),
        (gettext_noop("province"), "sido", pl.col("sido").is_not_null()),
        (gettext_noop("town or dong"), "emd", pl.coalesce("emd", *towns).is_not_null()),
        ("mountain sign", "san", pl.col("san").fill_null("0").is_in(["0", "1", "2", "3"])),
        ("lot number", "lot_main", _number("lot_main")),
        ("lot number", "lot_sub", _number("lot_sub")),
    ]
    if kind in ("buildings", "changes", "postal"):
        tests += [
            (gettext_noop("road name"), "road", pl.col("road").is_not_null()),
            ("road code", "road_code", _digits("road_code", 12, 12)),
            ("underground sign", "under", pl.col("under").is_in(["0", "1", "2", "3"])),
            ("building number", "main", pl.col("main").is_not_null() & _number("main")),
            ("building number", "sub", _number("sub")),
            ("postal code", "zipcode", _digits("zipcode", 5, 5)),
        ]
    reasons: tuple[str, ...] = ("", *INSERT, *UPDATE) if kind in ("buildings", "lots") else (*INSERT, *UPDATE, *DELETE)
    if kind != "postal":
        tests.append((gettext_noop("known move reason"), "reason", pl.col("reason").fill_null("").is_in(reasons)))
    found = pl.lit(None, pl.String)
    for problem, _, good in reversed(tests):
        found = pl.when(~good.fill_null(False)).then(pl.lit(problem)).otherwise(found)
    return found


_SHOWN: Final = {
    gettext_noop("management number"): ("id",),
    gettext_noop("legal dong code"): ("dong_code",),
    gettext_noop("mountain sign"): ("san",),
    gettext_noop("lot number"): ("lot_main", "lot_sub"),
    gettext_noop("road code"): ("road_code",),
    gettext_noop("underground sign"): ("under",),
    gettext_noop("building number"): ("main", "sub"),
    gettext_noop("postal code"): ("zipcode",),
    gettext_noop("known move reason"): ("reason",),
}


def _example(row: dict[str, object]) -> Phrase:
    problem = str(row["problem"])
    values = [str(row[name]) for name in _SHOWN.get(problem, ()) if row[name] is not None]
    said = (
        Phrase("{value!r} is no {problem}", value="-".join(values)[:40], problem=Phrase(problem))
        if values
        else Phrase("there is no {problem}", problem=Phrase(problem))
    )
    return Phrase("line {line:,}: {said}", line=row["line"], said=said)


def _digits(name: str, shortest: int, longest: int) -> pl.Expr:
    return pl.col(name).str.contains(f"^[0-9]{{{shortest},{longest}}}$")


def _number(name: str) -> pl.Expr:
    value = pl.col(name).fill_null("0")
    return value.cast(pl.UInt32, strict=False).lt(NUMBER_LIMIT) & ~value.str.starts_with("+")


def _numbers(columns: list[str]) -> list[pl.Expr]:
    small = {"san": pl.UInt8, "under": pl.UInt8, "reason": pl.UInt8}
    large = {"lot_main": pl.UInt32, "lot_sub": pl.UInt32, "main": pl.UInt32, "sub": pl.UInt32, "zipcode": pl.UInt32}
    made = [
        pl.col("id").str.slice(0, 13).cast(pl.UInt64).alias("id_high"),
        pl.col("id").str.slice(13).replace("", "0").cast(pl.UInt64).alias("id_low"),
        *(pl.col(name).fill_null("") for name in ("sigungu", "ri", "admin") if name in columns),
        *(pl.col(name).fill_null("0").cast(dtype) for name, dtype in (small | large).items() if name in columns),
        *(pl.col(name).cast(pl.UInt64) for name in ("dong_code", "road_code") if name in columns),
    ]
    if "reason" not in columns:
        made.append(pl.lit(0, pl.UInt8).alias("reason"))
    if "town" in columns:  # the post office names a 읍 or 면 there
        made.append(pl.coalesce("town", "emd").alias("emd"))
    if "building_name" in columns:
        register = pl.col("register_name") if "register_name" in columns else pl.lit(None, pl.String)
        made.append(pl.coalesce("building_name", register).alias("name"))
        apartment = (pl.col("apartment") == "1").fill_null(False) if "apartment" in columns else pl.lit(False)
        made.append(apartment.alias("apartment"))
    return made


def _date_of(source: SourceFile, newest: object) -> None:
    try:
        found = datetime.strptime(str(newest), "%Y%m%d").date()
    except ValueError:
        return
    source.newest = max(source.newest or found, found)
