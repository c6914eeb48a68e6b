"""Copy files of the web, S3, GCS and Azure here; publish local files as objects.

An object is written by one conditional PUT: no parts are left behind, and no change by others is overwritten
(docs/decisions/049-cloud-files.md).
"""

from __future__ import annotations

import atexit
import mmap
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from configparser import ConfigParser
from configparser import Error as ConfigError
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

from bansong.base.cancel import run_until_interrupted
from bansong.base.errors import BansongError, InputError, OutputError, Problem, UsageError
from bansong.base.files import STORES, RemotePath, create_private, private_folder, write_all
from bansong.base.messages import describe_os_error, gettext, gettext_noop

if TYPE_CHECKING:
    from obstore.store import ObjectStore

    from bansong.base.http import httpx

_SETTINGS: Final = {
    "s3": "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_PROFILE, AWS_REGION",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS, GOOGLE_SERVICE_ACCOUNT",
    "az": "AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN, AZURE_CLIENT_ID",
}

_NO_BUCKET: Final = "NoSuchBucket|ContainerNotFound|InvalidBucketName"
_NOT_ACCEPTED: Final = gettext_noop("{url}: the store does not accept the credentials; check {settings}")
_MISSING: Final = gettext_noop("{url}: there is no such object; check its name")
_UNKNOWN: Final = gettext_noop(
    "{url}: the store refused, or could not be understood ({kind}); check the URL and who may use it"
)
_WRITTEN_MEANWHILE: Final = gettext_noop(
    "{url}: somebody else has written this object meanwhile; it was not overwritten. Run again, or give another output"
)
_CHANGED_MEANWHILE: Final = gettext_noop(
    "{url}: somebody else has changed or removed this object meanwhile; it was not overwritten. Run again, or give "
    "another output"
)
_KNOWN: Final = {
    _NO_BUCKET: gettext_noop("{url}: there is no bucket or container {bucket}; check its name"),
    "ExpiredToken|TokenRefreshRequired|RequestExpired": gettext_noop(
        "{url}: the credentials have expired; sign in again, or renew them in the environment"
    ),
    "InvalidAccessKeyId|SignatureDoesNotMatch|InvalidToken|AuthenticationFailed|invalid_grant": _NOT_ACCEPTED,
    r"169\.254\.|metadata\.google|MissingAccount": gettext_noop("{url}: no credentials were found; set {settings}"),
    "ConditionalRequestConflict|OperationAborted": gettext_noop(
        "{url}: somebody else is writing this object right now; it was not overwritten. Run again"
    ),
    "RequestTimeTooSkewed": gettext_noop(
        "{url}: the clock of this machine differs from the store's too much; set it right"
    ),
    "PermanentRedirect|AuthorizationHeaderMalformed|IllegalLocationConstraint|configured region": gettext_noop(
        "{url}: the bucket is in another region; set AWS_REGION to it"
    ),
    "NotImplemented|NotSupportedError": gettext_noop(
        "{url}: this store has no conditional writes, without which a change by somebody else could be overwritten; "
        "write to a file and copy it"
    ),
    "AccessDenied|PermissionDenied|AuthorizationPermissionMismatch|403 Forbidden": gettext_noop(
        "{url}: these credentials may not do that; the owner of the bucket has to allow reading, writing or listing it"
    ),
    "Unauthenticated|401 Unauthorized": _NOT_ACCEPTED,
    "FileNotFoundError|NotFoundError": _MISSING,
    "InvalidPathError": gettext_noop(
        "{url}: an object there has an empty part, `.` or `..` in its name, so the folder cannot be listed; rename it, "
        "or name the files one by one"
    ),
    "HttpError|TimedOut|Timeout": gettext_noop(
        "{url}: the store cannot be reached, or does not answer in time; check the network, and the endpoint if one is "
        "set"
    ),
    r"SlowDown|5\d\d [A-Z]": gettext_noop("{url}: the store has failed, or is too busy; try again later"),
}  # sentences by patterns of errors; the first match counts


