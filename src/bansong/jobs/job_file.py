"""Load a job file and explain its errors; keep its deadline and name its outputs."""

from __future__ import annotations

import json
import re
import threading
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from difflib import get_close_matches
from functools import partial
from importlib import resources
from itertools import count
from pathlib import Path
from string import Formatter
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, Self, TypeVar, cast

import msgspec
from msgspec import inspect

from bansong.base.cancel import CancelToken, StopRequest
from bansong.base.errors import Problem, UsageError
from bansong.base.files import as_path, path_on_disk
from bansong.base.messages import (
    NO_VALUE,
    Audience,
    Lang,
    current_language,
    describe_library_error,
    describe_os_error,
    gettext,
    gettext_noop,
)
from bansong.base.option import OptionSpec, specs_of
from bansong.base.options import EngineName, ServiceOptions
from bansong.base.remote import is_there
from bansong.notify.channels import CHANNELS, VARIABLE_NAME, NonemptyText, VariableName
from bansong.run.changes import CHANGES, Change
from bansong.run.options import OPTION_KINDS
from bansong.tables.inputs import InputFile
from bansong.tables.streams import unpacked_name

CHANGES_NAME_INVALID: Final = Problem(
    "jobs.changes_name_invalid",
    "output.changes: {named} is to be a table for people; its name must end with .xlsx or .csv",
)

_TABLES_OF_CHANGES: Final = (".xlsx", ".csv")
_OF_INPUT: Final = ("name", "ext", "folder")
_OF_JOB: Final = ("date", "job")


def check_pattern(pattern: str, *, of_input: bool) -> None:
    """Raise ``ValueError`` for a bad pattern of output names. ``of_input``: it may use fields of an input."""
    known = (*_OF_INPUT, *_OF_JOB) if of_input else _OF_JOB
    try:
        fields = {name for _, name, _, _ in Formatter().parse(pattern) if name is not None}
    except ValueError as error:
        text = gettext_noop("the pattern {pattern!r} cannot be read: {error}; write a brace itself twice")
        raise ValueError(gettext(text, pattern=pattern, error=error)) from None
    if unknown := sorted(fields.difference(known)):
        text = gettext_noop("the pattern {pattern!r} has a field {{{unknown}}}; known are {names}")
        raise ValueError(gettext(text, pattern=pattern, unknown=unknown[0], names=", ".join(sorted(known))))
    try:
        pattern.format_map(dict.fromkeys(known, ""))
    except ValueError as error:
        text = gettext_noop("the pattern {pattern!r} cannot be filled: {error}; give its fields like {{date}}")
        raise ValueError(gettext(text, pattern=pattern, error=error)) from None


@dataclass(frozen=True, slots=True)
class OutputNames:
    """The names of a job's outputs on one day; see :class:`OutputPart`."""

    folder: Path
    job: str
    day: date

    def fill(self, pattern: str, input: InputFile | None = None) -> Path:
        stem, ext = ("", "") if input is None else _stem_and_ext(input.path)
        below = "" if input is None else str(input.relative.parent)
        filled = pattern.format(name=stem, ext=ext, folder=below, date=self.day.isoformat(), job=self.job)
        return path_on_disk(self.folder / as_path(filled.replace("/./", "/")).expanduser())

    def changes(self, pattern: str) -> Path:
        """Return the file for the changes of this run. It replaces no file of an earlier run of the same day."""
        named = self.fill(pattern)
        if named.suffix.lower() not in _TABLES_OF_CHANGES:
            raise UsageError(CHANGES_NAME_INVALID, named=named)
        others = (named.with_name(f"{named.stem}.{place}{named.suffix}") for place in count(2))
        if "{date}" not in pattern or not is_there(named):
            return named
        return next(path for path in others if not is_there(path))


def _stem_and_ext(path: Path) -> tuple[str, str]:
    """Split ``a.csv.gz`` into ``a`` and ``csv.gz``. A format that is only read gets the extension of its output."""
    from bansong.tables.detect import EXTENSIONS  # imports polars

    inner = unpacked_name(path)
    packed = path.name.removeprefix(inner.name)
    format = EXTENSIONS.get(inner.suffix.lower())
    suffix = inner.suffix if format is None or format.can.written else ".xlsx"
    return inner.stem, f"{suffix}{packed}".removeprefix(".")


