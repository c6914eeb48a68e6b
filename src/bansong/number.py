"""The public name of :mod:`bansong.base.business_number`."""

from __future__ import annotations

import sys

from bansong.base import business_number

sys.modules[__name__] = business_number
