"""The service's base URL, and the addresses that webhooks may reach.

>>> BaseUrl.parse("HTTPS://API.Example.com:443/v1/").origin
'https://api.example.com/v1'
>>> BaseUrl.parse("https://api.example.com").url("batch", "a/b", "label")
'https://api.example.com/batch/a%2Fb/label'
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final
from urllib.parse import SplitResult, quote, urlsplit

from bansong.base.errors import Problem, UsageError
from bansong.base.files import variable
from bansong.base.messages import Option, Phrase, gettext, parameter
from bansong.client.arguments import wrong_type

IDENTIFIER_IMPOSSIBLE: Final = Problem(
    "service.identifier_impossible", "{segment!r} is not an identifier that the service can have given"
)
URL_HOLDS_PASSWORD: Final = Problem(
    "service.url_holds_password",
    "the base URL holds a user name or password; give the API key by BANSONG_API_KEY instead",
)
# No message shows the value: it may be a key that was pasted in the wrong place.
URL_INCOMPLETE: Final = Problem(
    "service.url_incomplete", "the base URL lacks https:// or a host name; give it like https://api.example.com"
)
URL_HOLDS_QUERY: Final = Problem(
    "service.url_holds_query", "the base URL holds a query or fragment ('?' or '#'); leave it out"
)
URL_CHARACTER_FORBIDDEN: Final = Problem(
    "service.url_character_forbidden",
    "the base URL holds a space, a backslash or a control character; give it without",
)
URL_HOST_INVALID: Final = Problem("service.url_host_invalid", "the base URL has no valid host name; check it")
URL_PORT_INVALID: Final = Problem(
    "service.url_port_invalid", "the base URL's port is not between 1 and 65535; check it"
)
URL_HOLDS_DOTS: Final = Problem("service.url_holds_dots", "the base URL's path holds '.' or '..'; give it without")
URL_MISSING: Final = Problem(
    "service.url_missing", "no base URL: give the service's URL with {option}, or set {env_base_url}"
)
URL_NOT_ENCRYPTED: Final = Problem(
    "service.url_not_encrypted",
    "http://{host}: plain http would show the API key to the network; use https, or `allow_http=True`",
)
URL_SEGMENT_INVALID: Final = Problem("service.url_segment_invalid", "{segment!r} cannot be part of a URL")
URL_INVALID: Final = Problem("service.url_invalid", "the base URL is not a URL; give it like https://api.example.com")
URL_ADDRESS_INVALID: Final = Problem(
    "service.url_address_invalid", "the base URL's host is not an IP address; check it"
)
URL_PATH_INVALID: Final = Problem("service.url_path_invalid", "the base URL's path cannot be sent; check it")

ENV_BASE_URL: Final = "BANSONG_BASE_URL"
PORTS: Final = {"http": 80, "https": 443}
_IN_PATHS: Final = "/%:@!$&'()*+,;=-._~"
_HOST: Final = re.compile(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?\.?")


@dataclass(frozen=True, slots=True)
class BaseUrl:
    """The service's base URL in canonical form: lower case, no default port, no slash at the end.

    ``origin``: the whole URL. ``known_as``: the ledger's name of the service, if it is another URL.
    """

    origin: str
    scheme: str
    host: str
    known_as: str | None = None

    @classmethod
    def parse(cls, text: str | None, *, allow_http: bool = False, known_as: str | None = None) -> BaseUrl:
        """Check a base URL (default: BANSONG_BASE_URL); raise :class:`UsageError`.

        Plain http would show the key to the network: it needs ``allow_http``, except on this machine. ``known_as``: the
        base URL under which the ledger knows the service; nothing is sent there.
        """
        known = None if known_as is None else _known_origin(known_as)
        if text is not None and not isinstance(text, str):
            wrong_type("base_url", text, Phrase("the service's URL as a str"))
        text = (text or variable(ENV_BASE_URL) or "").strip()
        if not text:
            raise UsageError(URL_MISSING, option=Option("base_url"), env_base_url=ENV_BASE_URL)
        parts = _parts(text)
        host = _host(parts)
        if parts.scheme == "http" and not allow_http and not is_loopback(host):
            raise UsageError(URL_NOT_ENCRYPTED, host=host)
        return cls(f"{parts.scheme}://{_netloc(parts, host)}{_path(parts)}", parts.scheme, host, known)

    @property
    def name(self) -> str:
        """The name of the service in the ledger."""
        return self.known_as or self.origin

    @property
    def is_loopback(self) -> bool:
        """Whether the service runs on this machine."""
        return is_loopback(self.host)

    def url(self, *segments: str) -> str:
        """Return the URL of a path below the base. Segments are percent-encoded, so that none changes the path."""
        return "/".join([self.origin, *map(_quote_segment, segments)])

    def __str__(self) -> str:
        return self.origin


def _known_origin(text: str) -> str:
    try:
        return BaseUrl.parse(text.strip() or "none", allow_http=True).origin
    except UsageError as error:  # it does not show the value, which may hold a password
        raise UsageError(f"{parameter('known_as')}: {error}") from None


def _quote_segment(segment: str) -> str:
    if segment in ("", ".", ".."):
        raise UsageError(IDENTIFIER_IMPOSSIBLE, segment=segment)
    try:
        return quote(segment, safe="")
    except UnicodeEncodeError:
        raise UsageError(URL_SEGMENT_INVALID, segment=segment) from None


def _parts(text: str) -> SplitResult:
    try:
        parts = urlsplit(text)
        named = parts.hostname
    except ValueError:
        raise UsageError(URL_INVALID) from None
    if "@" in parts.netloc:
        raise UsageError(URL_HOLDS_PASSWORD)
    if parts.scheme not in PORTS or not named:
        raise UsageError(URL_INCOMPLETE)
    if parts.query or parts.fragment or text.endswith(("?", "#")):
        raise UsageError(URL_HOLDS_QUERY)
    if re.search(r"[\s\\\x00-\x1f\x7f]", text):
        raise UsageError(URL_CHARACTER_FORBIDDEN)
    return parts


def _host(parts: SplitResult) -> str:
    host = str(parts.hostname)
    if ":" in host:
        try:
            return f"[{ip_address(host).compressed}]"
        except ValueError:
            raise UsageError(URL_ADDRESS_INVALID) from None
    try:
        host = host if host.isascii() else host.encode("idna").decode("ascii")
    except UnicodeError:
        host = ""
    if not _HOST.fullmatch(host):
        raise UsageError(URL_HOST_INVALID)
    return host


def _netloc(parts: SplitResult, host: str) -> str:
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise UsageError(URL_PORT_INVALID)
    return host if port in (None, PORTS[parts.scheme]) else f"{host}:{port}"


def _path(parts: SplitResult) -> str:
    path = parts.path.rstrip("/")
    if any(segment in (".", "..") for segment in path.split("/")):
        raise UsageError(URL_HOLDS_DOTS)
    try:
        return quote(path, safe=_IN_PATHS)
    except UnicodeEncodeError:
        raise UsageError(URL_PATH_INVALID) from None


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine."""
    if host in ("localhost", "localhost.") or host.endswith((".localhost", ".localhost.")):
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


