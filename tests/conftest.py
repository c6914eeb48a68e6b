"""What the tests share: a private state directory, the sample data, the command line, also as a real process."""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from io import BytesIO, TextIOWrapper
from pathlib import Path
from shutil import disk_usage
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile

import pytest
import uvicorn.server
from hypothesis import settings

from bansong.base.cancel import StopRequest
from bansong.cli import app as cli
from bansong.client.dispatcher import Dispatcher
from signals import heed_stop_signals

if TYPE_CHECKING:
    from bansong.testing import FakeService
    from nightly_jobs import Nights

heed_stop_signals()  # before polars is there, which puts its own handler before the one it finds
sys.dont_write_bytecode = False  # hundreds of processes would compile every module, each worker every test
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ["BANSONG_LANG"] = "en"  # what the tests expect, on a Korean machine, too
# no deadline: a loaded machine is no wrong answer; derandomized: a red run is the change's doing, not the dice's
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("explore", print_blob=True, deadline=None)  # HYPOTHESIS_PROFILE=explore looks for more
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


class HurriedAsyncio:
    """What uvicorn takes for asyncio: it looks every hundredth of a second whether it shall end, not every tenth."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    @staticmethod
    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds / 10)


uvicorn.server.asyncio = HurriedAsyncio()  # type: ignore[attr-defined]

ROOT = Path(__file__).parent.parent
SAMPLE = ROOT / "sample_data"
SHARED = ROOT.parent / "shared" / "data"

STDERR = pytest.StashKey[int]()
"""A descriptor of the terminal's own stderr, which no capturing replaces."""

NINE = (
    *("biz_status", "bounce_prob", "grade", "action", "fixed_zipcode", "fixed_address", "reasons"),
    *("row_status", "row_note"),
)

NOTHING_CHECKED = pytest.mark.filterwarnings("ignore:.* statuses checked:UserWarning")
"""For tests that verify a frame without a registry: that no status was checked is not what they are about."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """What `tests/conformance` is run against, if not against what is here."""
    group = parser.getgroup("conformance", "the service that tests/conformance asks")
    group.addoption("--base-url", metavar="URL", help="a running service, in place of our own server and the fake")
    group.addoption("--api-key", metavar="KEY", help="its key; or set BANSONG_API_KEY, which does not show in `ps`")
    group.addoption("--free-key", metavar="KEY", help="a key of a plan without API (or BANSONG_FREE_KEY)")
    few = "a key with 5 lookups left or fewer (or BANSONG_SMALL_QUOTA_KEY)"
    group.addoption("--small-quota-key", metavar="KEY", help=few)
    group.addoption("--other-key", metavar="KEY", help="a key of another account (or BANSONG_OTHER_KEY)")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    if config.getoption("base_url"):
        config.option.numprocesses = 0  # each process would pay for its own lookups


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One worker more than there are cores: a fifth of a worker's time it waits for sockets and processes."""
    return len(os.sched_getaffinity(0)) + 1 if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1) + 1


