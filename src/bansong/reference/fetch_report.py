"""What a fetch run came to, and what it has come to so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date

from bansong.translation import gettext, ngettext


@dataclass(slots=True)
class StatusFetch:
    """What a fetch run came to; while it is under way, what it has come to so far.

    ``numbers``: distinct numbers that were given. ``from_store``: of these, fresh in the store, or in what was known
    besides. ``asked``: numbers that were to be asked and sent at least once; ``answered``, of which ``unregistered``
    are a status as well; ``unanswered``: those the replies left out again and again, today. ``left``: numbers that are
    still to be asked. ``calls``, of which ``retries`` were made again. ``seconds``: how long it asked. ``budget_left``:
    numbers that the day's budget still allows (``None``: no budget). ``oldest``: the oldest day of a status that is
    stored of the numbers. ``problems``: rows of replies that could not be used, by a sentence. ``halt``: why it ended
    early, one sentence, or ``None``; ``refused``: the key was refused, or its requests of the day are used up;
    ``exit_code``: of a command that does nothing else.
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
        """How many numbers were due and could not be asked."""
        return self.left if self.halt is not None else 0

    @property
    def run_exit_code(self) -> int:
        """Exit code of a run that went on with stored statuses: 5 where the next one asks, 3 for a refusal."""
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
