"""The scorecard: points, texts, grades and actions, read from and written to a file."""

from __future__ import annotations

import math
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import cache
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
import polars as pl
import tomli_w

from bansong.base.errors import ModelError, Problem
from bansong.base.messages import LANGS, Lang, describe_library_error, gettext, gettext_noop, ngettext
from bansong.base.schema import GRADES
from bansong.engine.risk.assess import assess
from bansong.engine.risk.features import STALE_AFTER, Levels
from bansong.engine.risk.reasons import (
    FEATURES,
    PLACEHOLDER,
    PLACEHOLDERS,
    REASONS,
    StatusOrigin,
    matching,
    sample,
    terms_of,
)

VERSION: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.+-]{0,62}[A-Za-z0-9+])?")  # also the name of a file
RESERVED: Final = ("builtin",)  # words that options take for something else than a version
_BASE_PROBABILITY: Final = (0.001, 0.5)  # bounds of the probability of the base points
_COPY: Final = gettext_noop("from what `bansong model show --toml` prints")
_MAX_TEXT_CHARS: Final = 300
_STRANGE: Final = re.compile(r"[|\x00-\x1f\x7f-\x9f\u2028\u2029]")


# ── checks of the shape: tables, fields, kinds of values ──────────────────────────────────────────


def _find_misfits(given: Mapping[str, Any]) -> Iterator[str]:
    yield from _misfits_of_table(given, Scorecard, "", {*_PARTS, "grades"})
    for name in _PARTS.keys() - {"features"} & given.keys():
        yield from _misfits_of_table(given[name], _PARTS[name], name)
    for feature, levels in _table(given.get("features")).items():
        if not isinstance(levels, dict):
            yield gettext(
                "[features.{feature}] = {levels!r} is not a table; give one table for each of its levels",
                feature=feature,
                levels=levels,
            )
        for level, fields in _table(levels).items():
            yield from _misfits_of_table(fields, Level, f"features.{feature}.{level}")


def _misfits_of_table(table: object, kind: type, where: str, tables: set[str] | None = None) -> Iterator[str]:
    place = f"[{where}]" if where else gettext("the file")
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    if not isinstance(table, dict):
        yield gettext(
            "{place} = {table!r} is not a table; its fields are {names}",
            place=place,
            table=table,
            names=", ".join(fields),
        )
        return
    for name in table.keys() - fields.keys():
        yield gettext(
            "{place} has an unknown field {name!r}; take it out, or write one of {names}",
            place=place,
            name=name,
            names=", ".join(fields),
        )
    for name, field in fields.items():
        if name not in table:
            if field.required:
                yield gettext("{place} has no {name}; add it, {copy}", place=place, name=name, copy=gettext(_COPY))
        elif name in (tables or ()):
            if not isinstance(table[name], dict):
                yield gettext("{name} = {table!r} is not a table; write it as [{name}]", name=name, table=table[name])
        elif not _fits(table[name], field.type):
            named = f"{place} {name}" if where else name
            yield gettext(
                "{named} = {table!r} does not fit; give {describe_kind}",
                named=named,
                table=table[name],
                describe_kind=_describe_kind(field.type),
            )


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _fits(value: object, kind: Any) -> bool:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return not isinstance(value, float) or math.isfinite(value)


def _describe_kind(kind: Any) -> str:
    info = msgspec.inspect.type_info(kind)
    match info:
        case msgspec.inspect.LiteralType():
            return gettext("one of {names}", names=", ".join(map(str, info.values)))
        case msgspec.inspect.IntType() | msgspec.inspect.FloatType():
            whole = isinstance(info, msgspec.inspect.IntType)
            number = gettext("a whole number") if whole else gettext("a number")
            above = info.gt is not None
            low = gettext(" above {gt:g}", gt=info.gt) if above else gettext(" from {ge:g} on", ge=info.ge)
            return f"{number}{low}" + (gettext(", at most {le:g}", le=info.le) if info.le is not None else "")
        case msgspec.inspect.BoolType():
            return gettext("true or false, without quotes")
        case msgspec.inspect.ListType():
            return gettext("a list of texts")
        case msgspec.inspect.DateTimeType():
            return gettext("a date and time")
    return gettext("a text in quotes")