NETWORK_INVALID: Final = Problem(
    "webhook.network_invalid", "{text!r} is no network: {error}; give it like 10.20.0.0/16 or fd00::/8"
)

IpNetwork = IPv4Network | IPv6Network
IpAddress = IPv4Address | IPv6Address

_GLOBAL_UNICAST: Final = IPv6Network("2000::/3")  # without deprecated and reserved forms
_NAT64: Final = IPv6Network("64:ff9b::/96")
_NOT_PUBLIC: Final = tuple(
    map(
        ip_network,
        # global for some Python versions: protocol assignments, former 6to4 relays; in IPv6 tunnels with an embedded
        # IPv4 address (Teredo, 6to4), ORCHID, networks for examples
        ("192.0.0.0/24", "192.88.99.0/24", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"),
    )
)

_HOST_NAME: Final = re.compile(r"(?!.{254})(?:(?!-)[a-z0-9_-]{1,63}(?<!-)(?:\.(?!$)|$))+", re.IGNORECASE)
"""Labels of RFC 1123, and the underscore that container networks allow."""


class RefusedAddressError(OSError):
    """A webhook must not be posted to this address; the message has the remedy."""


class AddressPolicy:
    """The addresses that webhooks may reach: public ones, and those in ``networks``."""

    def __init__(self, networks: Iterable[IpNetwork] = ()) -> None:
        self._networks = tuple(networks)

    def is_allowed(self, address: IpAddress) -> bool:
        """Whether a webhook may be posted to an address. An embedded IPv4 address is judged as IPv4."""
        judged = _embedded_address(address)
        if any(one in network for network in self._networks for one in (address, judged)):
            return True
        return _is_public(judged)

    def check(self, address: str) -> None:
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
        name = host.rstrip(".").lower()
        if name == "localhost" or name.endswith(".localhost"):
            return False
        address = _literal_address(name)
        return address is None or self.is_allowed(address)


def can_exist(host: str) -> bool:
    """Whether a host is an address or a possible host name. No host name ends in a number or in ``.invalid``."""
    name = host.removesuffix(".")
    if _literal_address(name) is not None:
        return True
    last = name.rpartition(".")[2].lower()
    return _HOST_NAME.fullmatch(name) is not None and not last.isdecimal() and last != "invalid"


def parse_network(text: str) -> IpNetwork:
    """Parse a network like ``10.0.0.0/8``, or one address; raise :class:`UsageError`."""
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
