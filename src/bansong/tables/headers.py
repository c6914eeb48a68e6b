"""Find the header row of a table, recognise its words, and group columns by business."""

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

from bansong.base import business_number
from bansong.base.errors import InputError, Problem
from bansong.base.messages import Option, gettext
from bansong.base.schema import ADDED_COLUMNS, HEADERS, Choice
from bansong.tables.table import Table

Side = Literal["supplier", "buyer"]
Purpose = Literal["mail", "delivery", "business", "billing", "head office", "site", "home", "former"]
Notation = Literal["road", "any", "lot"]

_LEVELS: Final = ("sure", "likely")
_LISTS: Final = (*_LEVELS, "contains", "never", "ends")
_CONFIDENCE: Final = {"sure": 1.0, "likely": 0.8, "contains": 0.6}
_CACHED_HEADERS: Final = 1 << 16  # a sheet has up to 16,384 headers
_PUNCTUATION: Final = re.compile(r"[\s_\-.·/()\[\]{}*'\"]+")
_SIDES: Final[dict[Side, re.Pattern[str]]] = {  # words on tax invoices and in market places
    "supplier": re.compile("공급하는자|공급자|판매자|supplier|seller"),
    "buyer": re.compile("공급받는자|구매자|매입자|buyer|purchaser"),
}
PURPOSES: Final[dict[Purpose, re.Pattern[str]]] = {  # the best place for letters first
    "mail": re.compile("우편물|우편수령|우편주소|우편발송|(?<![a-z])dm(?![a-z])|발송|수령|수취|수신|mailing|recipient"),
    "delivery": re.compile("배송|배달|납품|택배|delivery|shipping|shipto"),
    "business": re.compile("사업장|사업자|회사|업체|업소|거래처|점포|매장|company|business"),  # also 주소 alone
    "billing": re.compile("청구|계산서|billing|invoice"),
    "head office": re.compile("본사|본점|주된사무소|등기|headoffice|headquarter|(?<![a-z])hq"),
    "site": re.compile("지점|지사|공장|창고|물류|현장|설치|보관|branch|factory|warehouse|site(?!s)"),
    "home": re.compile("자택|집주소|대표자|대표이사|거주|주민|개인|home|residence|owner"),
    "former": re.compile("이전주소|종전|과거|변경전|former|previous|(?<![a-z])old"),
}
_NOTATIONS: Final[dict[Notation, re.Pattern[str]]] = {
    "road": re.compile("도로명|신주소|새주소|road|rnaddr"),
    "lot": re.compile("지번|구주소|jibun|lctnaddr"),
}
_DETAIL: Final = re.compile(
    "(?:상세|나머지|세부|하위)(?:주소|소재지)[0-9]?$|(?:주소|소재지)(?:상세|나머지|세부|[23])$|동호수?$"
    "|addr(?:ess)?(?:line)?[23]$|addr(?:ess)?(?:details?|dtl)[0-9]?$|(?:detail(?:ed)?|dtl)addr(?:ess)?[0-9]?$"
    "|street(?:address)?(?:line)?[23]$"
)  # the rest of an address, in a column of its own: ``상세주소``, ``주소2``, ``Address Line 2``

_PARTS: Final = (
    "시도|광역시도",
    "시군구",
    "읍면동|법정동|행정동|읍면",
    "리|법정리",
    "도로명?",
    "건물번호",
    "지번|번지",
)
_REGIONS: Final = tuple(re.compile(f"(?:사업장|업소|회사|소재지|주소)?(?:{words})(?:명|명칭)?") for words in _PARTS)
_ROAD: Final = frozenset({4, 5})
_LOT: Final = frozenset({2, 3, 6})
_LEAST_PARTS: Final = 3
# roles that must be of the same party as the number
ROLES: Final = ("name", "address", "zipcode")


def address_parts(headers: Sequence[str]) -> list[int]:
    """Return the positions of columns with the parts of an address (시도, 시군구, 도로명), else an empty list."""
    plain = [_plain(header) for header in headers]
    found = {
        order: place
        for order, words in enumerate(_REGIONS)
        if (place := next((at for at, header in enumerate(plain) if words.fullmatch(header)), None)) is not None
    }
    if found.keys() >= _ROAD:  # an address by road needs no 동 and no lot
        found = {order: place for order, place in found.items() if order not in _LOT}
    elif found.keys() >= {min(_LOT), max(_LOT)}:
        found = {order: place for order, place in found.items() if order not in _ROAD}
    else:
        return []
    split = any(re.search("본번|부번", header) for header in plain)  # the lot number is in two columns
    return [] if split or len(found) < _LEAST_PARTS else list(found.values())


