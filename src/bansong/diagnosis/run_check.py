"""Checks of ``bansong doctor``: versions, extras, reference data, stores, keys, and services."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Final, TypeVar

from bansong.diagnosis.checks import (
    look_at_extras,
    look_at_folder,
    look_at_gazetteer,
    look_at_mode,
    look_at_model,
    look_at_registry,
    look_at_statuses,
    look_at_versions,
)
from bansong.diagnosis.findings import Diagnosis, Finding, findings_of
from bansong.environment import state_directory, variable
from bansong.errors import (
    AuthenticationError,
    LedgerError,
    PlanError,
    Problem,
    ServiceError,
    TransportError,
    UsageError,
)
from bansong.labels.label_store import LabelStore
from bansong.ledger import Ledger
from bansong.ledger.schema import LEDGER_FILE
from bansong.reference.status_store import STATUS_FILE, find_status_store
from bansong.schema import seoul_day
from bansong.storage.sqlite import is_in_use
from bansong.translation import gettext, gettext_noop, ngettext

CHECK_TIMED_OUT: Final = Problem(
    "service.check_timed_out", "{who}: no whole answer within {seconds:g} s; try again, or look at the network"
)

T = TypeVar("T")
_PROBE: Final = "1248100998"
"""A listed company's number, printed on its site."""
_WHOLE_ANSWER_FACTOR: Final = 1.5
"""Timeout of a whole answer, relative to that of its parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorOptions:
    """Options of a run to check; see :func:`bansong.enrich`.

    ``offline``: use no network. ``timeout``: seconds per answer.
    """

    registry: Path | None = None
    gazetteer: Path | None = None
    model: str | None = None
    ledger: Path | None = None
    labels: Path | None = None
    status_store: Path | None = None
    base_url: str | None = None
    key_file: Path | None = None
    allow_http: bool = False
    nts_key_file: Path | None = None
    offline: bool = False
    timeout: float = 5.0


def diagnose(options: DoctorOptions, *, today: date | None = None) -> Diagnosis:
    """Check everything that a run needs. Raises nothing: errors are findings."""
    today = today or seoul_day()
    checks: tuple[tuple[str, Callable[[], Iterable[Finding]]], ...] = (
        (gettext_noop("versions"), look_at_versions),
        ("extras", look_at_extras),
        ("scorecard", lambda: look_at_model(options.model)),
        ("registry", lambda: look_at_registry(options.registry, options.model, today)),
        ("status store", lambda: look_at_statuses(STATUS_FILE.find(options.status_store), today)),
        ("gazetteer", lambda: look_at_gazetteer(options.gazetteer, today)),
        ("state directory", _look_at_state_directory),
        ("ledger", lambda: _look_at_ledger(options)),
        ("label store", lambda: _look_at_labels(options)),
        ("service", lambda: _look_at_service(options)),
        ("tax authority", lambda: _look_at_nts(options)),
    )
    return Diagnosis(tuple(finding for what, check in checks for finding in findings_of(what, check)))


def _look_at_state_directory() -> Iterator[Finding]:
    remedy = gettext("make it writable, or name another in BANSONG_STATE_DIR")
    yield from look_at_folder("state directory", state_directory(), remedy)
    if state_directory().is_dir():
        yield from look_at_mode("state directory", state_directory(), 0o700)


def _look_at_ledger(options: DoctorOptions) -> Iterator[Finding]:
    path = LEDGER_FILE.find(options.ledger)
    if not path.exists():
        yield Finding("ledger", "note", gettext("{path}: there is none, so nothing was bought yet", path=path))
        return
    try:
        with Ledger.open(path) as ledger:
            runs, held = len(ledger.runs()), [*ledger.doubts(), *ledger.unusable(), *ledger.unfetched()]
    except LedgerError as error:
        if not is_in_use(error):
            raise
        yield Finding("ledger", "ok", gettext("{path}: in use by a run, so it was not looked into", path=path))
        return
    size = path.stat().st_size / 1e6
    said = ngettext(
        "{path}: {count:,} run, {size:,.1f} MB", "{path}: {count:,} runs, {size:,.1f} MB", runs, path=path, size=size
    )
    yield Finding("ledger", "ok", said)
    if held:
        rows = sum(one.rows for one in held)
        unsettled = ngettext("unsettled: {count:,} lookup", "unsettled: {count:,} lookups", rows)
        yield Finding("ledger", "warning", unsettled, gettext("settle them with `bansong resolve`"))


def _look_at_labels(options: DoctorOptions) -> Iterator[Finding]:
    store = LabelStore(options.labels)
    mailings = store.mailings()
    said = ngettext(
        "{path}: {count:,} mailing recorded", "{path}: {count:,} mailings recorded", len(mailings), path=store.folder
    )
    yield Finding("label store", "ok" if mailings else "note", said)


def _look_at_service(options: DoctorOptions) -> Iterator[Finding]:
    from bansong.client import Account, ApiKey, BaseUrl, Client
    from bansong.client.base_url import ENV_BASE_URL
    from bansong.client.key import ENV_KEY, ENV_KEY_FILE

    if options.key_file is None and not _is_set(ENV_KEY, ENV_KEY_FILE):
        remedy = gettext(
            "set {env_key} to buy answers of the hosted service; the local engine needs none", env_key=ENV_KEY
        )
        yield Finding("API key", "note", gettext("not set"), remedy)
        return
    key = ApiKey.load(options.key_file)
    yield Finding("API key", "ok", gettext("is there; it is never shown"))
    if options.base_url is None and not _is_set(ENV_BASE_URL):
        yield Finding(
            "service",
            "warning",
            gettext("there is a key, and no address of the service"),
            gettext("set {variable}", variable=ENV_BASE_URL),
        )
        return
    url = BaseUrl.parse(options.base_url, allow_http=options.allow_http)
    if options.offline:
        yield Finding("service", "note", gettext("{origin}: not asked (`offline=True`)", origin=url.origin))
        return
    client = Client(url, key, timeout=options.timeout, max_retries=0)

    async def ask() -> Account:
        async with client as service:
            return await service.me()

    account = _ask_in_time(ask, url.origin, options.timeout)
    left = (
        gettext("what is left of the quota is not said")
        if account.remaining is None
        else ngettext("{count:,} lookup left", "{count:,} lookups left", account.remaining)
    )
    yield Finding("service", "ok", gettext("{origin}: answers, {left}", origin=url.origin, left=left))


def _look_at_nts(options: DoctorOptions) -> Iterator[Finding]:
    from bansong.reference.day_allowance import account_of
    from bansong.reference.nts import NtsClient, NtsKey
    from bansong.reference.nts.nts_key import ENV_NTS_KEY, ENV_NTS_KEY_FILE

    if options.nts_key_file is None and not _is_set(ENV_NTS_KEY, ENV_NTS_KEY_FILE):
        remedy = gettext(
            "get one for free, in ten minutes, and set {env_nts_key}: docs/data-sources.md says how",
            env_nts_key=ENV_NTS_KEY,
        )
        yield Finding(
            gettext("tax authority's key"),
            "warning" if options.registry is None else "note",
            gettext("not set"),
            remedy,
        )
        return
    key = NtsKey.load(options.nts_key_file)
    client = NtsClient(key, timeout=options.timeout)
    yield Finding(gettext("tax authority's key"), "ok", gettext("is there; it is never shown"))
    if options.offline:
        yield Finding("tax authority", "note", gettext("not asked (`offline=True`)"))
        return

    async def ask() -> int:
        async with client as nts:
            return (await nts.status([_PROBE])).statuses.height

    try:
        _ask_in_time(ask, gettext("the tax authority's API"), options.timeout)
        yield Finding("tax authority", "ok", gettext("it answers"))
        if (store := find_status_store(options.status_store)) is not None:
            with store:
                store.lift_limit(account_of(key), seoul_day())
    except (AuthenticationError, PlanError, UsageError):
        raise
    except ServiceError as error:
        remedy = gettext("a run goes on with the statuses that are stored, and those of a registry")
        yield Finding("tax authority", "warning", str(error), remedy)


def _ask_in_time(ask: Callable[[], Awaitable[T]], who: str, timeout: float) -> T:
    """Ask in an event loop; raise :class:`TransportError` if an answer never ends."""
    import anyio

    from bansong.cancellation import run_until_interrupted

    seconds = timeout * _WHOLE_ANSWER_FACTOR

    async def ask_until() -> T:
        with anyio.fail_after(seconds):
            return await ask()

    try:
        return run_until_interrupted(ask_until)
    except TimeoutError as error:
        raise TransportError(CHECK_TIMED_OUT, who=who, seconds=seconds) from error


def _is_set(*variables: str) -> bool:
    return any((variable(name) or "").strip() for name in variables)
