"""Serve a fake service, or with ``nts`` a fake of the tax authority's API: ``python -m bansong.testing``."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bansong.testing.fake_nts import NTS_FAULTS, FakeNts
from bansong.testing.fake_service import FakeService, listening, server_for, url_of
from bansong.testing.faults import Delay, Fault, Faults
from bansong.testing.messages import DIALECTS, FakeApp


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve a fake until Ctrl-C; print its URL first."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    is_nts = words[:1] == ["nts"]
    options = vars(_parser(is_nts).parse_args(words[is_nts:]))
    listener = listening(options.pop("host"), options.pop("port"))
    app: FakeApp = _nts(**options) if is_nts else _service(**options)
    server = server_for(app)
    sys.stdout.write(f"{url_of(listener)}\n")
    sys.stdout.flush()
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:
        sys.exit(130)


def _service(api_key: str, dialect: str, verify_seconds: float, **options: Any) -> FakeService:
    faults = Faults(Fault("verify", Delay(verify_seconds))) if verify_seconds else None
    return FakeService(api_key, dialect=DIALECTS.get(dialect), faults=faults, **options)


def _nts(api_key: str, statuses: Path | None, fault: list[str], fault_share: float, **options: Any) -> FakeNts:
    faults = Faults(*(Fault("status", NTS_FAULTS[name], share=fault_share) for name in fault))
    known = {} if statuses is None else json.loads(statuses.read_text(encoding="utf-8"))
    return FakeNts(api_key, known, faults=faults, **options)


def _parser(is_nts: bool) -> ArgumentParser:
    about = "A fake of the hosted service, for tests."
    if is_nts:
        about = "A fake of the tax authority's API, for tests; GET /counts returns its counters."
    parser = ArgumentParser("python -m bansong.testing" + " nts" * is_nts, description=about)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: one that is free")
    parser.add_argument("--api-key", default="test-key")
    (_add_nts_options if is_nts else _add_service_options)(parser)
    return parser


def _add_nts_options(parser: ArgumentParser) -> None:
    statuses = ("active", "suspended", "closed", "unregistered")
    parser.add_argument("--statuses", type=Path, metavar="FILE", help="JSON: number → status or the API's row")
    parser.add_argument("--default", choices=statuses, default="active", help="the status of all other numbers")
    parser.add_argument("--latency", type=float, default=0.0, help="the seconds that a call takes")
    parser.add_argument("--daily-limit", type=int, help="code 22 above it")
    parser.add_argument("--limit-unit", choices=("numbers", "calls"), default="numbers", help="what it counts")
    parser.add_argument("--per-second", type=int, help="code 23 above so many calls")
    parser.add_argument("--fault", choices=sorted(NTS_FAULTS), action="append", default=[], help="may be repeated")
    parser.add_argument("--fault-share", type=float, default=1.0, help="the share of calls that a fault strikes")


def _add_service_options(parser: ArgumentParser) -> None:
    parser.add_argument("--quota", type=int, help="lookups a month; by default there is no limit")
    parser.add_argument("--used", type=int, default=0, help="lookups of it that are used already")
    parser.add_argument("--plan", default="business")
    parser.add_argument("--dialect", choices=["plain", *sorted(DIALECTS)], default="plain")
    parser.add_argument("--max-rows", type=int, help="413 for larger uploads")
    parser.add_argument("--max-bytes", type=int, help="413 for larger requests")
    parser.add_argument("--batch-quota", choices=("whole", "partial"), default="whole")
    parser.add_argument("--job-seconds", type=float, default=0.0, help="how long a job takes; 0: a few polls")
    parser.add_argument("--verify-seconds", type=float, default=0.0, help="how long POST /verify takes to answer")
    parser.add_argument("--forget-fetched", action="store_true", help="forget a job when all its results were given")
    parser.add_argument("--count-only", action="store_true", help="keep 16 bytes of a paid lookup, not the lookup")
    parser.add_argument("--journal", metavar="FILE", help="append a JSON line for each paid lookup before replying")
    parser.add_argument("--idempotency", action="store_true", help="do a request with an Idempotency-Key only once")


if __name__ == "__main__":
    main()
