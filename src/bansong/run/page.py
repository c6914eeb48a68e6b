"""The HTML page of a run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import polars as pl

from bansong.base.errors import InputError, OutputError, Problem, UsageError
from bansong.base.files import as_path, is_remote
from bansong.base.messages import (
    count_rows,
    current_language,
    end_sentence,
    gettext,
    gettext_noop,
    gettext_of,
    ngettext,
)
from bansong.base.options import ReadOptions
from bansong.base.publish import publish_file, same_file
from bansong.base.remote import fetch_file
from bansong.base.schema import ACTION_COLOURS, FILE, GRADE_COLOURS, LINE, SEOUL, WAITING, Alert, seoul_day, word_of
from bansong.run.changes import BEFORE, CHANGE, KIND_WORDS
from bansong.run.charts import TILES
from bansong.run.manifest import is_manifest, manifest_of, open_mailing
from bansong.run.page_figures import (
    BESIDES,
    DIFFERENCES,
    Markup,
    PageFigures,
    RunChanges,
    collect_figures,
    find_changes,
    join,
    tag,
)
from bansong.run.side_files import check_letter_cost

NAME_NOT_HTML: Final = Problem("report.name_not_html", "{path}: a report is a web page; call it .html")

_POLICY: Final = "; ".join(("default-src 'none'", "style-src 'unsafe-inline'", "base-uri 'none'", "form-action 'none'"))
_COLOURS: Final = GRADE_COLOURS | ACTION_COLOURS
_TITLES: Final = {
    "row_status": gettext_noop("Rows"),
    "biz_status": gettext_noop("Businesses"),
    "grade": gettext_noop("Grades"),
    "action": gettext_noop("Actions"),
}
_WORST: Final = {
    "row": gettext_noop("row"),
    "b_no": gettext_noop("number"),
    "bounce_prob": gettext_noop("return risk"),
    "name": gettext_noop("name"),
    "address": gettext_noop("address"),
    "action": gettext_noop("action"),
    "reason": gettext_noop("weightiest reason"),
}
_FILES: Final = {
    FILE: gettext_noop("file"),
    "rows": gettext_noop("rows"),
    "send": gettext_noop("send"),
    "waiting": gettext_noop("confirm, correct or hold"),
    "do_not_send": gettext_noop("do not send"),
    "bounce_prob": gettext_noop("return risk"),
}
_CORRECTIONS: Final = {
    "row": gettext_noop("row"),
    "b_no": gettext_noop("number"),
    "name": gettext_noop("name"),
    "before": gettext_noop("before"),
    "after": gettext_noop("after"),
    "change": gettext_noop("what changed"),
}
_CHANGED: Final = {
    "b_no": gettext_noop("number"),
    "name": gettext_noop("name"),
    CHANGE: gettext_noop("changes"),
    f"biz_status{BEFORE}": gettext_noop("status before"),
    "biz_status": gettext_noop("status now"),
    f"action{BEFORE}": gettext_noop("action before"),
    "action": gettext_noop("action now"),
}
_NUMBERS: Final = ("row", "rows", "send", "waiting", "do_not_send", "bounce_prob")
_WIDTHS: Final = {  # CSS class for the minimal width of a column
    "b_no": "code",
    "name": "name",
    **dict.fromkeys((FILE, "address", "reason", "change", *DIFFERENCES), "long"),
    **dict.fromkeys(("biz_status", "action", f"biz_status{BEFORE}", f"action{BEFORE}"), "word"),
}
_UNKNOWN: Final = "–"


def check_page(target: Path) -> Path:
    """Return the page's path; raise :class:`OutputError` unless it ends in ``.html``."""
    if target.suffix.lower() not in (".html", ".htm"):
        raise OutputError(NAME_NOT_HTML, path=target)
    return target


def render_into(
    file: Path, figures: PageFigures, facts: Mapping[str, Any], letter_cost: float | None, changes: RunChanges | None
) -> None:
    """Write the web page of a run into a file."""
    text = render(figures, facts, letter_cost, changes)
    file.write_text(text, encoding="utf-8", errors="xmlcharrefreplace")  # the name of a file may be no valid text


