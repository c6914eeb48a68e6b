"""What ``bizverify doctor`` looks at: versions, extras, reference data, the user's stores, keys, and who answers.

Each check returns findings; one that raises is a finding itself, in the words of its error.
"""

from __future__ import annotations

import os
import platform
import shutil
import sqlite3
import stat
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import date, datetime
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal, TypeVar

from polars.exceptions import PanicException

from bizverify._version import __version__
from bizverify.engine import Gazetteer, Registry
from bizverify.engine.risk.scorecard import Scorecard
from bizverify.errors import (
    AuthenticationError,
    BizverifyError,
    LedgerError,
    PlanError,
    ServiceError,
    TransportError,
    UsageError,
)
from bizverify.labels.label_store import LabelStore
from bizverify.ledger import Ledger
from bizverify.ledger.schema import LEDGER_FILE
from bizverify.model_store import resolve_model
from bizverify.reference.status_store import STATUS_FILE, find_status_store
from bizverify.run.alerts import stale_registry_alert
from bizverify.schema import SEOUL, pluralize
from bizverify.storage.filesystem import state_directory
from bizverify.watch.local_file import WATCH_FILE

T = TypeVar("T")
Level = Literal["ok", "note", "warning", "error"]
"""``note``: an option that is not used; ``warning``: look at it; ``error``: a run would break."""

