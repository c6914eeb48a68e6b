"""Fakes of the hosted service and of the tax authority's API, for tests: ASGI apps with faults at will.

They are written from the services' documents and share no code with the clients, so that a misreading shows.
"""

from bansong.testing.dialects import DIALECTS, Dialect
from bansong.testing.fake_nts import FakeNts, nts_row
from bansong.testing.fake_service import FakeService
from bansong.testing.faults import (
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
from bansong.testing.messages import BrokenConnectionError
from bansong.testing.nts_faults import NTS_FAULTS, EditedRows, portal_code
from bansong.testing.result_faults import (
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
from bansong.testing.server import serve
from bansong.testing.verdicts import Lookup, verdict

__all__ = [
    "DIALECTS",
    "GARBAGE",
    "HTML",
    "NTS_FAULTS",
    "Act",
    "Body",
    "BrokenConnectionError",
    "Delay",
    "Dialect",
    "Duplicated",
    "EditedRows",
    "Emptied",
    "FakeNts",
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
    "nts_row",
    "portal_code",
    "serve",
    "verdict",
]
