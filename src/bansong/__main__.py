"""``python -m bansong``."""

from __future__ import annotations

from bansong.cli.app import main

main()