def has_role(header: str, *roles: str) -> bool:
    """Whether a header names one of the roles, by default any role."""
    return any(level_of(role, header) for role in roles or _synonyms())


def names_column(cell: str) -> bool:
    """Whether a cell is surely or likely a header."""
    return any(level_of(role, cell) in _LEVELS for role in _synonyms()) or is_detail(cell)


@lru_cache(_CACHED_HEADERS)
def level_of(role: str, header: str) -> str | None:
    """Return how certainly a header names a role: ``sure``, ``likely``, ``contains``, or ``None``."""
    words = _synonyms()[role]
    forms = {_plain(header), _plain(re.sub(r"[(\[].*?[)\]]", "", header)), without_side(header)}
    for level in _LEVELS:
        if not forms.isdisjoint(words[level]):
            return level
    if any(word in _plain(header) for word in words["contains"]) and not is_trap(role, header):
        return "contains"
    return "contains" if _plain(header).endswith(tuple(words["ends"])) else None


def rate_header(table: Table, role: str, place: int) -> Choice | None:
    """Return a column as a choice for a role if its header names the role."""
    level = level_of(role, table.headers[place])
    if level is None:
        return None
    return Choice(place, table.headers[place], _CONFIDENCE[level], "similar" if level == "contains" else "header")


def is_trap(role: str, header: str) -> bool:
    """Whether a header contains a word that excludes the role."""
    plain = _plain(header)
    return any(word in plain for word in _synonyms()[role]["never"])


def side_of(header: str) -> Side | None:
    """Return the party that a header names, supplier or buyer; ``None`` for none or both."""
    plain = _plain(header)
    sides = [side for side, words in _SIDES.items() if words.search(plain)]
    return sides[0] if len(sides) == 1 else None


def without_side(header: str) -> str:
    """Return a header without punctuation and without its word for supplier or buyer."""
    plain = _plain(header)
    side = side_of(header)
    return _SIDES[side].sub("", plain) if side else plain


def purpose_of(header: str) -> Purpose | None:
    """Return the purpose of an address that a header names."""
    plain = _plain(header)
    return next((purpose for purpose, words in PURPOSES.items() if words.search(plain)), None)


def notation_of(header: str) -> Notation:
    """Return whether a header names addresses by road, by lot, or any."""
    plain = _plain(header)
    return next((notation for notation, words in _NOTATIONS.items() if words.search(plain)), "any")


def is_detail(header: str) -> bool:
    """Whether a header names the rest of an address that begins in another column."""
    plain, words = _plain(header), _synonyms()["address"]
    return bool(_DETAIL.search(plain)) and not any(plain in words[level] for level in _LEVELS)


def split_number(header: str) -> tuple[str, int] | None:
    """Split a header such as ``사업자번호1`` or ``사업자번호(1)`` into words and digit; ``None`` without a digit."""
    found = re.fullmatch("(.*[^0-9])([1-9])", _plain(header))
    return (found[1], int(found[2])) if found else None


@cache
def _synonyms() -> dict[str, dict[str, frozenset[str]]]:
    text = files("bansong.tables").joinpath("headers.toml").read_text(encoding="utf-8")
    return {
        role: {level: frozenset(map(_plain, levels.get(level, ()))) for level in _LISTS}
        for role, levels in tomllib.loads(text).items()
    }


@lru_cache(_CACHED_HEADERS)
def _plain(header: str) -> str:
    return _PUNCTUATION.sub("", unicodedata.normalize("NFKC", header)).lower()


@dataclass(frozen=True, slots=True)
class Party:
    """One of several businesses in each row: the positions of its columns and of its business number."""

    number: int
    side: Side | None
    columns: frozenset[int]


def parties(headers: Sequence[str], numbers: Collection[int]) -> tuple[Party, ...]:
    """Group columns into parties, one for each column of business ``numbers``; empty for fewer than two parties."""
    # A column belongs to the number of the side that its header names; else to the number before it, or after it if
    # equal headers precede each number.
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
        for owner in owners:  # at most one
            owned[owner].add(place)
    found = [
        Party(place, sides[place], frozenset(owned[place]))
        for place in places
        if sides[place] or any(has_role(headers[other], *ROLES) for other in owned[place] - {place})
    ]
    return tuple(found) if len(found) > 1 else ()


