"""The commands `serve`, `app` and `notices …`; access to the server's database."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from bansong.base.errors import Problem, UsageError
from bansong.base.messages import gettext, gettext_noop, gettext_noops, ngettext
from bansong.base.options import StatusOptions
from bansong.cli.console import print_json, print_rows, say, say_table, warn
from bansong.cli.options import PATH, chosen_status, json_option, local_options, options_of
from bansong.cli.upkeep import print_findings
from bansong.run.options import LocalOptions, installed_lines

if TYPE_CHECKING:
    import sqlite3

    from bansong.client.address import IpNetwork
    from bansong.notify.queue import PendingDelivery
    from bansong.server.keys import Key
    from bansong.server.settings import Settings


KEY_REVOKED: Final = Problem(
    "keys.key_revoked", "key {key_id} was revoked, for good; make another with `bansong keys create --db {db}`"
)

T = TypeVar("T")

key_argument = click.argument("key_id", metavar="KEY_ID")


def change_file(db: Path, change: Callable[[sqlite3.Connection], T], *, make: bool = False) -> T:
    """Call ``change`` on a server's database in one transaction; ``make`` creates a missing database."""
    from bansong.base.sqlite import transaction
    from bansong.server.store import SERVER_FILE, open_server_file

    with closing(open_server_file(db, create=make)) as connection, SERVER_FILE.errors(db), transaction(connection):
        return change(connection)


def require_key(db: Path, key_id: str) -> Key:
    """Return a key; raise :class:`UsageError` if there is none."""
    from bansong.server import keys as key_table

    return change_file(db, lambda it: key_table.require_key(it, key_id, db))


def require_living_key(db: Path, key_id: str) -> Key:
    """Return a key; raise :class:`UsageError` if there is none, or if it was revoked."""
    key = require_key(db, key_id)
    if key.revoked is not None:
        raise UsageError(KEY_REVOKED, key_id=key_id, db=db)
    return key


def minute(time: object) -> str:
    """Return an ISO 8601 time as ``YYYY-MM-DD HH:MM``."""
    return str(time or "")[:16].replace("T", " ")


PACKAGE_MISSING: Final = Problem("server.package_missing", "the service needs {replace}: pip install 'bansong[server]'")

db_option = click.option("--db", type=PATH, required=True, metavar="FILE", help="The server's SQLite file.")


def _number(context: click.Context, option: click.Parameter, value: float) -> float:
    # ranges of click accept "nan"
    if math.isnan(value):
        raise click.BadParameter(gettext("nan is no number"), context, option)
    return value


