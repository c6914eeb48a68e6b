"""The former name of :mod:`bizverify.client`, kept for one more release."""

from __future__ import annotations

import sys
import warnings

from bizverify import client

warnings.warn("bizverify.service is now bizverify.client", DeprecationWarning, stacklevel=2)
sys.modules[__name__] = client
