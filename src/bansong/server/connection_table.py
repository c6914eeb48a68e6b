"""The connections of a server: which of them only wait, who has too many, and who makes room for others."""

from __future__ import annotations

import logging
import time
from collections import Counter
from enum import IntEnum
from typing import Final, Protocol

from bansong.server.client_address import TrustedProxies, site_of
from bansong.server.errors import Refusal, busy, limit_exceeded

_log = logging.getLogger(__name__)
_RETRY_AFTER_S: Final = 5
_LOGGED_EVERY: Final = 60.0


class Wait(IntEnum):
    """What a connection waits for while no request of it is worked on; the first of these makes room first."""

    REQUEST = 0
    """The head of its first request, or the rest of a body whose request is answered."""
    NEXT_REQUEST = 1
    """The head of another request."""
    CLIENT = 2
    """That its client takes what was answered."""


class WaitingConnection(Protocol):
    """A connection that may have to go."""

    def make_room(self) -> None: ...


class ConnectionTable:
    """Admits connections: at most ``most``, and at most ``per_address`` of one address that is no trusted proxy.

    Of IPv6, networks of 64 bits count as one address. Where there are as many as may be, the one that has waited
    longest makes room: whoever opens connections and asks nothing locks nobody out.
    """

    def __init__(self, most: int, per_address: int, proxies: TrustedProxies) -> None:
        self._most = most
        self._per_address = per_address
        self._proxies = proxies
        self._sites: dict[WaitingConnection, str] = {}
        self._of_site: Counter[str] = Counter()
        self._waiting: tuple[dict[WaitingConnection, None], ...] = tuple({} for _ in Wait)
        self._logged = -_LOGGED_EVERY

    def __len__(self) -> int:
        return len(self._sites)

    def admit(self, connection: WaitingConnection, address: str) -> Refusal | None:
        site = site_of(address)
        refusal = None
        if self._of_site[site] >= self._per_address and not self._proxies.trusts(address):
            self._log_crowd(site)
            if not self._make_room(site):
                message = f"your address has {self._of_site[site]:,} connections, as many as one may have"
                used = self._of_site[site]
                refusal = limit_exceeded("connections_per_address", self._per_address, used, message, _RETRY_AFTER_S)
        if len(self._sites) >= self._most and not self._make_room():
            refusal = busy("the server has as many connections as it takes on", _RETRY_AFTER_S)
        self._sites[connection] = site
        self._of_site[site] += 1
        self.wait(connection, Wait.REQUEST)
        return refusal

    def wait(self, connection: WaitingConnection, what: Wait) -> None:
        if connection in self._sites and connection not in self._waiting[what]:
            self.work(connection)
            self._waiting[what][connection] = None

    def work(self, connection: WaitingConnection) -> None:
        for waiting in self._waiting:
            waiting.pop(connection, None)

    def remove(self, connection: WaitingConnection) -> None:
        site = self._sites.pop(connection, None)
        if site is None:
            return
        self.work(connection)
        self._of_site[site] -= 1
        if not self._of_site[site]:
            del self._of_site[site]

    def _make_room(self, site: str | None = None) -> bool:
        for waiting in self._waiting:
            for connection in waiting:
                if site is None or self._sites[connection] == site:
                    self.remove(connection)
                    connection.make_room()
                    return True
        return False

    def _log_crowd(self, site: str) -> None:
        now = time.monotonic()
        if now - self._logged >= _LOGGED_EVERY:
            self._logged = now
            _log.warning(
                "%s has %d connections, as many as one address may have; if it is a proxy of yours, start the server "
                "with `bansong serve --trusted-proxy ADDRESS`",
                site,
                self._per_address,
            )
