"""Distinct lookups of a run, their keys in the ledger, and the choice of those to buy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import blake2b
from itertools import count
from typing import TYPE_CHECKING, Final

import anyio
import polars as pl

from bansong.base import business_number
from bansong.base.business_number import first_code
from bansong.base.errors import NotFoundError, Problem, QuotaError, RejectedError, ServiceError, ShapeError
from bansong.base.messages import Option, Phrase, gettext, ngettext, parameter
from bansong.base.schema import CONTEXT_COLUMNS, DECIDED_MARKS, SEOUL
from bansong.client.dispatcher import DispatchCounts, Dispatcher
from bansong.engine.local import ROW_PROBLEM
from bansong.engine.protocol import GARBLED, GARBLED_FIRST, LOOKUP, UNCHECKED_SENDS
from bansong.engine.records import CROWDED, DIGITS, RIGHT, ROW_ID, SEVERAL
from bansong.engine.registry import meaning_expr
from bansong.engine.text import is_blank

if TYPE_CHECKING:
    from bansong.base.options import ServiceOptions
    from bansong.client.client import Client
    from bansong.client.responses import Idempotency
    from bansong.engine.local import LocalEngine
    from bansong.purchase.ledger import Journal, Ledger, LedgerRun
    from bansong.purchase.queries import RunRecord

Record = tuple[str | None, str | None, str | None]  # number, name and address

SHORT: Final = "lookup_hash"
KEY: Final = "key"
BESIDE: Final = ("zipcode", *CONTEXT_COLUMNS, CROWDED, SEVERAL)  # read by the local engine only, never sent
PRIORITY: Final = "priority"

_BETWEEN: Final = "\x1f"
_SPACES: Final = r"[\s\p{Cc}]+"
_ZERO_WIDTH: Final = r"\p{Cf}+"  # byte order and direction marks, soft hyphens
_KEY_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Lookup:
    """One distinct record to be verified; ``key`` identifies it in the ledger."""

    key: bytes
    b_no: str
    name: str | None
    address: str | None


def lookup_expr(rows: pl.LazyFrame, *, suspect: bool) -> pl.Expr:
    """Return number, name and address as one text, null if not to be bought; ``suspect``: also wrong check digits."""
    names = rows.collect_schema().names()
    if DIGITS not in names:
        return pl.lit(None, pl.String)
    asked = pl.col(DIGITS).is_not_null() & pl.col(ROW_PROBLEM).is_null()
    if not suspect:
        asked &= pl.col(RIGHT)
    texts = [_clean_text(pl.col(name)) if name in names else pl.lit("") for name in ("name", "address")]
    return pl.when(asked).then(pl.concat_str(DIGITS, *texts, separator=_BETWEEN))


def lookups_of(rows: pl.LazyFrame, priority: str | None = None) -> pl.DataFrame:
    """Return the distinct lookups of rows, with the columns :data:`BESIDE`, in the order of their first rows."""
    names = rows.collect_schema().names()
    found = [pl.col(ROW_ID).min()]
    beside = {name: pl.col(name) for name in BESIDE if name in names}
    found += [(cell.cast(pl.String) if name == "zipcode" else cell).first() for name, cell in beside.items()]
    if priority is not None:
        amount = pl.col(priority).cast(pl.String).str.replace_all(r"[,\s]", "").cast(pl.Float64, strict=False)
        found.append(amount.fill_nan(None).max().alias(PRIORITY))
    grouped = rows.filter(pl.col(LOOKUP).is_not_null()).group_by(LOOKUP).agg(found)
    return grouped.sort(ROW_ID).collect(engine="streaming")


def seed_without_collisions(lookups: pl.DataFrame) -> int:
    """Return the first seed with which :func:`short_expr` gives different lookups different numbers."""
    return next(seed for seed in count() if lookups.select(short_expr(seed)).to_series().n_unique() == lookups.height)


def short_expr(seed: int) -> pl.Expr:
    """Hash :data:`LOOKUP` to a number (UInt64; null stays null), since joins by a number need less memory."""
    return pl.when(pl.col(LOOKUP).is_not_null()).then(pl.col(LOOKUP).hash(seed)).alias(SHORT)


def with_keys(lookups: pl.DataFrame, scope: str) -> pl.DataFrame:
    """Add the column :data:`KEY` (Binary), which identifies a lookup of ``scope`` (:func:`scope_of`) in the ledger."""
    key = _hasher(scope)
    return lookups.with_columns(pl.Series(KEY, [key(text) for text in lookups[LOOKUP]], pl.Binary))


def keys_of(scope: str, records: Sequence[Record]) -> dict[Record, bytes]:
    """Return the ledger key of each record that has a business number."""
    frame = pl.DataFrame(list(records), schema=dict.fromkeys(("b_no", "name", "address"), pl.String), orient="row")
    digits = business_number.compact_expr(pl.col("b_no")).alias("b_no")
    texts = [_clean_text(pl.col(name)) for name in ("name", "address")]
    found = frame.with_columns(digits, pl.concat_str(digits, *texts, separator=_BETWEEN).alias(LOOKUP))
    key = _hasher(scope)
    rows = found.drop_nulls("b_no").iter_rows()
    return {(b_no, name, address): key(text) for b_no, name, address, text in rows}


def scope_of(origin: str, offline: bool | None, paid: bool | None) -> str:
    """Return the part of a ledger key that all lookups of a run share: the service's URL and two request flags.

    An answer in the ledger is reused only within the same scope, since another service or flag may answer differently.
    """
    return _BETWEEN.join((origin, f"offline={offline}", f"paid={paid}"))


def as_lookups(lookups: pl.DataFrame) -> Iterator[Lookup]:
    """Yield the rows of a frame with :data:`LOOKUP` and :data:`KEY` as :class:`Lookup`."""
    for part in lookups.iter_slices(10_000):
        for key, (b_no, name, address) in zip(part[KEY], split(part).iter_rows(), strict=True):
            yield Lookup(key, b_no, name, address)


def split(lookups: pl.DataFrame) -> pl.DataFrame:
    """Return number, name and address of each lookup; blank texts are null."""
    parts = lookups.select(
        pl.col(LOOKUP).str.split_exact(_BETWEEN, 2).struct.rename_fields(["b_no", "name", "address"])
    )
    return parts.unnest(LOOKUP).with_columns(
        pl.when(pl.col(name) != "").then(pl.col(name)).alias(name) for name in ("name", "address")
    )


def _clean_text(text: pl.Expr) -> pl.Expr:
    # the result enters the keys: after a change all lookups would be bought again
    seen = text.cast(pl.String).str.replace_all(_ZERO_WIDTH, "")
    plain = seen.str.normalize("NFC").str.replace_all(_SPACES, " ").str.strip_chars()
    return pl.when(is_blank(plain)).then(pl.lit("")).otherwise(plain)


def _hasher(scope: str) -> Callable[[str], bytes]:
    # not polars' hash, which may change between releases: all lookups would be bought again
    begun = blake2b(scope.encode(), digest_size=_KEY_BYTES)
    begun.update(b"\0")

    def key(text: str) -> bytes:
        hashed = begun.copy()
        hashed.update(text.encode())
        return hashed.digest()

    return key


QUOTA_TOO_SMALL: Final = Problem(
    "purchase.quota_too_small",
    "{count:,} lookup needed, {remaining:,} left of this month's quota, nothing was bought; {part}wait for next month",
    "{count:,} lookups needed, {remaining:,} left of this month's quota, nothing was bought; {part}wait for next month",
)

_BUYABLE: Final = ("done", "refused")  # unless the answer of `done` is recent

_DAY_S: Final = 86_400.0
_MAX_PAUSE_S: Final = 35 * _DAY_S  # between a run and its continuation: a quota lasts a month
_MAX_CHAIN_S: Final = 100 * _DAY_S  # since the first of the continued runs
_PROBABILITY: Final = "bounce_prob"
_SAMPLE_LOOKUPS: Final = 1000  # searched first; if one is found, all are searched


@dataclass(frozen=True, slots=True)
class Standing:
    """A run's lookups compared with the ledger, before buying: counts, and the lookups to buy (``wanted``)."""

    cached: int
    running: int
    held: int  # sent without an answer: sent again only if the user decides so
    wanted: pl.DataFrame
    uploads: frozenset[str]  # ids of unfetched uploads
    incomplete: frozenset[str]  # ids of fetched uploads with unanswered rows
    continued: int = 0  # cached answers that are too old, but were bought by a run that this one continues

    @property
    def counts(self) -> tuple[int, int, int, int]:
        return self.cached, self.running, self.held, self.wanted.height


