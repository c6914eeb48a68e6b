"""The errors that bansong raises on purpose.

::

    BansongError                      exit code
    ├── InputError                      2   a file that cannot be read as a table
    │   ├── NoTableError                2   a file that holds no table: a PDF, a program, an archive
    │   └── ColumnError                 2   no number column, or more than one that fits equally well
    ├── OutputError                     2   a result that cannot be written to its target
    ├── RegistryError                   2   a file that is no registry, or sources of which none can be built
    ├── GazetteerError                  2   a file that is no gazetteer, or sources of which none can be built
    ├── ModelError                      2   an inconsistent scorecard file
    ├── LabelError                      2   outcomes that do not fit their mailing
    ├── UsageError                      2   arguments that contradict each other
    │   └── NumberError                 2   a value that cannot be a business number (carries its ``problem``)
    ├── LedgerError                     2   a ledger that is damaged, in use, newer than this version, or misplaced
    ├── StoreError                      2   a database of a server, watch list, statuses: damaged, in use, or misplaced
    ├── ServiceError                    2   the hosted service refused, or did not answer as it should
    │   ├── AuthenticationError         4   401: the API key is missing or invalid
    │   ├── PlanError                   4   403: not available in the account's plan
    │   ├── NotFoundError               2   404: no such job or watch, or not this key's
    │   ├── TooLargeError               2   413: the file or request is too large
    │   ├── QuotaError                  5   429: the monthly quota is used up, or would be
    │   ├── LimitError                  5   429: too often or too much at once, or no room; the quota is not used up
    │   ├── RejectedError               2   any other 3xx or 4xx: refused, and so not paid
    │   ├── JobTimeoutError             5   a batch job took longer than the given time
    │   ├── ShapeError                  3   an unreadable success (carries the bytes)
    │   └── TransportError              5   no answer
    │       ├── NotSentError            5   certainly not sent, so not paid
    │       │   └── CertificateError    2   nothing was sent: the service's certificate is not trusted
    │       ├── UnavailableError        5   no usable answer to a free request, which may be sent again
    │       │   ├── ServiceTimeoutError     5   no answer in time
    │       │   ├── ServiceConnectionError  5   no connection came about, or it broke
    │       │   │   └── UnreachableError    5   no connection came about: a NotSentError, too
    │       │   └── ServerError             5   5xx
    │       └── DoubtError              3   perhaps sent, without a known answer (5xx, too)
    ├── JobRunningError                 6   a run of the same scheduled job is under way
    ├── StoppedError                  130   a run that buys was stopped from elsewhere; the same call goes on
    └── AccountingError                 1   rows in and rows out do not agree; nothing was published

A message names what was looked at (file, sheet, row, column, value), what is wrong with it, and what to do.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from traceback import format_exception
from typing import Self

from bansong.base.messages import Phrase
from bansong.base.schema import Alert


@dataclass(frozen=True, slots=True)
class Problem:
    """A kind of error: a stable ``code``, an English sentence with named fields, and its ``plural``."""

    code: str
    text: str
    plural: str = ""


class Notice(Phrase, Alert):
    """An alert about an output as data: its :class:`Problem` and the values of the sentence's fields."""

    code: str

    def __new__(cls, problem: Problem, /, **fields: object) -> Self:
        made = super().__new__(cls, problem.text, problem.plural, **fields)
        made.code = problem.code
        return made


class BansongError(Exception):
    """Base of all errors raised on purpose. ``str(error)`` is one line in the reader's language.

    ``problem``: a :class:`Problem`, or a sentence without a code. ``fields``: what the error is about, such as
    ``path``, ``sheet``, ``row``, ``column``, ``value``.
    """

    __module__ = "bansong.errors"  # tracebacks show the public name
    exit_code = 2

    def __init_subclass__(cls, exit_code: int | None = None) -> None:
        cls.exit_code = cls.exit_code if exit_code is None else exit_code
        if cls.__module__ == __name__:
            cls.__module__ = BansongError.__module__

    def __init__(self, problem: Problem | str = "", /, **fields: object) -> None:
        super().__init__(problem)
        self.fields = fields

    @property
    def code(self) -> str:
        """The stable code of the error; empty if the error was raised with a text only."""
        problem = self.args[0]
        return problem.code if isinstance(problem, Problem) else ""

    def __str__(self) -> str:
        problem = self.args[0]
        return str(Phrase(problem.text, problem.plural, **self.fields) if isinstance(problem, Problem) else problem)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def _render_traceback_(self) -> list[str]:
        """Show the message in IPython, without a traceback."""
        return [f"{type(self).__name__}: {self}"]


class InputError(BansongError):
    """The input file cannot be read as a table."""


class NoTableError(InputError):
    """The file is of a kind that holds no table."""


class ColumnError(InputError):
    """The needed columns cannot be chosen from the headers; ``missing`` is the role without a column."""

    def __init__(self, problem: Problem | str = "", /, missing: str | None = None, **fields: object) -> None:
        super().__init__(problem, **fields)
        self.missing = missing