def render(
    figures: PageFigures, facts: Mapping[str, Any], letter_cost: float | None, changes: RunChanges | None = None
) -> str:
    """Render the page of a run; ``facts`` is its manifest, ``letter_cost`` the price of a letter in won."""
    style = Markup(files("bansong.run").joinpath("page.css").read_text(encoding="utf-8"))
    name = Path(str(facts.get("input") or facts.get("output") or "")).name
    if parts := facts.get("parts"):
        name = ngettext("{count:,} table", "{count:,} tables", len(parts))
    file = {} if figures.files.is_empty() else {FILE: _FILES[FILE]}
    title = gettext("Verification of {name}", name=name)
    head = join(
        Markup('<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'),
        Markup('<meta name="referrer" content="no-referrer"><meta name="robots" content="noindex">'),
        tag("title", title),
        Markup(f"<style>{style}</style>"),
    )
    corrected = ngettext("{count:,} address corrected", "{count:,} addresses corrected", figures.corrected)
    sections = (
        _summary(figures, facts),
        *([_changes(changes)] if changes is not None else []),
        _statuses(figures, facts),
        _money(figures, facts, letter_cost),
        _counts(figures),
    )
    appendix = (
        *([_changed_rows(changes)] if changes is not None else []),
        *([_rows(gettext("Inputs"), figures.files, _FILES)] if file else []),
        _rows(gettext("Rows with the highest return risk"), figures.worst, file | _WORST),
        _rows(corrected, figures.corrections.sort("row_id"), file | _CORRECTIONS),
        _origin(figures, facts),
    )
    rows, started = count_rows(figures.rows), _in_korea(facts.get("started"))
    subtitle = gettext("{rows}, verified {day}", rows=rows, day=started.date()) if started else rows
    privacy = gettext(
        "This page holds people's data in the clear: keep it as you keep the list. It loads nothing from any network."
    )
    if figures.masked:
        privacy = gettext("Numbers, names and addresses are masked. This page loads nothing from any network.")
    body = join(
        tag("header", tag("h1", title), tag("p", subtitle, class_="soft")),
        tag("main", *sections, tag("div", *appendix, class_="appendix")),
        tag("footer", tag("p", privacy)),
    )
    return f'<!doctype html>\n<html lang="{current_language()}"><head>{head}</head><body>{body}</body></html>\n'


def _in_korea(written: object) -> datetime | None:
    return datetime.fromisoformat(str(written)).astimezone(SEOUL) if written else None


def _section(title: str, *children: str) -> Markup:
    return tag("section", tag("h2", title), *children)


def _cards(cards: Iterable[tuple[str, str]]) -> Markup:
    return tag("ul", *(tag("li", tag("strong", value), what) for what, value in cards), class_="cards")


def _summary(figures: PageFigures, facts: Mapping[str, Any]) -> Markup:
    actions = figures.counts["action"]
    waiting = sum(actions[name] for name in WAITING)
    unanswered = figures.rows - sum(actions.values())
    letters = (facts.get("letters") or {}).get("letters")
    cards = [
        (gettext("rows"), f"{figures.rows:,}"),
        (gettext("send"), f"{actions['send']:,}"),
        *([(gettext("letters"), f"{letters:,}")] if letters is not None else []),
        (gettext("confirm, correct or hold"), f"{waiting:,}"),
        (gettext("do not send"), f"{actions['do_not_send']:,}"),
        *([(gettext("without an answer"), f"{unanswered:,}")] if unanswered else []),
        (gettext("addresses corrected"), f"{figures.corrected:,}"),
    ]
    said = [(end_sentence(str(text)), isinstance(text, Alert)) for text in facts.get("warnings") or ()]
    notes = (tag("p", text, class_="alert" if is_alert else "soft") for text, is_alert in said)
    return _section(gettext("Summary"), _cards(cards), *notes)


def _changes(changes: RunChanges) -> Markup:
    title, file = gettext("Changes since the run before"), changes.file.name
    since = gettext("Compared with {file}.", file=file)
    if changes.run is not None:
        day = changes.run.started.astimezone(SEOUL).date()
        since = gettext("Compared with the run of {day}, {file}.", day=day, file=file)
    cards = [(word, f"{changes.counts[kind]:,}") for kind, word in _kinds().items() if changes.counts[kind]]
    return _section(title, tag("p", since, class_="soft"), _cards(cards) if cards else tag("p", gettext("None.")))


