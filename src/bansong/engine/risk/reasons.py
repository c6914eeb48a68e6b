"""Reasons: their codes (``reasons.toml``) and texts, and how reasons in a file are parsed."""

from __future__ import annotations

import re
import tomllib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache
from importlib.resources import files
from itertools import product
from typing import TYPE_CHECKING, Any, Final

import msgspec
import polars as pl

from bansong.base.messages import LANGS, Lang
from bansong.base.schema import REASON_SEPARATOR
from bansong.engine.address.judge_regions import region_level

if TYPE_CHECKING:
    from bansong.engine.risk.scorecard import Level, Scorecard


def _read_toml(name: str) -> dict[str, Any]:
    return tomllib.loads(files(__package__).joinpath(name).read_text(encoding="utf-8"))


REASONS: Final[dict[str, dict[str, dict[str, Any]]]] = _read_toml("reasons.toml")["features"]
FEATURES: Final = {feature: tuple(levels) for feature, levels in REASONS.items()}  # in the order of codes
LABELS: Final = {  # labels of features in reasons, where they differ from the feature's name
    "status_age": "status",
    **dict.fromkeys(("form", "unit", "change", "completeness"), "address"),
    "postal_filled": "postal",
    "spread": "place",
}

_CLOSED: Final = ("merged", "closed_under_3_months", "closed_3_to_12_months", "closed_over_12_months", "closed_undated")
_UNCHECKED: Final = ("active_stale", "not_found", "not_checked", "without_numbers")

_UNSURE: Final = ("not_korean", "ambiguous", "corrected_unsupported", "no_road_or_lot", "abolished", "no_number")

# the mildest action that a level allows, whatever the points: `confirm` replaces only `send`, `hold` replaces every
# milder action, and the repair of the address
AT_BEST: Final[dict[tuple[str, str], str]] = {
    **{("status", level): "hold" for level in _CLOSED},
    **{("status", level): "confirm" for level in _UNCHECKED},
    ("status_age", "stale"): "confirm",
    **{("address", level): "confirm" for level in _UNSURE},
    **{("completeness", level): "confirm" for level in FEATURES["completeness"]},
}

WITHOUT_ASSESSMENT: Final = ("status", "number", "address")  # features in the reasons of rows without a risk
BASE: Final = "base"  # label of the reason for the starting points
PLACEHOLDER: Final = re.compile(r"\{([^{}]*)\}")
_NO_CODE: Final[dict[Lang, str]] = {"en": "not known", "ko": "미상"}


@dataclass(frozen=True)
class Placeholder:
    """A placeholder in the texts of reasons: its column, and how values are written and recognised."""

    column: str
    text: Callable[[pl.Expr], pl.Expr]  # writes a value of the column
    unknown: Mapping[Lang, str]  # text for null
    pattern: str  # regular expression for written values
    sample: str

    def fill(self, lang: Lang) -> pl.Expr:
        return self.text(pl.col(self.column)).fill_null(self.unknown[lang])

    def matching(self) -> str:
        return f"(?:{'|'.join([self.pattern, *map(re.escape, self.unknown.values())])})"


PLACEHOLDERS: Final[dict[str, Placeholder]] = {
    "since": Placeholder(
        "since",
        lambda since: since.dt.to_string("%Y-%m-%d"),
        {"en": "date not known", "ko": "날짜 미상"},
        pattern="[-+0-9]+",
        sample="2026-01-01",
    ),
    "zipcode": Placeholder("zipcode_given", lambda code: code, _NO_CODE, pattern="[0-9]+", sample="00000"),
    "fixed_zipcode": Placeholder("fixed_zipcode", lambda code: code, _NO_CODE, pattern="[0-9]+", sample="00000"),
    # the day of the status, written after its source
    "as_of": Placeholder(
        "as_of",
        lambda as_of: as_of.dt.to_string(", %Y-%m-%d"),
        {"en": "", "ko": ""},
        pattern=", [-+0-9]+(?:, (?:1 day|[0-9]+ days) old|, [0-9]+일 전 확인)?",
        sample=", 2026-01-01",
    ),
    # words of the user's file must not contain the separator of reasons
    "changes": Placeholder(
        "changes",
        lambda changes: changes.str.replace_all(r"[|\p{Cc}\x{2028}\x{2029}]+", " "),
        {"en": "spelling", "ko": "표기"},
        pattern=".*",
        sample="a, b",
    ),
}

