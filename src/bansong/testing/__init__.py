"""Fakes of the hosted service and of the tax authority's API, for tests: ASGI apps with chosen faults.

They are written from the services' documents and share no code with the clients: a misreading of a document shows.
"""

from bansong.testing.fake_nts import NTS_FAULTS as NTS_FAULTS
from bansong.testing.fake_nts import EditedRows as EditedRows
from bansong.testing.fake_nts import FakeNts as FakeNts
from bansong.testing.fake_nts import nts_row as nts_row
from bansong.testing.fake_nts import portal_code as portal_code
from bansong.testing.fake_service import FakeService as FakeService
from bansong.testing.fake_service import serve as serve
from bansong.testing.faults import GARBAGE as GARBAGE
from bansong.testing.faults import HTML as HTML
from bansong.testing.faults import Act as Act
from bansong.testing.faults import Body as Body
from bansong.testing.faults import Delay as Delay
from bansong.testing.faults import Duplicated as Duplicated
from bansong.testing.faults import Emptied as Emptied
from bansong.testing.faults import Fault as Fault
from bansong.testing.faults import Faults as Faults
from bansong.testing.faults import FirstJob as FirstJob
from bansong.testing.faults import Hang as Hang
from bansong.testing.faults import Huge as Huge
from bansong.testing.faults import InvalidByte as InvalidByte
from bansong.testing.faults import Missing as Missing
from bansong.testing.faults import Partial as Partial
from bansong.testing.faults import Redirect as Redirect
from bansong.testing.faults import Reordered as Reordered
from bansong.testing.faults import Repeated as Repeated
from bansong.testing.faults import Reset as Reset
from bansong.testing.faults import Retyped as Retyped
from bansong.testing.faults import ShiftedKeys as ShiftedKeys
from bansong.testing.faults import SomebodyElses as SomebodyElses
from bansong.testing.faults import Status as Status
from bansong.testing.faults import Truncate as Truncate
from bansong.testing.faults import Twice as Twice
from bansong.testing.faults import Word as Word
from bansong.testing.faults import fresh as fresh
from bansong.testing.messages import DIALECTS as DIALECTS
from bansong.testing.messages import BrokenConnectionError as BrokenConnectionError
from bansong.testing.messages import Dialect as Dialect
from bansong.testing.messages import Lookup as Lookup
from bansong.testing.messages import verdict as verdict