class Deadline:
    """End a run's work at a time; afterwards nothing begins."""

    def __init__(self, seconds: float | None, cancel: CancelToken, stop: StopRequest) -> None:
        self.cancel = cancel
        self.is_over = seconds is not None and seconds <= 0  # before a timer ran, work would begin
        self._stop = stop
        self._interruptible = False
        self._lock = threading.Lock()
        self._timer = None if seconds is None else threading.Timer(seconds, self._end)

    def __enter__(self) -> Self:
        if self._timer is not None:
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    @contextmanager
    def ending(self, *, buys: bool) -> Iterator[None]:
        """End the block at the deadline: cancel an engine that buys, interrupt any other."""
        with self._lock:
            self._interruptible = not buys
        try:
            yield
        finally:
            with self._lock:
                self._interruptible = False

    def _end(self) -> None:
        with self._lock:
            self.is_over = True
            if self._interruptible:
                self._stop.interrupt()
        self.cancel.cancel()


_PLACE: Final = re.compile(r" - at `\$(?P<path>[^`]*)`$")
_STEP: Final = re.compile(r"\.(?P<key>[^.\[]+)|\[(?P<index>\d+|\.\.\.)\]")
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(?P<key>[^`]+)`")
_MISSING: Final = re.compile(r"Object missing required field `(?P<key>[^`]+)`")
_TOML_LINE: Final = re.compile(r" \(at line (\d+), column \d+\)$")
_MODE: Final = "^0?[0-7]{3}$"
_FILE_NAME: Final = r"""^[^\s/\\:*?"<>|]{1,64}$"""
# expected values by pattern
_PATTERNS: Final = {
    VARIABLE_NAME: gettext_noop("the name of an environment variable (letters, digits, _), never the secret itself"),
    _MODE: gettext_noop('three digits in quotes, like "0600"'),
    _FILE_NAME: gettext_noop("a text in quotes that a file can be called, of 64 characters at most"),
}

Steps = list[str | int]


class _Place(NamedTuple):
    """A field of a job file and its type; ``None`` if it takes no value."""

    steps: Steps
    type: inspect.Type | None

    @property
    def field(self) -> str:
        return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.steps).removeprefix(".")


def explain_syntax(path: Path, text: str, error: tomllib.TOMLDecodeError) -> str:
    """Describe a syntax error with its line; add the remedy for a Windows path."""
    found = _TOML_LINE.search(str(error))
    line = int(found[1]) if found else len(text.splitlines())
    reason = describe_library_error(error)
    said = gettext("{path}, line {line}: is not TOML: {reason}", path=path, line=line, reason=reason)
    if "\\" not in "".join(text.splitlines()[line - 1 : line]):
        return said
    return said + gettext("; write a path of Windows with / or in single quotes: 'C:\\lists\\in.csv'")


def _explain_value(path: Path, text: str, values: Mapping[str, Any], model: type, message: str) -> str:
    """Describe an invalid value with line and remedy. The value may be a secret, so it is not shown."""
    place = _PLACE.search(message)
    reason = message[: place.start()] if place else message
    where = _find_place(model, place["path"] if place else "")
    found = _value_at(values, where.steps)
    said = _explain(where, reason, found)
    if unknown := _UNKNOWN.search(reason):
        where = _Place([*where.steps, unknown["key"]], None)
    line = line_of(text, where.steps, found if isinstance(found, str) else None)
    return _explain_field(path, line, where.field or gettext("the file"), said)


def _explain_field(path: Path, line: int, field: str, reason: str) -> str:
    return gettext("{path}, line {line}: {field}: {reason}", path=path, line=line, field=field, reason=reason)


def _find_place(model: type, path: str) -> _Place:
    steps: Steps = [
        step["key"] if step["key"] is not None else 0 if step["index"] == "..." else int(step["index"])
        for step in _STEP.finditer(path)
    ]
    type: inspect.Type | None = inspect.type_info(model)
    for step in steps:
        type = _inner_type(type, step)
    return _Place(steps, type)


def _inner_type(type: inspect.Type | None, step: str | int) -> inspect.Type | None:
    members = type.types if isinstance(type, inspect.UnionType) else (type,)
    for member in members:
        if isinstance(member, inspect.StructType) and isinstance(step, str):
            return next((field.type for field in member.fields if field.encode_name == step), None)
        if isinstance(member, inspect.VarTupleType) and isinstance(step, int):
            return member.item_type
    return None


def _value_at(values: Any, steps: Steps) -> Any:
    for step in steps:
        try:
            values = values[step]
        except (KeyError, IndexError, TypeError):
            return None
    return values


def _explain(where: _Place, reason: str, found: Any) -> str:
    names = [field.encode_name for field in where.type.fields] if isinstance(where.type, inspect.StructType) else []
    if unknown := _UNKNOWN.search(reason):
        key = unknown["key"]
        close = get_close_matches(key, names, 1, 0.5)
        listed = ", ".join(names)
        if close:
            return gettext(
                "there is no such field; is {close} meant? The fields here are {listed}", close=close[0], listed=listed
            )
        return gettext("there is no such field; the fields here are {listed}", listed=listed)
    if missing := _MISSING.search(reason):
        return gettext("the field {name} is missing; add it", name=missing["key"])
    if isinstance(where.type, inspect.VarTupleType) and isinstance(found, dict):
        return gettext("is a table of which there may be several: write [[{name}]]", name=where.steps[-1])
    expected = _describe_type(where)
    return gettext("must be {expected}", expected=expected) if expected else str(describe_library_error(reason))


def _describe_type(where: _Place) -> str:
    last = str(where.steps[-1]) if where.steps else ""
    members = where.type.types if isinstance(where.type, inspect.UnionType) else (where.type,)
    return gettext(" or ").join(said for member in members if (said := _describe_member(member, last)))


def _describe_member(type: inspect.Type | None, name: str) -> str | None:
    match type:
        case inspect.StrType():
            text = (
                gettext_noop("a text in quotes, and not empty") if type.min_length else gettext_noop("a text in quotes")
            )
            return gettext(_PATTERNS.get(type.pattern or "", text))
        case inspect.IntType():
            return gettext("a whole number, {bound:g} or more", bound=type.ge or 0)
        case inspect.FloatType() if type.gt is not None:
            return gettext("a number above {bound:g}", bound=type.gt)
        case inspect.FloatType():
            return gettext("a number, {bound:g} or more", bound=type.ge or 0)
        case inspect.BoolType():
            return gettext("true or false")
        case inspect.LiteralType():
            return gettext("one of {words}", words=_words(type))
        case inspect.VarTupleType(item_type=inspect.LiteralType() as words):
            return gettext("a list of words in brackets: {words}", words=_words(words))
        case inspect.VarTupleType():
            return gettext('a list of texts in brackets, like ["…", "…"]')
        case inspect.StructType():
            return gettext("a table: write [{name}]", name=name)
    return None


def _words(type: inspect.LiteralType) -> str:
    return ", ".join(f'"{value}"' for value in type.values)


def line_of(text: str, steps: Steps, value: str | None = None) -> int:
    """Return the line of a field, else of its table. ``value``: of an element of a list."""
    lines, at, start = text.splitlines(), 1, 0
    for place, step in enumerate(steps):
        if isinstance(step, int):
            heads = _find_lines(lines, rf"\s*{re.escape(f'[[{steps[place - 1]}]]')}")
            element = _find_lines(lines, f".*{re.escape(value)}", start) if value is not None else []
            found = heads[step : step + 1] if heads else element
        else:
            name = f"""["']?{re.escape(step)}["']?"""
            own = rf"\s*(?:\[+\s*(?:[\w.]+\.)?{name}\s*\]+|{name}\s*[=.])"
            found = _find_lines(lines, own, start) or _find_lines(lines, rf".*[{{,]\s*{name}\s*=", start)
        if found:
            start, at = found[0], found[0] + 1
    return at


def _find_lines(lines: Sequence[str], pattern: str, start: int = 0) -> list[int]:
    return [place for place, line in enumerate(lines) if place >= start and re.match(pattern, line)]


JOB_FILE_UNREADABLE: Final = Problem(
    "jobs.job_file_unreadable", "{path}: cannot be read: {strerror}; make one with `bansong run --init`"
)
JOB_FILE_NOT_UTF8: Final = Problem("jobs.job_file_not_utf8", "{path}: is not UTF-8: {error}; save it as UTF-8")

_Days = Annotated[float, msgspec.Meta(ge=0)]
_KeyColumn = Literal["b_no", "name", "address", "zipcode"]


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table of the job file. Unknown keys are refused."""

    if TYPE_CHECKING:  # fields that are made of options

        def __getattr__(self, name: str) -> Any: ...


class ColumnsPart(_Part, frozen=True):
    """``columns`` of an input: a header for each role, or several headers to join."""

    b_no: str | tuple[NonemptyText, ...] | None = None
    name: str | tuple[NonemptyText, ...] | None = None
    address: str | tuple[NonemptyText, ...] | None = None
    zipcode: str | tuple[NonemptyText, ...] | None = None
    confirmed: str | tuple[NonemptyText, ...] | None = None

    def by_role(self) -> dict[str, str | list[str]]:
        roles = ((name, getattr(self, name)) for name in self.__struct_fields__)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in roles if value is not None}


# annotation of an option → type of its field in a job file; any other is a text
_TYPES: Final[Mapping[str, Any]] = {
    "bool": bool,
    "int": int,
    "float": float,
    "Sequence[str]": tuple[str, ...],
    "str | Sequence[str]": str | tuple[NonemptyText, ...],
}

Part = TypeVar("Part", bound=_Part)


def _with_options(table: str) -> Callable[[type[Part]], type[Part]]:
    return _with_fields(
        [_field_of(spec, kind) for kind in OPTION_KINDS for spec in specs_of(kind) if spec.table == table]
    )


def _with_fields(declared: Sequence[tuple[str, Any, Any]]) -> Callable[[type[Part]], type[Part]]:
    def extend(part: type[Part]) -> type[Part]:
        extended = msgspec.defstruct(
            part.__name__,
            declared,
            bases=(part,),
            module=part.__module__,
            namespace={"__doc__": part.__doc__},
            frozen=True,
            forbid_unknown_fields=True,
            kw_only=True,
        )
        return cast(type[Part], extended)

    return extend


def _field_of(spec: OptionSpec, kind: type) -> tuple[str, Any, Any]:
    if spec.type.startswith("Mapping"):
        return spec.key, ColumnsPart, ColumnsPart()
    type: Any = Literal[spec.choices] if spec.choices else _TYPES.get(spec.type, str)
    if spec.rule is not None and spec.rule.bound:
        type = Annotated[type, msgspec.Meta(**spec.rule.bound)]
    default = None if kind is ServiceOptions else spec.default  # an engine that does not buy refuses any value
    return spec.key, type | None if default is None else type, default


@_with_options("inputs")
class InputPart(_Part, frozen=True):
    """``[[inputs]]``: a file, a pattern or a folder, and how to read it; see :func:`bansong.enrich`."""

    path: NonemptyText
    force: bool = False


@_with_options("engine")
class EnginePart(_Part, frozen=True):
    """``[engine]``: the engine, and what it may spend; see :class:`bansong.ServiceOptions`."""

    name: EngineName = "local"
    key_env: VariableName | None = None


@_with_options("status")
class StatusPart(_Part, frozen=True):
    """``[status]``: whether the tax authority is asked; see :class:`bansong.StatusOptions`."""


@_with_options("reference")
class ReferencePart(_Part, frozen=True):
    """``[reference]``: registry, gazetteer, scorecard and label store."""


@_with_options("output")
class OutputPart(_Part, frozen=True):
    """``[output]``: names of the files to write.

    ``{name}`` is the input's name, ``{ext}`` its extension, ``{folder}`` its folder below the one in ``path``,
    ``{date}`` the day in Korea, ``{job}`` the job's name.
    """

    path: NonemptyText = "{name}.enriched.{ext}"
    latest: NonemptyText | None = None
    changes: NonemptyText | None = None
    mode: Annotated[str, msgspec.Meta(pattern=_MODE)] = "0600"


class ChangePart(_Part, frozen=True):
    """``[changes]``: which columns identify a row, and what counts as a change."""

    key: Annotated[tuple[_KeyColumn, ...], msgspec.Meta(min_length=1)] = ("b_no", "name", "address")
    kinds: tuple[Change, ...] = CHANGES


@_with_fields([(kind.field, kind.type, kind.default) for kind in CHANNELS])
class NotificationPart(_Part, frozen=True):
    """``[notify]``: who gets messages, and when: of changes only, of every run, or of failures only."""

    when: Literal["changes", "always", "failure"] = "changes"
    kinds: tuple[Change, ...] = ("closed", "suspended", "reopened", "risk_up")


class RunPart(_Part, frozen=True):
    """``[run]``: how long a run may take, and how long its records are kept."""

    deadline: NonemptyText | None = None
    skip_unchanged_days: _Days = 7.0
    keep_runs: Annotated[int, msgspec.Meta(ge=1)] = 400
    keep_outputs_days: Annotated[float, msgspec.Meta(ge=1)] | None = None
    metrics: str | None = None


class JobFile(_Part, frozen=True):
    """A job file.

    Relative paths start from the file's folder. Keys and secret URLs stand in environment variables, which the file
    names.
    """

    inputs: Annotated[tuple[InputPart, ...], msgspec.Meta(min_length=1)]
    name: Annotated[str, msgspec.Meta(pattern=_FILE_NAME)] | None = None
    lang: Lang | None = None
    engine: EnginePart = EnginePart()
    status: StatusPart = StatusPart()
    reference: ReferencePart = ReferencePart()
    output: OutputPart = OutputPart()
    changes: ChangePart = ChangePart()
    notify: NotificationPart = NotificationPart()
    run: RunPart = RunPart()


_TEMPLATES: Final[Mapping[Lang, str]] = {"en": "job_template.toml", "ko": "job_template.ko.toml"}

_HEAD: Final = re.compile(r"\[+(?P<table>\w+)\]+ +# (?P<said>.*)")
_FIELD: Final = re.compile(r"(?:# )?(?P<field>\w+) = .+? +# (?P<said>.*)")
_DURATION: Final = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")


def job_template() -> str:
    """Return a job file with every field, explained in the current language."""
    name = _TEMPLATES[current_language()]
    return resources.files("bansong.jobs").joinpath(name).read_text(encoding="utf-8")


SETTING_TABLES: Final = ("reference", "status")  # no other may change with the user who runs the job


def load_job_file(path: str | Path, settings: Mapping[str, Any] | None = None) -> JobFile:
    """Read and check a job file; raise :class:`UsageError` with field and line. For ``settings``: see `run_job`."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
        values = tomllib.loads(text)
    except OSError as error:
        raise UsageError(JOB_FILE_UNREADABLE, path=path, strerror=describe_os_error(error)) from error
    except UnicodeDecodeError as error:
        raise UsageError(JOB_FILE_NOT_UTF8, path=path, error=error) from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(explain_syntax(path, text, error)) from None
    for setting, value in (settings or {}).items():
        table, _, key = setting.partition(".")
        if table in SETTING_TABLES and isinstance(given := values.setdefault(table, {}), dict):
            given.setdefault(key, value)
    try:
        job = msgspec.convert(values, JobFile)
    except msgspec.ValidationError as error:
        raise UsageError(_explain_value(path, text, values, JobFile, str(error))) from None
    for table, field, check in _checks(job):
        try:
            check()
        except ValueError as error:
            line = line_of(text, [table, field])
            raise UsageError(_explain_field(path, line, f"{table}.{field}", str(error))) from None
    return job


def _checks(job: JobFile) -> Iterator[tuple[str, str, Callable[[], object]]]:
    yield "run", "deadline", partial(parse_duration, job.run.deadline)
    for field, of_input in (("path", True), ("latest", True), ("changes", False)):
        if (pattern := getattr(job.output, field)) is not None:
            yield "output", field, partial(check_pattern, pattern, of_input=of_input)


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a job file, with the descriptions of the template."""
    schema = msgspec.json.schema(JobFile)
    tables = schema["$defs"]
    top = tables["JobFile"]
    top["description"] = gettext("A job of bansong: what is verified, how, and who is told.")
    for table, field, said in _described_fields(job_template()):
        place = tables[_table_of(top["properties"][table])] if table else top
        if field:
            place = place["properties"][field]
        place["description"] = said
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _table_of(field: Mapping[str, Any]) -> str:
    reference: str = field.get("items", field)["$ref"]
    return reference.rpartition("/")[2]


def _described_fields(template: str) -> Iterator[tuple[str, str, str]]:
    """Yield table, field (empty for the table itself) and description of each line of the template."""
    table = ""
    for line in template.splitlines():
        if head := _HEAD.match(line):
            table = head["table"]
            yield table, "", head["said"]
        elif field := _FIELD.match(line):
            yield table, field["field"], field["said"]


def parse_duration(text: str | None) -> float | None:
    """Return the seconds of ``2h``, ``90m``, ``1h30m`` or ``45s``; raise ``ValueError`` for other texts."""
    if text is None:
        return None
    found = _DURATION.fullmatch(text.strip())
    if found is None or not any(found.groups()):
        raise ValueError(gettext("{text!r} is no duration; give it like 2h, 90m or 1h30m", text=text))
    hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(hours * 3600 + minutes * 60 + seconds)


_OWN_FIELDS: Final = {"engine": ("engine", "name"), "output": ("output", "path"), "force": ("inputs", "force")}
_FIELDS: Final[Mapping[str, tuple[str, str]]] = _OWN_FIELDS | {
    spec.parameter: (spec.table, spec.key) for kind in OPTION_KINDS for spec in specs_of(kind) if spec.key
}


@dataclass(frozen=True)
class JobFileAudience:
    """The author of a job file. ``beside``: the audience that names options without a field in it."""

    beside: Audience
    sets_limits = True

    def option(self, name: str, value: object = NO_VALUE) -> str | None:
        """See :meth:`bansong.base.messages.Audience.option`."""
        if name not in _FIELDS:
            return self.beside.option(name, value)
        table, key = _FIELDS[name]
        written = "" if value is NO_VALUE else f" = {json.dumps(value, ensure_ascii=False)}"
        return f"`[{table}] {key}{written}`"
