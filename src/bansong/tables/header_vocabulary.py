"""The words of headers: ``headers.toml`` by role, the sides of an invoice, and whose columns stand together.

Several businesses may stand in one row, as in the tax portal's export: :func:`parties` says which columns belong
together, :func:`choose_party` which of the businesses is mailed.
"""

from __future__ import annotations

import re
import tomllib
import unicodedata
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from typing import Final, Literal

import polars as pl

from bansong import business_number
from bansong.tables.table import Table
from bansong.translation import gettext

Side = Literal["supplier", "buyer"]
Purpose = Literal["mail", "delivery", "business", "billing", "head office", "site", "home", "former"]
Notation = Literal["road", "any", "lot"]

_LEVELS: Final = ("sure", "likely")
_CACHED_HEADERS: Final = 1 << 16
"""Headers: they are asked for often, and a sheet has up to 16,384 of them."""
_PUNCTUATION: Final = re.compile(r"[\s_\-.·/()\[\]{}*'\"]+")
_SIDES: Final[dict[Side, re.Pattern[str]]] = {  # the words of tax invoices and of market places
    "supplier": re.compile("공급하는자|공급자|판매자|supplier|seller"),
    "buyer": re.compile("공급받는자|구매자|매입자|buyer|purchaser"),
}
PURPOSES: Final[dict[Purpose, re.Pattern[str]]] = {  # in the order in which letters are sent there
    "mail": re.compile("우편물|우편수령|우편주소|우편발송|(?<![a-z])dm(?![a-z])|발송|수령|수취|수신|mailing|recipient"),
    "delivery": re.compile("배송|배달|납품|택배|delivery|shipping|shipto"),
    "business": re.compile("사업장|사업자|회사|업체|업소|거래처|점포|매장|company|business"),  # and 주소 without more
    "billing": re.compile("청구|계산서|billing|invoice"),
    "head office": re.compile("본사|본점|주된사무소|등기|headoffice|headquarter|(?<![a-z])hq"),
    "site": re.compile("지점|지사|공장|창고|물류|현장|설치|보관|branch|factory|warehouse|site(?!s)"),
    "home": re.compile("자택|집주소|대표자|대표이사|거주|주민|개인|home|residence|owner"),
    "former": re.compile("이전주소|종전|과거|변경전|former|previous|(?<![a-z])old"),
}
"""What an address or a postal code is for, by the words of its header."""

_NOTATIONS: Final[dict[Notation, re.Pattern[str]]] = {
    "road": re.compile("도로명|신주소|새주소|road|rnaddr"),
    "lot": re.compile("지번|구주소|jibun|lctnaddr"),
}
_DETAIL: Final = re.compile(
    "(?:상세|나머지|세부|하위)(?:주소|소재지)[0-9]?$|(?:주소|소재지)(?:상세|나머지|세부|[23])$|동호수?$"
    "|addr(?:ess)?(?:line)?[23]$|addr(?:ess)?(?:details?|dtl)[0-9]?$|(?:detail(?:ed)?|dtl)addr(?:ess)?[0-9]?$"
    "|street(?:address)?(?:line)?[23]$"
)
"""``상세주소``, ``주소2``, ``Address Line 2``: the rest of an address that begins in another column."""

_REGIONS: Final = tuple(
    re.compile(f"(?:사업장|업소|회사|소재지|주소)?(?:{words})(?:명|명칭)?")
    for words in (
        "시도|광역시도",
        "시군구",
        "읍면동|법정동|행정동|읍면",
        "리|법정리",
        "도로명?",
        "건물번호",
        "지번|번지",
    )
)
_ROAD: Final = frozenset({4, 5})
_LOT: Final = frozenset({2, 3, 6})
_LEAST_PARTS: Final = 3
ROLES: Final = ("name", "address", "zipcode")
"""What belongs to a number: a name from one party and an address from another would be of no business."""


