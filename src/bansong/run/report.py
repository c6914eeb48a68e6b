"""The report of one table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from html import escape
from typing import TYPE_CHECKING, Final

from bansong.base.display import Shown, grade_bar, listed_counts, reason_bars
from bansong.base.errors import BansongError, Problem, UsageError
from bansong.base.messages import Phrase, count_rows, current_language, gettext, gettext_noop, gettext_of, ngettext
from bansong.base.options import ENGINE_KINDS
from bansong.base.schema import Choice, word_of, written_warnings
from bansong.run.accounting import (
    DIGEST,
    LookupPlan,
    RowCounts,
    StatusCounts,
    is_majority,
    no_gazetteer,
    plan_of,
    row_counts_of,
)
from bansong.run.charts import grades, regions
from bansong.tables.table import Section

if TYPE_CHECKING:
    import polars as pl

    from bansong.engine.protocol import Agreement, Purchase, QuotaStatus
    from bansong.reference.statuses import RunStatuses
    from bansong.run.charts import Chart
    from bansong.run.decisions import Decisions
    from bansong.run.page_figures import PageFigures as RunFigures
    from bansong.run.side_files import WrittenSides


def lookups_as_dict(plan: LookupPlan, purchase: Purchase | None) -> dict[str, object]:
    """Return planned and bought lookups, and the quota before and after, as ``--json`` shows them."""
    stood = {"before": purchase.before, "after": purchase.after} if purchase else dict.fromkeys(("before", "after"))
    return {
        "lookups": {
            "planned": plan.lookups,
            "paid": purchase.paid if purchase else 0,
            "cached": purchase.cached if purchase else 0,
            "saved": plan.duplicates,
        },
        "plan": asdict(plan),
        "quota": {when: quota.remaining if quota else None for when, quota in stood.items()},
        "purchase": asdict(purchase) if purchase else None,
    }


def count_lines(*counts: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return lines with the counts of row status, business, grade and action, given in this order."""
    labels = (gettext("row status"), gettext("business"), gettext("grade"), gettext("action"))
    return [*zip(labels, map(listed_counts, counts), strict=True)]


def quote_lines(plan: LookupPlan, purchase: Purchase) -> list[tuple[str, str]]:
    """Return lines on a planned purchase."""
    found = [] if purchase.before is None else [(gettext("quota left"), _render_quota(purchase.before))]
    missing = ngettext(
        "{chosen:,} of {count:,} missing lookup",
        "{chosen:,} of {count:,} missing lookups",
        purchase.wanted,
        chosen=purchase.chosen,
    )
    return [*found, (gettext("would buy"), _render_lookups(missing, plan, purchase))]


def purchase_lines(plan: LookupPlan, purchase: Purchase) -> list[tuple[str, str]]:
    """Return lines on a finished purchase, without zero figures."""
    chosen = ngettext(
        "{paid:,} of {count:,} chosen lookup",
        "{paid:,} of {count:,} chosen lookups",
        purchase.chosen,
        paid=purchase.paid,
    )
    found = [(gettext("paid"), _render_lookups(chosen, plan, purchase, purchase.wanted - purchase.chosen))]
    if purchase.before is not None:
        left = gettext(
            "{before} before, {after} after", before=_render_quota(purchase.before), after=_render_quota(purchase.after)
        )
        found.append((gettext("quota left"), left))
    if doubts := _render_doubts(purchase):
        found.append((gettext("in doubt"), doubts))
    if purchase.requests:
        sent = gettext_of(purchase, "{requests:,}, {retries:,} sent again")
        if purchase.rate:
            sent = gettext_of(purchase, "{requests:,}, {rate:,.1f}/s, {retries:,} sent again")
        found.append((gettext("requests"), sent))
    if purchase.agreement is not None and purchase.agreement.rows:
        found.append((gettext("agreement"), _render_agreement(purchase.agreement)))
    if purchase.paused:
        found.append((gettext("paused"), purchase.paused))
    made = gettext("{path}, made by this run", path=purchase.ledger) if purchase.ledger_created else purchase.ledger
    found.append((gettext("ledger"), made))
    return found


def _render_doubts(purchase: Purchase) -> str:
    own = ngettext("{count:,} request of this run", "{count:,} requests of this run", purchase.doubts)
    killed = ngettext(
        "{count:,} request of one that was killed", "{count:,} requests of one that was killed", purchase.doubts_found
    )
    return ", ".join([*([own] if purchase.doubts else []), *([killed] if purchase.doubts_found else [])])


