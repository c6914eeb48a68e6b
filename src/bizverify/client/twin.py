"""Methods of :class:`Client` on other classes: the same name, parameters and text, another way of calling."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any


def twin_of(method: Callable[..., Any], call: Callable[..., Any], returns: str = "{}") -> Callable[..., Any]:
    """Return ``call`` with the name, signature and docstring of ``method``, for ``help()`` and completion.

    ``returns`` is what the twin returns, the method's own result in its braces.
    """
    assert isinstance(call, FunctionType)  # noqa: S101
    signature = inspect.signature(method)
    call.__name__, call.__doc__ = method.__name__, method.__doc__
    call.__signature__ = signature.replace(  # type: ignore[attr-defined]
        return_annotation=returns.format(signature.return_annotation)
    )
    return call
