"""Register the polars namespace ``brn`` without importing polars.

``import bansong`` must make ``pl.col(…).brn`` work whichever of the two is imported first, and must stay fast:
polars takes longer to import than ``bansong --help`` may take altogether. So where polars is not loaded yet,
the registration waits for it (docs/decisions/003).
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class _AfterPolars:
    """An import hook that finds polars as usual and registers the namespace once polars is imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "polars":
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, (finder.find_spec(fullname, path, target) for finder in others)), None)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_register(module: ModuleType) -> None:
                run(module)
                if self in sys.meta_path:  # kept until now, since ``find_spec`` alone imports nothing
                    sys.meta_path.remove(self)
                register()

            spec.loader.exec_module = run_and_register  # type: ignore[method-assign]
        return spec


def register() -> None:
    """Add the ``brn`` namespace to polars expressions."""
    importlib.import_module("bansong.base.business_number")


def register_with_polars() -> None:
    """Register the namespace now, or as soon as polars is imported."""
    if "polars" in sys.modules:
        register()
    else:
        sys.meta_path.insert(0, _AfterPolars())
