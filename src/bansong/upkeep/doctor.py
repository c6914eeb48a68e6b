"""Check an installation, and say how to remedy what is wrong."""

from __future__ import annotations

import os
import platform
import shutil
import sqlite3
import stat
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeVar

from polars.exceptions import PanicException

from bansong._version import __version__
from bansong.base.errors import (
    AuthenticationError,
    BansongError,
    LedgerError,
    PlanError,
    Problem,
    ServiceError,
    TransportError,
    UsageError,
)
from bansong.base.files import state_directory, variable
from bansong.base.messages import describe_os_error, gettext, gettext_noop, gettext_noops, ngettext
from bansong.base.schema import seoul_day
from bansong.base.sqlite import is_in_use
from bansong.engine.address.gazetteer import Gazetteer
from bansong.engine.local import stale_registry_alert
from bansong.engine.registry import Registry
from bansong.engine.risk.scorecard import Scorecard
from bansong.history.labels import LabelStore
from bansong.history.scorecards import resolve_model
from bansong.purchase.ledger import Ledger
from bansong.purchase.ledger_file import LEDGER_FILE
from bansong.reference.status_store import STATUS_FILE, find_status_store
from bansong.run.options import describe_age
from bansong.watch.store import WATCH_FILE

if TYPE_CHECKING:
    from bansong.reference.nts import NtsKey

Level = Literal["ok", "note", "warning", "error"]  # note: not in use; warning: look at it; error: a run would fail


