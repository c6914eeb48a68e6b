"""What values the fields of options take, and options that are given in two ways."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Final, TypeVar

from bansong.errors import Problem, UsageError
from bansong.translation import Option, Phrase, gettext_noop

OPTION_TYPE_WRONG: Final = Problem("options.option_type_wrong", "{option} is a {given}; give a bansong.{wanted}")
FIELD_SAID_TWICE: Final = Problem(
    "options.field_said_twice", "{option} is a field of {other_option}, which is given as well; say it there"
)
VALUE_INVALID: Final = Problem("options.value_invalid", "{option}: must be {wanted}")

Options = TypeVar("Options")

Rule = tuple[Callable[[Any], bool], str]
"""Whether a value is right, and what is wanted, in words."""


def choose_options(name: str, given: Options | None, flat: Options) -> Options:
    """Return ``given``, the options in one value, or else those given as keywords of their own.

    ``name``: the parameter of the former. Raises :class:`UsageError` where both say something.
    """
    if given is None:
        return flat
    if not isinstance(given, type(flat)):
        raise UsageError(OPTION_TYPE_WRONG, option=Option(name), given=type(given).__name__, wanted=type(flat).__name__)
    if twice := differing_fields(flat):
        raise UsageError(FIELD_SAID_TWICE, option=Option(twice[0]), other_option=Option(name))
    return given


def differing_fields(options: Any) -> list[str]:
    """The fields that are not at their defaults."""
    return [field.name for field in fields(options) if getattr(options, field.name) != field.default]


def check_fields(options: object, rules: Mapping[str, Rule], **called: str) -> None:
    """Raise :class:`UsageError` for a field that its rule does not allow.

    ``called``: parameters of functions that have another name than the field.
    """
    for name, (is_right, wanted) in rules.items():
        value = getattr(options, name)
        try:
            right = is_right(value)
        except (TypeError, ValueError):  # a text, say
            right = False
        if not right:
            raise UsageError(VALUE_INVALID, option=Option(called.get(name, name), value), wanted=Phrase(wanted))


def is_whole(value: Any, least: int, most: float = math.inf) -> bool:
    """Whether a value is a whole number in a range."""
    return isinstance(value, int) and least <= value <= most


SHARED_RULES: Final[dict[str, Rule]] = {
    "max_age": (lambda value: value >= 0, gettext_noop("a number of days, 0 or more")),
    "concurrency": (lambda value: is_whole(value, 1, 1000), gettext_noop("from 1 to 1000")),
    "timeout": (lambda value: value > 0, gettext_noop("seconds, above 0")),
    "drain": (lambda value: value >= 0, gettext_noop("seconds, 0 or more")),
}
"""Rules of fields that buying and fetching have alike."""