EXTRAS: Final = {
    "learn": (("numpy",), "to learn the scorecard from letters (`bizverify calibrate`)"),
    "server": (
        ("starlette", "uvicorn", "python_multipart", "prometheus_client", "numpy"),
        "to run the service yourself (`bizverify serve`)",
    ),
    "fast": (("uvloop",), "for more requests a second of the processor"),
    "notebook": (("pandas", "ipykernel"), "for pandas frames and notebooks"),
}
"""The extras of the package: their modules, and what they are for."""
_PACKAGES: Final = ("polars", "pyarrow", "openpyxl", "fastexcel", "httpx")
_ROOM: Final = 1 << 30
"""Bytes that should be free in the state directory: what a run writes besides the output is small."""
_LEAST: Final = 16 << 20
_PROBE: Final = "1248100998"
"""The number that the tax authority is asked for: a listed company's, printed on its site."""
_WHOLE: Final = 1.5
"""How much longer than for each part of it a whole answer is waited for."""
_DATA: Final = "docs/data-sources.md says where it comes from"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found out about one thing: ``said`` describes it, ``remedy`` is what to do, if anything."""

    what: str
    level: Level
    said: str
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All findings, in the order in which they were made."""

    findings: tuple[Finding, ...]

    @property
    def exit_code(self) -> int:
        """0, or 2 where a run would break."""
        return 2 if any(finding.level == "error" for finding in self.findings) else 0

    def as_dict(self) -> dict[str, object]:
        """The findings as plain values for JSON."""
        return {"exit_code": self.exit_code, "findings": [asdict(finding) for finding in self.findings]}


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorOptions:
    """What a run would be given, and so what is looked at; see :func:`bizverify.enrich`.

    ``offline``: nobody is asked over the network. ``timeout``: seconds to wait for an answer.
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
    """Look at everything that a run needs. Raises nothing: what is wrong is a finding."""
    today = today or datetime.now(SEOUL).date()
    checks: tuple[tuple[str, Callable[[], Iterable[Finding]]], ...] = (
        ("versions", _look_at_versions),
        ("extras", _look_at_extras),
        ("scorecard", lambda: _look_at_model(options)),
        ("registry", lambda: _look_at_registry(options, today)),
        ("status store", lambda: _look_at_statuses(options, today)),
        ("gazetteer", lambda: _look_at_gazetteer(options, today)),
        ("state directory", _look_at_state_directory),
        ("ledger", lambda: _look_at_ledger(options)),
        ("label store", lambda: _look_at_labels(options)),
        ("service", lambda: _look_at_service(options)),
        ("tax authority", lambda: _look_at_nts(options)),
    )
    return Diagnosis(tuple(finding for what, check in checks for finding in _findings_of(what, check)))


def _findings_of(what: str, check: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """Return the findings of a check, and its error as the last; what is no error of ours is told, too."""
    try:
        yield from check()
    except BizverifyError as error:
        yield Finding(what, "error", str(error))
    except OSError as error:
        place = f"{os.fsdecode(error.filename)}: " if error.filename is not None else ""
        remedy = "let it be read by the user who runs bizverify, or name another place"
        yield Finding(what, "error", f"{place}cannot be looked at: {error.strerror or type(error).__name__}", remedy)
    except (Exception, PanicException) as error:  # a text of others might hold anything, a key too
        said = f"cannot be looked at: {type(error).__name__}, which is a defect of bizverify"
        yield Finding(what, "error", said, "please report it, with the versions above")


def _look_at_versions() -> Iterator[Finding]:
    yield Finding("bizverify", "ok", __version__)
    yield Finding("python", "ok", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    for package in _PACKAGES:
        yield Finding(package, "ok", _version_of(package) or "there, of an unknown version")
    if sqlite3.sqlite_version_info < WATCH_FILE.minimum:
        needed = ".".join(map(str, WATCH_FILE.minimum[:2]))
        remedy = "use a Python that comes with a newer SQLite, or update SQLite"
        yield Finding("SQLite", "error", f"{sqlite3.sqlite_version}, and {needed} or newer is needed", remedy)
    else:
        yield Finding("SQLite", "ok", sqlite3.sqlite_version)


def _look_at_extras() -> Iterator[Finding]:
    for name, (modules, purpose) in EXTRAS.items():
        missing = [module for module in modules if find_spec(module) is None]
        if missing:
            remedy = f"pip install 'bizverify[{name}]', if you want it"
            yield Finding(f"extra {name}", "note", f"not installed ({', '.join(missing)}): {purpose}", remedy)
        else:
            yield Finding(f"extra {name}", "ok", f"installed: {purpose}")


def _look_at_model(options: DoctorOptions) -> Iterator[Finding]:
    card = resolve_model(options.model)
    builtin = Scorecard.load()
    learned = "the built-in one" if card is builtin else f"beside the built-in {builtin.version}"
    yield Finding("scorecard", "ok", f"{card.version}, {learned}")


def _look_at_registry(options: DoctorOptions, today: date) -> Iterator[Finding]:
    if options.registry is None:
        remedy = f"give `registry=`, or fetch statuses with `bizverify enrich --status nts`; {_DATA}"
        yield Finding("registry", "note", "none was given, so the local engine knows no status by itself", remedy)
        return
    registry = Registry.open(options.registry)
    registry.check()
    age = (
        "of days that are not known"
        if registry.newest is None
        else f"newest status of {_age_of(registry.newest, today)}"
    )
    said = f"{registry.path}: {pluralize(registry.rows, 'business', 'businesses')}, {age}, version {registry.version}"
    if stale := stale_registry_alert(registry, resolve_model(options.model).stale_after, today):
        yield Finding("registry", "warning", said, f"{stale}; or `bizverify data refresh-registry`")
    else:
        yield Finding("registry", "ok", said)


def _look_at_statuses(options: DoctorOptions, today: date) -> Iterator[Finding]:
    path = STATUS_FILE.find(options.status_store)
    store = find_status_store(path)
    if store is None:
        yield Finding("status store", "note", f"{path}: there is none, so no status was fetched yet")
        return
    with store:
        found = store.summary()
    held = pluralize(found.numbers, "status", "statuses")
    ages = [
        f"{word} of {_age_of(day, today)}" for word, day in (("newest", found.newest), ("oldest", found.oldest)) if day
    ]
    yield Finding("status store", "ok" if found.numbers else "note", ", ".join([f"{path}: {held}", *ages]))


def _look_at_gazetteer(options: DoctorOptions, today: date) -> Iterator[Finding]:
    if options.gazetteer is None:
        remedy = f"give `gazetteer=`, built by `bizverify data build-gazetteer`; {_DATA}"
        yield Finding("gazetteer", "note", "none was given, so addresses are not corrected", remedy)
        return
    gazetteer = Gazetteer.open(options.gazetteer)
    gazetteer.check()
    age = "" if gazetteer.source_date is None else f", addresses of {_age_of(gazetteer.source_date, today)}"
    yield Finding("gazetteer", "ok", f"{gazetteer.path}: version {gazetteer.version}{age}")
    for caution in gazetteer.cautions(today):
        yield Finding("gazetteer", "warning", caution)


def _look_at_state_directory() -> Iterator[Finding]:
    folder = state_directory()
    there = next((one for one in (folder, *folder.absolute().parents) if one.exists()), Path("/"))
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        remedy = "make it writable, or name another in BIZVERIFY_STATE_DIR"
        yield Finding("state directory", "error", f"{there}: is no folder that can be written to", remedy)
        return
    free = shutil.disk_usage(there).free
    said = f"{folder}: {'' if there == folder else 'not made yet, '}{free / (1 << 30):,.1f} GB free"
    level: Level = "ok" if free >= _ROOM else "warning" if free >= _LEAST else "error"
    yield Finding("state directory", level, said, None if level == "ok" else "free space on that disk")
    mode = stat.S_IMODE(folder.stat().st_mode) if there == folder and os.name == "posix" else 0
    if mode & 0o077:
        remedy = f"chmod 700 {folder}: what it holds is about people"
        yield Finding("state directory", "warning", f"others may look into it (mode {mode:o})", remedy)


def _look_at_ledger(options: DoctorOptions) -> Iterator[Finding]:
    path = LEDGER_FILE.find(options.ledger)
    if not path.exists():
        yield Finding("ledger", "note", f"{path}: there is none, so nothing was bought yet")
        return
    try:
        with Ledger.open(path) as ledger:
            runs, held = len(ledger.runs()), [*ledger.doubts(), *ledger.unusable(), *ledger.unfetched()]
    except LedgerError as error:
        if not str(error).endswith(LEDGER_FILE.busy):
            raise
        yield Finding("ledger", "ok", f"{path}: in use by a run, so it was not looked into")
        return
    yield Finding("ledger", "ok", f"{path}: {pluralize(runs, 'run')}, {path.stat().st_size / 1e6:,.1f} MB")
    if held:
        unsettled = pluralize(sum(one.rows for one in held), "lookup")
        yield Finding("ledger", "warning", f"unsettled: {unsettled}", "settle them with `bizverify resolve`")


def _look_at_labels(options: DoctorOptions) -> Iterator[Finding]:
    store = LabelStore(options.labels)
    mailings = store.mailings()
    said = f"{store.folder}: {pluralize(len(mailings), 'mailing')} recorded"
    yield Finding("label store", "ok" if mailings else "note", said)


def _look_at_service(options: DoctorOptions) -> Iterator[Finding]:
    from bizverify.client import Account, ApiKey, BaseUrl, Client
    from bizverify.client.base_url import ENV_BASE_URL
    from bizverify.client.key import ENV_KEY, ENV_KEY_FILE

    if options.key_file is None and not _is_set(ENV_KEY, ENV_KEY_FILE):
        remedy = f"set {ENV_KEY} to buy answers of the hosted service; the local engine needs none"
        yield Finding("API key", "note", "not set", remedy)
        return
    key = ApiKey.load(options.key_file)
    yield Finding("API key", "ok", "is there; it is never shown")
    if options.base_url is None and not _is_set(ENV_BASE_URL):
        yield Finding("service", "warning", "there is a key, and no address of the service", f"set {ENV_BASE_URL}")
        return
    url = BaseUrl.parse(options.base_url, allow_http=options.allow_http)
    if options.offline:
        yield Finding("service", "note", f"{url.origin}: not asked (`offline=True`)")
        return
    client = Client(url, key, timeout=options.timeout, max_retries=0)

    async def ask() -> Account:
        async with client as service:
            return await service.me()

    account = _ask_in_time(ask, url.origin, options.timeout)
    left = (
        "what is left of the quota is not said" if account.remaining is None else f"{account.remaining:,} lookups left"
    )
    yield Finding("service", "ok", f"{url.origin}: answers, {left}")


def _look_at_nts(options: DoctorOptions) -> Iterator[Finding]:
    from bizverify.reference.nts import NtsClient, NtsKey
    from bizverify.reference.nts.nts_key import ENV_NTS_KEY, ENV_NTS_KEY_FILE

    if options.nts_key_file is None and not _is_set(ENV_NTS_KEY, ENV_NTS_KEY_FILE):
        remedy = f"get one for free, in ten minutes, and set {ENV_NTS_KEY}: docs/data-sources.md says how"
        yield Finding("tax authority's key", "warning" if options.registry is None else "note", "not set", remedy)
        return
    client = NtsClient(NtsKey.load(options.nts_key_file), timeout=options.timeout)
    yield Finding("tax authority's key", "ok", "is there; it is never shown")
    if options.offline:
        yield Finding("tax authority", "note", "not asked (`offline=True`)")
        return

    async def ask() -> int:
        async with client as nts:
            return (await nts.status([_PROBE])).statuses.height

    try:
        _ask_in_time(ask, "the tax authority's API", options.timeout)
        yield Finding("tax authority", "ok", "answers")
    except (AuthenticationError, PlanError, UsageError):
        raise
    except ServiceError as error:
        remedy = "a run goes on with the statuses that are stored, and those of a registry"
        yield Finding("tax authority", "warning", str(error), remedy)


def _ask_in_time(ask: Callable[[], Awaitable[T]], who: str, timeout: float) -> T:
    """Ask in an event loop; raise :class:`TransportError` where a reply that has begun goes on and on."""
    import anyio

    from bizverify.watch.stores import run_in_loop

    seconds = timeout * _WHOLE

    async def ask_until() -> T:
        with anyio.fail_after(seconds):
            return await ask()

    try:
        return run_in_loop(ask_until)
    except TimeoutError as error:
        raise TransportError(
            f"{who}: no whole answer within {seconds:g} s; try again, or look at the network"
        ) from error


def _is_set(*variables: str) -> bool:
    return any(os.environ.get(variable, "").strip() for variable in variables)


def _age_of(day: date, today: date) -> str:
    return f"{day} ({pluralize((today - day).days, 'day')} ago)"


def _version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
