"""The commands `label`, `calibrate` and `model …`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

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
from bansong.base.options import ServiceOptions
from bansong.base.schema import OUTCOME_ROLES, SEOUL, word_of
from bansong.cli.console import end_with, format_minute, pair_lines, print_out, print_result, warn
from bansong.cli.options import PATH, account_options, given_options, json_option, options_of
from bansong.labels.options import LabelOptions

if TYPE_CHECKING:
    import polars as pl

    from bansong.engine.risk.scorecard import Learned, Scorecard
    from bansong.history.scorecards import Event, ModelStore, ScorecardDifference, StoredScorecard
    from bansong.learning.report import Calibration


@click.command(short_help="Record what came back of a mailing, and why.")
@click.argument("outcomes", type=PATH)
@options_of(LabelOptions, roles=OUTCOME_ROLES)
@click.option(
    "--first-row", type=click.IntRange(0, 2), help="What the service calls a job's first row, where it does not say."
)
@account_options
@options_of(ServiceOptions, "ledger", "known_as", "rate", "concurrency")
@click.option("--dry-run", is_flag=True, help="Match only: record, write and send nothing.")
@json_option
def label(outcomes: Path, as_json: bool, **options: Any) -> None:
    """Record which letters of a mailing came back, and why, so that the risk can be learned from it.

    OUTCOMES is the list of the mail house or the post office as it is, or any table that `enrich` reads: with a
    letter_id, registered number, business number, customer's key, recipient and address, or the row's number from 0
    (row_id), and columns such as 반송여부, 반송사유, 반송일자. A list of only what came back needs no 반송여부.

    The same outcomes may be given again, in parts, in any order: each letter counts once. What fits no row, or
    contradicts, is listed and never guessed; the exit code is then 3.
    """
    from bansong.labels.label import label as record

    report = record(outcomes, **given_options(options))
    end_with(report, as_json)


FILES_WITHOUT_REPORT: Final = Problem(
    "cli.files_without_report", "files are for --report-only; what is learned from was recorded with `bansong label`"
)
OPTION_NEEDS_LEARNING: Final = Problem(
    "cli.option_needs_learning", "{chosen} does not learn, so {option} says nothing with it; give one of them"
)
REPORT_SOURCE_UNCLEAR: Final = Problem(
    "cli.report_source_unclear", "give labelled files or --labels; a report is of one of them"
)


@click.command(short_help="Relearn the scorecard from the letters that came back.")
@click.argument("files", nargs=-1, type=PATH, metavar="[LABELLED]…")
@click.option("--labels", type=PATH, metavar="FOLDER", help="The folder of labels; by default the state directory's.")
@click.option("--dry-run", is_flag=True, help="Say what would be decided; promote and record nothing.")
@click.option("--report-only", is_flag=True, help="Only compare the probabilities with what came back; learn nothing.")
@json_option
def calibrate(files: tuple[Path, ...], labels: Path | None, dry_run: bool, report_only: bool, as_json: bool) -> None:
    """Relearn the scorecard from the letters whose outcome is known, and let it answer if it is surely better.

    The labels are those that `bansong label` recorded. What is learned replaces the champion only when the
    evidence for it is overwhelming; labels that look wrong are quarantined until they are corrected (exit code 3).
    See `bansong model` for what was decided, and for the way back.

    With --report-only, LABELLED are enriched files with outcomes, as `bansong label --output` writes them; without
    any, the report is of the recorded labels. The probabilities may be the service's as well.
    """
    if report_only and dry_run:
        raise UsageError(OPTION_NEEDS_LEARNING, chosen="--report-only", option="--dry-run")
    if files and not report_only:
        raise UsageError(FILES_WITHOUT_REPORT)
    if report_only:
        if files and labels is not None:
            raise UsageError(REPORT_SOURCE_UNCLEAR)
        _report(files, labels, as_json)
    else:
        from bansong.learning.calibrate import calibrate as learn

        result = learn(labels=labels, dry_run=dry_run)
        print_result(as_json, result.as_dict(), [result.headline, "", *pair_lines(result.lines())])
        warn(result.warnings)
        click.get_current_context().exit(result.exit_code)


def _report(files: tuple[Path, ...], labels: Path | None, as_json: bool) -> None:
    from bansong.learning.report import file_calibration, store_calibration

    reports = {str(path): file_calibration(path) for path in files} or dict([store_calibration(labels)])
    value = {"reports": [{"labels": name, **report.as_dict()} for name, report in reports.items()]}
    print_result(as_json, value, (line for name, report in reports.items() for line in _report_lines(name, report)))
    for name, report in reports.items():
        warn(f"{name}: {warning}" for warning in report.warnings)


def _report_lines(name: str, report: Calibration) -> list[str]:
    lines = [report.headline, "", *pair_lines([(gettext("labels"), name), *report.lines()])]
    lines += _frame_lines(gettext("reliability, by tenths of the rows"), report.frame)
    for column, frame in report.groups.items():
        lines += _frame_lines(gettext("by {column}", column=gettext(column)), frame)
    return [*lines, ""]


def _frame_lines(title: str, frame: pl.DataFrame) -> list[str]:
    if frame.is_empty():
        return []
    from bansong.learning.report import ABBREVIATIONS

    header = [gettext(ABBREVIATIONS.get(name, name)) for name in frame.columns]
    rows = [["" if value is None else _cell(value) for value in row] for row in frame.iter_rows()]  # a report has few
    right = [at for at, dtype in enumerate(frame.dtypes) if dtype.is_numeric()]
    return ["", title, *aligned_rows([header, *rows], right)]


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return word_of(str(value), current_language())


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
