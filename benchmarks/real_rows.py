"""A public register's own rows as truth: a strict reading of its road and lot addresses, without the library.

``localdata_vet_half.csv`` holds each business's road address, lot address and postal code. Rows whose three agree make
a small national gazetteer in the shape of the official files; everything else stays as queries.
"""

from __future__ import annotations

import csv
import random
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ADDRESSES = Path(__file__).parents[2] / "shared" / "data" / "address"
SIDO = (
    "서울특별시|부산광역시|대구광역시|인천광역시|광주광역시|대전광역시|울산광역시|세종특별자치시|경기도|강원도|충청북도|충청남도|"
    "전라북도|전라남도|경상북도|경상남도|제주특별자치도"
)
REGION = rf"^(?P<sido>{SIDO}) (?:(?P<sigungu>[가-힣]+[시군] [가-힣]+구|[가-힣]+[시군구]) )?"
NUMBER = r"(?P<main>\d+)(?:-(?P<sub>\d+))?"
ROAD = re.compile(
    REGION + r"(?:(?P<emd>[가-힣0-9]+[읍면]) )?(?P<road>[가-힣0-9·.]+(?:로|길)) (?P<under>지하 ?)?" + NUMBER
    + r"(?P<detail>, .*?)? ?(?:\((?:(?P<dong>[가-힣]+[0-9]*[동가로리])(?=[,)]))?(?P<bracket>.*)\))?$"
)  # fmt: skip
LOT = re.compile(
    REGION + r"(?P<emd>[가-힣0-9.·]+[읍면동가로])(?: (?P<ri>[가-힣0-9]+리))? (?P<san>산 ?)?" + NUMBER
    + r"(?: *번지)?(?P<detail> .*)?$"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Place:
    """One address read strictly: region, 읍·면·동 and 리, road name or ``san`` and number."""

    sido: str
    sigungu: str
    emd: str
    ri: str
    road: str
    under: bool
    main: int
    sub: int
    detail: str

    @property
    def number(self) -> str:
        return f"{self.main}-{self.sub}" if self.sub else str(self.main)


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the register: as typed, and as far as it could be read strictly."""

    lot_text: str
    road_text: str
    zipcode: str
    lot: Place | None
    road: Place | None
    fault: str
    """Why road, lot and postal code do not make an official row: empty when they agree."""

    @property
    def building(self) -> tuple[str, str, str, int, int]:
        assert self.road
        return self.road.sido, self.road.sigungu, self.road.road, self.road.main, self.road.sub


def read_road(text: str) -> Place | None:
    """A road address in the official form, else None; ``emd`` is the 읍 or 면, else the 동 in brackets."""
    if not (found := ROAD.match(" ".join(text.split()))):
        return None
    part = found.groupdict(default="")
    emd = part["emd"] or part["dong"]
    ri = part["dong"] if part["emd"] and part["dong"].endswith("리") else ""
    detail = (part["detail"] + part["bracket"]).strip(" ,")
    return Place(
        part["sido"], part["sigungu"], emd, ri, part["road"].replace(".", "·"), bool(part["under"]),
        int(part["main"]), int(part["sub"] or 0), detail,
    )  # fmt: skip


def read_lot(text: str) -> Place | None:
    """A lot address in the official form, else None."""
    if not (found := LOT.match(" ".join(text.split()))):
        return None
    part = found.groupdict(default="")
    return Place(
        part["sido"], part["sigungu"], part["emd"], part["ri"], "산" if part["san"] else "", False,
        int(part["main"]), int(part["sub"] or 0), part["detail"].strip(),
    )  # fmt: skip


def fault(lot: Place | None, road: Place | None, zipcode: str, codes: dict[str, str], prefixes: dict[str, str]) -> str:
    """The first thing in which the three do not agree."""
    if not road or not lot:
        return f"the {'lot' if road else 'road'} address is not there or not in the official form"
    found = {
        "no five-digit postal code": not re.fullmatch(r"\d{5}", zipcode),
        "different provinces": lot.sido != road.sido,
        "different districts": lot.sigungu != road.sigungu,
        "the road address names no 읍, 면 or 동": not road.emd,
        "different 읍, 면 or 동": lot.emd != road.emd,
        "different 리": bool(road.ri) and road.ri != lot.ri,
        "the lot's 동 or 리 has no code of its own": dong_name(lot) not in codes,
        "the lot address names no 리": lot.emd.endswith(("읍", "면")) and not lot.ri,
        "the postal code belongs to another province": prefixes.get(zipcode[:2], road.sido) != road.sido,
    }
    return next((words for words, true in found.items() if true), "")


def dong_name(place: Place) -> str:
    return " ".join(filter(None, (place.sido, place.sigungu, place.emd, place.ri)))


def dong_codes() -> dict[str, str]:
    """Full names of legal dongs, those of today and those abolished, and their ten-digit codes."""
    lines = (ADDRESSES / "legal_dong_codes_2025.txt").read_bytes().decode("cp949").splitlines()[1:]
    codes: dict[str, str] = {}
    for line in sorted(lines, key=lambda line: line.rstrip().endswith("존재")):
        code, name, _ = line.split("\t")
        codes[name.strip()] = code
    return codes


def rows() -> list[Row]:
    """Every row of the register that has an address."""
    if not ADDRESSES.is_dir():
        sys.exit(f"skipped: the shared evaluation data is not at {ADDRESSES}")
    codes = dong_codes()
    with (ADDRESSES / "localdata_vet_half.csv").open(encoding="utf-8", newline="") as file:
        texts = [
            (r["소재지전체주소"].strip(), r["도로명전체주소"].strip(), r["도로명우편번호"].strip())
            for r in csv.DictReader(file)
        ]
    read = [(lot, road, zipcode, read_lot(lot), read_road(road)) for lot, road, zipcode in texts if lot or road]
    votes: dict[str, Counter[str]] = defaultdict(Counter)
    for _, _, zipcode, _, place in read:
        if place and len(zipcode) == 5:
            votes[zipcode[:2]][place.sido] += 1
    prefixes = {prefix: counts.most_common(1)[0][0] for prefix, counts in votes.items()}
    return [Row(lot, road, zipcode, a, b, fault(a, b, zipcode, codes, prefixes)) for lot, road, zipcode, a, b in read]


def agreed(every: Iterable[Row]) -> tuple[list[Row], list[Row]]:
    """(usable rows, rows that another row of the same building contradicts in postal code or 동)."""
    usable = [row for row in every if not row.fault]
    said: dict[tuple[str, str, str, int, int], set[tuple[str, str]]] = defaultdict(set)
    for row in usable:
        assert row.lot
        said[row.building].add((row.zipcode, dong_name(row.lot)))
    return (
        [row for row in usable if len(said[row.building]) == 1],
        [row for row in usable if len(said[row.building]) > 1],
    )


def drawn(usable: list[Row], share: float, seed: int) -> list[Row]:
    """A seeded part of the usable rows; rows of one building stay together."""
    buildings = sorted({row.building for row in usable})
    chosen = set(random.Random(seed).sample(buildings, round(len(buildings) * share)))
    return [row for row in usable if row.building in chosen]


def write_official(chosen: list[Row], folder: Path) -> tuple[int, int]:
    """The rows as official files: one building each, its further lots as additional ones. Returns their counts."""
    codes = dong_codes()
    by_building: dict[tuple[str, str, str, int, int], list[Row]] = defaultdict(list)
    for row in chosen:
        by_building[row.building].append(row)
    roads: dict[tuple[str, str, str], str] = {}
    main, more = [], []
    for turn, (building, those) in enumerate(sorted(by_building.items())):
        first = those[0]
        assert first.lot
        assert first.road
        code = codes[dong_name(first.lot)]
        road_code = roads.setdefault(building[:3], f"{code[:5]}{3000000 + len(roads)}")
        key = f"{code}{turn:016d}"
        lots = sorted({(row.lot.road, row.lot.main, row.lot.sub) for row in those if row.lot})
        for place, (san, lot_main, lot_sub) in enumerate(lots):
            head = [
                key,
                code,
                first.lot.sido,
                first.lot.sigungu,
                first.lot.emd,
                first.lot.ri,
                "1" if san else "0",
                lot_main,
                lot_sub,
            ]
            under, number = "1" if first.road.under else "0", [first.road.main, first.road.sub]
            if place:
                more.append([*head, road_code, under, *number, ""])
            else:
                tail = ["", "", first.zipcode, "", "20220301", "0", "", "", "", ""]
                main.append([*head, road_code, first.road.road, under, *number, *tail])
    for name, lines in (("rnaddrkor_all.txt", main), ("jibun_rnaddrkor_all.txt", more)):
        text = "".join("|".join(map(str, line)) + "\r\n" for line in lines)
        (folder / name).write_bytes(text.encode("cp949"))
    return len(main), len(more)
