"""What an object store refused, or why it could not be reached, as a sentence with a remedy.

The texts of the libraries and stores are looked through and never shown: they quote keys and whole requests.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final
from urllib.parse import quote

from bizverify.cloud.remote_path import RemotePath
from bizverify.translation import gettext

_SETTINGS: Final = {
    "s3": "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_PROFILE, AWS_REGION",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS, GOOGLE_SERVICE_ACCOUNT",
    "az": "AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN, AZURE_CLIENT_ID",
}
"""Variables of the environment that a store's credentials come from."""

_NO_BUCKET: Final = re.compile("NoSuchBucket|ContainerNotFound|InvalidBucketName")

Explain = Callable[[RemotePath], str]


def explain_store_error(url: RemotePath, error: BaseException) -> str:
    """Return a sentence on what an operation of obstore on a URL raised; it holds nothing of the error's own text."""
    text = _codes_of(url, error)
    for pattern, explain in _KNOWN:
        if pattern.search(text):
            return explain(url)
    return gettext(
        "{url}: the store refused, or could not be understood ({kind}); check the URL and who may use it",
        url=url,
        kind=type(error).__name__,
    )


def means_no_bucket(url: RemotePath, error: BaseException) -> bool:
    """Whether it is the bucket that is not there, not only the object."""
    return _NO_BUCKET.search(_codes_of(url, error)) is not None


def _codes_of(url: RemotePath, error: BaseException) -> str:
    """The text of an error without the names of bucket and object, which may look like a code."""
    text = f"{type(error).__name__} {error}"
    for name in filter(None, (url.key, quote(url.key), quote(url.key, safe=""), url.bucket)):
        text = text.replace(name, "")
    return text


def _no_bucket(url: RemotePath) -> str:
    return gettext("{url}: there is no bucket or container {bucket}; check its name", url=url, bucket=url.bucket)


def _expired(url: RemotePath) -> str:
    return gettext("{url}: the credentials have expired; sign in again, or renew them in the environment", url=url)


def _unknown_key(url: RemotePath) -> str:
    return gettext(
        "{url}: the store does not accept the credentials; check {settings}", url=url, settings=_SETTINGS[url.scheme]
    )


def _no_credentials(url: RemotePath) -> str:
    return gettext("{url}: no credentials were found; set {settings}", url=url, settings=_SETTINGS[url.scheme])


def _clock(url: RemotePath) -> str:
    return gettext("{url}: the clock of this machine differs from the store's too much; set it right", url=url)


def _region(url: RemotePath) -> str:
    return gettext("{url}: the bucket is in another region; set AWS_REGION to it", url=url)


def _no_condition(url: RemotePath) -> str:
    return gettext(
        "{url}: this store has no conditional writes, without which a change by somebody else could be overwritten; "
        "write to a file and copy it",
        url=url,
    )


def _denied(url: RemotePath) -> str:
    return gettext(
        "{url}: these credentials may not do that; the owner of the bucket has to allow reading, writing or listing it",
        url=url,
    )


def _missing(url: RemotePath) -> str:
    return gettext("{url}: there is no such object; check its name", url=url)


def _unreachable(url: RemotePath) -> str:
    return gettext(
        "{url}: the store cannot be reached, or does not answer in time; check the network, and the endpoint if one is "
        "set",
        url=url,
    )


def _busy(url: RemotePath) -> str:
    return gettext("{url}: the store has failed, or is too busy; try again later", url=url)


_KNOWN: Final[tuple[tuple[re.Pattern[str], Explain], ...]] = tuple(
    (re.compile(pattern), explain)
    for pattern, explain in (
        (_NO_BUCKET.pattern, _no_bucket),
        (r"ExpiredToken|TokenRefreshRequired|RequestExpired", _expired),
        (r"InvalidAccessKeyId|SignatureDoesNotMatch|InvalidToken|AuthenticationFailed|invalid_grant", _unknown_key),
        (r"169\.254\.|metadata\.google|Account must be specified|MissingAccount|Missing\w*Key\b", _no_credentials),
        (r"RequestTimeTooSkewed", _clock),
        (
            r"PermanentRedirect|AuthorizationHeaderMalformed|IllegalLocationConstraint|missing region|configured region",
            _region,
        ),
        (r"NotImplemented|NotSupportedError", _no_condition),
        (r"AccessDenied|PermissionDenied|AuthorizationPermissionMismatch|403 Forbidden", _denied),
        (r"Unauthenticated|401 Unauthorized", _unknown_key),
        (r"FileNotFoundError|NotFoundError", _missing),
        (r"error sending request|HttpError|TimedOut|timed out|operation timed out|Connect", _unreachable),
        (r"SlowDown|5\d\d [A-Z]", _busy),
    )
)
