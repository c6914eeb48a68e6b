"""The version of bansong: its only source, read by the build too."""

from __future__ import annotations

__version__ = "0.2.0"