LONG = 3600
"""Seconds that a test of many rows, files or kills may take; ``timeout`` in pyproject.toml says it for the others."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if any(item.get_closest_marker(name) for name in ("scale", "fuzz", "crash")):
            item.add_marker(pytest.mark.timeout(LONG))


MEMORY = Path("/dev/shm")
"""A memory file system, where there is one: nothing is waited for there when a file is synced."""
ROOM = 4 << 30
"""Bytes that must be free there. The suite needs less than a tenth at once."""


STAGES = ("process", "scale", "fuzz", "crash")
"""What is selected with ``-m`` where CI repeats at length what the default suite proves."""


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    there = hasattr(os, "statvfs") and MEMORY.is_mount() and disk_usage(MEMORY).free > ROOM
    if there and config.option.markexpr not in ("crash", "scale"):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))  # pytest's own name for where tmp_path is made
    if config.option.markexpr not in STAGES:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # more than one wait busily for each other
        os.environ.setdefault("POLARS_MAX_THREADS", "1")  # threads cost time where files have few rows
    with config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        config.stash[STDERR] = os.dup(2)


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool | None:
    """End the process, with tracebacks, where a test hangs in code that lets no handler in Python run.

    Where there is no SIGALRM that is what becomes of every test that hangs: the plugin's own thread would do the same,
    but a worker of xdist would lose the tracebacks.
    """
    by_signal = settings.method == "signal"
    limit = settings.timeout * (1.5 if by_signal else 1)
    faulthandler.dump_traceback_later(limit, exit=True, file=item.config.stash[STDERR])
    return None if by_signal else True


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_cancel_timer() -> None:
    faulthandler.cancel_dump_traceback_later()


def pytest_collection(session: pytest.Session) -> None:
    """Import all test modules, each worker from another one on: only the first that comes rewrites a module's asserts.

    Side by side from the same one on, each worker of a first run would spend seven seconds on rewriting them all.
    """
    worker = getattr(session.config, "workerinput", None)
    if worker and [Path(one).resolve() for one in session.config.args] == [ROOT / "tests"]:
        names = sorted(path.stem for path in (ROOT / "tests").glob("test_*.py"))
        first = len(names) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
        for name in names[first:] + names[:first]:
            with suppress(Exception, pytest.skip.Exception):  # told where the module is collected
                import_module(name)


def pytest_collection_finish() -> None:
    gc.set_threshold(50_000, 20, 50)  # expressions of polars are many objects that live as long as a query
    gc.collect()
    gc.freeze()  # what was imported and collected stays: no collection need look at it again


def pytest_enter_pdb() -> None:
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(autouse=True)
def state_directory(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("state")
    monkeypatch.setenv("BANSONG_STATE_DIR", str(folder))
    for name in ("NTS_KEY", "NTS_KEY_FILE"):  # else whoever has a key asks for each test's numbers
        monkeypatch.delenv(f"BANSONG_{name}", raising=False)
        monkeypatch.delenv(f"BIZVERIFY_{name}", raising=False)
    return folder


@pytest.fixture
def shared() -> Path:
    if not SHARED.is_dir():
        pytest.skip(f"the shared evaluation data is not at {SHARED}")
    return SHARED


@pytest.fixture
def apart(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the command line in ``tmp_path`` as its user does: a process of its own, a second of imports each time."""

    def command(*arguments: object, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "bansong", *map(str, arguments)],
            cwd=tmp_path,
            env=os.environ | (env or {}),
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=120,
            check=False,
        )

    return command


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the command line in ``tmp_path``; see :func:`runner`."""
    return runner(tmp_path)


def runner(folder: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the command line's ``main`` in a folder, in this process; what signals do is a matter of ``apart``.

    Its purchases wait a tenth of what they would: whether a job is done is asked each second otherwise.
    """
    sleep = Dispatcher.sleep

    async def hurry(dispatcher: Dispatcher, seconds: float) -> None:
        await sleep(dispatcher, seconds / 10)

    def command(*arguments: object, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        words = ["bansong", *map(str, arguments)]
        streams = [TextIOWrapper(BytesIO(), encoding="utf-8", write_through=True) for _ in range(2)]
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            for name, value in (env or {}).items():
                patch.setenv(name, value)
            patch.setattr(sys, "argv", words)
            patch.setattr(sys, "stdout", streams[0])
            patch.setattr(sys, "stderr", streams[1])
            patch.setattr(Dispatcher, "sleep", hurry)
            patch.setattr(cli, "let_stop_signals_interrupt", StopRequest)
            patch.setattr(logging.root, "handlers", [])  # those of the command are made anew, for its own stderr
            level = logging.root.level
            try:
                with pytest.raises(SystemExit) as ended:
                    cli.main()
            finally:
                logging.root.setLevel(level)
        out, err = (stream.buffer.getvalue().decode("utf-8") for stream in streams)
        return subprocess.CompletedProcess(words, int(ended.value.code or 0), out, err)

    return command


def write(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.write_bytes(text.encode(encoding))
    return path


def json_of(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def spreadsheet(path: Path, lines: list[list[str]]) -> Path:
    """The least that is an .ods file, with the blank rows at the end that LibreOffice writes."""
    cell = '<table:table-cell office:value-type="string"><text:p>{}</text:p></table:table-cell>'
    body = "".join(f"<table:table-row>{''.join(map(cell.format, line))}</table:table-row>" for line in lines)
    names = " ".join(
        f'xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"' for name in ("office", "table", "text")
    )
    blank = '<table:table-cell table:number-columns-repeated="16384"/>'
    rest = f'<table:table-row table:number-rows-repeated="1048570">{blank}'
    kind = "application/vnd.oasis.opendocument.spreadsheet"
    entry = f'<manifest:file-entry manifest:full-path="/" manifest:media-type="{kind}"/>'
    with ZipFile(path, "w") as archive:
        archive.writestr("mimetype", kind)
        archive.writestr(
            "META-INF/manifest.xml",
            '<manifest:manifest xmlns:manifest="urn:oasis:names:tc:opendocument:xmlns:manifest:1.0">'
            f"{entry}</manifest:manifest>",
        )
        archive.writestr(
            "content.xml",
            f"<office:document-content {names}><office:body><office:spreadsheet>"
            f'<table:table table:name="S">{body}{rest}</table:table-row></table:table>'
            "</office:spreadsheet></office:body></office:document-content>",
        )
    return path


@pytest.fixture
def service() -> FakeService:
    """A fake of the service, for modules about runs that buy."""
    from bansong.testing import FakeService
    from customers import KEY

    return FakeService(KEY, quota=10_000)


@pytest.fixture
def url(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The service's base URL, in an environment that leads there."""
    from bansong.testing import serve

    with serve(service) as address:
        monkeypatch.setenv("BANSONG_BASE_URL", address)
        monkeypatch.setenv("BANSONG_API_KEY", service.api_key)
        yield address


@pytest.fixture
def nights(tmp_path: Path) -> Nights:
    """A job over twelve active businesses; see ``nightly_jobs``."""
    from customers import numbers
    from nightly_jobs import Nights

    found = Nights(tmp_path, statuses=dict.fromkeys(numbers(12), "active"))
    found.write_inputs()
    found.write_job()
    return found