def _render_lookups(bought: str, plan: LookupPlan, purchase: Purchase, left_out: int = 0) -> str:
    parts = {
        gettext_noop("{count:,} beyond budget or quota"): left_out,
        gettext_noop("{count:,} in the ledger"): purchase.cached,
        gettext_noop("{count:,} in uploads of earlier runs"): purchase.running,
        gettext_noop("{count:,} held back"): purchase.held,
        gettext_noop("{count:,} certain without"): plan.lookups - purchase.known - purchase.wanted,
    }
    return ", ".join([bought, *(gettext(what, count=count) for what, count in parts.items() if count)])


def _render_quota(quota: QuotaStatus | None) -> str:
    if quota is None or quota.remaining is None:
        return gettext("unknown")
    if quota.limit is None:
        return f"{quota.remaining:,}"
    return gettext("{left:,} of {limit:,}", left=quota.remaining, limit=quota.limit)


def _render_agreement(agreement: Agreement) -> str:
    parts = []
    if known := agreement.status_known:
        same = agreement.status_same
        parts.append(gettext("same status in {same:,} of {known:,} known to both", same=same, known=known))
    parts.append(gettext("same action in {count:,}", count=agreement.action_same))
    if agreement.prob_apart is not None:
        parts.append(gettext("probabilities {apart:.2f} apart", apart=agreement.prob_apart))
    return ngettext(
        "of {count:,} row that both answered: {parts}",
        "of {count:,} rows that both answered: {parts}",
        agreement.rows,
        parts=", ".join(parts),
    )


DRY_RUN_UNGRADED: Final = Problem("report.dry_run_ungraded", "a dry run has no grades to draw; run it first")
OUTPUT_NOT_WRITTEN: Final = Problem(
    "report.output_not_written", "there is no output to draw from; give `output=` a file, and run it"
)

_MAX_ROWS_READ_FOR_DISPLAY: Final = 200_000
_REASONS_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class Versions:
    """Versions of the software and data that computed the answers."""

    bansong: str
    model: str
    registry: str | None
    statuses: str | None = None
    gazetteer: str | None = None
    history: str | None = None
    gazetteer_date: str | None = None
    gazetteer_addresses: int | None = None


@dataclass(frozen=True, slots=True)
class LetterHistory:
    """How many earlier letters of how many mailings are known from the label store in ``folder``."""

    letters: int
    mailings: int
    folder: str


