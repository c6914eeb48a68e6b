"""The public name of :mod:`bizverify.business_number`."""

from __future__ import annotations

import sys

from bizverify import business_number

sys.modules[__name__] = business_number