def choose_party(table: Table, competing: Sequence[Party]) -> tuple[Party, str] | None:
    """Choose the party that gets the letters, and say why: the one whose number varies, else the buyer."""
    # a company that exports its invoices is itself the same side in all rows
    kinds = _kinds(table, competing)
    best = [party for party in competing if kinds[party.number] == max(kinds.values())]
    if len(best) == 1:
        same, none = gettext("the other side has the same number in every row"), gettext("the other side has none")
        return best[0], same if any(kinds[party.number] for party in competing if party is not best[0]) else none
    buyers = [party for party in best if party.side == "buyer"]
    return (buyers[0], gettext("it is the buyer's side")) if len(buyers) == 1 else None


def _kinds(table: Table, competing: Sequence[Party]) -> dict[int, int]:
    ids = {party.number: table.ids[party.number] for party in competing}
    digits = table.frame.select(business_number.compact_expr(pl.col(id_)).alias(id_) for id_ in ids.values())
    ends = [(pl.col(id_).min().alias(f"{id_}:min"), pl.col(id_).max().alias(f"{id_}:max")) for id_ in ids.values()]
    found = digits.select(end for pair in ends for end in pair).collect(engine="streaming").row(0, named=True)
    return {
        place: 0 if found[f"{id_}:min"] is None else 1 + (found[f"{id_}:min"] != found[f"{id_}:max"])
        for place, id_ in ids.items()
    }


def _nearby(headers: Sequence[str], places: Sequence[int]) -> dict[int, range]:
    before = 0
    while places and places[0] > before:
        ahead = [place - before - 1 for place in places]
        words = {without_side(headers[place]) for place in ahead}
        same = len(places) > 1 and len(words) == 1 and words != {""} and has_role(headers[ahead[0]], *ROLES)
        if not same or not set(ahead).isdisjoint(places):
            break
        before += 1
    starts = [place - before for place in places]
    return dict(zip(places, map(range, starts, [*starts[1:], len(headers)]), strict=True))


def _common_side(headers: Sequence[str], places: Collection[int]) -> Side | None:
    sides = {side_of(headers[place]) for place in places} - {None}
    return sides.pop() if len(sides) == 1 else None


TABLE_EMPTY: Final = Problem("files.table_empty", "{name}: is empty")
NUMBER_AS_HEADER: Final = Problem(
    "columns.number_as_header",
    "{name}: has no header, row {place} holds a number of ten digits already; give {parameter}, "
    "or put a row of headers above it",
)

LOOK: Final = 40  # rows among which the header is searched

Row = Sequence[str | None]
Merge = tuple[int, int, int, int]  # first row, first column, last row, last column (from 0, inclusive)

_LINES: Final = 4
_LONGEST: Final = 100
_WIDE: Final = 1000
_NUMBER_HIT: Final = 3
_OUR_HEADERS: Final = "|".join(header for headers in HEADERS.values() for header in headers.values())
# a header of an added column, perhaps after a prefix or group label
OURS: Final = re.compile(rf".*({_OUR_HEADERS})(_bv[0-9]*)?", flags=re.S)
# a label and its value, as in title rows: ``회사명 : 가나다상사``
_TITLE: Final = re.compile(r"[^:：(（\[]+[:：]\s*\S.*", flags=re.S)
_NO_LABEL: Final = re.compile(r"[:：※(（]|^[\W\d_]*$|[0-9]{4}\s*[.\-/년]")


@dataclass(frozen=True, slots=True)
class Heading:
    """The header of a table: its rows ``first`` to ``last`` (-1 without one), and the header of each column."""

    first: int
    last: int
    headers: tuple[str, ...]


def headless(rows: Sequence[Row], *, name: str = "") -> Heading | None:
    """Return the headers ``#1``, ``#2``, …; ``None`` for the output of an earlier run, which has a header."""
    first = next((row for row in rows if any(map(_is_filled, row))), None)
    if first is None:
        raise InputError(TABLE_EMPTY, name=name or gettext("the table"))
    if sum(bool(cell and OURS.fullmatch(cell)) for cell in first) >= len(ADDED_COLUMNS):
        return None
    return Heading(-1, -1, tuple(f"#{place + 1}" for place in range(max(map(len, rows)))))


