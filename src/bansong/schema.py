"""Frozen values that pass between stages, and the words of the column contract."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta, timezone
from typing import Final, Literal, get_args

Lang = Literal["en", "ko"]
LANGS: Final[tuple[Lang, ...]] = ("en", "ko")

InputFormat = Literal["csv", "xlsx", "xls", "xlsb", "ods", "html", "json", "ndjson", "parquet"]
INPUT_FORMATS: Final[tuple[InputFormat, ...]] = get_args(InputFormat)
"""What standard input may be said to be."""

SEOUL: Final = timezone(timedelta(hours=9), "Asia/Seoul")
"""The time zone of days and months. Korea has had no summer time since 1988, so that no time zone database is
needed."""


def seoul_day(unix_time: float | None = None) -> date:
    """Return the day in Korea, now or at a time: elsewhere it may still be the day before."""
    return (datetime.now(SEOUL) if unix_time is None else datetime.fromtimestamp(unix_time, SEOUL)).date()


ANSWER_COLUMNS: Final = (
    "biz_status",
    "bounce_prob",
    "grade",
    "action",
    "fixed_zipcode",
    "fixed_address",
    "reasons",
)
"""The seven fields of a verification, in the order in which they are added to the user's file."""

ROW_COLUMNS: Final = ("row_status", "row_note")
"""What became of the row itself."""

ADDED_COLUMNS: Final = (*ANSWER_COLUMNS, *ROW_COLUMNS)
"""The nine columns that enrichment adds, in this order."""

LABEL_COLUMNS: Final = ("bounced", "bounce_reason", "bounced_at")
"""What really became of the letter to a row: Boolean, text, date. Added where outcomes are joined back."""

EXTRA_COLUMNS: Final = ("duplicate_of", "match_level", "district_code", "building_code")
"""What is added behind the nine on request: the first row (from 1) with the same number and corrected address, how well
the address was understood, the code of the building's legal dong, the building's official number."""

OUR_COLUMNS: Final = (*ADDED_COLUMNS, *LABEL_COLUMNS, *EXTRA_COLUMNS)
"""All that is ever added to a user's file, under the names of the contract."""

RECORD_COLUMNS: Final = ("b_no", "name", "address", "zipcode")
"""What the engine reads of a row; only ``b_no`` is required."""

CONTEXT_COLUMNS: Final = ("confirmed",)
"""What else a file may say of a row, for the embedded engine alone: when its address was last made sure of."""

BIZ_STATUSES: Final = ("active", "suspended", "closed", "unregistered", "unknown")
GRADES: Final = ("A", "B", "C", "D", "E")
ACTIONS: Final = ("send", "fix_address", "confirm", "hold", "do_not_send")
ROW_STATUSES: Final = ("verified", "cached", "invalid", "pending", "in_doubt", "failed")

REASON_SEPARATOR: Final = " | "
"""Joins the reasons of a row in formats that have no lists (CSV, Excel)."""


@dataclass(frozen=True, slots=True)
class JoinedColumn:
    """A column of the user's file whose cells are put behind those of another: its position from 0, its header."""

    column: int
    header: str


@dataclass(frozen=True, slots=True)
class Choice:
    """A column of the user's file chosen for a role.

    ``column`` is its position from 0, ``header`` its header as written, ``confidence`` between 0 and 1
    (1: named by the user or an exact synonym), ``why`` one word for people. ``joined``: further columns that make up
    the value together with it, in their order. ``otherwise``: what is taken, row by row, where that value is blank.
    """

    column: int
    header: str
    confidence: float
    why: Literal["given", "header", "similar", "content"]
    joined: tuple[JoinedColumn, ...] = ()
    otherwise: tuple[Choice, ...] = ()

    @property
    def alternatives(self) -> tuple[Choice, ...]:
        """The choice without its alternatives, then these."""
        return (replace(self, otherwise=()), *self.otherwise)

    @property
    def parts(self) -> tuple[JoinedColumn, ...]:
        """All columns that are read for the value."""
        own = (JoinedColumn(self.column, self.header), *self.joined)
        return (*own, *(part for one in self.otherwise for part in one.parts))

    def spell(self, spell_part: Callable[[JoinedColumn], str], joint: str = "+", otherwise: str = "|") -> str:
        """Spell the columns with ``+`` between those that are joined and ``|`` between alternatives."""
        return otherwise.join(joint.join(map(spell_part, one.parts)) for one in self.alternatives)

    def move(self, place_of: Callable[[JoinedColumn], int]) -> Choice:
        """Return the choice by other positions of its columns."""
        joined = tuple(replace(part, column=place_of(part)) for part in self.joined)
        others = tuple(one.move(place_of) for one in self.otherwise)
        return replace(self, column=place_of(self.parts[0]), joined=joined, otherwise=others)


@dataclass(frozen=True, slots=True)
class Answer:
    """What is known of one business: the seven fields of INTERFACE §2.2, as received.

    Fields that are not known are ``None``; unknown words pass through.
    """

    biz_status: str | None = None
    bounce_prob: float | None = None
    grade: str | None = None
    action: str | None = None
    fixed_zipcode: str | None = None
    fixed_address: str | None = None
    reasons: tuple[str, ...] = ()


class Alert(str):
    """A warning that changes what the reader should do with the output.

    It stands among the warnings of a table or a report, and is shown before all other lines.
    """

    __slots__ = ()