@dataclass(frozen=True, slots=True)
class Finding:
    """A result of a check."""

    what: str  # the checked part
    level: Level
    said: str  # description
    remedy: str | None = None  # what to do, if anything


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All findings of the doctor, in order."""

    findings: tuple[Finding, ...]

    @property
    def exit_code(self) -> int:
        return 2 if any(finding.level == "error" for finding in self.findings) else 0

    def as_dict(self) -> dict[str, object]:
        return {"exit_code": self.exit_code, "findings": [asdict(finding) for finding in self.findings]}


def findings_of(what: str, check: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """Carry out a check; errors become findings."""
    try:
        yield from check()
    except BansongError as error:
        yield Finding(what, "error", str(error))
    except OSError as error:
        place = f"{os.fsdecode(error.filename)}: " if error.filename is not None else ""
        remedy = gettext("let it be read by the user who runs bansong, or name another place")
        said = gettext("{place}cannot be looked at: {value}", place=place, value=describe_os_error(error))
        yield Finding(what, "error", said, remedy)
    except (Exception, PanicException) as error:  # without its text, which may contain a key
        said = gettext("cannot be looked at: {name}, which is a defect of bansong", name=type(error).__name__)
        yield Finding(what, "error", said, gettext("please report it, with the versions above"))


# modules and purpose, by extra
EXTRAS: Final = {
    "learn": (("numpy",), gettext_noop("to learn the scorecard from letters (`bansong calibrate`)")),
    "server": (
        ("starlette", "uvicorn", "python_multipart", "prometheus_client", "numpy"),
        gettext_noop("to run the service yourself (`bansong serve`)"),
    ),
    "cloud": (("obstore",), gettext_noop("to read and write files at s3://, gs:// and az://")),
    "fast": (("uvloop",), gettext_noop("for more requests a second of the processor")),
    "notebook": (("pandas", "ipykernel"), gettext_noop("for pandas frames and notebooks")),
}
# marked for translation
_CALLED: Final = gettext_noops("extra learn", "extra server", "extra cloud", "extra fast", "extra notebook")
_PACKAGES: Final = ("polars", "pyarrow", "openpyxl", "fastexcel", "httpx")
_AMPLE_BYTES: Final = 1 << 30  # enough for a server's uploads; a run writes little besides its output
_MIN_BYTES: Final = 16 << 20
_DATA: Final = gettext_noop("docs/data-sources.md says where it comes from")


def look_at_versions() -> Iterator[Finding]:
    """Report the versions of bansong, Python, packages and SQLite."""
    yield Finding("bansong", "ok", __version__)
    yield Finding("python", "ok", f"{platform.python_version()} ({platform.system()} {platform.machine()})")
    for package in _PACKAGES:
        found = gettext("there, of an unknown version")
        with suppress(PackageNotFoundError):
            found = version(package)
        yield Finding(package, "ok", found)
    if sqlite3.sqlite_version_info < WATCH_FILE.minimum:
        needed = ".".join(map(str, WATCH_FILE.minimum[:2]))
        remedy = gettext("use a Python that comes with a newer SQLite, or update SQLite")
        said = gettext(
            "{sqlite_version}, and {needed} or newer is needed", sqlite_version=sqlite3.sqlite_version, needed=needed
        )
        yield Finding("SQLite", "error", said, remedy)
    else:
        yield Finding("SQLite", "ok", sqlite3.sqlite_version)


def _look_at_extra(name: str) -> Iterator[Finding]:
    modules, purpose = EXTRAS[name]
    called = next(one for one in _CALLED if one.endswith(name))
    absent = [module for module in modules if find_spec(module) is None]
    if absent:
        remedy = gettext("{command}, if you want it", command=f"pip install 'bansong[{name}]'")
        said = gettext("not installed ({absent}): {purpose}", absent=", ".join(absent), purpose=gettext(purpose))
        yield Finding(called, "note", said, remedy)
    else:
        yield Finding(called, "ok", gettext("installed: {purpose}", purpose=gettext(purpose)))


def look_at_model(name: str | Path | None) -> Iterator[Finding]:
    """Report the scorecard in use."""
    card, builtin = resolve_model(name), Scorecard.load()
    said = gettext_noop("the built-in one") if card is builtin else gettext_noop("beside the built-in {version}")
    yield Finding("scorecard", "ok", f"{card.version}, {gettext(said, version=builtin.version)}")


def look_at_registry(path: Path | None, model: str | Path | None, today: date) -> Iterator[Finding]:
    """Report size and age of a registry; the scorecard of ``model`` says from which age it is stale."""
    if path is None:
        remedy = gettext(
            "`bansong setup` stores the tax authority's free key; or `bansong data build-registry FILES…` makes one of "
            "lists; {data}",
            data=gettext(_DATA),
        )
        said = gettext("none is installed or given, so the local engine knows no status by itself")
        yield Finding("registry", "note", said, remedy)
        return
    registry = Registry.open(path)
    registry.check()
    age = gettext("of days that are not known")
    if registry.newest is not None:
        age = gettext("newest status of {age_of}", age_of=describe_age(registry.newest, today))
    said = ngettext(
        "{path}: {count:,} business, {age}, version {version}",
        "{path}: {count:,} businesses, {age}, version {version}",
        registry.rows,
        path=registry.path,
        age=age,
        version=registry.version,
    )
    if stale := stale_registry_alert(registry, resolve_model(model).stale_after, today):
        yield Finding(
            "registry",
            "warning",
            said,
            gettext("{stale}; or `bansong data refresh-registry {path}`", stale=stale, path=path),
        )
    else:
        yield Finding("registry", "ok", said)


def look_at_statuses(path: Path, today: date) -> Iterator[Finding]:
    """Report size and age of a status store."""
    store = find_status_store(path)
    if store is None:
        yield Finding("status store", "note", gettext("{path}: there is none, so no status was fetched yet", path=path))
        return
    with store:
        found = store.summary()
    held = ngettext("{count:,} status", "{count:,} statuses", found.numbers)
    days = ((gettext_noop("newest of {age}"), found.newest), (gettext_noop("oldest of {age}"), found.oldest))
    ages = (gettext(text, age=describe_age(day, today)) for text, day in days if day)
    yield Finding("status store", "ok" if found.numbers else "note", ", ".join([f"{path}: {held}", *ages]))


def look_at_gazetteer(path: Path | None, today: date) -> Iterator[Finding]:
    """Report version and age of a gazetteer."""
    if path is None:
        remedy = gettext("`bansong data build-gazetteer FILES…`; {data}", data=gettext(_DATA))
        said = gettext("none is installed or given, so addresses are not corrected")
        yield Finding("gazetteer", "note", said, remedy)
        return
    gazetteer = Gazetteer.open(path)
    gazetteer.check()
    age = ""
    if gazetteer.source_date is not None:
        age = gettext(", addresses of {age_of}", age_of=describe_age(gazetteer.source_date, today))
    said = gettext("{path}: version {version}{age}", path=gazetteer.path, version=gazetteer.version, age=age)
    yield Finding("gazetteer", "ok", said)
    for number, caution in enumerate(gazetteer.cautions(today)):  # one remedy for all
        mend = None if number else gettext("`bansong data build-gazetteer FILES…`")
        yield Finding("gazetteer", "warning", caution, mend)


def look_at_folder(what: str, folder: Path, remedy: str) -> Iterator[Finding]:
    """Report whether a folder can be written to, and the free space of its disk."""
    there = next((one for one in (folder, *folder.absolute().parents) if one.exists()), Path("/"))
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        yield Finding(what, "error", gettext("{there}: is no folder that can be written to", there=there), remedy)
        return
    free = shutil.disk_usage(there).free
    room = gettext("{free:,.1f} GB free", free=free / (1 << 30))
    said = f"{folder}: {room}" if there == folder else gettext("{path}: not made yet, {room}", path=folder, room=room)
    level: Level = "ok" if free >= _AMPLE_BYTES else "warning" if free >= _MIN_BYTES else "error"
    yield Finding(what, level, said, None if level == "ok" else gettext("free space on that disk"))


def look_at_mode(what: str, path: Path, mode: int) -> Iterator[Finding]:
    """Warn if other users may read a file or folder that should have ``mode``."""
    found = stat.S_IMODE(path.stat().st_mode) if os.name == "posix" else 0
    if found & 0o077:
        remedy = gettext("chmod {mode:o} {path}: what it holds is about people", mode=mode, path=path)
        said = gettext("{path}: others may look into it (mode {found:o})", path=path, found=found)
        yield Finding(what, "warning", said, remedy)


CHECK_TIMED_OUT: Final = Problem(
    "service.check_timed_out", "{who}: no whole answer within {seconds:g} s; try again, or look at the network"
)

T = TypeVar("T")
_PROBE: Final = "1248100998"  # the number of a listed company, as printed on its site
_WHOLE_ANSWER_FACTOR: Final = 1.5  # timeout of a whole check relative to that of a network operation


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorOptions:
    """Options of the run that is to be checked."""

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
    offline: bool = False  # use no network
    timeout: float = 5.0  # seconds for an answer


def diagnose(options: DoctorOptions) -> Diagnosis:
    """Check everything that a run needs; errors become findings."""
    today = seoul_day()
    checks: tuple[tuple[str, Callable[[], Iterable[Finding]]], ...] = (
        (gettext_noop("versions"), look_at_versions),
        ("extras", lambda: chain.from_iterable(map(_look_at_extra, EXTRAS))),
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
    from bansong.base.key import ENV_KEY, ENV_KEY_FILE, ApiKey
    from bansong.client.address import ENV_BASE_URL, BaseUrl
    from bansong.client.client import Client
    from bansong.client.responses import Account

    if options.key_file is None and not _is_set(ENV_KEY, ENV_KEY_FILE):
        remedy = gettext_noop("set {env_key} to buy answers of the hosted service; the local engine needs none")
        yield Finding("API key", "note", gettext("not set"), gettext(remedy, env_key=ENV_KEY))
        return
    key = ApiKey.load(options.key_file)
    yield Finding("API key", "ok", gettext("is there; it is never shown"))
    if options.base_url is None and not _is_set(ENV_BASE_URL):
        remedy = gettext("set {variable}", variable=ENV_BASE_URL)
        yield Finding("service", "warning", gettext("there is a key, and no address of the service"), remedy)
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
    left = gettext("what is left of the quota is not said")
    if account.remaining is not None:
        left = ngettext("{count:,} lookup left", "{count:,} lookups left", account.remaining)
    yield Finding("service", "ok", gettext("{origin}: answers, {left}", origin=url.origin, left=left))


def _look_at_nts(options: DoctorOptions) -> Iterator[Finding]:
    from bansong.base.options import ENV_NTS_KEY, ENV_NTS_KEY_FILE
    from bansong.reference.nts import NtsKey
    from bansong.reference.status_store import account_of

    called = gettext("tax authority's key")
    if options.nts_key_file is None and not _is_set(ENV_NTS_KEY, ENV_NTS_KEY_FILE):
        remedy = gettext_noop(
            "get one for free, in ten minutes (docs/data-sources.md), then `bansong setup`; or set {env_nts_key}"
        )
        level: Level = "warning" if options.registry is None else "note"
        yield Finding(called, level, gettext("not set"), gettext(remedy, env_nts_key=ENV_NTS_KEY))
        return
    key = NtsKey.load(options.nts_key_file)
    yield Finding(called, "ok", gettext("is there; it is never shown"))
    if options.offline:
        yield Finding("tax authority", "note", gettext("not asked (`offline=True`)"))
        return
    try:
        ask_nts(key, options.timeout)
        yield Finding("tax authority", "ok", gettext("it answers"))
        if (store := find_status_store(options.status_store)) is not None:
            with store:
                store.lift_limit(account_of(key), seoul_day())
    except (AuthenticationError, PlanError, UsageError):
        raise
    except ServiceError as error:
        remedy = gettext("a run goes on with the statuses that are stored, and those of a registry")
        yield Finding("tax authority", "warning", str(error), remedy)


def ask_nts(key: NtsKey, timeout: float) -> None:
    """Ask the tax authority for one status, to check the key; raise :class:`ServiceError`. ``timeout``: seconds."""
    from bansong.reference.nts import NtsClient

    client = NtsClient(key, timeout=timeout)

    async def ask() -> int:
        async with client as nts:
            return (await nts.status([_PROBE])).statuses.height

    _ask_in_time(ask, gettext("the tax authority's API"), timeout)


def _ask_in_time(ask: Callable[[], Awaitable[T]], who: str, timeout: float) -> T:
    import anyio

    from bansong.base.cancel import run_until_interrupted

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
