"""Checks of ``bansong serve --check``: they change nothing and use no network; the server may be running."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from datetime import date
from pathlib import Path
from typing import Final

from bansong.base.errors import Problem, StoreError, UsageError
from bansong.base.files import lock_file
from bansong.base.messages import describe_os_error, gettext, gettext_noop, ngettext, parameter
from bansong.base.schema import seoul_day
from bansong.client.address import AddressPolicy
from bansong.client.webhook import WebhookUrl
from bansong.history.scorecards import BUILTIN
from bansong.reference.nts import NtsKey
from bansong.reference.status_store import STATUS_FILE
from bansong.server import keys as key_table
from bansong.server.settings import Settings, load_plans, parse_proxies
from bansong.server.store import SERVER_FILE, open_server_file, refuse_lost_file
from bansong.upkeep.doctor import (
    Diagnosis,
    Finding,
    findings_of,
    look_at_folder,
    look_at_gazetteer,
    look_at_mode,
    look_at_model,
    look_at_registry,
    look_at_statuses,
    look_at_versions,
)

DATABASE_GONE: Final = Problem("server.database_gone", "{db}: was moved or deleted while the server runs; put it back")

_OWNER: Final = gettext_noop("give it to the user as whom the server runs, or run the check as that user")


def check_service(service: Settings, host: str, port: int, plans: Path | None) -> Diagnosis:
    """Check a server's options, files, ports and plans; errors become findings."""
    today, running = seoul_day(), _is_running(service.db)
    checks: tuple[tuple[str, Callable[[], Iterable[Finding]]], ...] = (
        (gettext_noop("versions"), look_at_versions),
        (gettext_noop("plans"), lambda: _look_at_plans(plans)),
        ("database", lambda: _look_at_database(service.db, running=running)),
        (gettext_noop("keys"), lambda: _look_at_keys(service, plans)),
        (gettext_noop("folder"), lambda: _look_at_folder(service)),
        ("scorecard", lambda: look_at_model(service.model or BUILTIN)),
        ("registry", lambda: look_at_registry(service.registry, service.model or BUILTIN, today)),
        ("gazetteer", lambda: look_at_gazetteer(service.gazetteer, today)),
        (gettext("tax authority's key"), lambda: _look_at_nts(service, today)),
        (gettext_noop("notices"), lambda: _look_at_notices(service.notices)),
        (gettext_noop("trusted proxies"), lambda: _look_at_proxies(service.trusted_proxies)),
        (gettext_noop("port"), lambda: _look_at_port("port", host, port, running=running)),
        (gettext_noop("metrics"), lambda: _look_at_metrics(service, port, running=running)),
    )
    return Diagnosis(tuple(finding for what, check in checks for finding in findings_of(what, check)))


def _is_running(db: Path) -> bool:
    """Whether a server holds the lock of the database; a free lock is taken and released."""
    try:
        descriptor = os.open(f"{os.path.realpath(db)}.lock", os.O_RDWR)
    except OSError:
        return False
    try:
        return not lock_file(descriptor)
    finally:
        os.close(descriptor)


def _look_at_plans(path: Path | None) -> Iterator[Finding]:
    source = path or gettext("the built-in plans")
    yield Finding("plans", "ok", f"{source}: {', '.join(load_plans(path))}")


def _look_at_database(db: Path, *, running: bool) -> Iterator[Finding]:
    if not db.exists():
        refuse_lost_file(db)
        if running:
            raise StoreError(DATABASE_GONE, db=db)
        remedy = gettext("make the first key with `bansong keys create`, which makes the file, too")
        yield Finding("database", "note", gettext("{db}: is not there yet and will be made", db=db), remedy)
        return
    found, newest = SERVER_FILE.stored_version(db), SERVER_FILE.version
    if 0 < found < newest:
        said = gettext_noop("{db}: is of version {found}, and the start brings it to version {version}")
        remedy = gettext("back it up first: the bansong before cannot open it then")
        yield Finding("database", "warning", gettext(said, db=db, found=found, version=newest), remedy)
        return
    try:
        open_server_file(db, create=False, writing=False).close()
    except StoreError:
        journal = db.with_name(f"{db.name}-journal")
        if running or not journal.exists() or not journal.stat().st_size:
            raise
        said = gettext("{db}: was cut off in the middle of a commit; the start settles it", db=db)
        yield Finding("database", "note", said)
        return
    used = gettext("in use by a server that is running") if running else gettext("no server is running on it")
    size, said = db.stat().st_size / 1e6, gettext_noop("{db}: version {version}, {size:,.1f} MB, {used}")
    yield Finding("database", "ok", gettext(said, db=db, version=newest, size=size, used=used))
    if not os.access(db, os.W_OK):
        yield Finding("database", "error", gettext("{db}: cannot be written", db=db), gettext(_OWNER))
    yield from look_at_mode("database", db, 0o600)


