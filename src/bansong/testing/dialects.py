"""How the service may look where INTERFACE.md says "not shown": each such choice is a field, each preset a service."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal


@dataclass(frozen=True, slots=True)
class Dialect:
    """One way to fill the gaps of INTERFACE.md; what the document does show is the same in all of them.

    ``created`` is the status of a reply that made something, ``job_ids`` what an identifier looks like (``odd`` ones
    must be quoted in a path, ``integer`` ones break the document's word that it is a string), ``envelope`` a key under
    which replies without a shown shape are wrapped, ``extras`` whether objects have fields that no document names.
    """

    created: int = 200
    job_ids: Literal["hex", "number", "odd", "integer"] = "hex"
    envelope: str | None = None
    extras: bool = False
    blanks: Literal["null", "absent", "empty"] = "null"
    """How a field without a value looks."""

    words: tuple[str, ...] = ("processing",)
    """The words of ``status`` before the last, one a poll (or, with ``job_seconds``, one a part of that time)."""
    done: str = "done"
    progress: Literal["none", "flat", "nested", "percent"] = "flat"

    results: tuple[str, ...] = ("results",)
    """The path to the list of results in the status record."""
    answer_under: str | None = None
    """The key that holds the seven fields in an item; ``None``: they are the item's own."""
    echo: Literal["none", "flat", "under"] = "flat"
    echo_under: str = "input"
    echoed: tuple[str, ...] = ("b_no", "name", "address")
    """What an echo repeats."""
    verify_echo: Literal["none", "flat", "nested"] = "none"
    """How ``/verify`` repeats what was asked; ``nested``: ``{"input": {…}, "result": {the seven fields}}``."""
    echo_number: str = "b_no"
    hyphens: bool = False
    """Whether the number is echoed as 123-45-67890."""
    row_key: str | None = "row_id"
    row_base: int = 0
    """The key of the first row; 2 is the line in a file with a header."""
    row_text: bool = False
    order: Literal["sent", "risk", "shuffled"] = "sent"
    early: Literal["absent", "empty", "so far"] = "empty"
    """What stands in place of the results while the job is not done."""

    preview: int | None = 10
    """How many results are given when ``preview`` is not; ``None``: all."""
    preview_most: int | None = None
    """The most that are ever given, whatever ``preview`` says."""
    zero_is_all: bool = False

    me: Literal["flat", "left", "nested", "camel", "list", "text"] = "flat"
    error: Literal["detail", "error", "nested", "list", "text", "empty"] = "detail"
    row_error: Literal["error", "object", "status"] = "error"
    """How an item says that its row was not taken."""
    label: Literal[200, 201, 204] = 200
    removed: Literal[200, 204] = 200
    watch_ids: Literal["hex", "number"] = "hex"
    watch_number: str = "biz_no"
    watches: Literal["list", "watches", "items"] = "list"
    history: Literal["list", "history", "changes"] = "list"


DIALECTS: Final[dict[str, Dialect]] = {
    "plain": Dialect(),
    "ranked": Dialect(
        created=201,
        words=("queued", "running", "running"),
        order="risk",
        row_key="row_id",
        progress="nested",
        results=("top",),
        error="error",
        me="nested",
        label=201,
        removed=204,
        watches="watches",
        history="history",
    ),
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
    "lines": Dialect(
        created=201,
        job_ids="odd",
        words=("대기", "처리중"),
        results=("data", "results"),
        answer_under="result",
        echo="flat",
        hyphens=True,
        row_key="line",
        row_base=2,
        order="risk",
        progress="percent",
        error="text",
        me="text",
    ),
    "echoing": Dialect(
        extras=True,
        words=("received", "verifying", "verifying", "scoring"),
        results=("items",),
        echo="under",
        echo_under="request",
        echo_number="biz_no",
        row_key=None,
        order="shuffled",
        early="so far",
        progress="nested",
        error="error",
        row_error="object",
        me="nested",
    ),
    "glimpse": Dialect(
        words=("running",),
        results=("preview",),
        order="risk",
        preview=5,
        preview_most=100,
        me="left",
        error="nested",
    ),
}
"""Services that differ as much as the document lets them; a client that is right works with all of them.

``plain`` is the document read kindly. ``ranked``: the riskiest first. ``wrapped``: everything under keys. ``terse``:
neither echo nor key, so the order is all there is. ``shuffled``: only a text key joins. ``lines``: keys are lines of
the file, identifiers need quoting. ``echoing``: only the echo joins. ``glimpse``: never more than 100 results of a job.
"""
