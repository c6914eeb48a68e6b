"""The public name of :mod:`bansong.business_number`."""

from __future__ import annotations

import sys

from bansong import business_number

sys.modules[__name__] = business_number