def _misfits_of_grades(grades: object) -> Iterator[str]:
    for name, value in _table(grades).items():
        if name not in GRADES[:-1]:
            yield gettext(
                "[grades] has {name!r}; it gives the highest score of A, B, C and D (E is everything above)", name=name
            )
        if not _fits(value, Points):
            yield gettext(
                "[grades] {name} = {value!r} does not fit; give {describe_kind}",
                name=name,
                value=value,
                describe_kind=_describe_kind(Points),
            )


# ── checks of the content, once the shape is right ────────────────────────────────────────────────


def _find_faults(card: Scorecard) -> Iterator[str]:
    yield from _missing(card)
    yield from _unknown(card)
    if not VERSION.fullmatch(card.version) or card.version.lower() in RESERVED:
        yield gettext(
            "version = {version!r} cannot be the name of a file; give at most 64 letters, digits, '.', '+' "
            "and '-', a letter or digit first, and not {names!s}",
            version=card.version,
            names=gettext(" or ").join(RESERVED),
        )
    low, high = _BASE_PROBABILITY
    if not low <= (probability := card.probability(card.base.points)) <= high:
        yield gettext(
            "[base] points = {points} let an ordinary letter come back with a probability of "
            "{probability:g}; give points that come to one from {low:g} to {high:g}",
            points=card.base.points,
            probability=probability,
            low=low,
            high=high,
        )
    cuts = [points for _, points in sorted(card.grades.items())]
    if sorted(card.grades) != list(GRADES[:-1]) or any(first >= second for first, second in pairwise(cuts)):
        yield gettext("[grades] must give A, B, C and D rising highest scores (E is everything above)")
    if strange := set(card.actions.repair_features) - set(card.features):
        yield gettext(
            "[actions] repair_features names {strange!r}, which is not a feature; give some of {features}",
            strange=min(strange),
            features=", ".join(FEATURES),
        )
    of_texts = list(_faults_of_texts(card))
    yield from of_texts or _ambiguous(card)
    if card.learned is not None:
        yield from _faults_of_learning(card, card.learned)


def _missing(card: Scorecard) -> Iterator[str]:
    # one fault for all missing levels, since a file of an older release lacks many
    missing = []
    for feature, names in FEATURES.items():
        absent = [name for name in names if name not in card.features.get(feature, {})]
        whole = len(absent) == len(names) > 1
        missing += [f"[features.{feature}.*]"] if whole else [f"[features.{feature}.{name}]" for name in absent]
    if missing:
        yield ngettext(
            "{names} is missing: this release knows it; copy it {copy}",
            "{names} are missing: this release knows them; copy them {copy}",
            len(missing),
            names=", ".join(missing),
            copy=gettext(_COPY),
        )


def _unknown(card: Scorecard) -> Iterator[str]:
    for feature, levels in card.features.items():
        if feature not in FEATURES:
            yield gettext(
                "[features.{feature}] is not a feature of this version; take it out, known are {features}",
                feature=feature,
                features=", ".join(FEATURES),
            )
        for level in levels:
            if level not in (known := FEATURES.get(feature, ())):
                yield gettext(
                    "[features.{feature}.{level}] is not a level of this version; take it out, known are {names}",
                    feature=feature,
                    level=level,
                    names=", ".join(known),
                )


def _faults_of_texts(card: Scorecard) -> Iterator[str]:
    for term in terms_of(card):
        for lang in LANGS:
            text = getattr(term.level, lang)
            if fault := _fault_of_text(text):
                yield f"{term.table} {lang}: {fault}"
            elif term.feature is None and "{" in text:
                yield gettext(
                    "{table} {lang}: the text {text!r} is the same in every row; take the braces out",
                    table=term.table,
                    lang=lang,
                    text=text,
                )


