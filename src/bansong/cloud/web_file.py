"""A file at an ``https`` URL, read by one GET."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from bansong.cloud.object_store import RemoteVersion
from bansong.cloud.remote_path import RemotePath
from bansong.errors import InputError, Problem, UsageError

if TYPE_CHECKING:
    import httpx

WEB_SERVER_FAILED: Final = Problem(
    "cloud.web_server_failed", "{url}: the server answered {status}; try again later, or copy the file here"
)
REDIRECT_NOT_ENCRYPTED: Final = Problem(
    "cloud.redirect_not_encrypted", "{url}: leads to a URL without TLS, which is not read; give one with https"
)
WEB_ACCESS_DENIED: Final = Problem(
    "cloud.web_access_denied",
    "{url}: may not be read by whoever has its URL ({status}); have one signed anew, or copy the file here",
)
WEB_FILE_MISSING: Final = Problem("cloud.web_file_missing", "{url}: there is no such file ({status}); check the URL")
REDIRECTS_ENDLESS: Final = Problem(
    "cloud.redirects_endless", "{url}: leads from one URL to the next without end; give the last"
)
WEB_SERVER_UNREACHABLE: Final = Problem(
    "cloud.web_server_unreachable",
    "{url}: cannot be reached, or was cut off; check the URL and the network, and run again",
)
NETWORK_SETTINGS_UNUSABLE: Final = Problem(
    "cloud.network_settings_unusable",
    "{url}: the certificates or the proxy that the environment names cannot be used; check SSL_CERT_FILE, "
    "SSL_CERT_DIR, HTTPS_PROXY and ALL_PROXY",
)

_REDIRECTS: Final = 5
_SILENCE: Final = 30.0
_CHUNK: Final = 1 << 20


def download_page(url: RemotePath, copy: int, check_room: Callable[[int], None]) -> RemoteVersion:
    """Write what is at a URL to the descriptor ``copy`` and return its version; raise :class:`InputError`.

    ``check_room`` is called with the bytes there will be, or that there are by now, and raises for too many.
    """
    import httpx

    try:
        with (
            _open_client(url) as client,
            client.stream("GET", url.identity, headers={"Accept-Encoding": "identity"}) as response,
        ):
            _refuse_status(url, response)
            declared = int(response.headers.get("Content-Length", "0"))
            check_room(declared)
            size = 0
            for piece in response.iter_raw(_CHUNK):
                check_room(size := size + len(piece))
                rest = memoryview(piece)
                while rest:
                    rest = rest[os.write(copy, rest) :]
            version = response.headers.get("ETag") or response.headers.get("Last-Modified")
            return RemoteVersion(version, None, size)
    except httpx.TooManyRedirects:
        raise InputError(REDIRECTS_ENDLESS, url=url) from None
    except (httpx.TransportError, httpx.InvalidURL, ValueError):  # their texts may show the query
        raise InputError(WEB_SERVER_UNREACHABLE, url=url) from None


def _open_client(url: RemotePath) -> httpx.Client:
    """Return a client with the certificates and proxies of the environment; raise :class:`UsageError` for bad ones."""
    import httpx

    try:
        return httpx.Client(
            follow_redirects=True,
            max_redirects=_REDIRECTS,
            timeout=httpx.Timeout(_SILENCE, connect=10.0),
            event_hooks={"request": [lambda request: _refuse_plain(url, request)]},
        )
    except (OSError, ValueError, ImportError, httpx.InvalidURL):  # their texts may show the password of a proxy
        raise UsageError(NETWORK_SETTINGS_UNUSABLE, url=url) from None


def _refuse_plain(url: RemotePath, request: httpx.Request) -> None:
    if request.url.scheme != "https":
        raise InputError(REDIRECT_NOT_ENCRYPTED, url=url)


def _refuse_status(url: RemotePath, response: httpx.Response) -> None:
    status = response.status_code
    if status == 200:
        return
    if status in (401, 403, 407):
        raise InputError(WEB_ACCESS_DENIED, url=url, status=status)
    if status in (404, 410):
        raise InputError(WEB_FILE_MISSING, url=url, status=status)
    raise InputError(WEB_SERVER_FAILED, url=url, status=status)
