"""``python -m bansong``."""

from bansong.cli import main

main()
