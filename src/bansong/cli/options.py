"""Options that several commands share."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from bansong.base.files import as_path, state_directory, variable
from bansong.base.messages import LANGS, NO_VALUE, VARIABLE, current_language, gettext, gettext_noop, gettext_of
from bansong.base.option import OptionSpec, specs_of
from bansong.base.options import ServiceOptions, StatusOptions
from bansong.base.schema import CONTEXT_COLUMNS, RECORD_COLUMNS, role_code, role_word
from bansong.run.options import OPTION_KINDS, IfPresent, with_installed

if TYPE_CHECKING:
    _TypeBase = click.ParamType[Any, str]
    _PathBase = click.Path[Path]
else:  # only newer versions of click can be subscripted
    _TypeBase = click.ParamType
    _PathBase = click.Path

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class PathType(_PathBase):
    """A parameter type: a path, or the URL of a remote file."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return as_path(os.fsdecode(super().convert(value, param, ctx)))


PATH: Final = PathType()


class ColumnsType(_TypeBase):
    """The parameter type of ``--columns``: ``role=HEADER,role=HEADER``."""

    name = "role=HEADER,…"

    def __init__(self, roles: Iterable[str]) -> None:
        self._roles = tuple(roles)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, str]:
        if isinstance(value, dict):
            return value
        found: dict[str, str] = {}
        last = None
        for part in str(value).split(","):
            role, equals, header = part.partition("=")
            if equals and role_code(role.strip()) in self._roles:
                last = role_code(role.strip())
                found[last] = header.strip()
            elif last is not None:  # a comma inside a header
                found[last] += f",{part}"
            else:
                listed = ", ".join(role_word(role, current_language()) for role in self._roles)
                said = gettext_noop("{part!r} is not role=HEADER; the roles are {listed}")
                self.fail(gettext(said, part=part, listed=listed), param, ctx)
        return found


class ParsedType(_TypeBase):
    """A parameter type that converts its text with the function ``parse``."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self._parse(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _parse_day(text: str) -> date:
    parts = re.fullmatch(r"([0-9]{4})([-./]?)\s*([0-9]{1,2})\2\s*([0-9]{1,2})\.?", text.strip(), re.ASCII)
    try:
        return date(*map(int, parts.group(1, 3, 4) if parts else ()))
    except (TypeError, ValueError):
        raise ValueError(gettext("{value!r} is no day; write it as 2026-10-05", value=text)) from None


DAY: Final = ParsedType("DATE", _parse_day)
_UNITS_S: Final = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_LONGEST_S: Final = 366 * 86_400


def parse_duration(text: str) -> float:
    """Return the seconds of ``7d``, ``12h``, ``30m``, ``45s`` or ``0``; raise ``ValueError``, also beyond a year."""
    found = re.fullmatch(r"0+|([0-9]{1,9})([dhms])", text, re.ASCII)
    if found is None:
        raise ValueError(gettext("{value!r} is no length of time; write 7d, 12h, 30m, 45s, or 0", value=text))
    seconds = float(int(found[1] or 0) * _UNITS_S[found[2] or "s"])
    if seconds > _LONGEST_S:
        raise ValueError(gettext("{value!r} is longer than a year (366d)", value=text))
    return seconds


_ROLES: Final = (*RECORD_COLUMNS, *CONTEXT_COLUMNS)


def options_of(kind: type, *parameters: str, roles: Iterable[str] = _ROLES) -> Decorator:
    """Return a decorator that adds a class's options: all, or ``parameters``. ``--columns`` accepts ``roles``."""
    declared = [pair for spec in specs_of(kind) for pair in options_of_spec(spec, roles)]
    return add_all([option for name, option in declared if not parameters or name in parameters])


def options_of_spec(spec: OptionSpec, roles: Iterable[str] = _ROLES) -> Iterator[tuple[str, Decorator]]:
    """Yield the options that a spec declares, by parameter."""
    if spec.flag:
        flags = filter(None, (spec.short, spec.flag))
        yield spec.parameter, click.option(*flags, spec.parameter, help=spec.help, **_type_of(spec, roles))
    if spec.flag and spec.off:
        yield f"no_{spec.parameter}", click.option(spec.off, is_flag=True, help=spec.off_help)
    elif spec.off:
        turned_off: dict[str, Any] = {"is_flag": True, "flag_value": False, "default": True}
        yield spec.parameter, click.option(spec.off, spec.parameter, help=spec.help, **turned_off)


def _type_of(spec: OptionSpec, roles: Iterable[str]) -> dict[str, Any]:
    if spec.type == "bool":
        return {"default": None} if spec.default is None else {"is_flag": True, "show_default": "/" in spec.flag}
    if spec.type.startswith("Mapping"):
        return {"type": ColumnsType(roles)}
    if spec.choices:
        shown = {} if spec.default is None else {"default": spec.default, "show_default": True}
        return {"type": click.Choice(spec.choices), **shown}
    if spec.parse not in (None, str):
        return {"type": ParsedType(str(spec.metavar), spec.parse)}
    plain = {"int": int, "float": float, "date | str": DAY}.get(spec.type)
    is_path = "Path" in spec.type and spec.parse is None
    return {
        "type": PATH if is_path else plain,
        "metavar": spec.metavar,
        "multiple": spec.parse is None and "Sequence" in spec.type,
    }


def add_all(options: Iterable[Decorator]) -> Decorator:
    """Return a decorator that adds options to a command, in their order."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(tuple(options)):
            command = option(command)
        return command

    return add


def given_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that were given, ``False`` for those turned off; refuse an option both on and off."""
    given = {name: value for name, value in options.items() if _is_given(name, value)}
    for name in [name for name, spec in _SPECS.items() if spec.flag and spec.off and given.pop(f"no_{name}", False)]:
        if name in given and not is_configured(name):
            raise click.UsageError(gettext_of(_SPECS[name], "{flag} and {off} exclude each other."))
        given[name] = False
    if "letter_columns" in given and is_configured("letter_columns"):
        given["letter_columns"] = IfPresent(given["letter_columns"])
    return given


