"""Variants of the service where INTERFACE.md says "not shown": each choice is a field."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal


@dataclass(frozen=True, slots=True)
class Dialect:
    """One way to fill the gaps of INTERFACE.md.

    ``created``: status of replies that create something. ``job_ids``: form of identifiers (``odd`` ones need quoting,
    ``integer`` ones break the document). ``envelope``: key around replies without a shown shape. ``extras``: add fields
    that no document names.
    """

    created: int = 200
    job_ids: Literal["hex", "number", "odd", "integer"] = "hex"
    envelope: str | None = None
    extras: bool = False
    blanks: Literal["null", "absent", "empty"] = "null"
    """Fields without value."""

    words: tuple[str, ...] = ("processing",)
    """Values of ``status`` before the last: one per poll, or per part of ``job_seconds``."""
    done: str = "done"
    progress: Literal["none", "flat", "nested", "percent"] = "flat"

    results: tuple[str, ...] = ("results",)
    """Path to the list of results."""
    answer_under: str | None = None
    """Key of the seven fields in an item; ``None``: they are the item's own."""
    echo: Literal["none", "flat", "under"] = "flat"
    echo_under: str = "input"
    echoed: tuple[str, ...] = ("b_no", "name", "address")
    """Fields that an echo repeats."""
    verify_echo: Literal["none", "flat", "nested"] = "none"
    """``nested``: ``{"input": {…}, "result": {the seven fields}}``."""
    echo_number: str = "b_no"
    hyphens: bool = False
    """Echo the number as 123-45-67890."""
    row_key: str | None = "row_id"
    row_base: int = 0
    """Key of the first row; 2 is its line in a file with a header."""
    row_text: bool = False
    order: Literal["sent", "risk", "shuffled"] = "sent"
    early: Literal["absent", "empty", "so far"] = "empty"
    """Results of an unfinished job."""

    preview: int | None = 10
    """Default of ``preview``; ``None``: all."""
    preview_most: int | None = None
    """Maximum number of results."""
    zero_is_all: bool = False

    me: Literal["flat", "left", "nested", "camel", "list", "text"] = "flat"
    error: Literal["detail", "error", "nested", "list", "text", "empty"] = "detail"
    row_error: Literal["error", "object", "status"] = "error"
    """Form of a row that was not taken."""
    label: Literal[200, 201, 204] = 200
    removed: Literal[200, 204] = 200
    watch_ids: Literal["hex", "number"] = "hex"
    watch_number: str = "biz_no"
    watches: Literal["list", "watches", "items"] = "list"
    history: Literal["list", "history", "changes"] = "list"


DIALECTS: Final[dict[str, Dialect]] = {
    "wrapped": Dialect(
        created=202,
        envelope="data",
        extras=True,
        words=("PENDING", "IN_PROGRESS"),
        results=("result", "items"),
        answer_under="verification",
        echo="under",
        echo_under="input",
        row_key="row",
        row_base=1,
        early="absent",
        progress="percent",
        preview=None,
        error="nested",
        row_error="object",
        me="camel",
        watches="items",
        history="changes",
    ),
    "terse": Dialect(
        created=202,
        blanks="absent",
        words=(),
        progress="none",
        results=("rows",),
        echo="none",
        row_key=None,
        early="absent",
        preview=0,
        error="empty",
        row_error="status",
        me="left",
        label=204,
        removed=204,
    ),
    "shuffled": Dialect(
        job_ids="number",
        blanks="empty",
        words=("accepted", "working"),
        results=("results",),
        echo="none",
        row_key="index",
        row_base=1,
        row_text=True,
        order="shuffled",
        early="so far",
        preview=20,
        zero_is_all=True,
        error="list",
        me="list",
        watch_ids="number",
        watch_number="b_no",
    ),
}
"""Services that differ as much as the document allows; a correct client works with all of them.

``wrapped``: everything under keys. ``terse``: neither echo nor key, only the order. ``shuffled``: only a text key
joins. ``Dialect()`` is the document read kindly.
"""
