"""Run a function in a child process with limits of memory and time; size limits against hostile files."""

from __future__ import annotations

import base64
import importlib
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Final, Literal, cast

from bansong.base import errors
from bansong.base.errors import BansongError, InputError, Problem, UsageError
from bansong.base.files import variable
from bansong.base.messages import (
    NO_VALUE,
    VARIABLE,
    Audience,
    current_audience,
    current_language,
    gettext,
    gettext_noop,
    set_audience,
)

LIMIT_EXCEEDED: Final = Problem("limits.limit_exceeded", "{path}: {what}; make it smaller{or_raise}")
LIMIT_INVALID: Final = Problem(
    "limits.limit_invalid", "{variable}: {part!r} is no limit; write NAME=NUMBER, the names are {names}"
)

LIMITS_VARIABLE: Final = "BANSONG_LIMITS"
_UNITS: Final = {"K": 10**3, "M": 10**6, "G": 10**9}


@dataclass(frozen=True, slots=True)
class SizeLimits:
    """Limits on input files; ``BANSONG_LIMITS="cells=60M,inflated=4G"`` raises them. Sizes are in bytes."""

    cells: int = 30_000_000  # rows times columns of a sheet (between its first and last value) or a Parquet row group
    inflated: int = 2_000_000_000  # size of the unpacked parts of a workbook, or of a Parquet row group
    ratio: int = 200  # unpacked to packed size of such a part, checked beyond 64 MB
    text: int = 32_767  # characters of a workbook's cell, or a JSON key
    columns: int = 16_384  # columns of a CSV file
    unpacked: int = 64_000_000_000  # size of an unpacked .gz or .zst file on the disk
    depth: int = 200  # nesting of JSON
    document: int = 2_000_000_000  # size of a JSON value, or of the text around an array of records
    memory: int = 1_200_000_000  # of a process that reads a large or old workbook


def limits() -> SizeLimits:
    """Return the limits in force: the defaults, as raised by ``BANSONG_LIMITS``."""
    return _parse_limits(variable(LIMITS_VARIABLE) or "")


@cache
def _parse_limits(text: str) -> SizeLimits:
    names = [field.name for field in fields(SizeLimits)]
    given = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = part.partition("=")
        digits, unit = (value[:-1], _UNITS.get(value[-1:].upper(), 0)) if value[-1:].isalpha() else (value, 1)
        if name not in names or not digits.isdecimal() or not int(digits) * unit:
            raise UsageError(LIMIT_INVALID, variable=LIMITS_VARIABLE, part=part, names=", ".join(names))
        given[name] = int(digits) * unit
    return replace(SizeLimits(), **given)


def beyond_limit(path: Path, what: str, limit: str) -> InputError:
    """Return the error for a file that exceeds ``limit`` (a field of :class:`SizeLimits`)."""
    return InputError(LIMIT_EXCEEDED, path=path, what=what, or_raise=or_raise_limit(limit))


def or_raise_limit(limit: str, value: str = "…") -> str:
    """Return the advice to raise ``limit`` (a field of :class:`SizeLimits`); empty for readers who cannot raise it."""
    if not current_audience().sets_limits:
        return ""
    more = gettext_noop(", or raise the limit with {variable}={limit}={value}")
    return gettext(more, variable=LIMITS_VARIABLE, limit=limit, value=value)


_CODE: Final = "import _bansong_start; from bansong.base.isolation import serve_call; serve_call()"
_POLL_SECONDS: Final = 0.02
_LONGEST_ANSWER: Final = 1 << 24
_PLAIN: Final = (str, int, float, bool, type(None))
_isolated = False  # whether this process is a child with limits


class IsolationError(Exception):
    """A child process gave no result: too much ``memory`` or ``time``, or a ``crash`` (``detail``: its stderr)."""

    def __init__(self, reason: Literal["memory", "time", "crash"], detail: str = "") -> None:
        super().__init__(f"{reason} {detail}".strip())
        self.reason = reason
        self.detail = detail


