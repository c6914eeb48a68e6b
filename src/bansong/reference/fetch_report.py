"""The result of a fetch run."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date

from bansong.translation import gettext, ngettext


@dataclass(slots=True)
class StatusFetch:
    """The result of a fetch run, so far or at its end.

    ``numbers``: distinct numbers given. ``from_store``: fresh ones. ``asked``: sent at least once; ``answered``, of
    these ``unregistered``; ``unanswered``: left out by the replies again and again, today. ``left``: still to be asked.
    ``calls`` include ``retries``. ``seconds``: duration. ``budget_left``: of the day's budget (``None``: none).
    ``oldest``: oldest day of a stored status. ``problems``: unusable rows of replies, by a sentence. ``halt``: why it
    ended early; ``refused``: the key was refused, or its day's requests are used up; ``exit_code``: of a command that
    only fetches.
    """

    numbers: int = 0
    from_store: int = 0
    asked: int = 0
    answered: int = 0
    unregistered: int = 0
    unanswered: int = 0
    left: int = 0
    calls: int = 0
    retries: int = 0
    seconds: float = 0.0
    budget_left: int | None = None
    oldest: date | None = None
    problems: dict[str, int] = field(default_factory=dict)
    halt: str | None = None
    refused: bool = False
    exit_code: int = 0

    @property
    def unasked(self) -> int:
        """Due numbers that could not be asked."""
        return self.left if self.halt is not None else 0

    @property
    def run_exit_code(self) -> int:
        """Exit code of a run with stored statuses: 5 if the next one asks, 3 for a refusal."""
        if not self.unasked:
            return 0
        return 5 if self.exit_code == 5 else 3

    @property
    def rate(self) -> float:
        """Numbers answered a second."""
        return self.answered / self.seconds if self.seconds else 0.0

    def __str__(self) -> str:
        calls = ngettext("{count:,} call", "{count:,} calls", self.calls)
        parts = [
            ngettext("{count:,} number in {calls}", "{count:,} numbers in {calls}", self.asked, calls=calls),
            gettext("{answered:,} answered", answered=self.answered),
        ]
        if self.unregistered:
            parts.append(gettext("{unregistered:,} of them not registered", unregistered=self.unregistered))
        if self.unanswered:
            parts.append(gettext("{unanswered:,} without an answer today", unanswered=self.unanswered))
        if self.left:
            parts.append(gettext("{left:,} still to be asked", left=self.left))
        return ", ".join(parts)
