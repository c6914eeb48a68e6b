"""The commands `config` and `setup`: settings that the command line remembers in config.toml."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from bansong.base.errors import BansongError, Problem, UsageError
from bansong.base.files import FILE_UNREADABLE, as_path, is_remote, state_directory, variable
from bansong.base.messages import (
    current_language,
    describe_os_error,
    gettext,
    gettext_noop,
    gettext_noops,
    set_language,
)
from bansong.base.option import OptionSpec
from bansong.base.publish import make_folder, publish_file
from bansong.base.remote import is_there
from bansong.cli.console import print_out, print_rows, say, say_table, warn
from bansong.cli.options import (
    LANG,
    PATH,
    SETTINGS,
    add_all,
    config_path,
    given_options,
    json_option,
    options_of_spec,
    progress_option,
    read_settings,
)
from bansong.run.options import NOT_USED, REFERENCE_FILES, with_installed

SETTING_UNKNOWN: Final = Problem(
    "config.setting_unknown", "{place}there is no setting {key!r}{meant}; the settings are {listed}"
)
SETTING_INVALID: Final = Problem("config.setting_invalid", "{place}{key}: {reason}")

_NAMES: Final = {
    name: spec for spec in SETTINGS.values() for name in (spec.setting, spec.parameter, spec.flag[2:].replace("-", "_"))
}
_OPTIONS: Final = {
    str(one.name): one
    for spec in SETTINGS.values()
    for one in click.command(add_all(option for _, option in options_of_spec(spec))(lambda: None)).params
    if isinstance(one, click.Option)
}
_BARE: Final = re.compile(r"[A-Za-z0-9_.-]+")


def load_settings(path: Path) -> dict[str, Any]:
    """Return the settings of a file by dotted key; raise :class:`UsageError` with the line."""
    text, values = _parse(path)
    found = {}
    for key, value in _leaves(values):
        own = re.compile(rf"\s*({re.escape(key)}|{re.escape(key.rpartition('.')[2])})\s*=")
        line = next((number for number, line in enumerate(text.splitlines(), 1) if own.match(line)), 1)
        place = gettext("{path}, line {line}: ", path=path, line=line)
        spec = _find(key, place)
        found[spec.setting] = _check_value(spec, value, path.parent, place)
    return found


def _parse(path: Path) -> tuple[str, dict[str, Any]]:
    text = ""
    try:
        text = path.read_text(encoding="utf-8-sig") if path.exists() else ""
        return text, tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        from bansong.jobs.job_file import explain_syntax

        raise UsageError(explain_syntax(path, text, error)) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(FILE_UNREADABLE, path=path, reason=describe_os_error(error)) from error


def _leaves(values: Mapping[str, Any], table: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{table}{key}.")
        else:
            yield f"{table}{key}", value


def _find(key: str, place: str = "") -> OptionSpec:
    name = key.replace("-", "_")
    if name in _NAMES:
        return _NAMES[name]
    close = get_close_matches(name, _NAMES, n=1, cutoff=0.5)
    meant = gettext(" (is {close} meant?)", close=close[0]) if close else ""
    raise UsageError(SETTING_UNKNOWN, place=place, key=key, meant=meant, listed=", ".join(SETTINGS))


def _check_value(spec: OptionSpec, value: Any, folder: Path, place: str = "") -> Any:
    # a path is relative to ``folder``
    if spec.name in REFERENCE_FILES and value == NOT_USED:
        return value
    option = _OPTIONS[spec.parameter]
    given = (value.split(",") if isinstance(value, str) else value) if option.multiple else [value]
    try:
        converted = [option.type.convert(one, option, None) for one in given]
    except (click.BadParameter, TypeError, ValueError) as error:
        reason = error.message if isinstance(error, click.BadParameter) else error
        raise UsageError(SETTING_INVALID, place=place, key=spec.setting, reason=reason) from None
    if option.multiple or not isinstance(path := converted[0], Path):
        return converted if option.multiple else converted[0]
    path = path if is_remote(path) else folder / path.expanduser()
    if spec.name not in REFERENCE_FILES:
        _refuse_missing(spec, path, place)
    return str(path)


def _refuse_missing(spec: OptionSpec, path: Path, place: str = "") -> None:
    if not is_there(path):  # not shown: it may be a key
        raise UsageError(SETTING_INVALID, place=place, key=spec.setting, reason=gettext("there is no such file"))


def remember(key: str, value: Any) -> None:
    """Write a setting into config.toml, or with ``None`` remove it; print what is set. Comments move to the top."""
    path, name = config_path(), _canonical(key)
    text, found = _parse(path)
    comments = [f"{line}\n" for line in text.split("\n") if line.lstrip().startswith("#")]
    values = {_canonical(own): old for own, old in _leaves(found)} | {name: value}
    written = {own: json.dumps(new, ensure_ascii=False, default=str) for own, new in values.items() if new is not None}
    make_folder(path.parent)
    with publish_file(path) as temporary:
        lines = (f"{own if _BARE.fullmatch(own) else json.dumps(own)} = {new}\n" for own, new in written.items())
        temporary.write_text("".join([*comments, *lines]), encoding="utf-8", newline="\n")
    print_out(f"{name} = {written[name]}" if name in written else gettext("{name} is not set any more", name=name))


def _canonical(key: str) -> str:
    spec = _NAMES.get(key.replace("-", "_"))
    return spec.setting if spec else key


_FIELDS: Final = gettext_noops("setting", "value", "from")
_SOURCES: Final = gettext_noops("option", "job file", "environment", "default")  # for translation


@click.group(invoke_without_command=True, short_help="Settings that are remembered, and where each comes from.")
@add_all(option for spec in SETTINGS.values() if spec is not LANG for _, option in options_of_spec(spec))
@click.option("--job", type=PATH, metavar="JOB.toml", help="Show what holds for this scheduled job.")
@json_option
@click.pass_context
def config(context: click.Context, /, job: Path | None, as_json: bool, **options: Any) -> None:
    """Show every setting that can be remembered, its value, and where that comes from.

    The first of these counts: option, job file, environment, config.toml, what is installed, default. Options given
    here are shown as a run takes them. Only commands read config.toml, Python code and the server do not; a scheduled
    job takes registry, gazetteer and the tax authority's key from it.
    """
    if context.invoked_subcommand is not None:
        return
    settings: dict[str, Any] = {}
    try:
        settings = read_settings()
    except UsageError as error:
        warn([str(error)])
    rows = [(name, *_find_value(spec, given_options(options), job, settings)) for name, spec in SETTINGS.items()]
    value = {"file": str(config_path()), "settings": [dict(zip(_FIELDS, row, strict=True)) for row in rows]}
    print_rows(as_json, value, _FIELDS, [(name, _spell(found), gettext(source)) for name, found, source in rows], "")
    say_table([(gettext("file"), str(config_path()))])


def _spell(value: Any) -> str:
    if isinstance(value, list | tuple):
        value = ",".join(value)
    return f"{value:g}" if isinstance(value, float) else str(value or "-")


def _find_value(
    spec: OptionSpec, given: Mapping[str, Any], job: Path | None, settings: Mapping[str, Any]
) -> tuple[Any, str]:
    from bansong.jobs.job_file import SETTING_TABLES, load_job_file

    context = click.get_current_context()
    if spec is LANG and any(
        one.get_parameter_source("lang") is ParameterSource.COMMANDLINE for one in (context, context.find_root())
    ):
        return current_language(), "option"
    if spec is not LANG and spec.parameter in given:
        return _spell(given[spec.parameter] or NOT_USED), "option"
    if job is not None:
        part = load_job_file(job)
        found = part.lang if spec is LANG else getattr(getattr(part, spec.table, None), spec.key, spec.default)
        if found != spec.default:
            return found, "job file"
    if spec is LANG and current_language() != settings.get("lang"):
        return current_language(), "environment"  # or its locale
    if spec is not LANG and (name := next(filter(variable, spec.variables), None)):
        return name, "environment"  # its value may be a key
    if spec.setting in settings and (job is None or spec.table in ("", *SETTING_TABLES)):
        return settings[spec.setting], "config.toml"
    if path := with_installed({}).get(spec.name):
        return str(path), "installed"
    return spec.default, "default"


@config.command("set", short_help="Remember a setting.")
@click.argument("key")
@click.argument("value")
def set_(key: str, value: str) -> None:
    """Remember VALUE for the setting KEY, named as its flag or in job files: `bansong config set headers ko`.

    Several values are separated by commas. Secrets are not kept here: name the file that holds one. Lines of comments
    in config.toml move to its top; a comment behind a value is lost.
    """
    spec = _find(key)
    checked = _check_value(spec, value, Path.cwd())
    if spec.name in REFERENCE_FILES and checked != NOT_USED:
        _refuse_missing(spec, as_path(checked))
    remember(key, checked)


@config.command(short_help="Forget a setting.")
@click.argument("key")
def unset(key: str) -> None:
    """Remove the setting KEY from config.toml."""
    remember(key, None)


_TIMEOUT_S: Final = 10.0


@click.command(short_help="Set up language, key and addresses, question by question.")
@progress_option
def setup(progress: str) -> None:
    """Ask for what a first run needs, remember it, and name a command to try.

    It asks for the language, the tax authority's free key (typed unseen, checked with one call, kept in a file that
    only you can read), and the address file that was downloaded, a zip or its folder. Enter leaves a question out. It
    may be run again at any time.
    """
    try:
        _set_up_language()
        _ask_until(_KEY_QUESTION, _store_key, hidden=True)
        _ask_until(_ZIP_QUESTION, partial(_install_addresses, progress))
    except click.Abort as error:
        if not isinstance(error.__context__, EOFError):
            raise
        say("")
        say(gettext("the input has ended; what was set stays, and `bansong setup` asks for the rest"))
    sample = Path("sample_data", "customers.xlsx")
    file = sample if sample.exists() else gettext("customers.xlsx")
    say_table([(gettext("now try"), gettext("bansong enrich {file}", file=file))])


_KEY_QUESTION: Final = gettext_noop(
    "The tax authority's free key finds closed businesses: only their numbers are sent (docs/data-sources.md)\n"
    "Key (it is not shown; Enter leaves it for later)"
)
_ZIP_QUESTION: Final = gettext_noop(
    "Addresses are corrected with 도로명주소 한글 전체분, a zip from https://business.juso.go.kr\n"
    "Path of the zip (Enter leaves it for later)"
)


def _set_up_language() -> None:
    lang = current_language()
    if click.get_current_context().get_parameter_source("lang") is not ParameterSource.COMMANDLINE:
        lang = "en" if _ask(gettext("Language: ko (한국어) or en (English)"), lang).lower().startswith("en") else "ko"
        set_language(lang)
    remember("lang", lang)
    remember("headers", lang)


def _ask(question: str, default: str = "", *, hidden: bool = False) -> str:
    hidden = hidden and sys.stdin.isatty()  # else getpass would ask the terminal behind a pipe
    answer = click.prompt(question, default, hide_input=hidden, show_default=bool(default), err=True)
    return str(answer).strip()


def _ask_until(question: str, act: Callable[[str], None], *, hidden: bool = False) -> None:
    while text := _ask(gettext(question), hidden=hidden):
        try:
            return act(text)
        except BansongError as error:
            say(str(error))
    return None


def _store_key(text: str) -> None:
    from bansong.reference.nts import NtsKey
    from bansong.upkeep.doctor import ask_nts

    key, path = NtsKey(text), state_directory() / "nts.key"
    ask_nts(key, _TIMEOUT_S)
    say(gettext("the key works"))
    with publish_file(path) as temporary:
        temporary.write_text(key.reveal(), encoding="ascii")
    remember("nts_key_file", str(path))


def _install_addresses(progress: str, text: str) -> None:
    from bansong.cli.data import build_gazetteer

    path = as_path(text.removeprefix("& ").strip("\"'")).expanduser()  # as PowerShell pastes a dropped file
    click.get_current_context().invoke(build_gazetteer, sources=[path], progress=progress)
