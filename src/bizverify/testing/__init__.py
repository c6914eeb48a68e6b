"""Fakes for tests of your own: the hosted service as a plain ASGI app, with dialects and faults at will.

It shares nothing with the client: it is written from the service's document, so that a misreading shows.
"""

from bizverify.testing.dialects import DIALECTS, Dialect
from bizverify.testing.fake_service import FakeService
from bizverify.testing.faults import (
    GARBAGE,
    HTML,
    Act,
    Body,
    Delay,
    Fault,
    Faults,
    Hang,
    Huge,
    InvalidByte,
    Redirect,
    Reset,
    Retyped,
    Status,
    Truncate,
    Twice,
    fresh,
)
from bizverify.testing.messages import BrokenConnectionError
from bizverify.testing.result_faults import (
    Duplicated,
    Emptied,
    FirstJob,
    Missing,
    Partial,
    Reordered,
    Repeated,
    ShiftedKeys,
    SomebodyElses,
    Word,
)
from bizverify.testing.server import serve
from bizverify.testing.verdicts import Lookup, verdict

__all__ = [
    "DIALECTS",
    "GARBAGE",
    "HTML",
    "Act",
    "Body",
    "BrokenConnectionError",
    "Delay",
    "Dialect",
    "Duplicated",
    "Emptied",
    "FakeService",
    "Fault",
    "Faults",
    "FirstJob",
    "Hang",
    "Huge",
    "InvalidByte",
    "Lookup",
    "Missing",
    "Partial",
    "Redirect",
    "Reordered",
    "Repeated",
    "Reset",
    "Retyped",
    "ShiftedKeys",
    "SomebodyElses",
    "Status",
    "Truncate",
    "Twice",
    "Word",
    "fresh",
    "serve",
    "verdict",
]