def _changed_rows(changes: RunChanges) -> Markup:
    rows = changes.rows.with_columns(pl.col(CHANGE).list.eval(pl.element().replace(_kinds())).list.join(", "))
    return _rows(gettext("Rows that changed"), rows, _CHANGED) if any(changes.counts.values()) else Markup()


def _kinds() -> dict[str, str]:
    return {kind: gettext(word).replace("_", " ") for kind, word in KIND_WORDS.items()}


def _statuses(figures: PageFigures, facts: Mapping[str, Any]) -> Markup:
    found = facts.get("statuses") or {}
    numbers = sum(figures.counts["biz_status"].values())
    checked = int(found.get("checked", numbers - figures.counts["biz_status"]["unknown"]))
    lines = [gettext("{checked:,} of {numbers:,} statuses checked.", checked=checked, numbers=numbers)]
    if figures.oldest and figures.newest:
        lines.append(_ages(figures, figures.oldest, figures.newest, _in_korea(facts.get("started"))))
    if found.get("stale"):
        stale = {"stale": int(found["stale"]), "days": found.get("stale_after")}
        lines.append(
            gettext("{stale:,} of them were checked more than {days} days ago and are not to be relied on.", **stale)
        )
    return _section(gettext("Statuses checked, and how old they are"), *(tag("p", line) for line in lines))


def _ages(figures: PageFigures, oldest: str, newest: str, started: datetime | None) -> str:
    day = started.date() if started else seoul_day()
    most, least = ((day - date.fromisoformat(known)).days for known in (oldest, newest))
    if oldest == newest:
        return gettext_of(
            figures, "{dated:,} rows have a status of {newest}: {age:,} days old on {day}.", age=least, day=day
        )
    return gettext_of(
        figures,
        "{dated:,} rows have a status of {oldest} to {newest}: {least:,} to {most:,} days old on {day}.",
        least=least,
        most=most,
        day=day,
    )


def _money(figures: PageFigures, facts: Mapping[str, Any], cost: float | None) -> Markup:
    back, sent = figures.expected, figures.expected_sent

    def price(amount: float) -> str:
        return gettext("₩{amount:,.0f}", amount=amount)

    cards = [
        (gettext("letters expected back if every row is mailed"), f"{back:,.1f}"),
        (gettext("letters expected back of those to be sent"), f"{sent:,.1f}"),
    ]
    if cost is not None:
        cards += [
            (gettext("at stake if every row is mailed"), price(back * cost)),
            (gettext("at stake in the letters to be sent"), price(sent * cost)),
        ]
    letters = facts.get("letters") or {}
    if letters:
        each = cost if letters.get("cost") is None else letters["cost"]
        if each is not None:
            cards.append((gettext("postage of {letters:,} letters", **letters), price(letters["letters"] * each)))
        cards.append((gettext("letters fewer"), f"{letters['fewer']:,}"))
        if letters.get("saved") is not None:
            cards.append((gettext("saved by them"), price(letters["saved"])))
    how = gettext("Expected returns are the sum of the rows' probabilities.")
    if cost is not None:
        how = gettext("Expected returns are the sum of the rows' probabilities, at ₩{cost:,.0f} a letter.", cost=cost)
    return _section(gettext("Money at stake"), _cards(cards), tag("p", how, class_="soft"))


def _counts(figures: PageFigures) -> Markup:
    tables = []
    for name, title in _TITLES.items():
        counts = figures.counts[name]
        if any(counts.values()):
            # an answer without a readable address has no grade
            rest = gettext("without a grade") if name == "grade" else gettext("without an answer")
            whole = {**counts, rest: figures.rows - sum(counts.values())}
            tables.append(_bars(gettext(title), whole, figures.rows))
    reasons = dict(figures.reasons.select("reason", "rows").iter_rows())
    tables += [_bars(gettext("What weighs most in a row"), reasons, figures.rows), _provinces(figures)]
    return _section(gettext("Counts"), tag("div", *tables, class_="columns"))