def _missing_error(url: RemotePath) -> InputError:
    return InputError(gettext(_MISSING, url=url))


def _explain(url: RemotePath, error: BaseException) -> str:
    text = _codes_of(url, error)
    sentence = next((sentence for pattern, sentence in _KNOWN.items() if re.search(pattern, text)), _UNKNOWN)
    fields = {"bucket": url.bucket, "settings": _SETTINGS.get(url.scheme), "kind": type(error).__name__}
    return gettext(sentence, url=url, **fields)


def _means_no_bucket(url: RemotePath, error: BaseException) -> bool:
    return re.search(_NO_BUCKET, _codes_of(url, error)) is not None


def _codes_of(url: RemotePath, error: BaseException) -> str:
    # without bucket and object names, which may look like codes
    text = f"{type(error).__name__} {error}"
    for name in filter(None, (url.key, quote(url.key), quote(url.key, safe=""), url.bucket)):
        text = text.replace(name, "")
    return text


PROFILE_WITHOUT_KEY: Final = Problem(
    "cloud.profile_without_key",
    "the profile {name!r} (AWS_PROFILE) has no access key of its own in ~/.aws; for one that signs in or "
    "takes a role, set in the environment what `aws configure export-credentials` prints",
)
AWS_SETTINGS_UNREADABLE: Final = Problem(
    "cloud.aws_settings_unreadable", "{path}: cannot be read as the settings of AWS; check it"
)

_KEYS: Final = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
    "region": "region",
    "endpoint_url": "endpoint",
}
# credentials in the environment (``AWS_…``) that override a profile except for its region and endpoint
_OVERRIDING: Final = (
    "ACCESS_KEY_ID WEB_IDENTITY_TOKEN_FILE CONTAINER_CREDENTIALS_RELATIVE_URI CONTAINER_CREDENTIALS_FULL_URI"
)


def _read_profile() -> dict[str, str]:
    """Return the AWS profile's settings that the environment does not set, by obstore's names."""
    named = os.environ.get("AWS_PROFILE")
    name = named or "default"
    found = _read_section("AWS_CONFIG_FILE", "config", name if name == "default" else f"profile {name}")
    found |= _read_section("AWS_SHARED_CREDENTIALS_FILE", "credentials", name)
    given = any(os.environ.get(f"AWS_{one}") for one in _OVERRIDING.split())
    if named and not given and "aws_access_key_id" not in found:
        raise UsageError(PROFILE_WITHOUT_KEY, name=name)
    settings = {ours: found[theirs] for theirs, ours in _KEYS.items() if found.get(theirs)}
    if given:
        settings = {key: settings[key] for key in ("region", "endpoint") if key in settings}
    if os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"):
        settings.pop("region", None)
    if os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL"):
        settings.pop("endpoint", None)
    return settings


def _read_section(variable: str, usual: str, section: str) -> dict[str, str]:
    path = Path(os.environ.get(variable) or Path.home() / ".aws" / usual)
    parser = ConfigParser(interpolation=None, default_section="")
    try:
        parser.read(path, encoding="utf-8")
    except (ConfigError, UnicodeDecodeError, OSError):  # the error would show the line, which may be a key
        raise UsageError(AWS_SETTINGS_UNREADABLE, path=path) from None
    return dict(parser[section]) if parser.has_section(section) else {}


OBJECT_CHANGED: Final = Problem("cloud.object_changed", "{url}: was changed while it was being read; run again")
OBJECT_TOO_LARGE: Final = Problem(
    "cloud.object_too_large",
    "{url}: would have {size:,} bytes, and objects are written in one piece of at most {largest:,}; pack "
    "it (.gz), or write Parquet",
)
BUCKET_NAME_INVALID: Final = Problem("cloud.bucket_name_invalid", "{url}: is no name of a bucket")
ENDPOINT_NOT_ENCRYPTED: Final = Problem(
    "cloud.endpoint_not_encrypted",
    "{url}: the endpoint {host} is without TLS, so anybody on the way could read what is sent; give one "
    "with https, or set {variable}=true",
)
CLOUD_EXTRA_MISSING: Final = Problem(
    "cloud.cloud_extra_missing", 'files of s3://, gs:// and az:// need an extra: pip install "bansong[cloud]"'
)

