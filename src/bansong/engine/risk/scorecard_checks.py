"""The checks of a scorecard file: its shape, and what a file of the right shape still can get wrong.

Each fault names the field, the value and the remedy.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import msgspec

from bansong.engine.risk.features import FEATURES
from bansong.engine.risk.reason_texts import PLACEHOLDER, PLACEHOLDERS, matching, sample, terms_of
from bansong.schema import GRADES, LANGS
from bansong.translation import gettext, gettext_noop, ngettext

if TYPE_CHECKING:
    from bansong.engine.risk.scorecard import Scorecard

VERSION: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.+-]{0,62}[A-Za-z0-9+])?")
"""Pattern of a version: it is also the name of the file in which a scorecard is kept."""

RESERVED: Final = ("builtin",)
"""Words that mean something else where a version can be given."""

BASE_PROBABILITY: Final = (0.001, 0.5)
"""Between these the base must lie: the probability that an ordinary letter, of which nothing is known, comes back."""

_COPY: Final = gettext_noop("from what `bansong model show --toml` prints")
_LONGEST_TEXT: Final = 300
_STRANGE: Final = re.compile(r"[|\x00-\x1f\x7f-\x9f\u2028\u2029]")


# ── the shape: tables, fields, kinds of values ───────────────────────────────────────────────────────────────────


def find_misfits(given: Mapping[str, Any], kind: type[msgspec.Struct], parts: Mapping[str, type]) -> Iterator[str]:
    """Yield what does not fit in the file's tables; ``parts``: those that are structs, the levels of features too."""
    yield from _misfits_of_table(given, kind, "", {*parts, "features", "grades"})
    for name in parts.keys() - {"features"} & given.keys():
        yield from _misfits_of_table(given[name], parts[name], name)
    for feature, levels in _table(given.get("features")).items():
        if not isinstance(levels, dict):
            yield gettext(
                "[features.{feature}] = {levels!r} is not a table; give one table for each of its levels",
                feature=feature,
                levels=levels,
            )
        for level, fields in _table(levels).items():
            yield from _misfits_of_table(fields, parts["features"], f"features.{feature}.{level}")


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
    """Say in words what values a field takes."""
    info = msgspec.inspect.type_info(kind)
    match info:
        case msgspec.inspect.LiteralType():
            return gettext("one of {names}", names=", ".join(map(str, info.values)))
        case msgspec.inspect.IntType() | msgspec.inspect.FloatType():
            whole = isinstance(info, msgspec.inspect.IntType)
            number = gettext("a whole number") if whole else gettext("a number")
            low = (
                gettext(" above {gt:g}", gt=info.gt) if info.gt is not None else gettext(" from {ge:g} on", ge=info.ge)
            )
            return f"{number}{low}" + (gettext(", at most {le:g}", le=info.le) if info.le is not None else "")
        case msgspec.inspect.BoolType():
            return gettext("true or false, without quotes")
        case msgspec.inspect.ListType():
            return gettext("a list of texts")
        case msgspec.inspect.DateTimeType():
            return gettext("a date and time")
    return gettext("a text in quotes")


def find_misfit_of_grades(grades: object, points: Any) -> str | None:
    """Say what does not fit in ``[grades]``: a letter that is no grade, or points that are none."""
    for name, value in _table(grades).items():
        if name not in GRADES[:-1]:
            return gettext(
                "[grades] has {name!r}; it gives the highest score of A, B, C and D (E is everything above)", name=name
            )
        if not _fits(value, points):
            return gettext(
                "[grades] {name} = {value!r} does not fit; give {describe_kind}",
                name=name,
                value=value,
                describe_kind=_describe_kind(points),
            )
    return None


# ── the sense: what a file of the right shape still can get wrong ────────────────────────────────────────────────


def find_faults(card: Scorecard, built_in: Scorecard) -> Iterator[str]:
    """Yield what is wrong with a scorecard; a learned one must tell as much as the ``built_in`` one."""
    yield from _missing(card)
    yield from _unknown(card)
    if not VERSION.fullmatch(card.version) or card.version.lower() in RESERVED:
        yield (
            gettext(
                "version = {version!r} cannot be the name of a file; give at most 64 letters, digits, '.', '+' "
                "and '-', a letter or digit first, and not {names!s}",
                version=card.version,
                names=gettext(" or ").join(RESERVED),
            )
        )
    low, high = BASE_PROBABILITY
    if not low <= (probability := card.probability(card.base.points)) <= high:
        yield (
            gettext(
                "[base] points = {points} let an ordinary letter come back with a probability of "
                "{probability:g}; give points that come to one from {low:g} to {high:g}",
                points=card.base.points,
                probability=probability,
                low=low,
                high=high,
            )
        )
    cuts = [points for _, points in sorted(card.grades.items())]
    if sorted(card.grades) != list(GRADES[:-1]) or any(first >= second for first, second in pairwise(cuts)):
        yield gettext("[grades] must give A, B, C and D rising highest scores (E is everything above)")
    if strange := set(card.actions.repair_features) - set(card.features):
        yield gettext(
            "[actions] repair_features names {strange!r}, which is not a feature; give some of {features}",
            strange=min(strange),
            features=_features(),
        )
    of_texts = list(_faults_of_texts(card))
    yield from of_texts or _ambiguous(card)
    if card.learned is not None:
        yield from _faults_of_learning(card, built_in)


def _features() -> str:
    return ", ".join(FEATURES)


def _missing(card: Scorecard) -> Iterator[str]:
    """One fault for all levels that are missing: a file of an older release lacks many."""
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
                features=_features(),
            )
        for level in levels:
            if level not in (known := FEATURES.get(feature, ())):
                yield (
                    gettext(
                        "[features.{feature}.{level}] is not a level of this version; take it out, known are {names}",
                        feature=feature,
                        level=level,
                        names=", ".join(known),
                    )
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
    if not text or text != text.strip() or len(text) > _LONGEST_TEXT:
        return gettext(
            "the text {text!r} must have 1 to {longest_text} characters, without white space around it",
            text=text,
            longest_text=_LONGEST_TEXT,
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
    """Two levels must not say the same in any language: a reason must be readable back to the level that it tells."""
    alike = defaultdict(list)
    for term in terms_of(card):
        for lang in LANGS:
            alike[term.label, term.level.source].append((term.table, lang, getattr(term.level, lang)))
    for texts in alike.values():
        for where, lang, text in texts:
            for other, its, said in texts:
                if other != where and _says(text, said):
                    yield (
                        gettext(
                            "{where} {lang} cannot be told from {other} {its} in a file: {text!r} can say {said!r}, "
                            "too; give each level words of its own",
                            where=where,
                            lang=lang,
                            other=other,
                            its=its,
                            text=text,
                            said=said,
                        )
                    )


def _says(text: str, other: str) -> bool:
    """Whether what the second text says could have been said by the first one."""
    return text == other or ("{" in text and re.search(matching(text), sample(other)) is not None)


def _faults_of_learning(card: Scorecard, built_in: Scorecard) -> Iterator[str]:
    for feature, levels in built_in.features.items():
        for name, level in levels.items():
            learned = card.features[feature][name]
            if level.points and not (learned.points or learned.always):
                yield (
                    gettext(
                        "[features.{feature}.{name}] has points = 0 and is not told, so later learning could not see "
                        "it; add always = true",
                        feature=feature,
                        name=name,
                    )
                )
    if card.learned is not None and card.learned.bounced > card.learned.labels:
        yield gettext(
            "[learned] bounced = {bounced} is more than labels = {labels}; correct one",
            bounced=card.learned.bounced,
            labels=card.learned.labels,
        )