def run_isolated(
    function: str,
    arguments: dict[str, Any],
    *,
    memory: int,
    seconds: float,
    threads: int = 1,
    folder: Path | None = None,
    checkpoint: Callable[[], None] = lambda: None,
) -> Any:
    """Call ``function`` (``"bansong.package.module:name"``) on JSON values in a child process; return its result."""
    # ``folder``: the child's working folder, also for temporary files. ``checkpoint`` runs every 20 ms; if it raises,
    # the child is killed. The child runs in another session, so that Ctrl-C reaches only the parent; it ends with the
    # parent. Raises IsolationError, and the function's BansongError or OSError.
    if _isolated:
        return _find_function(function)(**arguments)
    environment = os.environ | {"POLARS_MAX_THREADS": str(threads), "PYTHONUTF8": "1", VARIABLE: current_language()}
    if folder is not None:
        environment["TMPDIR"] = os.fspath(folder.absolute())
    command = [sys.executable, "-P", "-c", _CODE]
    audience = base64.b64encode(pickle.dumps(current_audience())).decode()
    call = {"function": function, "arguments": arguments, "memory": memory, "audience": audience}
    with (
        tempfile.TemporaryFile() as stderr,
        subprocess.Popen(  # noqa: S603
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,
        ) as child,
    ):
        try:
            answer = _read_answer(
                child, json.dumps(call).encode() + b"\n", memory, time.monotonic() + seconds, checkpoint
            )
        finally:
            _kill(child)
        if answer is None:
            child.wait()
            stderr.seek(0)
            raise IsolationError("crash", stderr.readline(1000).decode(errors="replace").strip())
    if "error" in answer:
        raise _rebuild_error(answer)
    return answer["result"]


def _read_answer(
    child: subprocess.Popen[bytes], request: bytes, memory: int, until: float, checkpoint: Callable[[], None]
) -> dict[str, Any] | None:
    assert child.stdin is not None  # noqa: S101 - both were asked for
    assert child.stdout is not None  # noqa: S101
    pieces: list[bytes] = []
    reader = threading.Thread(target=lambda: pieces.append(child.stdout.read(_LONGEST_ANSWER)), daemon=True)  # type: ignore[union-attr]
    reader.start()
    try:
        child.stdin.write(request)
        child.stdin.flush()
    except OSError:  # the child ended before it read the request
        return None
    while reader.is_alive():
        checkpoint()
        if time.monotonic() > until:
            raise IsolationError("time")
        if resident(child.pid) > memory:
            raise IsolationError("memory")
        reader.join(_POLL_SECONDS)
    with suppress(ValueError, IndexError):
        return cast("dict[str, Any]", json.loads(pieces[0]))
    return None


def _kill(child: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        if hasattr(os, "killpg"):
            os.killpg(child.pid, signal.SIGKILL)
        else:
            child.kill()


def _rebuild_error(answer: dict[str, Any]) -> Exception:
    name, message = answer["error"], answer["message"]
    if name == "OSError":
        return OSError(*message)
    kind = getattr(errors, name, BansongError)
    problem = Problem(**message) if isinstance(message, dict) else message
    rebuilt: Exception = (kind if issubclass(kind, BansongError) else BansongError)(problem, **answer["fields"])
    return rebuilt


def serve_call() -> None:
    """Run one function in this child process. The request comes on stdin; the answer goes to stdout."""
    global _isolated
    _isolated = True
    request = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    answer: dict[str, Any]
    try:
        set_audience(_PickledAudience(base64.b64decode(request["audience"])))
        function = _find_function(request["function"])
        limit_memory(request["memory"])
        answer = {"result": function(**request["arguments"])}
    except BansongError as error:
        problem = error.args[0]
        answer = {
            "error": type(error).__name__,
            "message": asdict(problem) if isinstance(problem, Problem) else str(problem),
            "fields": {
                name: field if isinstance(field, _PLAIN) else str(field) for name, field in error.fields.items()
            },
        }
    except OSError as error:
        place = error.filename if isinstance(error.filename, str) else None
        answer = {"error": "OSError", "message": [error.errno or 0, error.strerror or str(error), place]}
    except BaseException as error:  # a panic of a parser is no Exception
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        sys.stderr.flush()
        os._exit(1)
    sys.stdout.write(json.dumps(answer))
    sys.stdout.flush()
    os._exit(0)  # a normal exit would wait for the thread that watches stdin


@dataclass(frozen=True)
class _PickledAudience:
    """The parent's audience. It is unpickled only when a message needs it, since that may import many modules."""

    pickled: bytes

    @cached_property
    def _audience(self) -> Audience:
        audience: Audience = pickle.loads(self.pickled)  # noqa: S301 - the parent's own
        return audience

    @property
    def sets_limits(self) -> bool:
        return self._audience.sets_limits

    def option(self, name: str, value: object = NO_VALUE) -> str | None:
        return self._audience.option(name, *(() if value is NO_VALUE else (value,)))


def _find_function(name: str) -> Callable[..., Any]:
    module, _, attribute = name.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return found


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    if hasattr(os, "killpg"):
        os.killpg(os.getpgid(0), signal.SIGKILL)
    os._exit(1)


def resident(process: int) -> int:
    """Return the memory of a process in bytes; 0 if unknown."""
    try:
        pages = Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def limit_memory(size: int) -> None:
    """Let this process reserve at most twice ``size`` bytes, and disable core files. Do nothing on Windows."""
    try:
        import resource
    except ImportError:  # not on Windows
        return
    size *= 2  # reserved memory may be unused; the parent watches the used memory
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (size if hard == resource.RLIM_INFINITY else min(size, hard), hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
