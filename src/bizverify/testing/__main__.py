"""The fake as a process of its own: ``python -m bizverify.testing``."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

from bizverify.testing.dialects import DIALECTS
from bizverify.testing.fake_service import FakeService
from bizverify.testing.faults import Delay, Fault, Faults
from bizverify.testing.server import listening, server_for, url_of


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the base URL on stdout and serve until interrupted."""
    given = _parser().parse_args(arguments)
    server = server_for(_service(given))
    listener = listening(given.host, given.port)
    sys.stdout.write(f"{url_of(listener)}\n")
    sys.stdout.flush()
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:
        sys.exit(130)


def _service(given: Namespace) -> FakeService:
    return FakeService(
        given.api_key,
        quota=given.quota,
        used=given.used,
        plan=given.plan,
        dialect=DIALECTS[given.dialect],
        max_rows=given.max_rows,
        max_bytes=given.max_bytes,
        batch_quota=given.batch_quota,
        job_seconds=given.job_seconds,
        forget_fetched=given.forget_fetched,
        count_only=given.count_only,
        journal=given.journal,
        idempotency=given.idempotency,
        faults=Faults(Fault("verify", Delay(given.verify_seconds))) if given.verify_seconds else None,
    )


def _parser() -> ArgumentParser:
    parser = ArgumentParser("python -m bizverify.testing", description="A fake of the hosted service, for tests.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: one that is free")
    parser.add_argument("--api-key", default="test-key")
    parser.add_argument("--quota", type=int, help="lookups a month; by default there is no limit")
    parser.add_argument("--used", type=int, default=0, help="lookups of it that are used already")
    parser.add_argument("--plan", default="business")
    parser.add_argument("--dialect", choices=sorted(DIALECTS), default="plain")
    parser.add_argument("--max-rows", type=int, help="413 for larger uploads")
    parser.add_argument("--max-bytes", type=int, help="413 for larger requests")
    parser.add_argument("--batch-quota", choices=("whole", "partial"), default="whole")
    parser.add_argument("--job-seconds", type=float, default=0.0, help="how long a job takes; 0: a few polls")
    parser.add_argument("--verify-seconds", type=float, default=0.0, help="how long POST /verify takes to answer")
    parser.add_argument("--forget-fetched", action="store_true", help="forget a job when all its results were given")
    parser.add_argument("--count-only", action="store_true", help="keep 16 bytes of a paid lookup, not the lookup")
    parser.add_argument("--journal", metavar="FILE", help="append a JSON line for each paid lookup before replying")
    parser.add_argument("--idempotency", action="store_true", help="do a request with an Idempotency-Key only once")
    return parser


if __name__ == "__main__":
    main()