def headless_note(headers: Sequence[str]) -> str:
    """Return a note on how to name the columns of a table without a header."""
    called = gettext("its column is called #1")
    if len(headers) > 1:
        called = gettext("its columns are called {first} to {last}", first=headers[0], last=headers[-1])
    return gettext("read without a header: {called}, in the output too", called=called)


def find_heading(
    rows: Sequence[Row], merges: Collection[Merge] = (), *, name: str = "", blank_rows: int = 0
) -> Heading:
    """Find the header among the first rows of a table, above which ``blank_rows`` rows were skipped."""
    # It is the row above the first business number with the most words for roles (those for the number count most; on a
    # tie, the fuller row), else the first row with at least half as many cells as the fullest.
    rows = rows[:LOOK]
    counts = [sum(map(_is_filled, row)) for row in rows]
    if not any(counts):
        raise InputError(TABLE_EMPTY, name=name or gettext("the table"))
    numbered, certain = _rows_with_numbers(rows)
    data = next((at for at in certain if not any(_score_cell(cell) for cell in rows[at][:_WIDE] if cell)), len(rows))
    free = [place for place in range(data) if counts[place] and place not in numbered]
    if not free:
        place = blank_rows + next(place for place, count in enumerate(counts) if count) + 1
        raise InputError(NUMBER_AS_HEADER, name=name, place=place, parameter=Option("has_header", False))
    first, last = _lines(rows, _main_line(rows, counts, free), free, merges)
    moved = [(top - first, left, bottom - first, right) for top, left, bottom, right in merges]
    return Heading(first, last, _headers(rows[first : last + 1], moved))


def _is_filled(cell: str | None) -> bool:
    return bool(cell) and not cell.isspace()  # type: ignore[union-attr]


@lru_cache(maxsize=4096)
def _score_cell(cell: str) -> int:
    if len(cell) > _LONGEST or not has_role(cell):
        return 0
    return _NUMBER_HIT if has_role(cell, "b_no") else 1


def _rows_with_numbers(rows: Sequence[Row]) -> tuple[set[int], list[int]]:
    # with thousands separators it is an amount, as title rows have
    cells = [(place, cell) for place, row in enumerate(rows) for cell in row if cell and "," not in cell]
    frame = pl.DataFrame(cells, schema={"row": pl.Int64, "cell": pl.String}, orient="row")
    ten = frame.select("row", digits=business_number.compact_expr(pl.col("cell"))).drop_nulls()
    valid = business_number.checksum_expr(pl.col("digits").cast(pl.UInt64))
    sure = ten.filter(valid & ~pl.col("digits").str.starts_with("0"))  # 031-123-4567 is a telephone number
    return set(ten["row"]), sorted(set(sure["row"]))


def _main_line(rows: Sequence[Row], counts: Sequence[int], free: Sequence[int]) -> int:
    cells = {place: [cell for cell in rows[place][:_WIDE] if cell] for place in free}
    titles = {place: [cell for cell in cells[place] if _TITLE.fullmatch(cell)] for place in free}
    hits = {
        place: [hit for cell in cells[place] if cell not in titles[place] and (hit := _score_cell(cell))]
        for place in free
    }
    most = max(counts)
    labels = {place: counts[place] - len(titles[place]) for place in free}
    full = next((place for place in free if 2 * labels[place] >= most and (labels[place] > 1 or most == 1)), free[0])
    named = [place for place in free if hits[place] and (place <= full or len(hits[place]) > 1)]
    if not named:
        return full
    main = max(named, key=lambda place: (sum(hits[place]), counts[place]))
    if counts[main] == 1:  # "사업자번호 목록" is a title if the header 사업자번호 is below it
        title = "".join(filter(None, rows[main]))
        below = [place for place in free if place > main and counts[place] == 1 and hits[place] == hits[main]]
        main = next((place for place in below if (text := "".join(filter(None, rows[place]))) in title != text), main)
    return main