@dataclass(frozen=True, slots=True, repr=False)
class Report(Shown):
    """The outcome of one run. Displays as a table in a notebook and as text elsewhere.

    ``counts`` has all six row states and adds up to ``rows``. ``seconds`` is wall time. ``output``, ``manifest``,
    ``account`` and ``statuses`` are ``None`` for a dry run. ``table``: the input with its sheet; ``sheet``: the sheet's
    name if there are several. ``backup``: copy of a replaced output; ``kept``: copies of replaced files that people may
    have edited, by path. ``merged``: path, rows and SHA-256 of inputs that became one
    table. ``purchase``: only for engines that buy. ``addresses``: rows by match level in the gazetteer.
    ``history``: known earlier letters. ``decisions``: what people decided in an earlier output. ``asked``: the tax
    authority's statuses. ``beside``: further files, counts of letters. ``replaced``: if the input is an earlier
    output, its changed cells by column. ``input_version``: ETag of a remote input. ``read_figures``: reads the output
    for more figures. Warnings that are :class:`bansong.base.schema.Alert` come first.
    """

    run_id: str
    started: datetime
    seconds: float
    engine: str
    input: str
    columns: Mapping[str, Choice]
    plan: LookupPlan
    versions: Versions
    account: RowCounts | None = None
    addresses: Mapping[str, int] = field(default_factory=dict)
    output: str | None = None
    warnings: tuple[str, ...] = ()
    manifest: str | None = None
    input_sha256: str | None = None
    table: str | None = None
    backup: str | None = None
    purchase: Purchase | None = None
    history: LetterHistory | None = None
    statuses: StatusCounts | None = None
    asked: RunStatuses | None = None
    beside: WrittenSides | None = None
    sheet: str | None = None
    input_version: str | None = None
    replaced: Mapping[str, int] = field(default_factory=dict)
    kept: Mapping[str, str] = field(default_factory=dict)
    decisions: Decisions | None = None
    read_figures: Callable[[], RunFigures] | None = field(default=None, compare=False)
    merged: tuple[Mapping[str, object], ...] = ()

    @property
    def rows(self) -> int:
        """Rows of the file."""
        return self.plan.rows

    @property
    def counts(self) -> dict[str, int]:
        """Rows by ``row_status``; empty for a dry run."""
        return self.account.by_row_status if self.account else {}

    @property
    def exit_code(self) -> int:
        """5 if rows are pending (repeat the call to continue), else 3 if rows failed, else 0.

        Failures are also: more than half of the rows invalid (probably a misread list), a key that the tax authority
        refused or whose day's requests are used up, and a list of letters kept because it would have become empty.
        """
        if self.counts.get("pending"):
            return 5
        failed = self.counts.get("failed") or self.counts.get("in_doubt")
        refused = self.asked is not None and self.asked.fetch.refused
        kept = self.beside is not None and self.beside.lacks_letters
        return 3 if failed or refused or kept or is_majority(self.plan.invalid, self.rows) else 0

    def as_dict(self) -> dict[str, object]:
        """Return the report as plain values, as ``--json`` prints it."""
        account = self.account
        return {
            "run_id": self.run_id,
            "started": self.started.isoformat(),
            "seconds": round(self.seconds, 3),
            "engine": self.engine,
            "input": self.input,
            "input_version": self.input_version,
            "output": self.output,
            "backup": self.backup,
            "manifest": self.manifest,
            "dry_run": account is None,
            "rows": self.rows,
            "columns": {role: asdict(choice) for role, choice in self.columns.items()},
            "statuses": asdict(self.statuses) if self.statuses else None,
            "asked": self.asked.as_dict() if self.asked else None,
            "row_status": self.counts,
            "biz_status": account.by_biz_status if account else {},
            "grade": account.by_grade if account else {},
            "action": account.by_action if account else {},
            "match_level": dict(self.addresses),
            **lookups_as_dict(self.plan, self.purchase),
            "history": asdict(self.history) if self.history else None,
            "versions": asdict(self.versions),
            **(self.beside.as_dict() if self.beside else {}),
            **({"decisions": self.decisions.as_dict()} if self.decisions else {}),
            "replaced": dict(self.replaced),
            "kept": dict(self.kept),
            **written_warnings(self.warnings),
        }

    def _describe(self) -> Iterator[tuple[str, str]]:
        plan, account = self.plan, self.account
        if self.statuses is not None:
            yield gettext("statuses"), self.statuses.summary
        if self._looked_up and self.versions.gazetteer is None:
            yield gettext("addresses"), no_gazetteer()
        yield gettext("input"), self.table or self.input
        yield gettext("rows"), f"{self.rows:,}"
        yield from self._planned_lines() if account is None else self._answered_lines(account)
        yield from [] if self.asked is None else self.asked.lines()
        if self.history is not None:
            of = {"mailings": ngettext("{count:,} mailing", "{count:,} mailings", self.history.mailings)}
            letters = self.history.letters
            known = ngettext("{count:,} letter of {mailings}", "{count:,} letters of {mailings}", letters, **of)
            yield gettext("history"), known
        yield from _doubt_lines(plan, numbered="b_no" in self.columns)
        if self.purchase is not None:
            yield from (quote_lines if account is None else purchase_lines)(plan, self.purchase)
        yield gettext("time"), gettext_of(self, "{seconds:.1f} s, run {run}", run=self.run_id)
        if self.output:
            yield gettext("output"), self.output
        if self.backup and self.backup not in self.kept.values():  # an alert names the others
            yield gettext("backup"), self.backup
        yield from self.decisions.lines() if self.decisions else []
        yield from self.beside.lines() if self.beside else []

    def chart_grades(self) -> Chart:
        """Draw rows by grade as bars; raise :class:`UsageError` for a dry run, or without Altair."""
        if self.account is None:
            raise UsageError(DRY_RUN_UNGRADED)
        return grades(self.account.by_grade, self.rows)

    def chart_regions(self) -> Chart:
        """Draw the return risk by province as tiles, from the output.

        Raises :class:`UsageError` for a dry run, or without Altair, and errors of reading the output.
        """
        return regions(self.regions())

    def regions(self) -> pl.DataFrame:
        """Return rows and letters expected back by province, from the output: ``region``, ``rows``, ``expected``.

        ``region``: the province as the scorecard names it (String, null if unknown), ``rows``: UInt32, ``expected``:
        sum of the probabilities (Float64). Raises as :meth:`chart_regions`.
        """
        if self.read_figures is None:
            raise UsageError(OUTPUT_NOT_WRITTEN)
        return self.read_figures().regions

    def _repr_html_(self) -> str:
        if self.account is None:
            return Shown._repr_html_(self)
        return grade_bar(self.account.by_grade, self.rows) + Shown._repr_html_(self) + self._reasons_html()

    def _reasons_html(self) -> str:
        if self.read_figures is None or self.rows > _MAX_ROWS_READ_FOR_DISPLAY:
            return ""
        try:
            figures = self.read_figures()
        except BansongError:  # the output was moved or edited: show the report without the reasons
            return ""
        most = [*figures.reasons.select("reason", "rows").head(_REASONS_SHOWN).iter_rows()]
        stake = gettext_of(figures, "{expected:,.0f} letters may come back if every row is mailed")
        if self.beside and self.beside.letters and (cost := self.beside.letters.cost):
            stake = Phrase("{said}: ₩{money:,.0f}", said=stake, money=figures.expected * cost)
        return reason_bars(gettext("What weighs most in a row"), most) + f"<p>{escape(stake)}</p>"

    def _planned_lines(self) -> Iterator[tuple[str, str]]:
        plan = self.plan
        records = ngettext("{count:,} distinct record", "{count:,} distinct records", plan.lookups)
        if self.purchase is None:
            records = gettext_of(self, "{records}, at no cost ({engine} engine)", records=records)
        yield gettext("would look up"), records
        yield gettext("repeated rows"), f"{plan.duplicates:,}"
        yield gettext("invalid numbers"), _render_parts(plan.invalid, plan.invalid_by_problem)

    def _answered_lines(self, account: RowCounts) -> Iterator[tuple[str, str]]:
        plan = self.plan
        lookups = ngettext(
            "{lookups:,} distinct, {count:,} row repeats one",
            "{lookups:,} distinct, {count:,} rows repeat one",
            plan.duplicates,
            lookups=plan.lookups,
        )
        yield from count_lines(account.by_row_status, account.by_biz_status, account.by_grade, account.by_action)
        yield from self._address_lines()
        yield gettext("lookups"), lookups if self.purchase else gettext("{lookups}; paid 0", lookups=lookups)
        if plan.invalid:
            yield gettext("invalid"), _render_parts(plan.invalid, plan.invalid_by_problem)

    def _address_lines(self) -> list[tuple[str, str]]:
        if self.versions.gazetteer is None or not self._looked_up:
            return []
        dated = self.versions.gazetteer_date
        source = ngettext(
            "juso {month}, {count:,} address",
            "juso {month}, {count:,} addresses",
            self.versions.gazetteer_addresses or 0,
            month=dated[:7] if dated else gettext("(date not known)"),
        )
        return [(gettext("addresses"), listed_counts(self.addresses)), (gettext("gazetteer"), source)]

    @property
    def _looked_up(self) -> bool:
        kind = ENGINE_KINDS.get(self.engine)
        return "address" in self.columns and (kind is None or kind.answers_locally)

    def __repr__(self) -> str:
        done = listed_counts(self.counts) if self.account else gettext("planned")
        rows = count_rows(self.rows)
        return f"<bansong.Report {self.run_id}: {self.input}, {rows}, {done}>"


