"""Keys and region of a profile of ``~/.aws``, for those that have no ``AWS_ACCESS_KEY_ID`` in their environment."""

from __future__ import annotations

import os
from configparser import ConfigParser
from configparser import Error as ConfigError
from pathlib import Path
from typing import Final

from bansong.errors import Problem, UsageError

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
"""Names of the files, and what obstore calls them."""
_NOT_NEEDED: Final = (
    *("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"),
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
"""Variables that name credentials themselves; of these a profile has no say, but for its region."""


def read_profile() -> dict[str, str]:
    """Return what the profile in force says, by obstore's names; what the environment says is left out.

    Raises :class:`UsageError` for a profile that was named and is not there, or has no keys of its own.
    """
    named = os.environ.get("AWS_PROFILE")
    name = named or "default"
    found = _read_section("AWS_CONFIG_FILE", "config", name if name == "default" else f"profile {name}")
    found |= _read_section("AWS_SHARED_CREDENTIALS_FILE", "credentials", name)
    given = any(os.environ.get(variable) for variable in _NOT_NEEDED)
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
