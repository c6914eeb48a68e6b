"""How long a request may take, part by part."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Final

from bizverify.errors import UsageError, parameter

_CONNECT: Final = 10.0


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds to wait: for a connection, for the service to say something, and for it to take what is sent.

    The answer to an upload is waited for four times ``read``: a service may look at all the rows before it says
    anything. Raises :class:`UsageError` for a value that is not a number above zero.
    """

    connect: float = _CONNECT
    read: float = 30.0
    write: float = 30.0

    def __post_init__(self) -> None:
        for part in fields(self):
            seconds = getattr(self, part.name)
            if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
                raise UsageError(f"{parameter('timeout', seconds)}: {part.name} must be a number of seconds above 0")

    @classmethod
    def of(cls, timeout: float | Timeouts) -> Timeouts:
        """The timeouts that one number stands for: it bounds each part, and a connection is waited for 10 s at most."""
        if isinstance(timeout, Timeouts):
            return timeout
        whole = cls(read=timeout, write=timeout)  # looks at the number before it is compared
        return replace(whole, connect=min(_CONNECT, timeout))