def _bars(title: str, counts: Mapping[str, int], rows: int) -> Markup:
    head = _head((title, gettext("rows"), gettext("share")), numbers=(1, 2))
    shares = {word: count / rows for word, count in counts.items() if count}
    lines = [_line(word, f"{counts[word]:,}", f"{share:.1%}", share) for word, share in shares.items()]
    return tag("table", head, tag("tbody", *lines))


def _line(word: str, count: str, share: str, width: float) -> Markup:
    # a drawing, since browsers print no backgrounds
    rect = tag("rect", width=f"{100 * width:.1f}", height="10", fill=_COLOURS.get(word, LINE))
    bar = tag("svg", rect, viewBox="0 0 100 10", preserveAspectRatio="none", aria_hidden="true")
    cells = tag("td", count, class_="number"), tag("td", share, bar, class_="bar")
    return tag("tr", tag("th", _say_word(word), scope="row"), *cells)


def _head(titles: Sequence[str], numbers: Sequence[int] = ()) -> Markup:
    cells = (
        tag("th", title, scope="col", **({"class_": "number"} if place in numbers else {}))
        for place, title in enumerate(titles)
    )
    return tag("thead", tag("tr", *cells))


def _provinces(figures: PageFigures) -> Markup:
    head = _head((gettext("province"), gettext("rows"), gettext("return risk")), numbers=(1, 2))
    rows = figures.regions.sort("rows", "region", descending=[True, False]).select("region", "rows", "expected")
    most = rows.select((pl.col("expected") / pl.col("rows")).max()).item() or 1.0
    names, none = {level: tile.name(current_language()) for level, tile in TILES.items()}, gettext("without a province")
    lines = [
        _line(names.get(level) or none, f"{count:,}", f"{expected / count:.1%}", expected / count / most)
        for level, count, expected in rows.iter_rows()
    ]
    return tag("table", head, tag("tbody", *lines))


def _rows(title: str, rows: pl.DataFrame, columns: Mapping[str, str]) -> Markup:
    if rows.is_empty():
        return _section(title, tag("p", gettext("None.")))
    titles = [gettext(text) for text in columns.values()]
    places = [place for place, name in enumerate(columns) if name in _NUMBERS]
    lines = [
        tag("tr", *(_cell(name, value, label) for (name, value), label in zip(row.items(), titles, strict=True)))
        for row in rows.select(list(columns)).iter_rows(named=True)
    ]
    table = tag("table", _head(titles, places), tag("tbody", *lines), class_="list")
    return _section(title, tag("div", table, class_="wide", tabindex="0", role="region", aria_label=title))


def _cell(name: str, value: object, label: str) -> Markup:
    text: str = _UNKNOWN
    if isinstance(value, list):
        mark = "del" if name == DIFFERENCES[0] else "ins"
        runs = [tag(mark, run["text"]) if run["changed"] else run["text"] for run in value]
        text = tag("span", *(part for run in runs for part in (run, " ")))
    elif value not in (None, ""):
        text = f"{value:.1%}" if isinstance(value, float) else _say_word(str(value))
    kind = "number" if name in _NUMBERS else _WIDTHS.get(name, "")
    kinds = [one for one in (kind, "empty" if text == _UNKNOWN else "") if one]
    return tag("td", text, data_label=label, **({"class_": " ".join(kinds)} if kinds else {}))


def _say_word(word: str) -> str:
    said = word_of(word, current_language())
    return word if said == word else f"{said} ({word})"


