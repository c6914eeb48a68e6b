"""Serve metrics on their own address, so that no proxy publishes them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, start_http_server

from bansong.errors import UsageError
from bansong.library_messages import describe_os_error
from bansong.translation import gettext

_log = logging.getLogger(__name__)


@contextmanager
def serve_metrics(registry: CollectorRegistry, host: str, port: int) -> Iterator[int]:
    """Serve ``GET /metrics`` during the block; yield the port.

    It runs in its own thread, so that it answers even if the event loop hangs. Raises :class:`UsageError` if it cannot
    listen there.
    """
    try:
        server, thread = start_http_server(port, host, registry)
    except (OSError, OverflowError) as error:
        reason = describe_os_error(error)
        message = gettext(
            "{host}:{port}: metrics cannot be answered there: {reason}; choose another `metrics_port=`",
            host=host,
            port=port,
            reason=reason,
        )
        raise UsageError(message) from error
    try:
        _log.info("metrics are answered on %s, port %d", host, server.server_port)
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