NTS: Final = "nts"  # source of facts from the tax authority
# facts that may come from the tax authority instead of the scorecard's source, and the columns that say so (Boolean)
BY_NTS: Final = {"status": "status_by_nts", "taxation": "taxation_by_nts"}


@dataclass(frozen=True, slots=True)
class StatusOrigin:
    """Format of a status's date in reasons; a date before ``aged_before`` is followed by its age on ``today``."""

    today: date
    aged_before: date | None = None

    def fill_day(self, lang: Lang) -> pl.Expr:
        day = placeholder_of("as_of").fill(lang)
        if self.aged_before is None:
            return day
        days = pl.lit((self.today - date(1970, 1, 1)).days) - pl.col("as_of").to_physical()
        if lang == "ko":
            age = pl.format(", {}일 전 확인", days)
        else:
            age = pl.format(", {} old", pl.when(days == 1).then(pl.lit("1 day")).otherwise(pl.format("{} days", days)))
        aged = (pl.col("as_of") < self.aged_before) & (days >= 0)
        return pl.concat_str(day, pl.when(aged).then(age), ignore_nulls=True)


@cache
def placeholder_of(name: str) -> Placeholder:
    """Return a text to fill in; ``<fact>:<source>`` becomes ``nts`` if the tax authority told it, else the source."""
    fact, colon, source = name.partition(":")
    if not colon:
        return PLACEHOLDERS[name]
    unknown: dict[Lang, str] = {"en": source, "ko": source}
    return Placeholder(BY_NTS[fact], lambda by_nts: pl.when(by_nts).then(pl.lit(NTS)), unknown, pattern=NTS, sample=NTS)


@dataclass(frozen=True)
class Term:
    """A possible reason: a level of a feature, or the starting points (``feature`` is ``None``)."""

    feature: str | None
    name: str
    level: Level

    @property
    def table(self) -> str:
        return f"[{BASE}]" if self.feature is None else f"[features.{self.feature}.{self.name}]"

    @property
    def label(self) -> str:
        return BASE if self.feature is None else LABELS.get(self.feature, self.feature)

    def text(self, lang: Lang, *, by_nts: bool = False) -> str:
        """Return the reason ``[<label> <points>] <text> (<source>)``, with placeholders in braces."""
        return f"[{self.label} {self.level.points:+d}] {self.identifying_text(lang, by_nts=by_nts)}"

    @property
    def at_best(self) -> str | None:
        return None if self.feature is None else AT_BEST.get((self.feature, self.name))

    @property
    def is_dated(self) -> bool:
        """Whether the text ends with the date of the status, after the source."""
        return self.feature == "status" and self.name not in ("not_found", "not_checked", "without_numbers")

    @property
    def fact(self) -> str | None:
        if self.is_dated:
            return "status"
        return "taxation" if (self.feature, self.name) == ("kind", "simplified") else None

    def identifying_text(self, lang: Lang, *, by_nts: bool = False) -> str:
        """Return the reason without ``[<label> <points>]``; with ``by_nts``, a fact's source is a placeholder."""
        source = f"{{{self.fact}:{self.level.source}}}" if by_nts and self.fact else self.level.source
        return f"{getattr(self.level, lang)} ({source}{'{as_of}' if self.is_dated else ''})"

    def text_with_marks(self, mark: str, lang: Lang, *, by_nts: bool = False) -> str:
        """Return the reason with ``mark`` before and after the name of each placeholder, in place of braces."""
        return PLACEHOLDER.sub(lambda found: mark + found[1] + mark, self.text(lang, by_nts=by_nts))

    def placeholders(self, lang: Lang, *, by_nts: bool = False) -> list[str]:
        return PLACEHOLDER.findall(self.identifying_text(lang, by_nts=by_nts))


def matching(text: str) -> str:
    """Return a regular expression (for Python and polars) that matches a text whose placeholders are filled."""
    parts = PLACEHOLDER.split(text)
    patterns = (placeholder_of(part).matching() if at % 2 else re.escape(part) for at, part in enumerate(parts))
    return f"(?s)^{''.join(patterns)}$"


def sample(text: str) -> str:
    """Fill the placeholders of a text with sample values."""
    return PLACEHOLDER.sub(lambda found: placeholder_of(found[1]).sample, text)


