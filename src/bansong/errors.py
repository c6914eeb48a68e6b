"""The public name of :mod:`bansong.base.errors`."""

from bansong.base.errors import *  # noqa: F403
