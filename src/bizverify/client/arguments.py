"""Checks of a call's arguments: what is wrong is said before anything is sent.

A message names the parameter, the type that came and the remedy; values are not repeated, they may be people's data.
"""

from __future__ import annotations

import math
import operator
import re
from typing import TYPE_CHECKING, Final, NoReturn

from bizverify import business_number
from bizverify.errors import UsageError, parameter

if TYPE_CHECKING:
    from bizverify.client.responses import BatchCreated

_TEN_DIGITS: Final = re.compile("[0-9]{10}")


def wrong_type(name: str, value: object, remedy: str) -> NoReturn:
    """Raise the :class:`UsageError` for an argument of another type than is asked for."""
    raise UsageError(f"{parameter(name)}: of type {type(value).__name__}; give {remedy}")


def text(name: str, value: object, remedy: str = "a str") -> str:
    """Return a text."""
    if not isinstance(value, str):
        wrong_type(name, value, remedy)
    return value


def optional_text(name: str, value: object) -> str | None:
    """Return a text or ``None``."""
    return None if value is None else text(name, value, "a str, or leave it out")


def ten_digits(name: str, value: object) -> str:
    """Return a business number as it is sent, or raise :class:`NumberError`."""
    b_no = text(name, value, "the number as a str, like '124-81-00998': an int loses the zeros that it begins with")
    if _TEN_DIGITS.fullmatch(b_no) is not None and b_no.strip("0"):
        return b_no  # the usual case, without a polars query
    return business_number.compact(b_no)


def flag(name: str, value: object) -> bool:
    """Return a truth value."""
    if not isinstance(value, bool):
        wrong_type(name, value, "True or False")
    return value


def whole_number(name: str, value: object, least: int | None = None) -> int:
    """Return a whole number, ``least`` or more; also one of numpy's."""
    try:
        if isinstance(value, bool):
            raise TypeError
        found = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        wrong_type(name, value, "an int")
    if least is not None and found < least:
        wanted = "above zero" if least == 1 else f"{least} or more"
        raise UsageError(f"{parameter(name, found)}: must be {wanted}")
    return found


def seconds(name: str, value: object) -> float:
    """Return a time in seconds above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        wrong_type(name, value, "seconds, as an int or float")
    if not 0 < value < math.inf:
        raise UsageError(f"{parameter(name, value)}: must be a number of seconds above 0")
    return value


def job_id_of(job: str | BatchCreated) -> str:
    """Return the identifier of a job, which may be given as what :meth:`Client.create_batch` returned."""
    found = getattr(job, "job_id", job)
    return text("job", found, "what create_batch returned, or its job_id as a str")