def terms_of(card: Scorecard) -> list[Term]:
    """Return all reasons of a scorecard, the base first."""
    levels = [(feature, name, level) for feature, there in card.features.items() for name, level in there.items()]
    return [Term(None, BASE, card.base), *(Term(*each) for each in levels)]


_earlier_korean = cache(lambda: _read_toml("earlier_texts.toml"))


def earlier_wordings(term: Term) -> list[Term]:
    """Return a reason in its Korean wordings of earlier releases."""
    texts = _earlier_korean().get(term.feature or BASE, {}).get(term.name, [])
    return [Term(term.feature, term.name, msgspec.structs.replace(term.level, ko=text)) for text in texts]


def list_reasons(card: Scorecard, possible: Mapping[str, Collection[str]]) -> list[Term]:
    """Return the reasons that the ``possible`` levels of features can give, by falling absolute points."""
    terms = [
        term
        for term in terms_of(card)
        if term.feature is not None
        and (term.level.points or term.level.always or term.at_best)
        and term.name in possible.get(term.feature, ())
    ]
    return sorted(terms, key=lambda term: -abs(term.level.points))


LEVEL: Final = "level:"  # prefix of columns with the levels of features
# a column for each feature: the name of the level that holds, or null
LEVEL_DTYPES: Final[dict[str, pl.Enum]] = {f"{LEVEL}{feature}": pl.Enum(levels) for feature, levels in FEATURES.items()}
# what an enriched file says about the risk of a row
KNOWN_DTYPES: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "score": pl.Int32,
    "bounce_prob": pl.Float64,
    "grade": pl.String,
    "model": pl.String,  # version of the scorecard, if known
    **LEVEL_DTYPES,
}
OUTCOME_DTYPES: Final[dict[str, pl.DataType | type[pl.DataType]]] = {  # outcome of a letter
    "row_id": pl.UInt32,
    "mailed": pl.Date,
    "bounced": pl.Boolean,  # null if unknown
    "reason_code": pl.String,  # of `return_reasons.toml`
}
EVIDENCE_DTYPES: Final = OUTCOME_DTYPES | KNOWN_DTYPES  # a mailed row: its outcome and its risk
_READ: Final[dict[str, pl.DataType | type[pl.DataType]]] = {"score": pl.Int32, "unread": pl.Boolean, **LEVEL_DTYPES}

_BASE: Final = (None, BASE)
_TERMS: Final = [_BASE, *((feature, name) for feature, names in FEATURES.items() for name in names)]

_LEVEL_CODES: Final = 32  # exceeds the number of levels of any feature
_FEATURES_A_NUMBER: Final = 12  # features whose codes fit as digits into 64 bits
_MAX_ROUNDING: Final = 0.001  # a written probability may be rounded to a tenth of a percent

_SPLIT: Final = REASON_SEPARATOR.strip()


def parse_reasons(
    frame: pl.LazyFrame, reasons: str, *, address: str | None = None, cards: Sequence[Scorecard] = ()
) -> pl.LazyFrame:
    """Parse the column ``reasons``: add ``score``, ``level:<feature>``, and ``unread`` (a reason was not understood).

    ``cards``: possible scorecards, by default the built-in one. ``address``: column that gives the region if no reason
    does. ``score`` is null without a probability. ``unread`` is true if a reason is in no card, is repeated, or
    contradicts another reason, ``bounce_prob`` or ``model``; learning must leave out such a row. A text that was cut
    between two reasons cannot be recognised. No content of a column raises an error.
    """
    from bansong.engine.risk.scorecard import Scorecard

    schema = frame.collect_schema()
    model = pl.col("model").cast(pl.String, strict=False) if "model" in schema else pl.lit(None, pl.String)
    probability = pl.col("bounce_prob") if "bounce_prob" in schema else pl.lit(None)
    given = probability.cast(pl.Float64, strict=False)
    rows = pl.struct(_items(schema[reasons], reasons).alias("items"), model.alias("model"), given.alias("given"))
    built_in = Scorecard.load()
    reader = _Reader(list(cards) or [built_in], built_in)
    read = rows.map_batches(reader, return_dtype=pl.Struct(_READ), is_elementwise=True)
    frame = frame.with_columns(read.alias("bv:read")).with_columns(pl.col("bv:read").struct.field(*_READ))
    return (frame if address is None else _with_region(frame, address)).drop("bv:read")


