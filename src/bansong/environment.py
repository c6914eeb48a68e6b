"""Environment variables and the state folder.

bansong was called ``bizverify``. Variables and a state folder of that name are still used, with a line of notice:
without their ledger every lookup would be bought again.
"""

from __future__ import annotations

import functools
import logging
import os
from pathlib import Path
from typing import Final

from bansong.translation import gettext

STATE_DIR: Final = "BANSONG_STATE_DIR"
_LEDGER: Final = "ledger.sqlite"
_log = logging.getLogger(__name__)


def variable(name: str) -> str | None:
    """Return an environment variable ``BANSONG_…``, or ``BIZVERIFY_…`` if only that is set."""
    former = name.replace("BANSONG_", "BIZVERIFY_", 1)
    if name in os.environ or former not in os.environ:
        return os.environ.get(name)
    _notice(gettext("{former} is called {name} now; it is still read", former=former, name=name))
    return os.environ[former]


def state_directory() -> Path:
    """Return the folder of ledger, manifests and other stores: ``BANSONG_STATE_DIR``, or the user's state folder.

    The folder ``bizverify`` is used if ``bansong`` does not exist, or if only ``bizverify`` holds a ledger.
    """
    if given := variable(STATE_DIR):
        return Path(given)
    from platformdirs import user_state_path

    folder, former = (user_state_path(name, appauthor=False) for name in ("bansong", "bizverify"))
    if not former.is_dir() or (folder / _LEDGER).exists() or (folder.exists() and not (former / _LEDGER).exists()):
        return folder
    _notice(gettext("the state folder of bizverify, the former name, is used: {former}", former=former))
    return former


@functools.cache
def _notice(text: str) -> None:
    """Log a notice once per process."""
    _log.warning(text)