def address_parts(headers: Sequence[str]) -> list[int]:
    """The positions of the columns in which an address is split by region, road and number, in its order.

    None where fewer than three are found, or no road or 동 with a number, or where the number is itself in two columns.
    """
    plain = [_plain(header) for header in headers]
    found = {
        order: place
        for order, words in enumerate(_REGIONS)
        if (place := next((at for at, header in enumerate(plain) if words.fullmatch(header)), None)) is not None
    }
    if found.keys() >= _ROAD:  # an address by road names no 동 and no lot
        found = {order: place for order, place in found.items() if order not in _LOT}
    elif found.keys() >= {min(_LOT), max(_LOT)}:
        found = {order: place for order, place in found.items() if order not in _ROAD}
    else:
        return []
    split = any(re.search("본번|부번", header) for header in plain)
    return [] if split or len(found) < _LEAST_PARTS else list(found.values())


def has_role(header: str, *roles: str) -> bool:
    """Whether a header names one of these roles, by default of all there are."""
    return any(level_of(role, header) for role in roles or _synonyms())


def names_column(cell: str) -> bool:
    """Whether a cell is surely or likely a header, and no value."""
    return any(level_of(role, cell) in _LEVELS for role in _synonyms()) or is_detail(cell)


@lru_cache(_CACHED_HEADERS)
def level_of(role: str, header: str) -> str | None:
    """The certainty with which a header names a role: ``sure``, ``likely``, ``contains``, or ``None``.

    Which side of an invoice it speaks of is left aside: ``공급받는자 상호`` is a name as ``상호`` is.
    """
    words = _synonyms()[role]
    forms = {_plain(header), _plain(re.sub(r"[(\[].*?[)\]]", "", header)), without_side(header)}
    for level in _LEVELS:
        if not forms.isdisjoint(words[level]):
            return level
    if any(word in _plain(header) for word in words["contains"]) and not is_trap(role, header):
        return "contains"
    return "contains" if _plain(header).endswith(tuple(words.get("ends", ()))) else None


def is_trap(role: str, header: str) -> bool:
    """Whether a header has a word that a role's headers never have."""
    plain = _plain(header)
    return any(word in plain for word in _synonyms()[role]["never"])


def side_of(header: str) -> Side | None:
    """The side of an invoice that a header names; ``None`` for neither and for both."""
    plain = _plain(header)
    sides = [side for side, words in _SIDES.items() if words.search(plain)]
    return sides[0] if len(sides) == 1 else None


def without_side(header: str) -> str:
    """A header in plain letters without the words of :func:`side_of`."""
    plain = _plain(header)
    side = side_of(header)
    return _SIDES[side].sub("", plain) if side else plain


def purpose_of(header: str) -> Purpose | None:
    """The purpose of the address or postal code under a header; ``None`` where the header names none."""
    plain = _plain(header)
    return next((purpose for purpose, words in PURPOSES.items() if words.search(plain)), None)


def notation_of(header: str) -> Notation:
    """The notation of the addresses under a header: by road, by lot, or any."""
    plain = _plain(header)
    return next((notation for notation, words in _NOTATIONS.items() if words.search(plain)), "any")


def is_detail(header: str) -> bool:
    """Whether a header names the rest of an address and not the whole of one."""
    plain, words = _plain(header), _synonyms()["address"]
    return bool(_DETAIL.search(plain)) and not any(plain in words[level] for level in _LEVELS)


def split_number(header: str) -> tuple[str, int] | None:
    """A header's words and the figure behind them: ``사업자번호1``, ``사업자번호(1)``; ``None`` without a figure."""
    found = re.fullmatch("(.*[^0-9])([1-9])", _plain(header))
    return (found[1], int(found[2])) if found else None


@cache
def _synonyms() -> dict[str, dict[str, frozenset[str]]]:
    text = files("bansong.tables").joinpath("headers.toml").read_text(encoding="utf-8")
    return {
        role: {level: frozenset(map(_plain, words)) for level, words in levels.items()}
        for role, levels in tomllib.loads(text).items()
    }


@lru_cache(_CACHED_HEADERS)
def _plain(header: str) -> str:
    return _PUNCTUATION.sub("", unicodedata.normalize("NFKC", header)).lower()