class OutputError(BansongError):
    """The result cannot be written to its target."""


class RegistryError(BansongError):
    """The file is no registry, or none can be built from the sources."""


class GazetteerError(BansongError):
    """The file is no gazetteer, or none can be built from the address files."""


class ModelError(BansongError):
    """The scorecard file is inconsistent."""


class LabelError(BansongError):
    """Outcomes do not fit their mailing, or hold nothing usable."""


class UsageError(BansongError):
    """The arguments contradict each other or name something that does not exist."""


class NumberError(UsageError):
    """The value cannot be a business registration number.

    ``problem`` is one of :data:`bansong.base.business_number.PROBLEMS`. The message does not repeat the value: thirteen
    digits may be a person's resident registration number.
    """

    def __init__(self, problem: str, message: Problem | str, /, **fields: object) -> None:
        super().__init__(message, **fields)
        self.problem = problem

    def __reduce__(self) -> tuple[object, ...]:
        return partial(type(self), self.problem), self.args, self.__dict__


class LedgerError(BansongError):
    """The ledger cannot be used; it is never replaced silently."""


class StoreError(BansongError):
    """The database of a server, a local watch list or fetched statuses cannot be used."""


class ServiceError(BansongError):
    """The hosted service refused, or did not answer as it should.

    ``status``: the HTTP status; ``detail``: the body's message (without the key); ``retry_after``: the seconds to wait;
    ``raw``: an unreadable body (at most 64 KiB); ``request_id``: the service's id of the request, for its support. Each
    is ``None`` or empty if missing.
    """

    def __init__(
        self,
        problem: Problem | str = "",
        /,
        *,
        status: int | None = None,
        detail: str | None = None,
        retry_after: float | None = None,
        raw: bytes = b"",
        request_id: str | None = None,
        **fields: object,
    ) -> None:
        super().__init__(problem, status=status, detail=detail, retry_after=retry_after, **fields)
        self.status = status
        self.detail = detail
        self.retry_after = retry_after
        self.raw = raw
        self.request_id = request_id


class AuthenticationError(ServiceError, exit_code=4):
    """401: the API key is missing or invalid."""


class PlanError(ServiceError, exit_code=4):
    """403: the function is not available in the account's plan."""


class NotFoundError(ServiceError):
    """404: the job or watch does not exist, or the key has no right to it."""


class TooLargeError(ServiceError):
    """413: the file or request is too large."""


class QuotaError(ServiceError, exit_code=5):
    """429: the monthly quota is used up. Or it is too small for a planned run, which then sent nothing."""


class LimitError(ServiceError, exit_code=5):
    """429 for a limit other than the monthly quota. Nothing was done; the request may be sent again later."""


class RejectedError(ServiceError):
    """Any other status 3xx or 4xx: the request was refused, and so not paid."""


class JobTimeoutError(ServiceError, exit_code=5):
    """Timed out while waiting for a batch job, which goes on at the service."""


class ShapeError(ServiceError, exit_code=3):
    """The body of a success (2xx) cannot be read. The request may be paid, so it is never sent again."""


class TransportError(ServiceError, exit_code=5):
    """The service did not answer.

    ``cause``: :class:`ServiceTimeoutError`, :class:`ServiceConnectionError` or :class:`ServerError`; ``None`` for
    another cause. A free request raises that class; for others the class says whether the request was sent.
    """

    cause: type[UnavailableError] | None = None


class NotSentError(TransportError):
    """The request certainly did not reach the service. Nothing was paid; it may be sent again."""


class CertificateError(NotSentError, exit_code=2):
    """The service's certificate is not trusted, so nothing was sent. Trying again does not help."""


class UnavailableError(TransportError):
    """A free request got no usable answer (an outage, a maintenance page); it may be sent again."""


class ServiceTimeoutError(UnavailableError):
    """A free request got no answer in time."""


class ServiceConnectionError(UnavailableError):
    """The connection of a free request broke, or none came about."""


class UnreachableError(NotSentError, ServiceConnectionError):
    """No connection for a free request came about, or none in time."""


class ServerError(UnavailableError):
    """5xx: the service could not answer a free request."""


class DoubtError(TransportError, exit_code=3):
    """The request may have been sent, and its answer is unknown. It must not be resent automatically."""


class JobRunningError(BansongError, exit_code=6):
    """A run of the same scheduled job is under way; this one did nothing."""


class StoppedError(BansongError, exit_code=130):
    """A run that buys was cancelled. Unfinished outputs were not published; the ledger has what was bought."""


class AccountingError(BansongError, exit_code=1):
    """Rows in and rows out do not agree: a defect of bansong, so nothing was published."""

    def _render_traceback_(self) -> list[str]:
        """Show the whole traceback: a report of the defect needs it."""
        return "".join(format_exception(self)).splitlines()
