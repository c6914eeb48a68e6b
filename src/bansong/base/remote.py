"""Fetch remote files to private copies, and publish local files as remote ones."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bansong.base.errors import InputError, OutputError, Problem, UsageError
from bansong.base.files import STORES, RemotePath, create_private, private_folder, write_all
from bansong.base.messages import describe_os_error
from bansong.base.object_store import (
    RemoteVersion,
    changed_error,
    download_object,
    list_objects,
    look_at_object,
    missing_object_error,
    upload_object,
)

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

_MAX_REDIRECTS: Final = 5
_TIMEOUT_S: Final = 30.0
_CHUNK_BYTES: Final = 1 << 20


def download_page(url: RemotePath, copy: int, check_room: Callable[[int], None]) -> RemoteVersion:
    """Write the content of a URL to ``copy``; ``check_room`` gets the declared bytes, then those so far."""
    import httpx

    try:
        with (
            _open_client(url) as client,
            client.stream("GET", url.identity, headers={"Accept-Encoding": "identity"}) as response,
        ):
            _refuse_status(url, response.status_code)
            declared = int(response.headers.get("Content-Length", "0"))
            check_room(declared)
            size = 0
            for piece in response.iter_raw(_CHUNK_BYTES):
                check_room(size := size + len(piece))
                write_all(copy, piece)
            version = response.headers.get("ETag") or response.headers.get("Last-Modified")
            return RemoteVersion(version, None, size)
    except httpx.TooManyRedirects:
        raise InputError(REDIRECTS_ENDLESS, url=url) from None
    except (httpx.TransportError, httpx.InvalidURL, ValueError):  # their texts may show the query
        raise InputError(WEB_SERVER_UNREACHABLE, url=url) from None


def _open_client(url: RemotePath) -> httpx.Client:
    import httpx

    try:
        return httpx.Client(
            follow_redirects=True,
            max_redirects=_MAX_REDIRECTS,
            timeout=httpx.Timeout(_TIMEOUT_S, connect=10.0),
            event_hooks={"request": [lambda request: _refuse_plain(url, request)]},
        )
    except (OSError, ValueError, ImportError, httpx.InvalidURL):  # their texts may show the password of a proxy
        raise UsageError(NETWORK_SETTINGS_UNUSABLE, url=url) from None


def _refuse_plain(url: RemotePath, request: httpx.Request) -> None:
    if request.url.scheme != "https":
        raise InputError(REDIRECT_NOT_ENCRYPTED, url=url)


def _refuse_status(url: RemotePath, status: int) -> None:
    if status in (401, 403, 407):
        raise InputError(WEB_ACCESS_DENIED, url=url, status=status)
    if status in (404, 410):
        raise InputError(WEB_FILE_MISSING, url=url, status=status)
    if status != 200:
        raise InputError(WEB_SERVER_FAILED, url=url, status=status)


OUTPUT_COPY_UNWRITABLE: Final = Problem(
    "cloud.output_copy_unwritable",
    "{url}: cannot be written on this machine before it is sent: {reason}; TMPDIR chooses where",
)
WEB_OUTPUT_IMPOSSIBLE: Final = Problem(
    "cloud.web_output_impossible",
    "{url}: nothing is written to web servers, which have no way to replace a file as a whole; give "
    "a local output, or one at s3://, gs:// or az://",
)
OUTPUT_IS_FOLDER: Final = Problem("cloud.output_is_folder", "{url}: is a folder; name a file in it")
WEB_LISTING_IMPOSSIBLE: Final = Problem(
    "cloud.web_listing_impossible", "{url}: a web server has no list of its files; name them one by one"
)
NO_ROOM_FOR_COPY: Final = Problem(
    "cloud.no_room_for_copy",
    "{url}: has {size:,} bytes, and {folder} has room for {free:,}; TMPDIR chooses where copies are made",
)
INPUT_COPY_FAILED: Final = Problem(
    "cloud.input_copy_failed", "{url}: cannot be copied here: {reason}; TMPDIR chooses where copies are made"
)

_LEFT_FREE_BYTES: Final = 64 << 20  # bytes of a disk that a copy leaves free
_COPY: Final = "data"
_MAX_NAME_BYTES: Final = 100  # of the local copy's name: file systems allow fewer bytes than stores


@dataclass(frozen=True, slots=True)
class InputData:
    """The bytes of an input, and the version of a remote one."""

    path: Path
    version: RemoteVersion | None = None


@contextmanager
def fetch_file(path: Path) -> Iterator[InputData]:
    """Yield the bytes of a file; a remote one is a private copy (0600), removed after the block."""
    if not isinstance(path, RemotePath):
        yield InputData(path)
        return
    with ExitStack() as resources:
        try:
            copy = resources.enter_context(private_folder()) / _COPY
            version = _download(path, copy)
        except OSError as error:  # a disk that is full, or fails
            raise InputError(INPUT_COPY_FAILED, url=path, reason=describe_os_error(error)) from error
        yield InputData(copy, version)


@contextmanager
def publish_remote(url: RemotePath, seen: RemoteVersion | None = None) -> Iterator[Path]:
    """Yield a private path; its file replaces the object if that is still the version ``seen`` (default: present)."""
    _refuse_output(url)
    before = seen or look_at_object(url, OutputError)
    with ExitStack() as resources:
        try:
            folder = resources.enter_context(private_folder())
        except OSError as error:
            raise unfinished_error(url, error) from error
        finished = folder / url.name.encode()[-_MAX_NAME_BYTES:].decode(errors="ignore")
        yield finished
        upload_object(finished, url, before)


def unfinished_error(url: RemotePath, error: OSError) -> OutputError:
    return OutputError(OUTPUT_COPY_UNWRITABLE, url=url, reason=describe_os_error(error))


def look_at_output(url: RemotePath) -> RemoteVersion | None:
    """Return the version that an output would replace, if any; refuse URLs that cannot be written to."""
    _refuse_output(url)
    return look_at_object(url, OutputError)


def _refuse_output(url: RemotePath) -> None:
    if url.scheme not in STORES:
        raise OutputError(WEB_OUTPUT_IMPOSSIBLE, url=url)
    if not url.key or url.is_folder:
        raise OutputError(OUTPUT_IS_FOLDER, url=url)


def look_at_input(url: RemotePath) -> RemoteVersion | None:
    """Return the version of an input; ``None`` for web files, whose version is known once read."""
    if url.scheme not in STORES:
        return None
    found = look_at_object(url)
    if found is None:
        raise missing_object_error(url)
    return found


def is_there(path: Path) -> bool:
    if not isinstance(path, RemotePath):
        return path.exists()
    return path.scheme in STORES and look_at_object(path) is not None


def list_files(folder: RemotePath) -> list[RemotePath]:
    if folder.scheme not in STORES:
        raise InputError(WEB_LISTING_IMPOSSIBLE, url=folder)
    return list_objects(folder)


def _download(url: RemotePath, copy: Path) -> RemoteVersion:
    def check_room(size: int) -> None:
        free = shutil.disk_usage(copy.parent).free + os.fstat(descriptor).st_size
        if size + _LEFT_FREE_BYTES > free:
            raise InputError(
                NO_ROOM_FOR_COPY, url=url, size=size, folder=copy.parent.parent, free=max(0, free - _LEFT_FREE_BYTES)
            )

    descriptor = create_private(copy)
    try:
        if url.scheme not in STORES:
            return download_page(url, descriptor, check_room)
        version = look_at_object(url)
        if version is None:
            raise missing_object_error(url)
        check_room(version.size or 0)
        download_object(url, version, descriptor)
        if version.size is not None and os.fstat(descriptor).st_size != version.size:
            raise changed_error(url)
        return version
    finally:
        os.close(descriptor)
