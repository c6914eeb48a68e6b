"""A hostile file is read in a child process: what is limited there, what comes back, and what remains of it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bansong.base.isolation import IsolationError, run_isolated
from bansong.errors import ColumnError

MEMORY = 1_000_000_000


def call(name: str, *, memory: int = MEMORY, seconds: float = 60.0, **arguments: Any) -> Any:
    """Call a function of this module in a child, which finds it by the folder that it works in."""
    return run_isolated(f"test_isolation:{name}", arguments, memory=memory, seconds=seconds)


@pytest.fixture(autouse=True)
def findable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *sys.path]))


def isolated_pid(depth: int) -> int:
    pid: int = os.getpid() if depth == 0 else call("isolated_pid", depth=depth - 1)
    return pid


def refuse(kind: str) -> None:
    if kind == "ours":
        raise ColumnError("a.csv: no number column")
    if kind == "system":
        raise FileNotFoundError(2, "No such file or directory", "a.csv")
    if kind == "abort":
        os.abort()
    raise ValueError("이상한 값")


def hold(size: int, file: str = "") -> None:
    kept = b"x" * size
    if file:
        Path(file).write_text(str(os.getpid()))
    time.sleep(60)
    del kept


def test_a_child_returns_a_result_and_starts_no_grandchild() -> None:
    """A process that is isolated has its limits: what would be isolated there is read in itself."""
    child, nested = call("nested_pids")
    assert child == nested != os.getpid()


def nested_pids() -> list[int]:
    return [os.getpid(), call("isolated_pid", depth=3)]


def test_errors_of_a_child_are_raised_as_ours() -> None:
    with pytest.raises(ColumnError, match=r"^a\.csv: no number column$"):
        call("refuse", kind="ours")
    with pytest.raises(FileNotFoundError) as caught:
        call("refuse", kind="system")
    assert (caught.value.errno, caught.value.filename) == (2, "a.csv")


@pytest.mark.parametrize(("kind", "detail"), [("other", "ValueError: 이상한 값"), ("abort", "")])
def test_a_child_that_crashes_is_an_error_with_its_reason(kind: str, detail: str) -> None:
    with pytest.raises(IsolationError) as caught:
        call("refuse", kind=kind)
    assert (caught.value.reason, caught.value.detail) == ("crash", detail)


def test_a_child_that_takes_too_much_is_ended() -> None:
    """Memory that is held is what the parent looks at; memory that is reserved the system refuses; time passes."""
    with pytest.raises(IsolationError) as caught:
        call("hold", size=300_000_000, memory=250_000_000)
    assert caught.value.reason == "memory"
    with pytest.raises(IsolationError, match="MemoryError"):
        call("hold", size=4_000_000_000)
    with pytest.raises(IsolationError, match="time"):
        call("hold", size=1, seconds=1.0)


def test_a_checkpoint_that_raises_ends_the_child(tmp_path: Path) -> None:
    """A reader whose caller has gone away does not go on."""
    file = tmp_path / "pid"

    def stop() -> None:
        if file.exists() and file.read_text():
            raise TimeoutError

    with pytest.raises(TimeoutError):
        run_isolated("test_isolation:hold", {"size": 1, "file": str(file)}, memory=MEMORY, seconds=60, checkpoint=stop)
    assert not Path(f"/proc/{file.read_text()}").exists()


@pytest.mark.process
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no such signal here")
@pytest.mark.parametrize("sign", [signal.SIGINT, getattr(signal, "SIGKILL", None)])
def test_a_child_ends_with_its_parent(tmp_path: Path, sign: signal.Signals) -> None:
    """Ctrl-C ends the parent, which ends the child; a parent that is killed cannot, and the child ends of itself."""
    file = tmp_path / "pid"
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from test_isolation import call\n"
        f"call('hold', size=1, file={str(file)!r})"
    )
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE) as parent:
        wait_until(lambda: file.exists() and bool(file.read_text()))
        parent.send_signal(sign)
        parent.communicate(timeout=20)
    wait_until(lambda: not Path(f"/proc/{file.read_text()}").exists())


def wait_until(condition: Any) -> None:
    until = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)