LARGEST: Final = 5_000 << 20  # bytes that S3 and Azure take in one piece
_CHUNK_BYTES: Final = 4 << 20
_CONNECT_TIMEOUT_S: Final = 10
_MIN_BYTES_PER_S: Final = 250_000  # slower transfers (bytes/s) time out
_READ_TIMEOUT_S: Final = 30
_EXIT_PAUSE_S: Final = 0.1
_MAX_RETRIES: Final = 3
# metadata of an object with the id of its upload: shows whether an unanswered write was made
_MARK: Final = "bizverifyupload"
_ENDPOINTS: Final = {"s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"), "az": ("AZURE_STORAGE_ENDPOINT",), "gs": ()}
# variables that allow endpoints without TLS
_PLAIN: Final = {"s3": "AWS_ALLOW_HTTP", "az": "AZURE_ALLOW_HTTP", "gs": "GOOGLE_ALLOW_HTTP"}
_LOOPBACK: Final = re.compile(r"localhost|127(\.\d+){3}|::1")


@dataclass(frozen=True, slots=True)
class RemoteVersion:
    """The version of a remote file. ``e_tag`` and ``generation``: as its store gives them."""

    e_tag: str | None
    generation: str | None
    size: int | None

    def as_condition(self) -> dict[str, str]:
        return {key: value for key, value in (("e_tag", self.e_tag), ("version", self.generation)) if value}

    @property
    def label(self) -> str | None:
        return self.generation or self.e_tag


def look_at_object(url: RemotePath, failure: type[BansongError] = InputError) -> RemoteVersion | None:
    """Return the version of an object, ``None`` if there is none; raise errors of the class ``failure``."""
    found = _look(url, failure)
    return found and found[0]


def download_object(url: RemotePath, version: RemoteVersion, copy: int) -> None:
    """Copy this version of an object to the descriptor ``copy``; raise :class:`InputError` if it has changed."""
    store = _open_store(url, version.size or 0, reads=True)
    import obstore
    from obstore.exceptions import PreconditionError

    async def download() -> None:
        got = await obstore.get_async(store, url.key, options={"if_match": version.e_tag} if version.e_tag else {})
        async for piece in got.stream(min_chunk_size=_CHUNK_BYTES):
            write_all(copy, piece)

    try:
        run_until_interrupted(download)
    except PreconditionError:
        raise InputError(OBJECT_CHANGED, url=url) from None
    except _error_types() as error:
        raise InputError(_explain(url, error)) from None


def upload_object(path: Path, url: RemotePath, seen: RemoteVersion | None) -> None:
    """Replace an object atomically if it still is the version ``seen`` (``None``: no object)."""
    size = path.stat().st_size
    if size > LARGEST:
        raise OutputError(OBJECT_TOO_LARGE, url=url, size=size, largest=LARGEST)
    mode: Any = "create" if seen is None else seen.as_condition()
    store, mark = _open_store(url, size), secrets.token_hex(16)
    import obstore

    with path.open("rb") as file:
        # mapped, not read: a file's pages need no memory of this process
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""

        async def upload() -> None:
            await obstore.put_async(store, url.key, content, mode=mode, use_multipart=False, attributes={_MARK: mark})

        try:
            run_until_interrupted(upload)
        except KeyboardInterrupt:
            if not _was_made(url, mark):
                raise
        except _error_types() as error:
            if _was_made(url, mark):
                return
            raise OutputError(_explain_refusal(url, error, seen)) from None


