"""Declare options as fields of dataclasses; command line, job files, checks and messages derive from them."""
# Nothing here imports polars or click: ``--help`` loads it.

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache, wraps
from typing import Any, Final, TypeVar

from bansong.base.errors import Problem, UsageError
from bansong.base.messages import Option, Phrase

OPTION_TYPE_WRONG: Final = Problem("options.option_type_wrong", "{option} is a {given}; give a bansong.{wanted}")
FIELD_SAID_TWICE: Final = Problem(
    "options.field_said_twice", "{option} is a field of {other_option}, which is given as well; say it there"
)
VALUE_INVALID: Final = Problem("options.value_invalid", "{option}: must be {wanted}")
VALUE_TYPE_WRONG: Final = Problem("options.value_type_wrong", "{option}: must be {wanted}, not a {given}")

Kind = TypeVar("Kind")


@dataclass(frozen=True, slots=True)
class Rule:
    """A check of an option's values."""

    is_right: Callable[[Any], bool]
    wanted: str  # description of right values, for messages
    bound: Mapping[str, Any] = field(default_factory=dict)  # the lower limit, as in a JSON schema


def at_least(least: float, wanted: str) -> Rule:
    """Return a rule: the value is ``least`` or more, described as ``wanted`` in messages."""
    return Rule(lambda value: value >= least, wanted, {"ge": least})


def above(bound: float, wanted: str, *, below: float | None = None) -> Rule:
    """Return a rule: the value is greater than ``bound``, and less than ``below`` if given."""
    return Rule(lambda value: value > bound and (below is None or value < below), wanted, {"gt": bound})


def whole(least: int, wanted: str, most: float = math.inf) -> Rule:
    """Return a rule: the value is an integer from ``least`` to ``most``."""
    return Rule(lambda value: isinstance(value, int) and least <= value <= most, wanted, {"ge": least})


@dataclass(frozen=True, slots=True)
class Inputs:
    """The input formats to which a reading option applies, and their name in messages."""

    formats: tuple[str, ...]
    named: str


@dataclass(frozen=True, slots=True)
class OptionSpec:
    """The declaration of an option."""

    flag: str = ""
    short: str = ""
    metavar: str | None = None
    off: str = ""  # the flag that gives ``False``
    help: str = ""
    off_help: str = ""  # if ``flag`` takes a value
    table: str = ""  # with ``key``: its place in a job file
    key: str = ""
    parameter: str = ""  # in messages; by default the field's name
    choices: tuple[str, ...] = ()
    parse: Callable[[str], Any] | None = None  # of the flag's value; raises ValueError
    rule: Rule | None = None
    engines: tuple[str, ...] = ()  # the only engines that take it; empty: all
    inputs: Inputs | None = None  # the only input formats that it is for
    configurable: bool | str = False  # may be set in the command line's config.toml, under this key
    variables: tuple[str, ...] = ()  # of the environment; they precede config.toml
    hide_key: Callable[[dict[str, Any]], None] | None = None  # hides a key in the constructor's keywords
    name: str = ""
    type: str = ""  # annotation without ``None``
    default: Any = None

    @property
    def setting(self) -> str:
        """The key in config.toml: the declared one, that of job files, or the flag's name."""
        if isinstance(self.configurable, str):
            return self.configurable
        return f"{self.table}.{self.key}" if self.key else self.flag.removeprefix("--").replace("-", "_")


def option(default: Any = None, *, flag: str = "", job: str = "", **declared: Any) -> Any:
    """Declare a field as an option: ``flag="--budget N"``, ``job="engine.budget"``; more as in :class:`OptionSpec`."""
    flag, _, metavar = flag.partition(" ")
    table, _, key = job.partition(".")
    spec = OptionSpec(flag=flag, metavar=metavar or None, table=table, key=key, **declared)
    return field(default=default, metadata={"option": spec})


def option_of(kind: type, name: str) -> Any:
    """Declare a field as the same option as in another class."""
    declared = next(one for one in fields(kind) if one.name == name)
    return field(default=declared.default, metadata=declared.metadata)


def specs_of(kind: type) -> tuple[OptionSpec, ...]:
    """Return the declarations of a class's fields, in order."""
    return _specs_of(kind)


@cache
def _specs_of(kind: type) -> tuple[OptionSpec, ...]:
    return tuple(
        replace(
            declared := one.metadata.get("option", OptionSpec()),
            name=one.name,
            parameter=declared.parameter or one.name,
            type=str(one.type).removesuffix(" | None"),
            default=one.default,
        )
        for one in fields(kind)
    )


def _is_of_type(spec: OptionSpec, value: Any) -> bool:
    # what would fail late and obscurely: a frame, and for a path anything but that
    classes = type(value).__mro__
    if "Path" not in spec.type or value is None or isinstance(value, str | os.PathLike):
        return not any(hasattr(kind, "iter_rows") or hasattr(kind, "iloc") for kind in classes)
    named = {kind.__name__ for kind in classes}.intersection(re.findall(r"\w+", spec.type))
    return bool(named) or (value is False and "[False]" in spec.type)


class Options:
    """Base of classes of options; raises :class:`UsageError` for values against the rules."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for spec in specs_of(type(self)):
            value = getattr(self, spec.name)
            if not _is_of_type(spec, value):
                wrong = {"wanted": spec.type, "given": type(value).__name__}
                raise UsageError(VALUE_TYPE_WRONG, option=Option(spec.parameter), **wrong)
            if spec.rule is None or (value is None and spec.default is None):
                continue
            try:
                is_right = spec.rule.is_right(value)
            except (TypeError, ValueError):  # a value of another type
                is_right = False
            if not is_right:
                wanted = Phrase(spec.rule.wanted)
                raise UsageError(VALUE_INVALID, option=Option(spec.parameter, value), wanted=wanted)


def hides_keys(kind: type[Kind]) -> type[Kind]:
    """Decorate a class of options so that keys are hidden before its constructor gets them."""
    construct = kind.__init__
    hiding = [spec.hide_key for spec in specs_of(kind) if spec.hide_key is not None]

    @wraps(construct)
    def construct_without_key(self: Kind, **keywords: Any) -> None:
        for hide in hiding:
            hide(keywords)
        construct(self, **keywords)

    kind.__init__ = construct_without_key  # type: ignore[assignment]
    return kind


def take_options(kind: type[Kind], keywords: dict[str, Any]) -> Kind:
    """Remove a class's options from ``keywords`` and return them."""
    return kind(**{spec.name: keywords.pop(spec.name) for spec in specs_of(kind) if spec.name in keywords})


def choose_options(name: str, given: Kind | None, flat: Kind) -> Kind:
    """Return ``given`` (parameter ``name``), or the options given as keywords; raise :class:`UsageError` for both."""
    if given is None:
        return flat
    if not isinstance(given, type(flat)):
        raise UsageError(OPTION_TYPE_WRONG, option=Option(name), given=type(given).__name__, wanted=type(flat).__name__)
    if twice := differing_fields(flat):
        raise UsageError(FIELD_SAID_TWICE, option=Option(twice[0]), other_option=Option(name))
    return given


def differing_fields(options: Any) -> list[str]:
    """Return the names of the fields that differ from their defaults."""
    return [spec.name for spec in specs_of(type(options)) if getattr(options, spec.name) != spec.default]
