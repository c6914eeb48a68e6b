"""Codes of reasons, declared in ``reasons.toml``, and their texts: one template a level, to write and to read back."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

import msgspec
import polars as pl

from bansong.base.messages import Lang

if TYPE_CHECKING:
    from bansong.engine.risk.scorecard import Level, Scorecard


def _read_toml(name: str) -> dict[str, Any]:
    return tomllib.loads(files(__package__).joinpath(name).read_text(encoding="utf-8"))


REASONS: Final[dict[str, dict[str, dict[str, Any]]]] = _read_toml("reasons.toml")["features"]
FEATURES: Final = {feature: tuple(levels) for feature, levels in REASONS.items()}  # codes: the levels of each feature
LABELS: Final = {  # labels of features in the reasons, if not their own name: one label for one subject
    "status_age": "status",
    **dict.fromkeys(("form", "unit", "change", "completeness"), "address"),
    "postal_filled": "postal",
    "spread": "place",
}

_CLOSED: Final = ("merged", "closed_under_3_months", "closed_3_to_12_months", "closed_over_12_months", "closed_undated")
_UNCHECKED: Final = ("active_stale", "not_found", "not_checked", "without_numbers")

_UNSURE: Final = ("not_korean", "ambiguous", "corrected_unsupported", "no_road_or_lot", "abolished", "no_number")

# the mildest action of a row with a level, whatever its points and the scorecard: `confirm` replaces only `send`,
# `hold` every milder action, including a repair of the address
AT_BEST: Final[dict[tuple[str, str], str]] = {
    **{("status", level): "hold" for level in _CLOSED},
    **{("status", level): "confirm" for level in _UNCHECKED},
    ("status_age", "stale"): "confirm",
    **{("address", level): "confirm" for level in _UNSURE},
    **{("completeness", level): "confirm" for level in FEATURES["completeness"]},
}

WITHOUT_ASSESSMENT: Final = ("status", "number", "address")  # features that are stated even if no risk can be given
BASE: Final = "base"  # label of the reason for every row's starting points
PLACEHOLDER: Final = re.compile(r"\{([^{}]*)\}")
_NO_CODE: Final[dict[Lang, str]] = {"en": "not known", "ko": "미상"}


@dataclass(frozen=True)
class Placeholder:
    """A name that a text may hold in braces."""

    column: str
    text: Callable[[pl.Expr], pl.Expr]  # of the column's values
    unknown: Mapping[Lang, str]  # replacement for a null
    pattern: str  # of known values
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
    # the day of the status, behind its source
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

NTS: Final = "nts"  # source of the tax authority's own facts
# facts that the tax authority may have told instead of the scorecard's source, and their Boolean columns
BY_NTS: Final = {"status": "status_by_nts", "taxation": "taxation_by_nts"}


@dataclass(frozen=True, slots=True)
class StatusOrigin:
    """Statuses before ``aged_before`` show their age on ``today``, if some were told by the tax authority itself."""

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
    """Return a placeholder of :data:`PLACEHOLDERS`, or that of a fact of :data:`BY_NTS`: ``<fact>:<source>``."""
    fact, colon, source = name.partition(":")
    if not colon:
        return PLACEHOLDERS[name]
    unknown: dict[Lang, str] = {"en": source, "ko": source}
    return Placeholder(BY_NTS[fact], lambda by_nts: pl.when(by_nts).then(pl.lit(NTS)), unknown, pattern=NTS, sample=NTS)


@dataclass(frozen=True)
class Term:
    """A reason of a row: the level of a feature, or (``feature`` null) the base."""

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
        """Return the whole reason, placeholders in braces: ``[<label> <points>] <text> (<source>)``."""
        return f"[{self.label} {self.level.points:+d}] {self.identifying_text(lang, by_nts=by_nts)}"

    @property
    def at_best(self) -> str | None:
        return None if self.feature is None else AT_BEST.get((self.feature, self.name))

    @property
    def is_dated(self) -> bool:
        """Whether the day of the status follows its source."""
        return self.feature == "status" and self.name not in ("not_found", "not_checked", "without_numbers")

    @property
    def fact(self) -> str | None:
        if self.is_dated:
            return "status"
        return "taxation" if (self.feature, self.name) == ("kind", "simplified") else None

    def identifying_text(self, lang: Lang, *, by_nts: bool = False) -> str:
        """Return the text after the bracket; ``by_nts``: the source may be the tax authority, and is a placeholder."""
        source = f"{{{self.fact}:{self.level.source}}}" if by_nts and self.fact else self.level.source
        return f"{getattr(self.level, lang)} ({source}{'{as_of}' if self.is_dated else ''})"

    def text_with_marks(self, mark: str, lang: Lang, *, by_nts: bool = False) -> str:
        """Return the whole reason; each placeholder is its name between two marks."""
        return PLACEHOLDER.sub(lambda found: mark + found[1] + mark, self.text(lang, by_nts=by_nts))

    def placeholders(self, lang: Lang, *, by_nts: bool = False) -> list[str]:
        return PLACEHOLDER.findall(self.identifying_text(lang, by_nts=by_nts))


def matching(text: str) -> str:
    """Return the pattern (for Python and polars) of all fillings of a text with placeholders in braces."""
    parts = PLACEHOLDER.split(text)
    patterns = (placeholder_of(part).matching() if at % 2 else re.escape(part) for at, part in enumerate(parts))
    return f"(?s)^{''.join(patterns)}$"


def sample(text: str) -> str:
    return PLACEHOLDER.sub(lambda found: placeholder_of(found[1]).sample, text)


def terms_of(card: Scorecard) -> list[Term]:
    levels = [(feature, name, level) for feature, there in card.features.items() for name, level in there.items()]
    return [Term(None, BASE, card.base), *(Term(*each) for each in levels)]


_earlier_korean = cache(lambda: _read_toml("earlier_texts.toml"))


def earlier_wordings(term: Term) -> list[Term]:
    """Return the reason in the Korean wordings of earlier releases."""
    texts = _earlier_korean().get(term.feature or BASE, {}).get(term.name, [])
    return [Term(term.feature, term.name, msgspec.structs.replace(term.level, ko=text)) for text in texts]


def list_reasons(card: Scorecard, possible: Mapping[str, Collection[str]]) -> list[Term]:
    # the largest effect first, without the base
    terms = [
        term
        for term in terms_of(card)
        if term.feature is not None
        and (term.level.points or term.level.always or term.at_best)
        and term.name in possible.get(term.feature, ())
    ]
    return sorted(terms, key=lambda term: -abs(term.level.points))