def standing(
    ledger: Ledger | None, lookups: pl.DataFrame, since: float, continued_since: float | None = None
) -> Standing:
    """Compare lookups with the ledger; answers before ``since`` and ``continued_since`` (unix seconds) are too old."""
    columns = {"place": pl.get_index_type(), "state": pl.String, "answered_at": pl.Float64, "upload": pl.String}
    entries = ledger.entries(lookups[KEY], answers=False) if ledger is not None else ()
    parts = [part.select(pl.col(name).cast(dtype) for name, dtype in columns.items()) for part in entries]
    places = lookups.select(pl.int_range(pl.len(), dtype=pl.get_index_type()).alias("place"))
    states = pl.concat([pl.DataFrame(schema=columns), *parts])
    known = places.join(states, on="place", how="left", maintain_order="left")
    state = pl.col("state")
    rules = {
        "cached": (state == "done") & (pl.col("answered_at") >= since),
        "continued": (state == "done") & (pl.col("answered_at") >= pl.lit(continued_since, pl.Float64)),
        "wanted": state.is_null() | state.is_in(_BUYABLE),
        "running": state == "uploaded",
    }
    known = known.with_columns(first_code(rules, "held").alias("fate"))
    counts = dict(known["fate"].value_counts().iter_rows())
    wanted = known.filter(pl.col("fate") == "wanted").sort(state == "refused", maintain_order=True)
    cached, continued, running, held = (counts.get(name, 0) for name in ("cached", "continued", "running", "held"))
    uploads = known.filter(pl.col("fate") == "running")["upload"].unique()
    incomplete = known.filter((state == "missing") & pl.col("upload").is_not_null())["upload"].unique()
    bought = (cached + continued, running, held, lookups[wanted["place"]])
    return Standing(*bought, frozenset(uploads), frozenset(incomplete), continued)


