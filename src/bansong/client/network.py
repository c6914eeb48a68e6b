"""Network settings: timeouts, certificate authorities, the caller's own HTTP transport."""

from __future__ import annotations

import math
import os
import ssl
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Final

import httpx

from bansong.client.arguments import wrong_type
from bansong.client.base_url import BaseUrl
from bansong.errors import Problem, UsageError
from bansong.library_messages import describe_os_error
from bansong.translation import Option, Phrase, gettext

CA_BUNDLE_UNUSABLE: Final = Problem(
    "service.ca_bundle_unusable", "{option}: {fault}; give the path of a CA bundle (PEM)"
)
NETWORK_OPTION_REDUNDANT: Final = Problem(
    "service.network_option_redundant", "{option} does all of the network itself; leave {other_option} out"
)
CERTIFICATE_CHECK_OFF: Final = Problem(
    "service.certificate_check_off",
    "{option}: without a check of the certificate whoever answers for {host} would get the API key; give "
    "the path of the CA's certificate instead",
)
TIMEOUT_INVALID: Final = Problem("service.timeout_invalid", "{option}: {name} must be a number of seconds above 0")

HttpTransport = httpx.AsyncBaseTransport
Verify = bool | str | os.PathLike[str] | ssl.SSLContext

_CONNECT_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds for a connection, for a sign of the service, and for sending.

    Uploads wait four times ``read``: a service may check all rows first. Raises :class:`UsageError` for a value that
    is not a number above zero.
    """

    connect: float = _CONNECT_TIMEOUT_S
    read: float = 30.0
    write: float = 30.0

    def __post_init__(self) -> None:
        for part in fields(self):
            seconds = getattr(self, part.name)
            if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
                raise UsageError(TIMEOUT_INVALID, option=Option("timeout", seconds), name=part.name)

    @classmethod
    def of(cls, timeout: float | Timeouts) -> Timeouts:
        """Return a number as timeouts: it bounds each part; connecting takes 10 s at most."""
        if isinstance(timeout, Timeouts):
            return timeout
        whole = cls(read=timeout, write=timeout)  # checks the number before it is compared
        return replace(whole, connect=min(_CONNECT_TIMEOUT_S, timeout))


def tls_context(verify: Verify, base: BaseUrl) -> ssl.SSLContext | None:
    """Return the TLS context for ``verify``; ``None`` for the default. Raises :class:`UsageError`.

    Certificates are checked unless the service is on this machine: another service could read the API key.
    """
    if verify is True:
        return None
    if verify is False:
        _require_loopback(base)
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context
    if isinstance(verify, ssl.SSLContext):
        if verify.verify_mode != ssl.CERT_REQUIRED or not verify.check_hostname:
            _require_loopback(base)
        return verify
    if not isinstance(verify, str | os.PathLike):
        wrong_type("verify", verify, Phrase("the path of a CA bundle (PEM), or an ssl.SSLContext"))
    return _context_of(Path(verify).expanduser())


def check_http(http: HttpTransport | None, verify: Verify, app: object | None) -> HttpTransport | None:
    """Return the caller's transport; raise :class:`UsageError` for anything else."""
    if http is None:
        return None
    if not isinstance(http, HttpTransport):
        remedy = gettext("an httpx.AsyncBaseTransport, as httpx.AsyncHTTPTransport (to the blocking client, too)")
        wrong_type("http", http, remedy)
    if app is not None or verify is not True:
        other = "app" if app is not None else "verify"
        raise UsageError(NETWORK_OPTION_REDUNDANT, option=Option("http"), other_option=Option(other))
    return http


def _require_loopback(base: BaseUrl) -> None:
    if not base.is_loopback:
        raise UsageError(CERTIFICATE_CHECK_OFF, option=Option("verify"), host=base.host)


def _context_of(path: Path) -> ssl.SSLContext:
    try:
        if path.is_dir():
            return ssl.create_default_context(capath=str(path))
        return ssl.create_default_context(cafile=str(path))
    except ssl.SSLError:
        fault = Phrase("holds no certificates in PEM form")
    except OSError as error:
        fault = Phrase("cannot be read: {value}", value=describe_os_error(error))
    raise UsageError(CA_BUNDLE_UNUSABLE, option=Option("verify", str(path)), fault=fault)
