"""Letters: their ids and salutations, the customer's key, and the rows that outcomes name by them."""

from __future__ import annotations

from collections.abc import Collection
from functools import reduce
from operator import add
from typing import Final

import polars as pl

from bansong.base import business_number
from bansong.base.messages import gettext_noop
from bansong.base.schema import Choice
from bansong.engine.overlays import address_key
from bansong.engine.records import ROW_ID, look_up
from bansong.engine.text import postal_digits
from bansong.tables.headers import level_of
from bansong.tables.table import SAMPLE_ROWS, Table

# no vowels, so no words, months or exponents; a prime count, so that every error in one or two signs is noticed
_LETTERS: Final = "BCDFGHJKLMNPQRSTVWXYZ"
_SIGNS: Final = f"{_LETTERS}23456789"
_BASE: Final = len(_SIGNS)
_POWERS: Final = tuple(_BASE**power for power in range(8, -1, -1))
_IDS: Final = len(_LETTERS) * _POWERS[0]  # the first sign is a letter: no spreadsheet takes an id for a number
_SHAPE: Final = f"^[{_LETTERS}][{_SIGNS}]{{9}}$"
_WEIGHTS: Final = range(10, 0, -1)

_WINDOW: Final = 64  # bytes of a text that are hashed at once
_ODD: Final = 0x9E3779B97F4A7C15
_MIX: Final = 0xD6E8FEB86659FD93
_REFERENCE: Final = r"\s*\([^()0-9]*\)$"  # legal dong and building's name at the end of an official address


def place_key(address: pl.Expr, fixed_address: pl.Expr) -> pl.Expr:
    """Return the comparison key (String) of the corrected address, else of the address as written."""
    return address_key(pl.coalesce(fixed_address.str.replace(_REFERENCE, ""), address.cast(pl.String)))


def letter_ids(rows: pl.LazyFrame, number: pl.Expr) -> pl.Series:
    """Return the id of each row's letter: ten signs, which depend on its number and address alone.

    ``rows``: all rows of a file with ``fixed_address`` and ``row_status``, perhaps ``name`` and ``address``;
    ``number``: the business number (UInt64). A row without number or address is a letter of its own.
    """
    names = rows.collect_schema().names()
    name, address = (pl.col(one) if one in names else pl.lit(None, pl.String) for one in ("name", "address"))
    b_no = pl.when(pl.col("row_status") != "invalid").then(number).cast(pl.String)
    parts = rows.select(b_no=b_no, place=place_key(address, pl.col("fixed_address")), name=address_key(name))
    sure = pl.all_horizontal(pl.col("b_no", "place").is_not_null())
    text = pl.concat_str(
        [pl.col("b_no", "place").fill_null(""), pl.when(~sure).then("name").fill_null("")], separator="|"
    )
    found = parts.select(sure.alias("sure"), text.alias("text")).collect(engine="streaming")
    hashed = found.select("sure", _hash(found["text"]).alias("hash"))
    again = pl.when(~pl.col("sure")).then(pl.int_range(pl.len(), dtype=pl.UInt64).over("hash")).otherwise(0)
    values = hashed.select(value=_mix(pl.col("hash") + again))
    # of letters with one id all get another, so that an id does not depend on which other rows the file has
    several = values.unique().filter((pl.col("value") % _IDS).is_duplicated())["value"]
    value = pl.when(pl.col("value").is_in(several.implode())).then(_mix(pl.col("value"))).otherwise("value")
    return values.select(_spell(value % _IDS)).to_series()


