"""Addresses that a webhook may be posted to: public ones, and those of networks that the operator allows.

A tenant chooses the URL and the server connects: unchecked, a URL or its name's address could reach internal services.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

from bansong.errors import Problem, UsageError
from bansong.translation import gettext

NETWORK_INVALID: Final = Problem(
    "webhook.network_invalid", "{text!r} is no network: {error}; give it like 10.20.0.0/16 or fd00::/8"
)

IpNetwork = IPv4Network | IPv6Network
IpAddress = IPv4Address | IPv6Address

_GLOBAL_UNICAST: Final = IPv6Network("2000::/3")  # deprecated and reserved forms lie outside
_NAT64: Final = IPv6Network("64:ff9b::/96")
_NOT_PUBLIC: Final = tuple(
    map(
        ip_network,
        # `is_global` of some Python versions passes these: protocol assignments, the former 6to4 relays; in IPv6
        # tunnels that hold an IPv4 address (Teredo, 6to4), ORCHID, and what is for examples
        ("192.0.0.0/24", "192.88.99.0/24", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"),
    )
)

_HOST_NAME: Final = re.compile(r"(?!.{254})(?:(?!-)[a-z0-9_-]{1,63}(?<!-)(?:\.(?!$)|$))+", re.IGNORECASE)
"""Labels of RFC 1123, and the underscore that container networks allow."""


class RefusedAddressError(OSError):
    """An address that must not be posted to; the message has the remedy."""


class AddressPolicy:
    """Allow public addresses, and those in ``networks``."""

    def __init__(self, networks: Iterable[IpNetwork] = ()) -> None:
        self._networks = tuple(networks)

    def is_allowed(self, address: IpAddress) -> bool:
        """Whether a webhook may be posted to an address; embedded IPv4 addresses are judged as such."""
        judged = _embedded_address(address)
        if any(one in network for network in self._networks for one in (address, judged)):
            return True
        return _is_public(judged)

    def check(self, address: str) -> None:
        """Raise :class:`RefusedAddressError` for an address of the resolver that is not allowed."""
        parsed = ip_address(address)
        if not self.is_allowed(parsed):
            raise RefusedAddressError(
                gettext(
                    "{address} is no public address; if it is a receiver of your own, start the server with "
                    "`bansong serve --webhook-network {value}`",
                    address=address,
                    value=_embedded_address(parsed).compressed.partition("%")[0],
                )
            )

    def is_allowed_host(self, host: str) -> bool:
        """Whether a URL's host may be allowed, without asking a resolver."""
        name = host.rstrip(".").lower()
        if name == "localhost" or name.endswith(".localhost"):
            return False
        address = _literal_address(name)
        return address is None or self.is_allowed(address)


def can_exist(host: str) -> bool:
    """Whether a host is an address or a possible name; no name ends in a number or ``.invalid``."""
    name = host.removesuffix(".")
    if _literal_address(name) is not None:
        return True
    last = name.rpartition(".")[2].lower()
    return _HOST_NAME.fullmatch(name) is not None and not last.isdecimal() and last != "invalid"


def parse_network(text: str) -> IpNetwork:
    """Read a network like ``10.0.0.0/8``, or one address. Raises :class:`UsageError`."""
    try:
        return ip_network(text.strip())
    except ValueError as error:
        raise UsageError(NETWORK_INVALID, text=text, error=error) from None


def _is_public(address: IpAddress) -> bool:
    if not address.is_global or address.is_multicast or any(address in network for network in _NOT_PUBLIC):
        return False
    return isinstance(address, IPv4Address) or address in _GLOBAL_UNICAST


def _embedded_address(address: IpAddress) -> IpAddress:
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _NAT64:  # how IPv6-only networks reach public IPv4 receivers
            return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address


def _literal_address(host: str) -> IpAddress | None:
    # also 127.1 or 0x7f000001
    try:
        return ip_address(host)
    except ValueError:
        try:
            return IPv4Address(socket.inet_aton(host))
        except OSError:
            return None
