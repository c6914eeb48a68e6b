"""Sentences with remedies for errors of object stores.

Texts of libraries and stores are searched but never shown: they quote keys and whole requests.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote

from bansong.cloud.remote_path import RemotePath
from bansong.errors import InputError
from bansong.translation import gettext, gettext_noop

_SETTINGS: Final = {
    "s3": "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_PROFILE, AWS_REGION",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS, GOOGLE_SERVICE_ACCOUNT",
    "az": "AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN, AZURE_CLIENT_ID",
}
"""Variables with credentials."""

_NO_BUCKET: Final = re.compile("NoSuchBucket|ContainerNotFound|InvalidBucketName")
_NOT_ACCEPTED: Final = gettext_noop("{url}: the store does not accept the credentials; check {settings}")
_MISSING: Final = gettext_noop("{url}: there is no such object; check its name")
_UNKNOWN: Final = gettext_noop(
    "{url}: the store refused, or could not be understood ({kind}); check the URL and who may use it"
)
_KNOWN: Final = tuple(
    (re.compile(pattern), sentence)
    for pattern, sentence in (
        (_NO_BUCKET.pattern, gettext_noop("{url}: there is no bucket or container {bucket}; check its name")),
        (
            "ExpiredToken|TokenRefreshRequired|RequestExpired",
            gettext_noop("{url}: the credentials have expired; sign in again, or renew them in the environment"),
        ),
        ("InvalidAccessKeyId|SignatureDoesNotMatch|InvalidToken|AuthenticationFailed|invalid_grant", _NOT_ACCEPTED),
        (
            r"169\.254\.|metadata\.google|MissingAccount",
            gettext_noop("{url}: no credentials were found; set {settings}"),
        ),
        (
            "ConditionalRequestConflict|OperationAborted",
            gettext_noop("{url}: somebody else is writing this object right now; it was not overwritten. Run again"),
        ),
        (
            "RequestTimeTooSkewed",
            gettext_noop("{url}: the clock of this machine differs from the store's too much; set it right"),
        ),
        (
            "PermanentRedirect|AuthorizationHeaderMalformed|IllegalLocationConstraint|configured region",
            gettext_noop("{url}: the bucket is in another region; set AWS_REGION to it"),
        ),
        (
            "NotImplemented|NotSupportedError",
            gettext_noop(
                "{url}: this store has no conditional writes, without which a change by somebody else could be "
                "overwritten; write to a file and copy it"
            ),
        ),
        (
            "AccessDenied|PermissionDenied|AuthorizationPermissionMismatch|403 Forbidden",
            gettext_noop(
                "{url}: these credentials may not do that; the owner of the bucket has to allow reading, writing or "
                "listing it"
            ),
        ),
        ("Unauthenticated|401 Unauthorized", _NOT_ACCEPTED),
        ("FileNotFoundError|NotFoundError", _MISSING),
        (
            "InvalidPathError",
            gettext_noop(
                "{url}: an object there has an empty part, `.` or `..` in its name, so the folder cannot be listed; "
                "rename it, or name the files one by one"
            ),
        ),
        (
            "HttpError|TimedOut|Timeout",
            gettext_noop(
                "{url}: the store cannot be reached, or does not answer in time; check the network, and the endpoint "
                "if one is set"
            ),
        ),
        (r"SlowDown|5\d\d [A-Z]", gettext_noop("{url}: the store has failed, or is too busy; try again later")),
    )
)
"""Patterns of errors and their sentences; the first match counts."""


def missing_object_error(url: RemotePath) -> InputError:
    return InputError(gettext(_MISSING, url=url))


def explain_store_error(url: RemotePath, error: BaseException) -> str:
    """Return a sentence about an error of obstore, without the error's own text."""
    text = _codes_of(url, error)
    sentence = next((sentence for pattern, sentence in _KNOWN if pattern.search(text)), _UNKNOWN)
    fields = {"bucket": url.bucket, "settings": _SETTINGS.get(url.scheme), "kind": type(error).__name__}
    return gettext(sentence, url=url, **fields)


def means_no_bucket(url: RemotePath, error: BaseException) -> bool:
    """Return whether the bucket is missing, not only the object."""
    return _NO_BUCKET.search(_codes_of(url, error)) is not None


def _codes_of(url: RemotePath, error: BaseException) -> str:
    """Return the text of an error without bucket and object names, which may look like codes."""
    text = f"{type(error).__name__} {error}"
    for name in filter(None, (url.key, quote(url.key), quote(url.key, safe=""), url.bucket)):
        text = text.replace(name, "")
    return text