def _look_at_keys(service: Settings, plans_file: Path | None) -> Iterator[Finding]:
    if SERVER_FILE.stored_version(service.db) != SERVER_FILE.version:
        return
    try:
        with closing(open_server_file(service.db, create=False, writing=False)) as file:
            keys = [key for key in key_table.list_keys(file) if key.revoked is None]
    except StoreError:  # reported by the check of the database
        return
    if not keys:
        said = gettext("there is none, so every request is refused")
        yield Finding("keys", "note", said, gettext("`bansong keys create` makes one"))
        return
    yield Finding("keys", "ok", ngettext("{count:,} key", "{count:,} keys", len(keys)))
    plans = load_plans(plans_file)
    for key in keys:
        if key.plan not in plans:
            remedy = gettext("name it in the file of `plans=`, or give the key another with `bansong keys change`")
            said = gettext("{id}: no plan is called {plan!r}, so it is refused", id=key.id, plan=key.plan)
            yield Finding("keys", "warning", said, remedy)
    policy = AddressPolicy(service.webhook_networks)
    for key in keys:
        if key.webhook_url is not None:
            yield from _look_at_webhook(key.id, key.webhook_url, policy)


def _look_at_webhook(key_id: str, text: str, policy: AddressPolicy) -> Iterator[Finding]:
    remedy = gettext("set another with `bansong keys webhook`, or allow its network with `webhook_networks=`")
    try:
        url = WebhookUrl.parse(text, allow_http=True)  # http was allowed or refused when the webhook was set
    except UsageError as error:
        yield Finding("webhook", "warning", f"{key_id}: {error}", remedy)
        return
    if not policy.is_allowed_host(url.host):
        said = gettext("{key_id}: {url} is no public address: nothing is sent there", key_id=key_id, url=url)
        yield Finding("webhook", "warning", said, remedy)


def _look_at_folder(service: Settings) -> Iterator[Finding]:
    folder = service.db.absolute().parent
    if not folder.exists():
        remedy = gettext("make it, for the user as whom the server runs")
        yield Finding("folder", "error", gettext("{folder}: does not exist", folder=folder), remedy)
        return
    yield from look_at_folder("folder", folder, gettext(_OWNER))
    if service.files.exists():
        yield from look_at_folder("folder", service.files, gettext(_OWNER))
        yield from look_at_mode("folder", service.files, 0o700)


def _look_at_nts(service: Settings, today: date) -> Iterator[Finding]:
    if service.status.source == "none":
        return
    NtsKey.load(service.status.key_file)
    yield Finding(gettext("tax authority's key"), "ok", gettext("is there; it is never shown"))
    store = service.status_store
    if service.status.store is not None and not store.absolute().parent.is_dir():
        remedy = gettext("make it, for the user as whom the server runs, or choose another `status_store=`")
        yield Finding("status store", "error", gettext("{store}: its folder does not exist", store=store), remedy)
    elif not 0 < STATUS_FILE.stored_version(store) < STATUS_FILE.version:  # opening would migrate an older version
        yield from look_at_statuses(store, today)


def _look_at_notices(path: Path | None) -> Iterator[Finding]:
    if path is None:
        return
    there = path if path.exists() else path.absolute().parent
    if path.is_dir() or not os.access(there, os.W_OK):
        remedy = gettext("name a file in a folder to which the user as whom the server runs can write")
        yield Finding("notices", "error", gettext("{path}: closures cannot be written there", path=path), remedy)
    elif path.exists():
        yield Finding("notices", "ok", f"{path}: {path.stat().st_size / 1e6:,.1f} MB")
        yield from look_at_mode("notices", path, 0o600)
    else:
        yield Finding("notices", "ok", gettext("{path}: will be made", path=path))


def _look_at_proxies(given: tuple[str, ...]) -> Iterator[Finding]:
    parse_proxies(given)
    if given:
        yield Finding("trusted proxies", "ok", ", ".join(given))


def _look_at_port(what: str, host: str, port: int, *, running: bool) -> Iterator[Finding]:
    """Check that a port is free, by binding without listening."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, getattr(socket, "SO_EXCLUSIVEADDRUSE", socket.SO_REUSEADDR), 1)
        try:
            probe.bind((host, port))
        except (OSError, OverflowError) as error:
            if running and getattr(error, "errno", None) == errno.EADDRINUSE:
                said = gettext("{host}:{port}: in use, as it should be while the server runs", host=host, port=port)
                yield Finding(what, "ok", said)
                return
            reason = describe_os_error(error)
            option = parameter("metrics_port" if what == "metrics" else "port")
            remedy = gettext("stop what listens there, or choose another {option}", option=option)
            said = gettext("{host}:{port}: cannot listen there: {reason}", host=host, port=port, reason=reason)
            yield Finding(what, "error", said, remedy)
            return
    yield Finding(what, "ok", gettext("{host}:{port}: free", host=host, port=port))


def _look_at_metrics(service: Settings, port: int, *, running: bool) -> Iterator[Finding]:
    if service.metrics_port is None:
        remedy = gettext("give `metrics_port=`; docs/runbook.md says what is told there")
        yield Finding("metrics", "note", gettext("are answered nowhere, so nobody can watch the server"), remedy)
    elif service.metrics_port == port != 0:
        said = gettext("{port}: is the service's port, too", port=port)
        yield Finding("metrics", "error", said, gettext("choose another `metrics_port=`"))
    else:
        yield from _look_at_port("metrics", service.metrics_host, service.metrics_port, running=running)
