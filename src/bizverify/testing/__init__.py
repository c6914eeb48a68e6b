"""Fakes for tests of your own: the hosted service as a plain ASGI app, with dialects and faults at will.

It shares nothing with the client: it is written from the service's document, so that a misreading shows.
"""

from bizverify.testing.answers import Lookup, verdict
from bizverify.testing.app import FakeService
from bizverify.testing.asgi import BrokenConnectionError
from bizverify.testing.dialects import DIALECTS, Dialect
from bizverify.testing.fault_actions import (
    GARBAGE,
    HTML,
    Act,
    Body,
    Delay,
    Hang,
    Huge,
    InvalidByte,
    Redirect,
    Reset,
    Retyped,
    Status,
    Truncate,
    Twice,
)
from bizverify.testing.faults import Fault, Faults, fresh
from bizverify.testing.result_acts import (
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