def _fault_of_text(text: str) -> str | None:
    if not text or text != text.strip() or len(text) > _MAX_TEXT_CHARS:
        return gettext(
            "the text {text!r} must have 1 to {longest_text} characters, without white space around it",
            text=text,
            longest_text=_MAX_TEXT_CHARS,
        )
    if _STRANGE.search(text):
        return gettext(
            "the text {text!r} holds a line break, a control character or '|', which separates reasons; take it out",
            text=text,
        )
    strange = [name for name in PLACEHOLDER.findall(text) if name not in PLACEHOLDERS]
    known = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
    if strange:
        return gettext(
            "the text {text!r} holds {{{strange}}}, which nothing is put in for; known are {known}",
            text=text,
            strange=strange[0],
            known=known,
        )
    if re.search("[{}]", PLACEHOLDER.sub("", text)):
        return gettext(
            "the text {text!r} has a brace without its other half; braces stand only around {known}",
            text=text,
            known=known,
        )
    return None


def _ambiguous(card: Scorecard) -> Iterator[str]:
    # a reason in a file must identify its level
    alike = defaultdict(list)
    for term in terms_of(card):
        for lang in LANGS:
            alike[term.label, term.level.source].append((term.table, lang, getattr(term.level, lang)))
    for texts in alike.values():
        for where, lang, text in texts:
            for other, its, said in texts:
                can_say = "{" in text and re.search(matching(text), sample(said))
                if other != where and (text == said or can_say):
                    yield gettext(
                        "{where} {lang} cannot be told from {other} {its} in a file: {text!r} can say {said!r}, "
                        "too; give each level words of its own",
                        where=where,
                        lang=lang,
                        other=other,
                        its=its,
                        text=text,
                        said=said,
                    )


def _faults_of_learning(card: Scorecard, origin: Learned) -> Iterator[str]:
    # a learned card must state all levels that the built-in card states
    for feature, levels in _built_in().features.items():
        for name, level in levels.items():
            learned = card.features[feature][name]
            if level.points and not (learned.points or learned.always):
                yield gettext(
                    "[features.{feature}.{name}] has points = 0 and is not told, so later learning could not see "
                    "it; add always = true",
                    feature=feature,
                    name=name,
                )
    if origin.bounced > origin.labels:
        yield gettext(
            "[learned] bounced = {bounced} is more than labels = {labels}; correct one",
            bounced=origin.bounced,
            labels=origin.labels,
        )


SCORECARD_UNREADABLE: Final = Problem("scorecard.scorecard_unreadable", "{path}: the scorecard cannot be read: {error}")
SCORECARD_NOT_TOML: Final = Problem("scorecard.scorecard_not_toml", "{name}: the scorecard is not TOML: {error}")

Points = Annotated[int, msgspec.Meta(ge=-500, le=500)]
Source = Literal["nts", "registry", "juso", "postal", "number", "file", "label", "model"]
Action = Literal["send", "fix_address", "confirm", "hold", "do_not_send"]
Grade = Literal["A", "B", "C", "D", "E"]


