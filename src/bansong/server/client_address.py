"""The address of the client of a request: the peer's, or what a trusted proxy in front says of it."""

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
"""Bits of an IPv6 address that name a site: the rest is the site's own to choose."""
_LONGEST_ADDRESS: Final = 45
"""Characters of an address at most."""


class TrustedProxies:
    """The proxies whose ``X-Forwarded-For`` is believed: addresses, or networks (``10.0.0.0/8``).

    Raises :class:`UsageError` for a text that is neither.
    """

    def __init__(self, proxies: Iterable[str] = ()) -> None:
        self._networks = tuple(_parse_network(text) for text in proxies)

    def trusts(self, address: str) -> bool:
        """Return whether an address is one of the proxies."""
        parsed = parse_address(address) if self._networks else None
        return parsed is not None and any(parsed in network for network in self._networks)

    def client_of(self, scope: Any) -> str:
        """Return the address of the client of an ASGI request; empty where the peer has none (a Unix socket).

        Each trusted hop names the one before it at the end of ``X-Forwarded-For``; the last that is not trusted is the
        client. What stands before it is the client's own word. Where an entry is no address, the hop that passed it on
        is the client. ``Forwarded`` is not read: a proxy that does not know it passes on what a client invents.
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
    """Return a text as an address, without port or zone; one of IPv4 in the form of IPv6 is that of IPv4."""
    if len(text) > _LONGEST_ADDRESS or "%" in text:
        return None
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


@lru_cache(maxsize=4_096)
def site_of(address: str) -> str:
    """Return what stands for an address where addresses are counted: itself; of IPv6 its network of 64 bits."""
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
    """The entries of all ``X-Forwarded-For`` headers, the last first."""
    values = [value for name, value in headers if name == b"x-forwarded-for"]
    return reversed([entry.strip() for entry in b",".join(values).decode("latin-1").split(",")] if values else [])
