"""numpy, which only learning needs: the extra ``learn``."""

from __future__ import annotations

from types import ModuleType

from bizverify.errors import UsageError


def numpy() -> ModuleType:
    """The module, or :class:`UsageError` saying how to have it."""
    try:
        import numpy as np
    except ImportError as error:
        raise UsageError('learning needs numpy: pip install "bizverify[learn]"') from error
    return np
