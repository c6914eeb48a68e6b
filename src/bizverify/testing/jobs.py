"""A batch job: what was uploaded, and how far it says it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from math import isfinite
from secrets import token_hex
from typing import TYPE_CHECKING, Final

from bizverify.testing.answers import Lookup
from bizverify.testing.uploads import Upload

if TYPE_CHECKING:
    from bizverify.testing.dialects import Dialect

_NUMBERS: Final = count(1001)


@dataclass(slots=True)
class Job:
    """The rows of an upload in their order; ``faults`` says of a row why it was not taken, by its place.

    Answers are not kept: they are made again from the rows whenever they are asked for.
    """

    id: str
    rows: Sequence[Lookup]
    upload: Upload
    started: float
    seconds: float = 0.0
    faults: dict[int, str] = field(default_factory=dict)
    polls: int = 0

    def progress(self, dialect: Dialect, now: float) -> tuple[str, int]:
        """The word of its status, and how many rows are done, at ``now``, for a poll that has just been counted.

        With ``seconds`` it is time that moves it on, else each poll does.
        """
        words = dialect.words
        if self.seconds:
            passed = now - self.started
            share = passed / self.seconds if isfinite(self.seconds) else 0.0
            share = share if passed >= 0 else 1.0  # the clock of another run: that job is long done
        else:
            share = (self.polls - 1) / len(words) if words else 1.0
        if share >= 1:
            return dialect.done, len(self.rows)
        step = int(share * len(words) + 1e-9)
        return (words[step] if words else "processing"), int(share * len(self.rows))


def new_id(dialect: Dialect) -> str:
    """An identifier no other job of this process has."""
    match dialect.job_ids:
        case "number" | "integer":
            return str(next(_NUMBERS))
        case "odd":
            return f"2026/11:{next(_NUMBERS)} 작업+#?"
    return token_hex(8)
