"""The watch list: businesses at the service or in a local file, verified again and again.

::

    from bansong import watch

    watch.sync("customers.xlsx", apply=True, local=True)         # put the file's businesses on the local list
    report = watch.check(registry="registry.parquet")            # verify due businesses again
    watch.history_frame("124-81-00998", local=True)

``local=True`` is the user's own list, ``local="FILE"`` another one. Otherwise all but :func:`check` use the list at the
hosted service. Names of this package are loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bansong.client.webhook import verify_signature as verify_signature
    from bansong.watch.api import Placed as Placed
    from bansong.watch.api import add as add
    from bansong.watch.api import entries as entries
    from bansong.watch.api import history as history
    from bansong.watch.api import history_frame as history_frame
    from bansong.watch.api import remove as remove
    from bansong.watch.api import sync as sync
    from bansong.watch.checking import check as check
    from bansong.watch.report import CheckReport as CheckReport
    from bansong.watch.report import History as History
    from bansong.watch.syncing import SyncReport as SyncReport

_NAMES = {
    "client.webhook": ("verify_signature",),
    "watch.api": ("Placed", "add", "entries", "history", "history_frame", "remove", "sync"),
    "watch.checking": ("check",),
    "watch.report": ("CheckReport", "History"),
    "watch.syncing": ("SyncReport",),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [*sorted(_HOMES)]


def __getattr__(name: str) -> object:
    if name in _HOMES:
        found = getattr(importlib.import_module(f"bansong.{_HOMES[name]}"), name)
        globals()[name] = found
        return found
    raise AttributeError(f"module 'bansong.watch' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
