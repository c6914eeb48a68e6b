"""The public name of :mod:`bansong.base.errors`."""

from bansong.base import errors
from bansong.base.errors import *  # noqa: F403

__doc__ = errors.__doc__
