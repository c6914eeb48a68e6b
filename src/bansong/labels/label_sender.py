"""Labels for the service: find the job row of each, and report what was sent.

Only rows bought through ``/batch`` have a job: their lookup's key in the ledger gives upload and row. The results of
the job say how the service numbers that row (G30). :mod:`bansong.labels.outbox` sends each label once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import polars as pl

from bansong.cancellation import CancelToken
from bansong.client import BaseUrl
from bansong.dispatch import Halt
from bansong.errors import Problem, UsageError
from bansong.labels.outbox import LabelSender
from bansong.labels.output_columns import check_labels
from bansong.ledger import HeldLabel, LabelQueue, Ledger, LedgerRun, WantedLabel
from bansong.ledger.schema import ledger_path
from bansong.options import ServiceOptions
from bansong.run.lookups import KEY, LOOKUP, lookup_expr, scope_of, with_keys
from bansong.run.records import ROW_ID, records
from bansong.schema import RECORD_COLUMNS
from bansong.storage.filesystem import new_run_id
from bansong.tables import Table, reading
from bansong.tables.earlier_columns import find_earlier_columns
from bansong.tables.nested import choose_nested
from bansong.translation import gettext, gettext_of, ngettext

FIRST_ROW_INVALID: Final = Problem(
    "labels.first_row_invalid", "first_row {first_row}: a service numbers rows from 0, 1 or 2"
)

log = logging.getLogger(__name__)
_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class SendReport:
    """The report of labels that were to be sent.

    ``labels``: rows that surely came back or arrived; ``without_job``: those that no upload at this service holds;
    ``job_rows``: job rows of the others, of which ``done`` were sent earlier, ``sent`` now, and ``left`` not yet. Not
    sent: ``contradictory`` (``row_id`` of rows of one lookup with both outcomes), ``unnumbered`` (jobs with unknown row
    numbers). ``refused`` and ``doubts`` in this run; ``held``: all refused or doubtful labels of the file. ``paused``:
    why sending stopped early.
    """

    ledger: str
    labels: int
    without_job: int
    job_rows: int = 0
    done: int = 0
    sent: int = 0
    left: int = 0
    refused: int = 0
    doubts: int = 0
    unnumbered: int = 0
    contradictory: tuple[tuple[int, ...], ...] = ()
    held: tuple[HeldLabel, ...] = ()
    paused: str | None = None

    @property
    def exit_code(self) -> int:
        """0; 3 if labels are held back; 5 if the same command goes on later."""
        return 5 if self.paused else 3 if self.held or self.unnumbered else 0

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain values, without the ledger's own upload numbers."""
        held = [{name: value for name, value in asdict(label).items() if name != "upload"} for label in self.held]
        return asdict(self) | {"held": held}

    def lines(self) -> Iterator[str]:
        """Yield the lines of the report for people."""
        yield gettext_of(self, "labels for the service: {sent:,} sent, {done:,} sent before, {left:,} left")
        if self.without_job:
            labels = ngettext("{count:,} label", "{count:,} labels", self.without_job)
            yield gettext("{labels} of rows that were not bought in an upload: they have no job", labels=labels)
        if self.contradictory:
            rows = "; ".join(gettext(" and ").join(map(str, group)) for group in self.contradictory[:_SHOWN])
            more = " …" if len(self.contradictory) > _SHOWN else ""
            yield gettext("not sent, rows of one lookup say both: {rows}{value}", rows=rows, value=more)
        if self.unnumbered:
            yield gettext(
                "not sent, {labels} of jobs whose results do not say how they number rows; if you know it, give "
                "`first_row=`",
                labels=ngettext("{count:,} label", "{count:,} labels", self.unnumbered),
            )
        for label in self.held[:_SHOWN]:
            about = {"what": "bounced" if label.bounced else "arrived", "place": label.place + 1}
            yield gettext_of(label, "{state}: {b_no} {what}, row {place} of job {job_id}: {note}", **about)
        if len(self.held) > _SHOWN:
            yield gettext("… and {held:,} more that were refused or are in doubt", held=len(self.held) - _SHOWN)
        if self.held:
            yield gettext("what is in doubt or refused is sent again with `resend=True` only")
        if self.paused:
            yield gettext_of(self, "paused: {paused}; the same command goes on")


def labels_with_lookups(
    labels: pl.DataFrame, table: Table, columns: Mapping[str, str] | None = None, prefix: str = ""
) -> pl.DataFrame:
    """Return labels with an outcome and their lookup: ``row_id``, ``bounced``, ``reason``, LOOKUP.

    ``labels`` as for :func:`bansong.labels.output_columns.write_labels`; ``table``: the enriched file; ``columns`` and
    ``prefix`` as it was enriched with.
    """
    with reading(table):
        ours = find_earlier_columns(table, prefix).places
        unfolded, chosen = choose_nested(table, RECORD_COLUMNS, columns, ours)
        rows = records(unfolded, chosen.columns, ours)
        lookups = rows.select(ROW_ID, lookup_expr(rows, suspect=True).alias(LOOKUP))
        known = check_labels(labels, table).drop_nulls("bounced").lazy()
        known = known.select(ROW_ID, "bounced", pl.col("bounce_reason").alias("reason"))
        return known.join(lookups, on=ROW_ID, how="left").sort(ROW_ID).collect(engine="streaming")