@dataclass(frozen=True, slots=True)
class Party:
    """The columns of one of several businesses: that of its number, and those that belong to it (positions)."""

    number: int
    side: Side | None
    columns: frozenset[int]


def parties(headers: Sequence[str], numbers: Collection[int]) -> tuple[Party, ...]:
    """Group columns around those that hold ``numbers``; empty unless there are at least two parties.

    A column belongs to the number whose side (supplier, buyer) its header names, else to the last number before it.
    Where the same headers stand before each number (name, number, address, name, number, address), they belong to the
    number behind them. A number column alone, with neither a side nor a name or address, is no party.
    """
    places = sorted(numbers)
    near = _nearby(headers, places)
    sides = {place: side_of(headers[place]) or _common_side(headers, near[place]) for place in places}
    owned: dict[int, set[int]] = {place: {place} for place in places}
    for place, header in enumerate(headers):
        if place in owned:
            continue
        side = side_of(header)
        named = [owner for owner in places if side and sides[owner] == side]
        owners = named if len(named) == 1 else [owner for owner in places if place in near[owner]]
        for owner in owners:  # one, or none before the first number
            owned[owner].add(place)
    found = [
        Party(place, sides[place], frozenset(owned[place]))
        for place in places
        if sides[place] or any(has_role(headers[other], *ROLES) for other in owned[place] - {place})
    ]
    return tuple(found) if len(found) > 1 else ()


def choose_party(table: Table, competing: Sequence[Party]) -> tuple[Party, str] | None:
    """Return the party that is mailed and why it is; ``None`` where nothing decides.

    Rows are about the one whose number changes from row to row: an export of one's own invoices has one's own number
    on one side throughout. Where both change (or neither does) it is the buyer. The whole file is looked at.
    """
    kinds = _kinds(table, competing)
    best = [party for party in competing if kinds[party.number] == max(kinds.values())]
    if len(best) == 1:
        others = [kinds[party.number] for party in competing if party is not best[0]]
        return best[0], gettext("the other side has the same number in every row") if max(others) else gettext(
            "the other side has none"
        )
    buyers = [party for party in best if party.side == "buyer"]
    return (buyers[0], gettext("it is the buyer's side")) if len(buyers) == 1 else None


def _kinds(table: Table, competing: Sequence[Party]) -> dict[int, int]:
    """For each party's number column: 0 where it holds no number, 1 where it holds one, 2 where several."""
    ids = {party.number: table.ids[party.number] for party in competing}
    digits = table.frame.select(business_number.compact_expr(pl.col(id_)).alias(id_) for id_ in ids.values())
    ends = [(pl.col(id_).min().alias(f"{id_}:min"), pl.col(id_).max().alias(f"{id_}:max")) for id_ in ids.values()]
    found = digits.select(end for pair in ends for end in pair).collect(engine="streaming").row(0, named=True)
    return {
        place: 0 if found[f"{id_}:min"] is None else 1 + (found[f"{id_}:min"] != found[f"{id_}:max"])
        for place, id_ in ids.items()
    }


def _nearby(headers: Sequence[str], places: Sequence[int]) -> dict[int, range]:
    """Each number's columns by position alone: from it, or from the headers that are before every one, to the next."""
    before = 0
    while places and places[0] > before:
        ahead = [place - before - 1 for place in places]
        if not set(ahead).isdisjoint(places) or not _same_headers(headers, ahead):
            break
        before += 1
    starts = [place - before for place in places]
    return dict(zip(places, map(range, starts, [*starts[1:], len(headers)]), strict=True))


def _same_headers(headers: Sequence[str], places: Sequence[int]) -> bool:
    words = {without_side(headers[place]) for place in places}
    return len(places) > 1 and len(words) == 1 and words != {""} and has_role(headers[places[0]], *ROLES)


def _common_side(headers: Sequence[str], places: Collection[int]) -> Side | None:
    sides = {side_of(headers[place]) for place in places} - {None}
    return sides.pop() if len(sides) == 1 else None