def _hash(texts: pl.Series) -> pl.Series:
    # to 64 bits, alike in every release, unlike the hashes of polars
    sums = pl.repeat(0, texts.len(), dtype=pl.UInt64, eager=True)
    rest = texts.to_frame("text").with_row_index("at").with_columns(size=pl.col("text").str.len_bytes())
    padded = pl.concat_str("text", pl.lit("\0" * _WINDOW)).cast(pl.Binary)
    start = 0
    while rest.height:
        words = (padded.bin.slice(at, 8).bin.reinterpret(dtype=pl.UInt64) for at in range(start, start + _WINDOW, 8))
        weights = (pow(_ODD, at + 1, 1 << 64) for at in range(start // 8, (start + _WINDOW) // 8))
        part = reduce(add, (word * pl.lit(weight, pl.UInt64) for word, weight in zip(words, weights, strict=True)))
        summed = rest.select("at", part.alias("part"))
        sums = sums.scatter(summed["at"], sums.gather(summed["at"]) + summed["part"])
        start += _WINDOW
        rest = rest.filter(pl.col("size") > start)
    return sums


def _mix(value: pl.Expr) -> pl.Expr:
    for _ in range(2):
        value = (value ^ (value // (1 << 32))) * pl.lit(_MIX, pl.UInt64)
    return value ^ (value // (1 << 32))


def _spell(value: pl.Expr) -> pl.Expr:
    digits = [value // power % _BASE for power in _POWERS]
    total = reduce(add, (digit * weight for digit, weight in zip(digits, _WEIGHTS, strict=False)))
    signs = pl.lit(pl.Series(list(_SIGNS)))
    return pl.concat_str([signs.gather(digit) for digit in (*digits, (_BASE - total % _BASE) % _BASE)])


def plain_id(text: pl.Expr) -> pl.Expr:
    """Return a letter's id as it was given out, from what somebody typed."""
    return text.str.normalize("NFKC").str.to_uppercase().str.replace_all(r"[^\p{L}\p{N}]", "")


def is_letter_id(text: pl.Expr) -> pl.Expr:
    """Whether a text (:func:`plain_id`) is a letter's id with the right check sign."""
    values = {sign: value for value, sign in enumerate(_SIGNS)}
    shaped = pl.when(text.str.contains(_SHAPE)).then(text)
    digits = (shaped.str.slice(at, 1).replace_strict(values, default=None, return_dtype=pl.Int64) for at in range(10))
    total = reduce(add, (digit * weight for digit, weight in zip(digits, _WEIGHTS, strict=True)))
    return (total % _BASE == 0).fill_null(False)


_SURNAMES: Final = "김이박최정강조윤장임한오서신권황안송류유홍전고문양손배백허남심노하곽성"
# three syllables that begin with a frequent surname and do not end as the name of a shop
_PERSON: Final = rf"^[{_SURNAMES}][가-힣][가-힣&&[^점집당관소실방사가장트네회]]$"
_SHOPS: Final = ("한의원", "고시원", "유치원", "문방구", "조경원")


def salutation(name: pl.Expr, number: pl.Expr) -> pl.Expr:
    """Return 귀하 behind a person's name, 귀중 behind any other (String); ``number``: UInt64."""
    kind = business_number.kind_of_key_expr(number)
    may_be_person = kind.is_null() | kind.is_in(["sole_trader", "tax_exempt"])
    person = may_be_person & name.str.contains(_PERSON) & ~name.is_in(_SHOPS)
    return pl.when(person).then(pl.lit("귀하")).when(name.is_not_null()).then(pl.lit("귀중"))


_HEADED: Final = ("letter_id", "registered", "recipient")
_KEY: Final = r"^[\p{L}\p{N}._/\-]{1,24}$"
_MOSTLY: Final = 0.9
_FEW: Final = 3
_CODE: Final = r"^[A-Za-z]{1,5}[\-_]?[0-9]{2,12}$"  # a key whatever its header


def list_columns(table: Table, taken: Collection[int] = (), key: str | None = None) -> dict[str, Choice]:
    """Return the columns, not ``taken``, that name a letter or its customer, by role; ``key``: header of the key."""
    texts = _first_texts(table, taken)
    places = [int(name) for name in texts.columns]
    found = {role: place for role in _HEADED for place in reversed(places) if _is_headed(table, role, place)}
    if "letter_id" not in found:  # the header may be somebody else's, but no other texts have the check sign
        right = texts.select(is_letter_id(plain_id(pl.all().drop_nulls())).all() & (pl.all().count() > 0))
        if ids := [place for place, is_id in zip(places, right.row(0) if places else (), strict=True) if is_id]:
            found["letter_id"] = ids[0]
    given = [place for place, header in enumerate(table.headers) if header == key]
    if keys := given or key_columns(table, {*taken, *found.values()}):
        found["key"] = keys[0]
    return {role: Choice(place, table.headers[place], 1.0, "header") for role, place in found.items()}


def key_columns(table: Table, taken: Collection[int]) -> list[int]:
    """Return the positions of columns with the customers' keys, the best first: by header, else by content."""
    found = []
    for texts in _first_texts(table, taken):
        place, keys = int(texts.name), texts.drop_nulls().str.split(KEY_SEPARATOR).list.first()
        named = _is_headed(table, "key", place) and keys.n_unique() > keys.len() / 2
        if named and keys.str.contains(_KEY).all():
            found.append((0, place))
        elif keys.n_unique() == keys.len() >= max(_FEW, _MOSTLY * texts.len()) and keys.str.contains(_CODE).all():
            found.append((1, place))
    return [place for _, place in sorted(found)]


def _first_texts(table: Table, taken: Collection[int]) -> pl.DataFrame:
    schema = table.frame.collect_schema()
    kinds = {place: schema[id_] for place, id_ in enumerate(table.ids) if place not in taken}
    free = [place for place, dtype in kinds.items() if dtype == pl.String or dtype.is_integer()]
    cells = (non_blank(pl.col(table.ids[place])).alias(str(place)) for place in free)
    return table.head(SAMPLE_ROWS).select(cells).collect()


def _is_headed(table: Table, role: str, place: int) -> bool:
    return level_of(role, table.headers[place]) in ("sure", "likely")


def non_blank(value: pl.Expr) -> pl.Expr:
    """Return a value as stripped text, null without one."""
    tidy = value.cast(pl.String).str.strip_chars()
    return pl.when(tidy != "").then(tidy)


# columns of mailed rows that :func:`locate` needs beside LETTER_SCHEMA
NAMING: Final = ("name", "zipcode", "fixed_zipcode", "row_status", "letter_id", "registered", "key")
KEY_SEPARATOR: Final = ", "  # between the keys of customers who share a letter
_BY_ROW, _BY_ID, _BY_REGISTERED, _BY_BOTH, _BY_NUMBER, _BY_KEY, _BY_ADDRESSEE = WAYS = (
    *("row_id", gettext_noop("letter_id"), gettext_noop("registered number")),
    *(gettext_noop("number and address"), gettext_noop("number")),
    *(gettext_noop("customer key"), gettext_noop("recipient and address")),
)  # the surest first
_WAY: Final = pl.Enum(WAYS)
_SHORTEST: Final = 10  # digits of a registered number: 13, or fewer at a private carrier
_HONORIFIC: Final = r"\s*(?:귀하|귀중|님|앞)\s*$"


def locate(outcomes: pl.DataFrame, rows: pl.LazyFrame) -> pl.DataFrame:
    """Add to outcomes (OUTCOME_SCHEMA) the row that each names in the surest of its :data:`WAYS`, never by a guess.

    ``rows``: mailed rows (LETTER_SCHEMA and :data:`NAMING`). Added are ``target`` (``row_id``), ``way``, and ``lost``:
    one of PROBLEMS where no letter or several fit. A ``row_id`` or letter_id that does not fit rules out other ways.
    """
    cell = {role: non_blank(pl.col(f"written:{role}")) for role in ("letter_id", "registered", "key", "recipient")}
    id_ = plain_id(cell["letter_id"])
    ways = {
        _BY_ROW: pl.col(ROW_ID).cast(pl.String),
        _BY_ID: pl.when(is_letter_id(id_)).then(id_),
        _BY_REGISTERED: _digits(cell["registered"]),
        _BY_BOTH: pl.concat_str("digits", "key", separator=" "),
        _BY_NUMBER: pl.col("digits"),
        _BY_KEY: _plain_key(cell["key"].str.split(KEY_SEPARATOR).list.first()),
        _BY_ADDRESSEE: _addressee(cell["recipient"], pl.col("written:address")),
    }
    only = pl.when(pl.col(ROW_ID).is_not_null()).then(pl.lit(_BY_ROW)).when(id_.is_not_null()).then(pl.lit(_BY_ID))
    code = postal_digits(non_blank(pl.col("written:zipcode")))
    given = outcomes.with_row_index("at").select("at", only=only, code=code, **ways)
    wanted = given.unpivot(WAYS, index=["at", "only", "code"], variable_name="way", value_name="text")
    wanted = wanted.filter(pl.col("only").is_null() | (pl.col("way") == pl.col("only"))).drop_nulls("text")
    found = _find(wanted.with_columns(pl.col("way").cast(_WAY)), rows)
    one = found.filter(pl.col("letters") == 1).sort("way").unique("at", keep="first").select("at", "target", "way")
    fits, numbered = pl.col("at").is_in(found["at"].implode()), pl.col(_BY_NUMBER).is_not_null()
    problems = {
        "row_absent": pl.col("only") == _BY_ROW,
        "letter_id_wrong": (pl.col("only") == _BY_ID) & pl.col(_BY_ID).is_null(),
        "ambiguous": fits & numbered,
        "letter_ambiguous": fits,
        "unknown_number": numbered & pl.col("only").is_null(),
        "letter_unknown": pl.col("at").is_in(wanted["at"].implode()),
        "no_number": pl.lit(True),
    }
    lost = pl.coalesce(pl.when(holds).then(pl.lit(name)) for name, holds in problems.items())
    joined = given.join(one, on="at", how="left").sort("at")
    return outcomes.hstack(joined.select("target", "way", lost=pl.when(pl.col("target").is_null()).then(lost)))


def _find(wanted: pl.DataFrame, rows: pl.LazyFrame) -> pl.DataFrame:
    # the first row that each wanted text (`at`, `way`) fits, and how many letters it fits
    fixed, address = pl.col("fixed_address"), pl.col("address")
    numbered = rows.filter(pl.col("b_no").is_in(wanted.filter(pl.col("way") == _BY_NUMBER)["text"].implode()))
    both = [pl.concat_str("b_no", address_key(one), separator=" ") for one in (address, fixed)]
    parts = {
        _BY_ROW: (rows, [pl.col(ROW_ID).cast(pl.String)]),
        _BY_REGISTERED: (rows, [_digits(pl.col("registered"))]),
        _BY_BOTH: (numbered, both),
        _BY_NUMBER: (numbered, [pl.col("b_no")]),
        _BY_KEY: (rows, [pl.col("key").str.split(KEY_SEPARATOR).list.eval(_plain_key(pl.element()))]),
        _BY_ADDRESSEE: (
            rows,
            [_addressee(pl.col("name"), one) for one in (fixed, fixed.str.replace(_REFERENCE, ""), address)],
        ),
    }
    asked = wanted["way"].unique().to_list() or [_BY_ROW]
    if _BY_ID in asked:
        ids = look_up(letter_ids(rows, pl.col("b_no").cast(pl.UInt64, strict=False)))
        parts[_BY_ID] = (rows, [pl.coalesce(plain_id(pl.col("letter_id")), ids)])
    codes = pl.concat_list(postal_digits(non_blank(pl.col(name))) for name in ("fixed_zipcode", "zipcode"))
    same = pl.concat_str("b_no", place_key(address, fixed), separator=" ")
    needed = ROW_ID, "b_no", "address", "fixed_address", codes.list.drop_nulls().alias("codes")
    each = [
        part.select(*needed, text.alias("text"), pl.lit(way, _WAY).alias("way"))
        for way in asked
        for part, texts in [parts[way]]
        for text in texts
    ]
    every = pl.concat(one.explode("text") if one.collect_schema()["text"] == pl.List else one for one in each)
    met = every.join(wanted.lazy(), on=["way", "text"])
    other_code = (pl.col("way") == _BY_ADDRESSEE) & ~pl.col("code").is_in("codes") & (pl.col("codes").list.len() > 0)
    counts = met.filter(~other_code.fill_null(False)).group_by("at", "way")
    letter = pl.coalesce(same, pl.col(ROW_ID).cast(pl.String))
    return counts.agg(target=pl.col(ROW_ID).min(), letters=letter.n_unique()).collect(engine="streaming")


def _digits(text: pl.Expr) -> pl.Expr:
    digits = text.str.strip_suffix(".0").str.replace_all("[^0-9]", "")
    return pl.when(digits.str.len_bytes() >= _SHORTEST).then(digits)


def _plain_key(key: pl.Expr) -> pl.Expr:
    # spreadsheets make numbers of digits: 000165 becomes 165, and two keys that differ in zeros alone are ambiguous
    return key.str.replace(r"^0*([0-9]+)(?:\.0)?$", "$1")


def _addressee(name: pl.Expr, address: pl.Expr) -> pl.Expr:
    plain = address_key(name.str.replace(_HONORIFIC, ""))
    return pl.concat_str(plain, address_key(address), separator="|")