def _origin(figures: PageFigures, facts: Mapping[str, Any]) -> Markup:
    versions = facts.get("versions") or {}
    inputs = facts.get("inputs") or [{}]
    sha256 = inputs[0].get("sha256") if len(inputs) == 1 else None
    started = _in_korea(facts.get("started"))
    rows = [f"{_say_word(word)} {count:,}" for word, count in figures.counts["row_status"].items() if count]
    lines = {
        gettext("run"): facts.get("run_id"),
        gettext("started"): f"{started:%Y-%m-%d %H:%M} KST" if started else None,
        gettext("engine"): facts.get("engine"),
        "bansong": versions.get("bansong") or versions.get("bizverify"),
        gettext("scorecard"): versions.get("model"),
        gettext("registry"): versions.get("registry"),
        gettext("statuses"): versions.get("statuses"),
        gettext("gazetteer"): versions.get("gazetteer"),
        gettext("addresses of"): versions.get("gazetteer_date"),
        gettext("input"): facts.get("input"),
        gettext("SHA-256 of the input"): sha256,
        gettext("output"): facts.get("output"),
        gettext("accounting"): " = ".join(filter(None, (" + ".join(rows), f"{figures.rows:,}"))),
    }
    shown = [tag("tr", tag("th", what, scope="row"), tag("td", str(value))) for what, value in lines.items() if value]
    table = tag("table", tag("tbody", *shown))
    return _section(gettext("How this was obtained"), tag("div", table, class_="wide"))


FILE_MISSING: Final = Problem(
    "report.file_missing", "{path}: there is no such file; check its name, or give the id of a run"
)
EARLIER_RUN_INCOMPARABLE: Final = Problem(
    "report.earlier_run_incomparable", "{path}: cannot be compared; give the enriched file of an earlier run"
)
OUTPUT_IS_ENRICHED: Final = Problem(
    "report.output_is_enriched", "{path}: is the enriched file itself; give another output"
)


def report_page(
    run: str | Path,
    output: str | Path,
    *,
    letter_cost: float | None = None,
    unmask: bool = False,
    sheet: str | None = None,
    encoding: str | None = None,
    json_path: str | None = None,
    delimiter: str | None = None,
    before: str | Path | None = None,
) -> Path:
    """Write a page about a run as HTML (mode 0600, in the current language) and return its path."""
    # ``run``: an id, a manifest, or an enriched file; the run's output must still exist. ``before``: the enriched file
    # to compare with, by default that of the previous run over the same input. ``letter_cost``: won a letter.
    check_letter_cost(letter_cost)
    target = check_page(as_path(output))
    given = as_path(run)
    described = is_manifest(given)
    file = given if (is_remote(given) or given.is_file()) and not described else None
    if file is None and not described and given.suffix:  # ids have no suffix
        raise InputError(FILE_MISSING, path=given)
    read = ReadOptions(None, sheet, encoding, json_path, delimiter=delimiter)
    with open_mailing(None if file else run, file, read, besides=BESIDES) as mailing:
        if same_file(mailing.path, target):
            raise UsageError(OUTPUT_IS_ENRICHED, path=target)
        figures = collect_figures(mailing.letters, unmask=unmask, first_row=mailing.table.first_row)
        facts = _facts(given if described else manifest_of(mailing.run_id or ""), mailing.id)
        source, earlier = (
            mailing.by.input if mailing.by else str(mailing.path),
            as_path(before) if before is not None else None,
        )
        besides = {"earlier": earlier, "besides": mailing.path}
        changes = find_changes(mailing.letters, source, mailing.run_id, **besides, unmask=unmask)
        if changes is None and earlier is not None:
            raise UsageError(EARLIER_RUN_INCOMPARABLE, path=earlier)
        with publish_file(target) as temporary:
            render_into(temporary, figures, facts or {"output": str(mailing.path)}, letter_cost, changes)
    return target


def read_figures(run: Path | None, file: Path) -> PageFigures:
    """Read the figures of an enriched file; ``run`` is the path of its manifest, if known."""
    with open_mailing(run, file, besides=BESIDES) as mailing:
        return collect_figures(mailing.letters)


def _facts(manifest: Path, id: str) -> Mapping[str, Any]:
    if not is_remote(manifest) and not manifest.is_file():
        return {}
    with fetch_file(manifest) as data:
        found: dict[str, Any] = json.loads(data.path.read_text(encoding="utf-8"))
    part: dict[str, Any] = next((part for part in found.get("parts", ()) if part["id"] == id), found)
    warnings = part.get("warnings") or ()
    alerts = part.get("alerts", warnings)  # not recorded by older runs
    return part | {"warnings": [Alert(one) if one in alerts else one for one in warnings]}