def _number_option(
    flag: str, range_: click.IntRange | click.FloatRange, default: float, help: str, **more: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(flag, type=range_, callback=_number, default=default, show_default=True, help=help, **more)


_DAYS: Final = click.FloatRange(0, 36_500, min_open=True)
_HOURS: Final = click.FloatRange(0, 1_000_000, min_open=True)


def _networks(_: click.Context, option: click.Parameter, values: tuple[str, ...]) -> tuple[IpNetwork, ...]:
    from bansong.client.address import parse_network

    try:
        return tuple(map(parse_network, values))
    except UsageError as error:
        raise UsageError(f"{option.opts[0]}: {error}") from None


@click.command(short_help="Run the service yourself, answered by the local engine.")
@db_option
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="0 takes a free one.")
@options_of(LocalOptions)
@click.option("--plans", type=PATH, metavar="FILE.toml", help="What each plan allows, in place of the built-in plans.")
@click.option(
    "--notices", type=PATH, metavar="FILE.jsonl", help="Append each closure that is found on a watch list to this file."
)
@click.option(
    "--webhook-network",
    "webhook_networks",
    multiple=True,
    callback=_networks,
    metavar="ADDRESS|NETWORK",
    help="A private network, like 10.20.0.0/16, to which webhooks may be posted, too; may be given several times.",
)
@_number_option("--keep-days", _DAYS, 90.0, help="How long a batch job and its results are kept after it ended.")
@_number_option(
    "--keep-labels-days",
    _DAYS,
    730.0,
    help="How long outcomes are kept to learn from, after their job ended; learned scorecards stay.",
)
@_number_option(
    "--keep-revoked-days",
    click.FloatRange(0, 36_500),
    30.0,
    help="How long the account of a revoked key is kept; then it is erased, but for its usage by month.",
)
@_number_option("--queue", click.IntRange(1), 64, help="Batch jobs that may wait; further ones are answered 503.")
@_number_option("--learn-hours", _HOURS, 24.0, help="How often reported outcomes are learned from.")
@click.option(
    "--status",
    type=click.Choice(["nts", "none"]),
    default="none",
    show_default=True,
    help="Who is asked for statuses: nts, the tax authority's open API, or nobody but the registry.",
)
@_number_option(
    "--max-status-age",
    click.FloatRange(0, 100_000),
    30.0,
    help="How old a status may be before it is asked for again; the watch list asks once a day.",
    metavar="DAYS",
)
@options_of(StatusOptions, "status_budget")
@click.option(
    "--status-store",
    type=PATH,
    metavar="FILE",
    help="Where statuses are kept; by default statuses.sqlite in the server's folder.",
)
@options_of(StatusOptions, "nts_key_file")
@click.option(
    "--trusted-proxy",
    "trusted_proxies",
    multiple=True,
    metavar="ADDRESS|NETWORK",
    help="A proxy in front, whose X-Forwarded-For says who the client is. May be repeated.",
)
@click.option("--connections-per-address", type=click.IntRange(1), hidden=True)  # ignored, and the log says so
@_number_option(
    "--reading-slots",
    click.IntRange(1),
    4,
    help="Large uploads that are read at once, each in at most 1.2 GB of memory, and small ones, each in 0.3 GB.",
    metavar="N",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Answer GET /metrics (Prometheus) on this port, which is not the service's; without it, nowhere.",
)
@click.option(
    "--metrics-host",
    default="127.0.0.1",
    show_default=True,
    metavar="HOST",
    help="The address of --metrics-port; no key is asked for there, so let only the monitor reach it.",
)
@click.option("--check", is_flag=True, help="Look at all that is given, print what is wrong and its remedy, and end.")
def serve(
    host: str, port: int, plans: Path | None, trusted_proxies: tuple[str, ...], check: bool, **settings: Any
) -> None:
    """Serve the whole interface of the hosted service over HTTP, answered by the local engine.

    FILE is made if it is missing; keys are made with `bansong keys create --db FILE`. A registry or gazetteer that is
    replaced by a newer one (renamed into its place) is taken up without a restart. SIGTERM and Ctrl-C end it in good
    order; after a kill, accepted jobs go on when it is started again. The log is on stderr, a JSON object a line;
    BANSONG_LOG sets its level (info). With --status nts it asks the tax authority for statuses, with the key in
    BANSONG_NTS_KEY. Behind a proxy that speaks TLS: keys must not travel in the clear.

    With --check nothing is started or changed, also beside a running server: exit code 2 where a start would fail.
    """
    needs_server()
    from bansong.server.settings import Settings, configure_logging, load_plans, parse_proxies

    status, settings = chosen_status(settings), local_options(settings)
    if check:
        from bansong.upkeep.service_check import check_service

        given: Settings = Settings(status=status, trusted_proxies=trusted_proxies, **settings)
        diagnosis = check_service(given, host, port, plans)
        print_findings(diagnosis)
        raise SystemExit(diagnosis.exit_code)
    from bansong.server.app import run

    proxies = parse_proxies(trusted_proxies)
    chosen: Settings = Settings(plans=load_plans(plans), status=status, trusted_proxies=proxies, **settings)
    configure_logging()
    say_table(installed_lines(settings))
    run(chosen, host, port, lambda url: _announce(url, behind_proxy=bool(trusted_proxies)))


def _announce(url: str, *, behind_proxy: bool) -> None:
    from bansong.client.address import BaseUrl

    say(gettext("serving on {url}; stop with Ctrl-C", url=url))
    if not behind_proxy and not BaseUrl.parse(url, allow_http=True).is_loopback:
        open_door = gettext(
            "other machines can reach it without TLS, so their keys and customers travel in the clear: listen on "
            "127.0.0.1, behind a proxy that speaks TLS, or name that proxy with --trusted-proxy; "
            "docs/service.md#running-it shows one"
        )
        warn([open_door])


def needs_server() -> None:
    """Raise :class:`UsageError` if a package of ``bansong[server]`` is missing."""
    for name in ("starlette", "uvicorn", "python_multipart", "prometheus_client", "numpy"):
        if find_spec(name) is None:
            raise UsageError(PACKAGE_MISSING, replace=name.replace("_", "-"))


