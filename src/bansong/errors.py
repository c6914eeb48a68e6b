"""The public name of :mod:`bansong.base.errors`."""

from bansong.base import errors as _errors
from bansong.base.errors import *  # noqa: F403

__doc__ = _errors.__doc__
