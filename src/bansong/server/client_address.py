"""The client's address of a request: the peer's, or what a trusted proxy reports."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Final

from bansong.errors import Problem, UsageError
from bansong.translation import Option

ADDRESS_INVALID: Final = Problem(
    "server.address_invalid", "{given}: {error}; give an address, or a network such as 10.0.0.0/8"
)

_IPV6_PREFIX: Final = 64
"""Bits of an IPv6 address that name a site; the site chooses the rest."""
_MAX_ADDRESS_LENGTH: Final = 45


class TrustedProxies:
    """Proxies whose ``X-Forwarded-For`` is trusted: addresses or networks. Other text raises :class:`UsageError`."""

    def __init__(self, proxies: Iterable[str] = ()) -> None:
        self._networks = tuple(_parse_network(text) for text in proxies)

    def trusts(self, address: str) -> bool:
        parsed = parse_address(address) if self._networks else None
        return parsed is not None and any(parsed in network for network in self._networks)

    def client_of(self, scope: Any) -> str:
        """Return the client's address of an ASGI request; empty for a Unix socket.

        Trusted hops are followed from the end of ``X-Forwarded-For``; the first hop that is not trusted is the client.
        An entry that is no address ends the walk. ``Forwarded`` is ignored: a proxy that does not know it passes on
        what clients invent.
        """
        peer = scope.get("client")
        address: str = peer[0] if peer else ""
        if not self._networks:
            return address
        hops = _forwarded_for(scope["headers"])
        while self.trusts(address) and (hop := next(hops, None)) is not None:
            parsed = parse_address(hop)
            if parsed is None:
                break
            address = str(parsed)
        return address


@lru_cache(maxsize=4_096)
def parse_address(text: str) -> IPv4Address | IPv6Address | None:
    """Parse an address without port or zone; an IPv4-mapped IPv6 address becomes IPv4."""
    if len(text) > _MAX_ADDRESS_LENGTH or "%" in text:
        return None
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


@lru_cache(maxsize=4_096)
def site_of(address: str) -> str:
    """Return what counts as one client: the address, or the /64 network of an IPv6 address."""
    parsed = parse_address(address.partition("%")[0])
    if isinstance(parsed, IPv6Address):
        return str(IPv6Network((parsed, _IPV6_PREFIX), strict=False))
    return address if parsed is None else str(parsed)


def _parse_network(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text.strip())
    except ValueError as error:
        given = Option("trusted_proxies", text)
        raise UsageError(ADDRESS_INVALID, given=given, error=error) from None


def _forwarded_for(headers: Iterable[tuple[bytes, bytes]]) -> Iterator[str]:
    values = [value for name, value in headers if name == b"x-forwarded-for"]
    return reversed([entry.strip() for entry in b",".join(values).decode("latin-1").split(",")] if values else [])
