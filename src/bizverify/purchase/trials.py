"""When a service that has answered nothing is not asked any more, in this run and in every later one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bizverify.errors import parameter
from bizverify.schema import counted

if TYPE_CHECKING:
    from bizverify.ledger import Ledger

TRIALS: Final = 3
"""How many trial uploads may come to nothing; the next waits for an answer to one of them, or for the user."""
REQUESTS: Final = 300
"""How many single requests may come to nothing: as many lookups as three trial uploads hold."""


def why_stopped(ledger: Ledger, origin: str, *, uploads: bool) -> str | None:
    """Return why nothing more may be bought from ``origin``, in uploads or by requests; ``None`` if something may."""
    if uploads:
        spent, most, what = ledger.spent_trials(origin), TRIALS, "trial upload"
    else:
        spent, most, what = ledger.unanswered_requests(origin), REQUESTS, "request"
    if spent < most:
        return None
    return (
        f"nothing more is bought from {origin}: {counted(spent, what)} came to nothing since its last answer; "
        "`bizverify resolve` lists them; when the service works again, "
        f"{parameter('retry_trial', True)} tries once more"
    )