def _lines(rows: Sequence[Row], main: int, free: Sequence[int], merges: Collection[Merge]) -> tuple[int, int]:
    first, last = _tied_lines(main, main, free, merges)
    above = next((place for place in reversed(free) if place < main), -1)
    if first == main and _is_group_line(rows, main, above, merges):
        first, last = _tied_lines(above, last, free, merges)
    below = next((place for place in free if place > main), -1)
    if last == main and (_is_sub_line(rows, main, below, merges) or _divides(rows, main, below)):
        last = below
    return (first, last) if last - first < _LINES else (main, main)


def _tied_lines(first: int, last: int, free: Sequence[int], merges: Collection[Merge]) -> tuple[int, int]:
    for top, _, bottom, _ in merges:
        if top < bottom and top <= last and bottom >= first and {top, bottom} <= set(free):
            first, last = min(first, top), max(last, bottom)
    return first, last


def _is_group_line(rows: Sequence[Row], main: int, above: int, merges: Collection[Merge]) -> bool:
    labels = [(place, cell) for place, cell in enumerate(rows[above]) if cell and _is_filled(cell)]
    if above < 0 or (above < main - 1 and not any(names_column(cell) for _, cell in labels)):
        return False
    if any(_NO_LABEL.search(cell) for _, cell in labels):
        return False
    begin = next(place for place, cell in enumerate(rows[main]) if _is_filled(cell))
    if any(top == bottom == above and left < right for top, left, bottom, right in merges):
        return len(labels) > 1 or labels[0][0] > begin
    alone, grouped = _headers([rows[main]], ()), _headers(rows[above : main + 1], ())
    return len(labels) > 1 and _unclear(grouped) < _unclear(alone)


def _is_sub_line(rows: Sequence[Row], main: int, below: int, merges: Collection[Merge]) -> bool:
    if below != main + 1:
        return False
    merged = [(left, right) for top, left, bottom, right in merges if top == bottom == main and left < right]
    cells = [(place, cell) for place, cell in enumerate(rows[below]) if cell and _is_filled(cell)]
    return len(cells) > 1 and all(
        any(left <= place <= right for left, right in merged) and not _NO_LABEL.search(cell) for place, cell in cells
    )


def _divides(rows: Sequence[Row], main: int, below: int) -> bool:
    if below < 0:
        return False
    cells = [(place, cell) for place, cell in enumerate(rows[below][:_WIDE]) if cell and _is_filled(cell)]
    blank = [cell for place, cell in cells if place >= len(rows[main]) or not _is_filled(rows[main][place])]
    named = [cell for _, cell in cells if names_column(cell)]
    alone, divided = _headers([rows[main]], ()), _headers(rows[main : below + 1], ())
    return (
        any(map(names_column, blank))
        and 2 * len(named) > len(cells) > 1
        and not any(_NO_LABEL.search(cell) for _, cell in cells)
        and _unclear(divided) < _unclear(alone)
    )


def _unclear(headers: Sequence[str]) -> int:
    return len(headers) - len({header for header in headers if header})


def _headers(lines: Sequence[Row], merges: Collection[Merge]) -> tuple[str, ...]:
    width = max(map(len, lines))
    padded = [[*line, *[None] * (width - len(line))] for line in lines]
    own = [cell or "" for cell in padded[-1]]
    labels = [_spread_labels(line, place, padded[place + 1 :], merges) for place, line in enumerate(padded[:-1])]
    return tuple(
        _join_labels([label[column] for label in labels], own[column]) if labels else own[column]
        for column in range(width)
    )


def _join_labels(labels: Sequence[str], own: str) -> str:
    if own and OURS.fullmatch(own):
        return own
    parts = list(dict.fromkeys(" ".join(part.split()) for part in [*labels, own] if _is_filled(part)))
    return own if parts == [" ".join(own.split())] else " ".join(parts)


def _spread_labels(line: Row, place: int, below: Sequence[Row], merges: Collection[Merge]) -> list[str]:
    labels = [cell or "" if _is_filled(cell) else "" for cell in line]
    across = [(left, right) for top, left, bottom, right in merges if top <= place <= bottom and left < right]
    if across:
        for left, right in across:
            labels[left : right + 1] = [labels[left]] * len(labels[left : right + 1])
        return labels
    down = {left for top, left, bottom, _ in merges if top <= place < bottom}
    spread, label = list(labels), ""
    for column, own in enumerate(labels):
        label = own or ("" if column in down else label)
        if any(_is_filled(row[column]) for row in below):
            spread[column] = label
    return spread
