"""The former name of :mod:`bizverify.client`, kept for one more release."""

from __future__ import annotations

import warnings

from bizverify import client
from bizverify.client import *  # noqa: F403

__all__ = client.__all__

warnings.warn("bizverify.service is now bizverify.client", DeprecationWarning, stacklevel=2)
