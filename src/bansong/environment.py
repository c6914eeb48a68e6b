"""What a user set up: variables of the environment, and the state folder, under today's name or the former one.

bansong was called ``bizverify`` before 0.3. What was set up then is still used, with a line of notice: without the
ledger of that time every lookup would be bought again.
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
    """Return the variable ``BANSONG_…``; where it is not set, the variable of the former name, with a notice."""
    former = name.replace("BANSONG_", "BIZVERIFY_", 1)
    if name in os.environ or former not in os.environ:
        return os.environ.get(name)
    _notice(gettext("{former} is called {name} now; it is still read", former=former, name=name))
    return os.environ[former]


def state_directory() -> Path:
    """Return the folder of ledger, manifests and other stores: ``BANSONG_STATE_DIR``, or the platform's for a user.

    The platform's folder of the former name is used while the new one holds no ledger and it does, or while there is
    no new one.
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
    """Say it once for each process."""
    _log.warning(text)