def send_labels(
    labels: pl.DataFrame,
    path: Path,
    *,
    terms: ServiceOptions,
    mailed: date | None = None,
    resend: bool = False,
    first_row: int | None = None,
    cancel: CancelToken | None = None,
) -> SendReport:
    """Send labels of :func:`labels_with_lookups` to the jobs in which their rows were bought, each once.

    ``path``: the enriched file, mailed on ``mailed`` (earlier jobs are preferred). ``resend``: send refused and
    doubtful labels again. ``first_row``: number of a job's first row, if its results do not prove it. ``cancel`` stops
    from another thread. Raises what ends a run: a refusal (401, 403), a failing ledger,
    :class:`bansong.errors.StoppedError`, ``KeyboardInterrupt``; the ledger has what was sent.
    """
    if first_row not in (None, 0, 1, 2):
        raise UsageError(FIRST_ROW_INVALID, first_row=first_row)
    url = BaseUrl.parse(terms.base_url, allow_http=terms.allow_http, known_as=terms.known_as)
    file = ledger_path(Path(terms.ledger) if terms.ledger is not None else None)
    if not file.exists():  # nothing was ever bought; a ledger is not made for that
        return SendReport(str(file), labels.height, labels.height)
    with Ledger.open(file) as ledger:
        found = _find_jobs(labels, ledger, url.name, mailed)
        started = datetime.now(UTC)
        run = LedgerRun(new_run_id(started), "label", url.name, str(path), started.timestamp())
        queue = ledger.prepare_labels(run, found.wanted, resend=resend)
        log.info("%d labels are to be sent, %d were sent before", len(queue.labels), queue.done)
        sender = LabelSender(ledger, terms, url, first_row)
        halt = sender.send_all(run.run_id, queue.labels, cancel or CancelToken()) if queue.labels else None
        return _report(found, queue, sender, halt)


@dataclass(frozen=True, slots=True)
class _JobLabels:
    labels: int
    without_job: int
    wanted: tuple[WantedLabel, ...]
    contradictory: tuple[tuple[int, ...], ...]


def _find_jobs(labels: pl.DataFrame, ledger: Ledger, origin: str, mailed: date | None) -> _JobLabels:
    """Find the job of each label: the last one before the mailing, else the first."""
    lookups = labels.select(LOOKUP).drop_nulls().unique(maintain_order=True)
    parts = []
    for offline, paid in ledger.upload_flags(origin):  # a key holds the flags, and the file does not say with which
        keys = with_keys(lookups, scope_of(origin, offline, paid))[KEY]
        parts.append(ledger.job_rows(keys, origin))
    rows = pl.concat(parts) if parts else ledger.job_rows(pl.Series([], dtype=pl.Binary), origin)
    rows = rows.with_columns(
        lookups[LOOKUP].gather(rows["nth"]).alias(LOOKUP), late=pl.col("created") >= _end_of_day(mailed)
    )
    by_worth = pl.when("late").then("created").otherwise(-pl.col("created"))
    rows = rows.sort("late", by_worth).unique(LOOKUP, keep="first", maintain_order=True)
    joined = labels.join(rows.select(LOOKUP, "upload", "place"), on=LOOKUP, how="left", maintain_order="left")
    grouped = (
        joined.drop_nulls("upload")
        .group_by("upload", "place")
        .agg(
            pl.col("bounced").first(),
            pl.col("reason").drop_nulls().first(),
            pl.col(ROW_ID),
            both=pl.col("bounced").n_unique() > 1,
        )
        .sort("upload", "place")
    )
    sure = grouped.filter(~pl.col("both")).select("upload", "place", "bounced", "reason")
    both = grouped.filter("both").get_column(ROW_ID)
    return _JobLabels(
        labels=labels.height,
        without_job=joined["upload"].null_count(),
        wanted=tuple(WantedLabel(*row) for row in sure.iter_rows()),
        contradictory=tuple(tuple(rows) for rows in both),
    )


def _end_of_day(mailed: date | None) -> float:
    if mailed is None:
        return float("inf")
    # 12 hours more: wherever the letters were mailed, it was not later
    return (datetime(mailed.year, mailed.month, mailed.day, tzinfo=UTC) + timedelta(days=1, hours=12)).timestamp()


def _report(found: _JobLabels, queue: LabelQueue, sender: LabelSender, halt: Halt | None) -> SendReport:
    rows = {(label.upload, label.place) for label in found.wanted}
    held = sender.ledger.held_labels(sender.url.name)
    unnumbered = sender.count_unnumbered(queue.labels)
    return SendReport(
        ledger=str(sender.ledger.path),
        labels=found.labels,
        without_job=found.without_job,
        job_rows=len(rows) + len(found.contradictory),
        done=queue.done,
        sent=sender.sent,
        left=len(queue.labels) - sender.sent - sender.refused - sender.doubts - unnumbered,
        refused=sender.refused,
        doubts=sender.doubts,
        unnumbered=unnumbered,
        contradictory=found.contradictory,
        held=tuple(label for label in held if (label.upload, label.place) in rows),
        paused=halt.note if halt else None,
    )