@click.command(short_help="Check lists in your browser, without further commands.")
@options_of(LocalOptions)
@options_of(StatusOptions)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="The port of the page; by default a free one.")
@click.option("--no-browser", is_flag=True, help="Only print the address of the page.")
def app(port: int, no_browser: bool, **options: Any) -> None:
    """Open a page in your browser: drop a list in, check it, download the results, record returned letters.

    Only this computer, and only the browser with the printed address, can open the page. Lists and results are deleted
    when the page is closed, after a day, and when the program ends (Ctrl-C).
    """
    needs_server()
    from bansong.server.local_app import run_local_app

    status, text = chosen_status(options), gettext_noop("the page is open at {address}; stop with Ctrl-C")
    reference = local_options(options)
    say_table(installed_lines(reference))
    run_local_app(reference, status, port, lambda at: say(gettext(text, address=at)), browser=not no_browser)


_NOTIFICATION_COLUMNS: Final = gettext_noops(
    "notice", "key", "number", "found at", "channel", "state", "tries", "next", "last error"
)
_STATES: Final = gettext_noops("nowhere", "given up", "waiting")

_key_option = click.option("--key", "key_id", metavar="KEY_ID", help="Of this key alone.")


@click.group("notices", short_help="Closures that your own server could not deliver yet.")
def notices() -> None:
    """List the closures that were found but not acknowledged by their receiver yet, and send them again.

    A closure goes to the file of `bansong serve --notices` and to the webhook of its key. What fails is tried again
    for three days, less and less often, and then given up; it stays listed here.
    """
    needs_server()


@notices.command(name="list")
@db_option
@_key_option
@json_option
def list_notifications(db: Path, key_id: str | None, as_json: bool) -> None:
    """List the closures that were not acknowledged: of which key, since when, how often tried, what went wrong."""
    from bansong.notify.queue import list_undelivered

    if key_id is not None:
        require_key(db, key_id)
    rows = [_notification_row(delivery) for delivery in change_file(db, lambda it: list_undelivered(it, key_id))]
    none = gettext("every closure that was found was acknowledged")
    print_rows(as_json, {"undelivered": rows}, _NOTIFICATION_COLUMNS, map(_notification_cells, rows), none)


@notices.command()
@db_option
@_key_option
@click.option("--notice", "notification_id", metavar="ID", help="This notice alone.")
@json_option
def retry(db: Path, key_id: str | None, notification_id: str | None, as_json: bool) -> None:
    """Send again the closures that were not acknowledged, also those given up; no other is sent twice.

    Closures that were found while their key had no webhook are sent to the one that it has now. A running server
    begins within a minute.
    """
    if key_id is not None:
        require_key(db, key_id)
    count = change_file(db, lambda it: _retry(it, key_id, notification_id, time.time()))
    said = ngettext(
        "{count:,} notice will be tried again; a running server begins within a minute",
        "{count:,} notices will be tried again; a running server begins within a minute",
        count,
    )
    if not count:
        said = gettext(
            "nothing to send: it is unknown, was acknowledged, or has nowhere to go; see `bansong keys webhook`"
        )
    if as_json:
        print_json({"retried": count})
    else:
        say(said)


def _retry(db: sqlite3.Connection, key_id: str | None, notification_id: str | None, now: float) -> int:
    from bansong.notify.channels import WEBHOOK
    from bansong.notify.queue import retry as again
    from bansong.server import keys as key_table

    count = 0
    for key in key_table.list_keys(db):
        if key_id in (None, key.id):
            channels = [] if key.webhook_url is None or key.revoked is not None else [WEBHOOK]
            count += again(db, now, owner=key.id, notification_id=notification_id, channels=channels)
    return count


def _notification_row(delivery: PendingDelivery) -> dict[str, object]:
    from bansong.server.settings import as_text

    waits = "given_up" if delivery.due is None else "waiting"
    return {
        "id": delivery.id,
        "key_id": delivery.owner,
        "biz_no": delivery.biz_no or None,
        "detected_at": as_text(delivery.created),
        "channel": delivery.channel,
        "state": "nowhere" if delivery.channel is None else waits,
        "attempts": delivery.attempts,
        "next_attempt_at": as_text(delivery.due),
        "error": delivery.error,
    }


def _notification_cells(row: dict[str, object]) -> list[str]:
    found, again = minute(row["detected_at"]), minute(row["next_attempt_at"])
    texts = {name: str(value or "") for name, value in row.items()}
    state, tries = gettext(texts["state"].replace("_", " ")), str(row["attempts"])
    who = [texts["id"], texts["key_id"], texts["biz_no"] or gettext("(several)")]
    return [*who, found, texts["channel"], state, tries, again, texts["error"]]