def continued_since(earlier: Iterable[RunRecord], run: LedgerRun) -> float | None:
    """Return the start (unix seconds) of the first of the unfinished runs that ``run`` continues, if any."""
    # answers of these runs are used whatever their age, since the file has not had them yet
    begun, next_start = None, run.started
    for one in reversed([*earlier]):
        if (one.engine, one.origin, one.file) != (run.engine, run.origin, run.file):
            continue
        pause, way = next_start - (one.ended or one.started), run.started - one.started
        if one.outcome == "done" or pause > _MAX_PAUSE_S or way > _MAX_CHAIN_S:
            break
        begun = next_start = one.started
    return begun


def known_elsewhere(
    ledger: Ledger, lookups: pl.DataFrame, scopes: Sequence[tuple[str, str]], since: float
) -> list[tuple[str, int]]:
    """Count the lookups that the ledger has from each of some other services, which are given as (origin, scope)."""
    sample = lookups.gather_every(max(1, lookups.height // _SAMPLE_LOOKUPS))

    def count_known(asked: pl.DataFrame, scope: str) -> int:
        return asked.height - standing(ledger, with_keys(asked, scope), since).wanted.height

    return [(origin, count_known(lookups, scope)) for origin, scope in scopes if count_known(sample, scope)]


def assess_lookups(lookups: pl.DataFrame, local: LocalEngine) -> pl.DataFrame:
    """Add ``status_unknown`` (Boolean) and ``bounce_prob`` (Float64) from the local engine's answer to each lookup."""
    records = split(lookups).with_columns(lookups[name] for name in BESIDE if name in lookups.columns)
    answers = local.answer(records.lazy()).select(
        (pl.col("biz_status") == "unknown").fill_null(True).alias("status_unknown"), _PROBABILITY
    )
    return lookups.hstack(answers.collect(engine="streaming"))


def uncertain(lookups: pl.DataFrame, band: tuple[float, float]) -> pl.DataFrame:
    """Return the assessed lookups with unknown status, or with a probability within ``band``."""
    return lookups.filter(pl.col("status_unknown") | pl.col(_PROBABILITY).is_between(*band).fill_null(False))


def worthiest_first(lookups: pl.DataFrame) -> pl.DataFrame:
    """Sort lookups by the user's priority, else by uncertainty: unknown statuses, then probabilities near one half."""
    if PRIORITY in lookups.columns:
        by, descending = [pl.col(PRIORITY).fill_nan(None)], [True]
    else:
        by, descending = [pl.col("status_unknown"), (pl.col(_PROBABILITY) - 0.5).abs()], [True, False]
    return lookups.sort(*by, ROW_ID, descending=[*descending, False], nulls_last=True)


def choose_worthiest(wanted: pl.DataFrame, allowed: int, local: LocalEngine) -> pl.DataFrame:
    """Return the ``allowed`` worthiest lookups; the local engine assesses them only if some are left out."""
    if not {PRIORITY, _PROBABILITY} & set(wanted.columns):
        if allowed >= wanted.height:
            return wanted
        wanted = assess_lookups(wanted, local)
    return worthiest_first(wanted).head(allowed)


def hides_quota(error: ServiceError) -> bool:
    """Whether ``GET /me`` failed although the service works, so that only the quota is unknown."""
    if error.retry_after is not None:
        return False
    if isinstance(error, ShapeError | NotFoundError):
        return True
    status = error.status or 0
    return status >= 500 or (isinstance(error, RejectedError) and status >= 400)


def affordable(wanted: int, budget: int | None, remaining: int | None, unread: ServiceError | None = None) -> int:
    """Return how many lookups to buy. Without a budget, raise if the quota is too small, or unknown (``unread``)."""
    if unread is not None and budget is None and wanted:
        words = gettext(
            "{unread}; so how much of the quota is left is not known, and nothing was bought: give {option} to "
            "buy that many lookups at most",
            unread=unread,
            option=parameter("budget"),
        )
        raise type(unread)(words, status=unread.status, detail=unread.detail, raw=unread.raw)
    if budget is None and remaining is not None and wanted > remaining:
        option = Option("budget", remaining)
        part = Phrase("give {option} to buy the worthiest (`priority='COLUMN'` says which), or ", option=option)
        raise QuotaError(QUOTA_TOO_SMALL, count=wanted, remaining=remaining, part=part if remaining else "")
    limits = [limit for limit in (budget, remaining) if limit is not None]
    return min([wanted, *limits])


TRIALS: Final = 3  # trial uploads without an answer, after which buying stops
REQUESTS: Final = 300  # single requests without an answer, after which buying stops; as many as in three trial uploads


@dataclass(slots=True)
class PurchaseCounts(DispatchCounts):
    """Running counts of a run's purchases."""

    repeated: int = 0  # requests sent again with their idempotency key
    paid: int = 0
    doubts: int = 0
    fetched: int = 0


@dataclass
class PurchaseContext:
    """Service, ledger, options and dispatcher of one run's purchases."""

    client: Client
    ledger: Ledger
    journal: Journal
    terms: ServiceOptions
    run_id: str
    scope: str
    progress: Callable[[int], None] = lambda _: None
    counts: PurchaseCounts = field(default_factory=PurchaseCounts)
    idempotency: Idempotency | None = None  # the service's promise to do a repeated request only once
    hopeless: int = 0  # number of last repetitions without an answer
    lookups: pl.DataFrame | None = None  # lookups of the run with keys; the ledger has no names and addresses

    def __post_init__(self) -> None:
        self.dispatcher = Dispatcher(rate=self.terms.rate, drain=self.terms.drain, counts=self.counts)
        self.repetition_gate = anyio.Lock()  # only one request at a time is repeated
        self.upload_gate = anyio.Lock()  # a killed run leaves one upload in doubt at most


def why_stopped(ledger: Ledger, origin: str, *, uploads: bool) -> str | None:
    """Return why buying from ``origin`` (by ``uploads``, else single requests) has stopped; ``None`` if it has not."""
    if uploads:
        spent, most = ledger.spent_trials(origin), TRIALS
        what = ngettext("{count:,} trial upload", "{count:,} trial uploads", spent)
    else:
        spent, most = ledger.unanswered_requests(origin), REQUESTS
        what = ngettext("{count:,} request", "{count:,} requests", spent)
    if spent < most:
        return None
    return gettext(
        "nothing more is bought from {origin}: {what} came to nothing since its last answer; `bansong resolve` lists "
        "them; when the service works again, {option} tries once more",
        origin=origin,
        what=what,
        option=parameter("retry_trial", True),
    )


KNOWN_ELSEWHERE: Final = Problem(
    "alert.known_elsewhere",
    "{known:,} of {count:,} lookup to be bought at {service} are in the ledger under the address {origin}, "
    "and are bought again, for a ledger tells services apart by their addresses; if both are the same "
    "service, stop and give {option}",
    "{known:,} of {count:,} lookups to be bought at {service} are in the ledger under the address {origin}, "
    "and are bought again, for a ledger tells services apart by their addresses; if both are the same "
    "service, stop and give {option}",
)

QUOTA_UNKNOWN: Final = Problem(
    "alert.quota_unknown",
    "how much of the quota is left is not known, so only the budget limits what is bought: {problem}",
)

_ANSWERED: Final = pl.col("row_status").is_in(["verified", "cached"])
_BY_HAND: Final = f"(?:{'|'.join(DECIDED_MARKS.values())}): "
# answered rows have a note only if bytes of the answer were not UTF-8, or if people decided
_GARBLED: Final = _ANSWERED & ~pl.col("row_note").str.contains(f"^{_BY_HAND}").fill_null(True)

_BOUGHT_SEND: Final = (
    _ANSWERED & (pl.col("action") == "send") & ~pl.col("row_note").fill_null("").str.contains(_BY_HAND)
)
_MEANING: Final = meaning_expr(pl.when(pl.col("action") == "send").then(pl.col("biz_status")))
# counts: rows to send whose bought status is closed or unknown; answers that are not all UTF-8; the first such row
BOUGHT_COUNTS: Final = (
    (_BOUGHT_SEND & _MEANING.is_in(["closed", "unknown"]).fill_null(False)).sum().alias(UNCHECKED_SENDS),
    _GARBLED.sum().alias(GARBLED),
    pl.col(ROW_ID).filter(_GARBLED).min().alias(GARBLED_FIRST),
)


def continuation_note(answers: int, begun: float | None) -> tuple[str, ...]:
    """Return a note on old answers that are used because this run continues one from ``begun``."""
    if not answers or begun is None:
        return ()
    day = datetime.fromtimestamp(begun, SEOUL)
    return (
        Phrase(
            "{count:,} answer older than {option} allows, used all the same: the run of this file that began on "
            "{day:%Y-%m-%d at %H:%M} did not finish, and this one continues it",
            "{count:,} answers older than {option} allows, used all the same: the run of this file that began on "
            "{day:%Y-%m-%d at %H:%M} did not finish, and this one continues it",
            count=answers,
            option=Option("max_age"),
            day=day,
        ),
    )