def _list_objects(folder: RemotePath) -> list[RemotePath]:
    """List all objects below a folder by name. Empty objects that stand for folders are left out."""
    store = _open_store(folder, 0)
    import obstore

    async def collect() -> list[tuple[str, int]]:
        found = await obstore.list(store, prefix=folder.key or None).collect_async()
        return [(one["path"], one["size"]) for one in found]

    try:
        found = sorted(run_until_interrupted(collect))
    except _error_types() as error:
        raise InputError(_explain(folder, error)) from None
    root, folders = f"{folder.scheme}:", {key.rpartition("/")[0] for key, _ in found}
    paths = [
        (RemotePath(root, folder.bucket, *key.split("/")), size) for key, size in found if size or key not in folders
    ]
    return [path for path, size in paths if size or look_at_object(path) is not None]


def _look(url: RemotePath, failure: type[BansongError]) -> tuple[RemoteVersion, Any] | None:
    # by a GET: refusals of a HEAD carry no reason
    store = _open_store(url, 0)
    import obstore

    async def look() -> Any:
        return await obstore.get_async(store, url.key)

    try:
        got = run_until_interrupted(look)
    except _error_types() as error:
        if isinstance(error, FileNotFoundError) and not _means_no_bucket(url, error):
            return None
        raise failure(_explain(url, error)) from None
    meta = got.meta
    return RemoteVersion(meta["e_tag"], meta["version"], meta["size"]), got.attributes


def _was_made(url: RemotePath, mark: str) -> bool:
    """Whether an object has ``mark``, so that an upload without a confirmation took effect after all."""
    try:
        found = _look(url, OutputError)
    except (BansongError, KeyboardInterrupt):
        return False
    return found is not None and found[1].get(_MARK) == mark


def _explain_refusal(url: RemotePath, error: BaseException, seen: RemoteVersion | None) -> str:
    from obstore.exceptions import AlreadyExistsError, PreconditionError

    if isinstance(error, AlreadyExistsError):
        return gettext(_WRITTEN_MEANWHILE, url=url)
    if isinstance(error, PreconditionError) and seen is not None and not _means_no_bucket(url, error):
        return gettext(_CHANGED_MEANWHILE, url=url)
    return _explain(url, error)


@cache
def _wait_for_threads_at_exit() -> None:
    # obstore's threads take the GIL once more after the last result; at the interpreter's end, that aborts the process
    atexit.register(time.sleep, _EXIT_PAUSE_S)


def _open_store(url: RemotePath, size: int, *, reads: bool = False) -> ObjectStore:
    """Return the store of a URL, with a timeout for ``size`` bytes. Import obstore only after this."""
    try:
        from obstore.store import AzureStore, GCSStore, S3Store
    except ImportError:
        raise UsageError(CLOUD_EXTRA_MISSING) from None
    _wait_for_threads_at_exit()
    if not url.bucket or (url.scheme == "s3" and not re.fullmatch(r"[A-Za-z0-9._-]{1,255}", url.bucket)):
        raise UsageError(BUCKET_NAME_INVALID, url=url)
    seconds = 2 * _READ_TIMEOUT_S + size // _MIN_BYTES_PER_S
    client: Any = {"connect_timeout": f"{_CONNECT_TIMEOUT_S}s", "timeout": f"{seconds}s"}
    if reads:  # during an upload the store sends nothing, so this timeout would end it
        client["read_timeout"] = f"{_READ_TIMEOUT_S}s"
    backoff: Any = {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=2), "base": 2}
    retry: Any = {"max_retries": _MAX_RETRIES, "backoff": backoff, "retry_timeout": timedelta(seconds=seconds)}
    options: dict[str, Any] = {"client_options": client, "retry_config": retry}
    settings: Any = _read_profile() if url.scheme == "s3" else {}
    endpoint = settings.get("endpoint") or next(filter(None, map(os.environ.get, _ENDPOINTS[url.scheme])), None)
    if endpoint:
        settings["endpoint"] = endpoint
    client["allow_http"] = _allows_plain(url, endpoint)
    store: Any = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}[url.scheme]
    try:
        opened: ObjectStore = store(url.bucket, **options, **settings)
    except _error_types() as error:
        raise UsageError(_explain(url, error)) from None
    return opened