def is_configured(name: str) -> bool:
    """Whether an option of the running command has its value from config.toml."""
    return click.get_current_context().get_parameter_source(name) is ParameterSource.DEFAULT_MAP


def local_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return :func:`given_options` with the installed registry and gazetteer where none was given."""
    return with_installed(given_options(options), str(options.get("engine", "local")))


def _is_given(name: str, value: object) -> bool:
    is_default = value is False and name in _SPECS and _SPECS[name].default is False
    return name not in _SPECS or not (value in (None, ()) or is_default)


_SPECS: Final = {spec.parameter: spec for kind in OPTION_KINDS for spec in specs_of(kind)}


def config_path() -> Path:
    """Return the file of remembered settings."""
    return state_directory() / "config.toml"


def read_settings() -> dict[str, Any]:
    """Return the settings in config.toml by dotted key, empty without the file; raise :class:`UsageError`."""
    if not os.path.exists(config_path()):  # noqa: PTH110 - raises for no name
        return {}
    from bansong.cli.settings import load_settings

    return load_settings(config_path())


LANG: Final = OptionSpec(flag="--lang", choices=LANGS, variables=(VARIABLE,), name="lang", parameter="lang")
SETTINGS: Final = {spec.setting: spec for spec in (LANG, *(one for one in _SPECS.values() if one.configurable))}


def settings_in_effect() -> dict[str, Any]:
    """Return :func:`read_settings` without those that the environment gives."""
    return {key: value for key, value in read_settings().items() if not any(map(variable, SETTINGS[key].variables))}


def chosen_status(options: dict[str, Any]) -> StatusOptions:
    """Take the status options out of ``options`` and return them; ``source`` is the tax authority by default."""
    given = {spec.name: options.pop(spec.parameter, None) for spec in specs_of(StatusOptions) if spec.flag}
    said = {name: value for name, value in given.items() if value is not None}
    return StatusOptions(**{"source": "nts"} | said)


def engine_option(*engines: str) -> Decorator:
    """Return the option ``--engine`` with a choice of ``engines``."""
    return click.option(
        "--engine",
        type=click.Choice(engines),
        default="local",
        show_default=True,
        help="Who answers: the local engine at no cost, or the hosted service, paid (hybrid: both).",
    )


account_options: Final = options_of(ServiceOptions, "base_url", "key_file", "allow_http")
fetch_options: Final = add_all(
    [
        click.option(
            "--budget",
            "status_budget",
            type=click.IntRange(min=0),
            metavar="N",
            help="Ask for N numbers a day at most, unknown ones and the oldest first; by default as many as it allows.",
        ),
        options_of(StatusOptions, "max_status_age", "status_store", "nts_key_file"),
    ]
)
progress_option: Final[Decorator] = click.option(
    "--progress",
    type=click.Choice(["auto", "plain", "none"]),
    default="auto",
    show_default=True,
    help="How progress is shown.",
)
json_option: Final[Decorator] = click.option(
    "--json", "as_json", is_flag=True, help="Print the result as one JSON object on stdout."
)

_PLAIN: Final = re.compile(r"[\w#.,/:%+=@-]*", re.ASCII)  # needs no quotes in a shell


class CommandLineAudience:
    """Spells options in messages as on the command line: ``--no-labels`` for ``labels=False``."""

    sets_limits = True

    def option(self, name: str, value: object = NO_VALUE) -> str | None:
        if value is False:
            return self._off(name)
        found = _running_option(name) or _options().get(name)
        if found is None:
            return None
        flag = found.opts[0]
        return flag if value is NO_VALUE or value is None or value is True else f"{flag} {_spell_value(value)}"

    def _off(self, name: str) -> str | None:
        options = _options()
        if f"no_{name}" in options:
            return options[f"no_{name}"].opts[0]
        if name not in options:
            return None
        turned_off = options[name].opts if options[name].flag_value is False else options[name].secondary_opts
        return next(iter(turned_off), None)


COMMAND_LINE: Final = CommandLineAudience()


def _spell_value(value: object) -> str:
    if isinstance(value, dict):
        lang = current_language()
        return ",".join(f"{role_word(key, lang)}={_spell_value(one)}" for key, one in value.items())
    text = "-".join(map(str, value)) if isinstance(value, tuple) else str(value)
    quote = '"' if "'" in text else "'"
    return text if _PLAIN.fullmatch(text) else f"{quote}{text}{quote}"


def _running_option(name: str) -> click.Option | None:
    # the usual case, which imports no other command
    context = click.get_current_context(silent=True)
    own = (one for one in (context.command.params if context else ()) if isinstance(one, click.Option))
    return next((one for one in own if one.name == name and _is_named_like(one)), None)


@cache
def _options() -> dict[str, click.Option]:
    # by parameter; options with the parameter's name are preferred
    from bansong.cli.app import app

    found: dict[str, click.Option] = {}
    for option in _all_options(app):
        name = str(option.name)
        if name not in found or _is_named_like(option):
            found[name] = option
    return found


def _is_named_like(option: click.Option) -> bool:
    return f"--{str(option.name).replace('_', '-')}" in option.opts


def _all_options(command: click.Command) -> Iterator[click.Option]:
    yield from (one for one in command.params if isinstance(one, click.Option))
    if isinstance(command, click.Group):
        for child in command.commands.values():
            yield from _all_options(child)