def match_counts(tallied: Mapping[str, int]) -> dict[str, int]:
    """Return the number of rows by match level from the tally of a run."""
    return {name.partition(":")[2]: int(count) for name, count in tallied.items() if name.startswith("match:")}


def sections(tallied: pl.DataFrame) -> tuple[Section, ...]:
    """Return the sections of the summary sheet from the tally of a run."""
    counts = tallied.drop(tallied.select(f"^{DIGEST}.*$").columns).row(0, named=True)
    account, plan = row_counts_of(counts), plan_of(counts)
    lang = current_language()
    run = {
        gettext("rows"): plan.rows,
        gettext("distinct lookups"): plan.lookups,
        gettext("rows that repeat one"): plan.duplicates,
        gettext("rows with a wrong check digit"): plan.wrong_check_digits,
        gettext("rows without an address"): plan.without_address,
    }
    blocks = {
        gettext("run"): run,
        gettext("rows by status"): account.by_row_status,
        gettext("invalid rows"): plan.invalid_by_problem,
        gettext("businesses"): account.by_biz_status,
        gettext("grades"): account.by_grade,
        gettext("actions"): account.by_action,
        gettext("addresses"): {level: count for level, count in match_counts(counts).items() if count},
    }
    return tuple(
        Section(title, tuple((word_of(name, lang), count) for name, count in counted.items()))
        for title, counted in blocks.items()
        if counted
    )


def _doubt_lines(plan: LookupPlan, *, numbered: bool) -> Iterator[tuple[str, str]]:
    if wrong := plan.wrong_check_digits:
        yield gettext("check digit"), ngettext("wrong in {count:,} row", "wrong in {count:,} rows", wrong)
    if missing := plan.without_address:
        named = ngettext("{count:,} row with a number", "{count:,} rows with a number", missing)
        yield gettext("no address"), named if numbered else count_rows(missing)
    if plan.suspect:
        suspect = gettext("{count:,} rows with a wrong check digit (`buy_suspect=True` buys them)", count=plan.suspect)
        yield gettext("not bought"), suspect


def _render_parts(total: int, parts: Mapping[str, int]) -> str:
    if not parts:
        return f"{total:,}"
    lang = current_language()
    return f"{total:,} ({', '.join(f'{word_of(name, lang)} {count:,}' for name, count in parts.items())})"