class Level(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The points of one level of a feature and the texts of its reason."""

    points: Points
    source: Source
    en: str
    ko: str
    always: bool = False


class Actions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The action of each grade; from ``repair_from`` on, it is ``fix_address`` if a repair of the address can help."""

    A: Action
    B: Action
    C: Action
    D: Action
    E: Action
    repair_from: Grade
    repair_features: list[str]


class Learned(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Origin of a learned scorecard."""

    parent: str  # version of the replaced scorecard
    at: datetime
    labels: Annotated[int, msgspec.Meta(ge=0)]  # number of labels that were fitted
    bounced: Annotated[int, msgspec.Meta(ge=0)]
    e_value: Annotated[float, msgspec.Meta(ge=0)]  # evidence for the promotion
    false_bounces: Annotated[float, msgspec.Meta(ge=0, le=1)]  # estimated share of wrong returns


class Scorecard(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A scorecard, as in its file; ``scorecard.toml`` and ``reasons.toml`` explain the fields."""

    version: str
    points_to_double: Annotated[int, msgspec.Meta(ge=1, le=100)]
    ceiling: Annotated[float, msgspec.Meta(gt=0, le=1)]
    base: Level
    grades: dict[Grade, Points]
    actions: Actions
    features: dict[str, dict[str, Level]]
    learned: Learned | None = None
    stale_after: Annotated[int, msgspec.Meta(ge=1, le=3650)] = STALE_AFTER

    def __hash__(self) -> int:
        return hash(self.version)  # fields with dictionaries have no hash; equal cards have equal versions

    def __repr__(self) -> str:
        return f"Scorecard(version={self.version!r}, features={len(self.features)})"

    @classmethod
    def load(cls, path: str | Path | None = None) -> Scorecard:
        """Read a scorecard file, by default the built-in one; raise :class:`ModelError` with file and field."""
        if path is None:
            return _built_in()
        try:
            return cls.parse(Path(path).read_text(encoding="utf-8-sig"), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise ModelError(SCORECARD_UNREADABLE, path=path, error=error) from error

    @classmethod
    def parse(cls, text: str, name: str | None = None) -> Scorecard:
        """Parse the text of a scorecard file; raise :class:`ModelError` with ``name``, field and remedy."""
        try:
            name = name or gettext("the scorecard")
            given = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ModelError(SCORECARD_NOT_TOML, name=name, error=describe_library_error(error)) from error
        for fault in (*_find_misfits(given), *_misfits_of_grades(given.get("grades"))):
            raise ModelError(f"{name}: {fault}")
        return check_scorecard(msgspec.convert(given, cls), name)

    def to_toml(self) -> str:
        """Return the text of a file that :meth:`load` reads as an equal scorecard."""
        fields = msgspec.to_builtins(self, builtin_types=(datetime,))
        return tomli_w.dumps({name: value for name, value in fields.items() if value is not None})

    def assess(
        self,
        frame: pl.LazyFrame,
        levels: dict[str, Levels],
        lang: Lang,
        origin: StatusOrigin | None = None,
        *,
        every_row: bool = False,
    ) -> pl.LazyFrame:
        """Add score, probability, grade, action and reasons (text) to a frame with the features' columns.

        Without a readable address there are no probability and grade; the action is ``fix_address`` if a name or a
        masked address was given, and the reasons state what is known. The query can be streamed. ``levels``: see
        ``bansong.engine.risk.features.levels``. ``origin``: needed if the frame has the columns of
        :data:`~bansong.engine.risk.reasons.BY_NTS`. ``every_row``: rows without name and address get ``fix_address``,
        too.
        """
        return assess(self, frame, levels, lang, origin, every_row=every_row)

    def probability(self, score: int) -> float:
        """Return the bounce probability of a score, rounded as in outputs."""
        doublings = min(-score / self.points_to_double, 1000.0)  # a larger power would overflow
        return round(float(self.ceiling / (1 + 2**doublings)), 4)


# msgspec analyses a type when it is first decoded, and crashes the process if two threads do so at once; at import,
# only one thread does
msgspec.json.Decoder(Scorecard)

_PARTS: Final = {"base": Level, "actions": Actions, "learned": Learned, "features": Level}


def check_scorecard(card: Scorecard, name: str) -> Scorecard:
    """Return the scorecard if it is consistent; raise :class:`ModelError` with ``name``, field and remedy."""
    for fault in _find_faults(card):
        raise ModelError(f"{name}: {fault}")
    return card


@cache
def _built_in() -> Scorecard:
    # checked by a test, since the check takes 25 ms
    text = files(__package__).joinpath("scorecard.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text) | {"features": REASONS}, Scorecard)
