"""The former name of :mod:`bansong.client`, kept for one more release."""

from __future__ import annotations

import warnings

from bansong import client
from bansong.client import *  # noqa: F403

__all__ = client.__all__

warnings.warn("bansong.service is now bansong.client", DeprecationWarning, stacklevel=2)