def _items(dtype: pl.DataType, column: str) -> pl.Expr:
    # the column as one text a row; values of other types become an unknown reason
    value = pl.col(column)
    if isinstance(dtype, pl.Array):
        value, dtype = value.arr.to_list(), pl.List(dtype.inner)
    if isinstance(dtype, pl.List) and not dtype.inner.is_nested():
        return value.cast(pl.List(pl.String), strict=False).list.join(REASON_SEPARATOR, ignore_nulls=True)
    if dtype.is_nested() or dtype in (pl.Binary, pl.Object):
        return pl.when(value.is_not_null()).then(pl.lit("?"))
    return value.cast(pl.String, strict=False)


def _with_region(frame: pl.LazyFrame, address: str) -> pl.LazyFrame:
    # taken from the address if the row has a risk and no reason states the region
    asked = pl.col("score").is_not_null() & pl.col(f"{LEVEL}region").is_null()
    of_address = pl.when(asked).then(pl.col(address).cast(pl.String, strict=False))
    region = region_level(of_address).cast(LEVEL_DTYPES[f"{LEVEL}region"], strict=False)
    return frame.with_columns(pl.coalesce(f"{LEVEL}region", region).alias(f"{LEVEL}region"))


def _identifier(term: Term, lang: Lang) -> str:
    return f"[{term.label}] {term.identifying_text(lang, by_nts=True)}"


class _Reader:
    def __init__(self, cards: Sequence[Scorecard], built_in: Scorecard) -> None:
        places_of: dict[str, set[int]] = defaultdict(set)
        for card in cards:
            for term, lang in product(terms_of(card), LANGS):
                places_of[_identifier(term, lang)].add(_TERMS.index((term.feature, term.name)))
        for term in terms_of(built_in):
            for earlier in earlier_wordings(term):
                text = _identifier(earlier, "ko")
                if text not in places_of:  # texts of this release take precedence
                    places_of[text].add(_TERMS.index((term.feature, term.name)))
        # a text that two levels share identifies neither
        sure = {text: places.copy().pop() for text, places in places_of.items() if len(places) == 1}
        self.exact = pl.DataFrame(
            [(text, place) for text, place in sure.items() if not PLACEHOLDER.search(text)],
            schema={"text": pl.String, "term": pl.UInt32},
            orient="row",
        )
        # templates with longer fixed texts are tried first
        open_ = [text for text in sure if PLACEHOLDER.search(text)]
        open_.sort(key=lambda text: len(PLACEHOLDER.sub("", text)), reverse=True)
        self.templates = [(PLACEHOLDER.split(text)[0], matching(text), sure[text]) for text in open_]
        self.cards = {card.version: card for card in cards}
        self.points = {}
        for card in cards:
            levels = (card.base if feature is None else card.features[feature][name] for feature, name in _TERMS)
            self.points[card.version] = pl.Series([level.points for level in levels], dtype=pl.Int32)

    def __call__(self, rows: pl.Series) -> pl.Series:
        frame = rows.struct.unnest()
        items = frame.select(
            pl.int_range(pl.len(), dtype=pl.UInt32).alias("row"), pl.col("items").str.split(_SPLIT).alias("item")
        ).explode("item", empty_as_null=True, keep_nulls=True)
        items = items.with_columns(pl.col("item").str.strip_chars())
        distinct = self._read(items.select("item").unique().filter(pl.col("item") != ""))
        found = distinct.select("item", *_contributions(), *self._disagreements(frame["model"]))
        of_items = items.join(found, on="item", how="left", maintain_order="left")
        summed = of_items.group_by("row", maintain_order=True).agg(
            pl.col("points", "^codes:.*$").sum(),
            pl.col("bit").sum().alias("bits"),
            pl.col("bit").bitwise_or().fill_null(0).alias("different"),
            pl.col("unknown", "^wrong:.*$").any(),
        )
        return _row(pl.concat([frame, summed.drop("row")], how="horizontal"), self._other_probability())

    def _read(self, items: pl.DataFrame) -> pl.DataFrame:
        parts = pl.col("item").str.splitn("] ", 2)
        head = parts.struct[0].str.splitn(" ", 2)
        points = head.struct[1]
        signed = pl.when(points.str.contains("^[+-][0-9]{1,5}$")).then(points)
        items = items.with_columns(
            text=pl.concat_str(head.struct[0], pl.lit("] "), parts.struct[1]),
            points=signed.str.strip_prefix("+").cast(pl.Int32, strict=False),
        )
        items = items.join(self.exact, on="text", how="left")
        known, rest = [items.filter(pl.col("term").is_not_null())], items.filter(pl.col("term").is_null())
        for first_words, pattern, term in self.templates:
            fits = pl.col("text").str.starts_with(first_words)
            fits = pl.when(fits).then("text").str.contains(pattern).fill_null(False)
            marked = rest.with_columns(fits.alias("fits"))
            known.append(marked.filter("fits").drop("fits").with_columns(term=pl.lit(term, pl.UInt32)))
            rest = marked.filter(~pl.col("fits")).drop("fits")
        return pl.concat([*known, rest])

    def _disagreements(self, models: pl.Series) -> list[pl.Expr]:
        # by known model: whether its points differ from those of the item
        versions = [version for version in models.unique().drop_nulls() if version in self.points]
        return [
            (pl.lit(self.points[version]).gather(pl.col("term")) != pl.col("points")).alias(f"wrong:{version}")
            for version in versions
        ]

    def _other_probability(self) -> pl.Expr:
        # whether the probability differs from that of the points by the row's model
        differs = []
        for version, card in self.cards.items():
            expected = card.ceiling / (1 + 2 ** (-pl.col("points") / card.points_to_double))
            differs.append((pl.col("model") == version) & ((pl.col("given") - expected).abs() > _MAX_ROUNDING))
        return pl.any_horizontal(differs)


