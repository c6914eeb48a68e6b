"""``python -m bizverify``."""

from bizverify.cli import main

main()