def _allows_plain(url: RemotePath, endpoint: str | None) -> bool:
    """Whether http without TLS is allowed: on loopback or by a variable. Raise for any other ``http`` endpoint."""
    variable = _PLAIN[url.scheme]
    parts = urlsplit(endpoint or "")
    if os.environ.get(variable, "").lower() == "true" or _LOOPBACK.fullmatch(parts.hostname or ""):
        return True
    if parts.scheme == "http":
        raise UsageError(ENDPOINT_NOT_ENCRYPTED, url=url, host=parts.hostname, variable=variable)
    return False


def _error_types() -> tuple[type[BaseException], ...]:
    from obstore.exceptions import BaseError

    # obstore does not export RustPanic, which it raises for an endpoint that is no URL
    panics = [kind for kind in Exception.__subclasses__() if kind.__name__ == "RustPanic"]
    return BaseError, FileNotFoundError, ValueError, *panics


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


def _download_page(url: RemotePath, copy: int, check_room: Callable[[int], None]) -> RemoteVersion:
    """Download a URL to the descriptor ``copy``. ``check_room`` gets the declared size, then the size so far."""
    from bansong.base.http import httpx

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
    from bansong.base.http import httpx

    try:
        return httpx.Client(
            follow_redirects=True,
            max_redirects=_MAX_REDIRECTS,
            timeout=httpx.Timeout(_READ_TIMEOUT_S, connect=_CONNECT_TIMEOUT_S),
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
    """The local file with an input's bytes, and the version of a remote input."""

    path: Path
    version: RemoteVersion | None = None


@contextmanager
def fetch_file(path: Path) -> Iterator[InputData]:
    """Yield a file's bytes. A remote file is copied to a private file (0600), removed after the block."""
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
    """Yield a private path; its file replaces the object if that still has the version ``seen`` (default: present)."""
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
    """Return the error to raise if the local copy of an output cannot be written."""
    return OutputError(OUTPUT_COPY_UNWRITABLE, url=url, reason=describe_os_error(error))


def look_at_output(url: RemotePath) -> RemoteVersion | None:
    """Return the version that an output would replace, if any; raise for URLs that cannot be written."""
    _refuse_output(url)
    return look_at_object(url, OutputError)


def _refuse_output(url: RemotePath) -> None:
    if url.scheme not in STORES:
        raise OutputError(WEB_OUTPUT_IMPOSSIBLE, url=url)
    if not url.key or url.is_folder:
        raise OutputError(OUTPUT_IS_FOLDER, url=url)


def look_at_input(url: RemotePath) -> RemoteVersion | None:
    """Return the version of an input; ``None`` for web files, whose version is known after reading."""
    if url.scheme not in STORES:
        return None
    found = look_at_object(url)
    if found is None:
        raise _missing_error(url)
    return found


def is_there(path: Path) -> bool:
    """Whether a file or an object exists. False for web pages, which are not requested."""
    if not isinstance(path, RemotePath):
        return path.exists()
    return path.scheme in STORES and look_at_object(path) is not None


def list_files(folder: RemotePath) -> list[RemotePath]:
    """List the objects below a URL; raise :class:`InputError` for the web."""
    if folder.scheme not in STORES:
        raise InputError(WEB_LISTING_IMPOSSIBLE, url=folder)
    return _list_objects(folder)


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
            return _download_page(url, descriptor, check_room)
        version = look_at_object(url)
        if version is None:
            raise _missing_error(url)
        check_room(version.size or 0)
        download_object(url, version, descriptor)
        if version.size is not None and os.fstat(descriptor).st_size != version.size:
            raise InputError(OBJECT_CHANGED, url=url)
        return version
    finally:
        os.close(descriptor)