def _contributions() -> Iterator[pl.Expr]:
    # summed up by row: points, unknown items, a bit for the feature, a digit for the level
    features = list(FEATURES)
    known = pl.col("term").is_not_null() & pl.col("points").is_not_null()
    yield pl.col("points").cast(pl.Int64)
    yield (~known).alias("unknown")
    places = [0 if feature is None else features.index(feature) + 1 for feature, _ in _TERMS]
    bits = pl.Series([1 << place for place in places], dtype=pl.UInt64)
    yield pl.when(known).then(pl.lit(bits).gather(pl.col("term"))).otherwise(0).alias("bit")
    codes = [0 if feature is None else FEATURES[feature].index(name) + 1 for feature, name in _TERMS]
    for first in range(1, len(features) + 1, _FEATURES_A_NUMBER):
        digits = [
            code * _LEVEL_CODES ** (place - first) if 0 <= place - first < _FEATURES_A_NUMBER else 0
            for place, code in zip(places, codes, strict=True)
        ]
        part = pl.lit(pl.Series(digits, dtype=pl.UInt64)).gather(pl.col("term"))
        yield pl.when(known).then(part).otherwise(0).alias(f"codes:{first}")


def _row(frame: pl.DataFrame, other_probability: pl.Expr) -> pl.Series:
    twice = pl.col("bits") != pl.col("different")
    base = pl.col("different") % 2 == 1
    versions = [name.removeprefix("wrong:") for name in frame.columns if name.startswith("wrong:")]
    wrong = [pl.col(f"wrong:{version}") & (pl.col("model") == version) for version in versions]
    baseless = pl.col("given").is_not_null() & ~base & pl.col("items").is_not_null()
    doubts = [pl.col("unknown"), twice, baseless, other_probability, *wrong]
    unread = pl.any_horizontal(doubt.fill_null(False) for doubt in doubts)
    score = pl.when(base & ~unread).then(pl.col("points").cast(pl.Int32, strict=False))
    levels = []
    for place, (feature, names) in enumerate(FEATURES.items()):
        digits = pl.col(f"codes:{place // _FEATURES_A_NUMBER * _FEATURES_A_NUMBER + 1}")
        code = (digits // _LEVEL_CODES ** (place % _FEATURES_A_NUMBER) % _LEVEL_CODES).cast(pl.UInt32)
        level = pl.Series([None, *names], dtype=LEVEL_DTYPES[f"{LEVEL}{feature}"])
        once = pl.when(twice | (code > len(names))).then(0).otherwise(code)
        levels.append(pl.lit(level).gather(once).alias(f"{LEVEL}{feature}"))
    return frame.select(score.alias("score"), unread.alias("unread"), *levels).select(pl.struct(*_READ)).to_series()
