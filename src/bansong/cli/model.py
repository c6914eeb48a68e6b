"""``bansong model …``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import click

from bansong.base.display import aligned_rows
from bansong.base.errors import Problem, UsageError
from bansong.base.messages import (
    current_language,
    gettext,
    gettext_noop,
    gettext_noops,
    gettext_of,
    join_clauses,
    ngettext,
)
from bansong.base.schema import SEOUL, word_of
from bansong.cli.console import format_minute, pair_lines, print_out, print_result
from bansong.cli.options import json_option

if TYPE_CHECKING:
    from bansong.engine.risk.scorecard import Learned, Scorecard
    from bansong.history.scorecards import Event, ModelStore, ScorecardDifference, StoredScorecard

FORMATS_EXCLUSIVE: Final = Problem("cli.formats_exclusive", "give one of --toml and --json")

_TEXT: Final = 60
_LARGE: Final = 1e6
_EVENT_COLUMNS: Final = gettext_noops("when", "what", "version", "labels", "bounced", "e-value", "why")
_EVENT_KINDS: Final = gettext_noops("promoted", "rolled back", "refused", "quarantined", "released", "kept")


@click.group(short_help="The scorecards: which one answers, and those before it.")
def model() -> None:
    """Look at the scorecards: the built-in one, those that `bansong calibrate` learned, and files of your own.

    The champion, promoted last, answers unless --model names another.
    """


@model.command(short_help="Show a scorecard: its points, grades, where it comes from.")
@click.argument("which", required=False, metavar="[VERSION|PATH]")
@click.option("--toml", is_flag=True, help="Print it as a scorecard file, for --model.")
@json_option
def show(which: str | None, toml: bool, as_json: bool) -> None:
    """Show a scorecard with the built-in one's points beside its own; by default the champion.

    VERSION is one of `bansong model history`, or builtin; PATH is a scorecard file.
    """
    from bansong.engine.risk.scorecard import Scorecard
    from bansong.history.scorecards import ModelStore

    if toml and as_json:
        raise UsageError(FORMATS_EXCLUSIVE)
    store = ModelStore()
    found, name = _find_card(store, which)
    if toml:
        print_out(found.card.to_toml().rstrip("\n"))
    else:
        print_result(as_json, _as_dict(found, name), [*_facts(found, name), *_points(found.card, Scorecard.load())])


@model.command(short_help="Show where two scorecards differ.")
@click.argument("a", required=False, metavar="[A")
@click.argument("b", required=False, metavar="[B]]")
@json_option
def diff(a: str | None, b: str | None, as_json: bool) -> None:
    """Show where scorecard B differs from A: points, grades, ceiling, actions, texts.

    A is the built-in one by default, B the champion; each may be a version, builtin, or a scorecard file.
    """
    from bansong.history.scorecards import BUILTIN, ModelStore, differences

    store = ModelStore()
    (one, one_name), (other, other_name) = _find_card(store, a or BUILTIN), _find_card(store, b)
    found = differences(one.card, other.card)
    value = {"a": one_name, "b": other_name, "differences": [difference.as_dict() for difference in found]}
    print_result(as_json, value, _diff_lines(found, one_name, other_name))


@model.command(short_help="What was promoted, refused, rolled back, and why.")
@json_option
def history(as_json: bool) -> None:
    """Show what was decided about the scorecards: promotions, refusals, quarantines, rollbacks."""
    from bansong.history.scorecards import ModelStore

    store = ModelStore()
    events, champion = store.history(), store.champion_version()
    value = {"journal": str(store.path), "champion": champion, "events": [event.as_dict() for event in events]}
    places = [(gettext("champion"), champion), (gettext("journal"), str(store.path))]
    print_result(as_json, value, [*_event_lines(events), *pair_lines(places)])


@model.command(short_help="Let an earlier scorecard answer again.")
@click.argument("version", required=False)
@json_option
def rollback(version: str | None, as_json: bool) -> None:
    """Let an earlier scorecard answer again, by default the one before the champion. Nothing is deleted.

    VERSION is one of `bansong model history`, or builtin. To go forward again, name the
    later version.
    """
    from bansong.history.scorecards import ModelStore

    store = ModelStore()
    card = store.rollback(version)
    event = store.history()[-1]
    replaced = event.data.get("replaced")
    value = {"champion": event.version, "model": card.version, "replaced": replaced}
    line = gettext("{version} answers now, in place of {replaced}", version=card.version, replaced=replaced)
    print_result(as_json, value, [line])


def _find_card(store: ModelStore, which: str | None) -> tuple[StoredScorecard, str]:
    from bansong.engine.risk.scorecard import Scorecard
    from bansong.history.scorecards import BUILTIN, StoredScorecard, resolve_model

    if which is None:
        version = store.champion_version()
        found = store.load_stored(None)
        name = f"{BUILTIN} {found.card.version}" if version == BUILTIN else version
        return found, gettext("{name} (the champion)", name=name)
    card = resolve_model(which, store)
    if card is Scorecard.load():
        return StoredScorecard(card, release=card.version), f"{BUILTIN} {card.version}"
    if which in store.versions() and store.load(which) is card:
        return store.load_stored(which), which
    return StoredScorecard(card), f"{card.version}, {which}"


def _facts(found: StoredScorecard, name: str) -> list[str]:
    from bansong.engine.risk.scorecard import Scorecard

    card, release = found.card, Scorecard.load().version
    facts = [(gettext("scorecard"), name), *(_learned_facts(card.learned) if card.learned else ())]
    if found.release not in (None, release):
        beside = gettext_noop("learned beside {release}, this release has {release2}")
        facts.append((gettext("release"), gettext(beside, release=found.release, release2=release)))
    if found.added:
        newer = gettext_noop("{listed}: newer than the scorecard, points of {release}")
        facts.append((gettext("not learned"), gettext(newer, listed=", ".join(found.added), release=release)))
    ceiling = gettext_of(card, "{ceiling:g}; {points_to_double} points double the odds")
    return pair_lines([*facts, (gettext("ceiling"), ceiling), *_grade_facts(card)])


def _learned_facts(learned: Learned) -> list[tuple[str, str]]:
    labels = ngettext(
        "{at:%Y-%m-%d} from {count:,} label, {bounced:,} of them bounced; it replaced {parent} with an "
        "e-value of {e_value}",
        "{at:%Y-%m-%d} from {count:,} labels, {bounced:,} of them bounced; it replaced {parent} with an "
        "e-value of {e_value}",
        learned.labels,
        at=learned.at.astimezone(SEOUL),
        bounced=learned.bounced,
        parent=learned.parent,
        e_value=_figure(learned.e_value),
    )
    wrong = gettext("{false_bounces:.1%} of the letters, as it was estimated", false_bounces=learned.false_bounces)
    return [(gettext("learned"), labels), (gettext("false bounces"), wrong)]


def _grade_facts(card: Scorecard) -> list[tuple[str, str]]:
    actions, lang = card.actions, current_language()
    cut = gettext_noop("{grade} up to {points:+d} (p {probability:.1%})")
    cuts = " · ".join(
        gettext(cut, grade=grade, points=points, probability=card.probability(points))
        for grade, points in card.grades.items()
    )
    acts = " · ".join(f"{grade} {word_of(getattr(actions, grade), lang)}" for grade in (*card.grades, "E"))
    repaired = gettext_of(
        actions,
        "{action} from {repair_from} on where {listed} weighs most",
        action=word_of("fix_address", lang),
        listed=", ".join(actions.repair_features),
    )
    return [(gettext("grades"), gettext("{cuts} · E above", cuts=cuts)), (gettext("actions"), acts), ("", repaired)]


def _points(card: Scorecard, builtin: Scorecard) -> list[str]:
    from bansong.history.scorecards import points_table

    rows = [(gettext("level"), gettext("points"), gettext("built-in") + " ", gettext("reason"))]
    for level, points, beside, _, text in points_table(card, builtin).iter_rows():
        there = "" if beside is None else f"{beside:+d}"
        mark = " " if points == beside else "*"
        rows.append((level, f"{points:+d}", there + mark, text if len(text) <= _TEXT else f"{text[: _TEXT - 1]}…"))
    return ["", *aligned_rows(rows, right=(1, 2))]


def _diff_lines(found: list[ScorecardDifference], a: str, b: str) -> list[str]:
    if not found:
        return [gettext("{a} and {b} say the same", a=a, b=b)]
    rows, others = [("", "a", "b", "")], list[str]()
    for difference in found:
        one, other, what = difference.a, difference.b, _difference_words(difference.what)
        if isinstance(one, int) and isinstance(other, int) and not isinstance(one, bool):
            rows.append((what, f"{one:+d}", f"{other:+d}", f"{other - one:+d}"))
        elif isinstance(one, float) and isinstance(other, float):
            rows.append((what, f"{one:.4g}", f"{other:.4g}", ""))
        else:
            others += [what, f"    a  {one}", f"    b  {other}"]
    figures = aligned_rows(rows, right=(1, 2)) if len(rows) > 1 else []
    return [*pair_lines([("a", a), ("b", b)]), "", *figures, *others]


def _difference_words(what: str) -> str:
    # names in the scorecard file stay
    if found := re.fullmatch("grade (?P<grade>[A-E]) up to", what):
        return gettext("grade {grade} up to", **found.groupdict())
    name, _, points = what.rpartition(" ")
    return gettext("{name} points", name=name) if points == "points" else what


def _event_lines(events: list[Event]) -> list[str]:
    if not events:
        return [gettext("nothing was learned yet: the built-in scorecard answers")]
    rows = [tuple(map(gettext, _EVENT_COLUMNS))]
    for event in events:
        labels, bounced, e_value = (event.data.get(name) for name in ("labels", "bounced", "e_value"))
        labels = event.data.get("letters") if labels is None else labels
        at, kind = format_minute(event.at.timestamp()), gettext(event.kind.replace("_", " "))
        rows.append((at, kind, event.version or "", *map(_figure, (labels, bounced, e_value)), _why(event)))
    return aligned_rows(rows, right=(3, 4, 5))


def _why(event: Event) -> str:
    data = event.data
    why = data.get("why") or ""
    if isinstance(data.get("mailings"), dict):  # an audit's
        said = gettext_noop("{get} of {get2} audited labels wrong, mailing {listed}")
        why = gettext(said, get=data.get("wrong"), get2=data.get("checked"), listed=", ".join(data["mailings"]))
    elif not why and "replaced" in data:
        why = gettext("in place of {replaced}", replaced=data["replaced"])
    text = join_clauses(*map(str, why)) if isinstance(why, list | tuple) else str(why)
    return gettext("mailing {id}: {text}", id=data["mailing"], text=text) if "mailing" in data else text


def _as_dict(found: StoredScorecard, name: str) -> dict[str, object]:
    import msgspec

    from bansong.engine.risk.scorecard import Scorecard
    from bansong.history.scorecards import points_table

    builtin = Scorecard.load()
    return {
        "name": name,
        "version": found.card.version,
        "release": found.release,
        "builtin": builtin.version,
        "not_learned": list(found.added),
        "levels": points_table(found.card, builtin).to_dicts(),
        "scorecard": msgspec.to_builtins(found.card),
    }


def _figure(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ""
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.1f}" if value < _LARGE else f"{value:.0e}"  # evidence multiplies with each letter
