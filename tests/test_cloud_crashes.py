"""A process that is killed or stopped while it writes an object: the old one is there, or the new one, and no parts."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from conftest import SAMPLE
from s3_server import BUCKET, S3Server, serving_s3

OLD = b"the old object"
ROWS = 3_000
KILLED_AT = """
import os, signal, sys
from bansong.base import remote as remote_files
import bansong.base.publish

def kill_at(owner, name, before, nth):
    act, left = getattr(owner, name), [nth]
    def act_and_die(*given, **more):
        left[0] -= 1
        if left[0]:
            return act(*given, **more)
        if before:
            os.kill(os.getpid(), signal.SIGKILL)
        done = act(*given, **more)
        os.kill(os.getpid(), signal.SIGKILL)
    setattr(owner, name, act_and_die)

step, nth = sys.argv.pop(1), int(sys.argv.pop(1))
steps = {
    "nothing known": (remote_files, "look_at_object", True),
    "version known": (remote_files, "look_at_object", False),
    "file finished": (remote_files, "upload_object", True),
    "object written": (remote_files, "upload_object", False),
}
kill_at(*steps[step], nth)
from bansong.cli.app import main
main()
"""
MEMORY = """
import json, os, sys, threading, time
from pathlib import Path
from bansong.base import remote as object_store
from bansong.base.files import as_path

def anonymous():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon")) * 1024

url, given, back = as_path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
object_store.look_at_object(url)
begun, most, done = anonymous(), [0], threading.Event()
def watch():
    while not done.wait(0.005):
        most[0] = max(most[0], anonymous())
watcher = threading.Thread(target=watch)
watcher.start()
object_store.upload_object(given, url, None)
with back.open("wb") as copy:
    object_store.download_object(url, object_store.look_at_object(url), copy.fileno())
done.set()
watcher.join()
print(json.dumps(most[0] - begun))
"""
INTERRUPTED = """
import _thread, asyncio, random, signal, threading
from bansong.base.cancel import run_until_interrupted

async def request():
    await asyncio.sleep(0.002)

armed, dice, done = [False], random.Random(7), threading.Event()

def interrupt(*_):
    if armed[0]:
        armed[0] = False
        raise KeyboardInterrupt

def press():
    while not done.wait(dice.random() * 0.004):
        _thread.interrupt_main()

signal.signal(signal.SIGINT, interrupt)
threading.Thread(target=press).start()
for _ in range(400):
    try:
        armed[0] = True
        while armed[0]:
            run_until_interrupted(request)
    except KeyboardInterrupt:
        pass
done.set()
print("every one ended")
"""


@pytest.fixture(scope="module")
def s3_process() -> Iterator[S3Server]:
    with serving_s3() as server:
        yield server


@pytest.fixture
def s3(s3_process: S3Server, tmp_path: Path) -> S3Server:
    """The server with the old object, and a file beside the test that is to replace it."""
    s3_process.empty()
    s3_process.put("out.csv", OLD)
    rows = "".join(f"1248100998,회사 {row},경기도 수원시 영통구 삼성로 {row}\n" for row in range(ROWS))
    (tmp_path / "in.csv").write_text(f"사업자등록번호,상호,주소\n{rows}", "utf-8")
    (tmp_path / "copies").mkdir()
    return s3_process


def environment(server: S3Server, folder: Path, **more: str) -> dict[str, str]:
    return {**os.environ, **server.settings(), "TMPDIR": str(folder / "copies"), "HOME": str(folder), **more}


def enrich_again(server: S3Server, folder: Path) -> bytes:
    """Run to the end; return the object that every run comes to."""
    command = [sys.executable, "-m", "bansong", "enrich", "in.csv", "-o", f"s3://{BUCKET}/out.csv"]
    done = subprocess.run(command, cwd=folder, env=environment(server, folder), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return server.get("out.csv")


@pytest.mark.crash
@pytest.mark.parametrize("step", ["nothing known", "version known", "file finished", "object written"])
def test_a_run_killed_between_two_steps_leaves_the_old_object_or_the_new_one(
    s3: S3Server, tmp_path: Path, step: str
) -> None:
    command = [sys.executable, "-c", KILLED_AT, step, "1", "enrich", "in.csv", "-o", f"s3://{BUCKET}/out.csv"]
    done = subprocess.run(command, cwd=tmp_path, env=environment(s3, tmp_path), capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    left = s3.get("out.csv")
    assert (left == OLD) == (step != "object written")
    assert (s3.names(), s3.unfinished_uploads()) == (["out.csv"], 0)
    assert enrich_again(s3, tmp_path) == (left if left != OLD else s3.get("out.csv"))


@pytest.mark.parametrize(
    ("step", "nth", "finished"),
    [
        pytest.param("file finished", 1, 0, marks=pytest.mark.crash),
        pytest.param("object written", 1, 1, marks=pytest.mark.crash),
        ("file finished", 2, 1),
        pytest.param("object written", 2, 2, marks=pytest.mark.crash),
    ],
)
def test_a_run_over_several_inputs_killed_between_two_objects_leaves_each_old_or_new(
    s3: S3Server, tmp_path: Path, step: str, nth: int, finished: int
) -> None:
    """In the order of the inputs, a workbook and a list; no parts, and the same command comes to the same objects."""
    shutil.copy(SAMPLE / "customers.xlsx", tmp_path / "a.xlsx")
    for name in ("a.xlsx", "in.csv"):
        s3.put(f"wanted/{name}", OLD)
        s3.put(f"killed/{name}", OLD)
    call = ["enrich", "a.xlsx", "in.csv", "-o"]
    whole = [sys.executable, "-m", "bansong", *call]

    def run(command: list[str], folder: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [*command, f"s3://{BUCKET}/{folder}/"], cwd=tmp_path, env=environment(s3, tmp_path), capture_output=True
        )

    def objects(folder: str) -> list[bytes]:
        return [s3.get(f"{folder}/{name}") for name in ("a.xlsx", "in.csv")]

    assert run(whole, "wanted").returncode == 0
    wanted = objects("wanted")
    assert run([sys.executable, "-c", KILLED_AT, step, str(nth), *call], "killed").returncode == -signal.SIGKILL
    assert objects("killed") == wanted[:finished] + [OLD] * (2 - finished)
    assert (len(s3.names()), s3.unfinished_uploads()) == (5, 0)
    assert run(whole, "killed").returncode == 0
    assert objects("killed") == wanted


class KillingProxy:
    """Passes bytes on to a server, and kills a process when so many of a PUT have come; the last are passed on, too."""

    def __init__(self, server: S3Server, after: int | None) -> None:
        host, _, port = server.url.removeprefix("http://").partition(":")
        self._server, self._after = (host, int(port)), after
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.process: subprocess.Popen[bytes] | None = None
        self.sent = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._pass_on, args=(client,), daemon=True).start()

    def _pass_on(self, client: socket.socket) -> None:
        with suppress(OSError), client, socket.create_connection(self._server) as server:
            threading.Thread(target=_copy, args=(server, client), daemon=True).start()
            is_put = False
            while piece := client.recv(4096):
                is_put = is_put or piece.startswith(b"PUT ")
                if is_put:
                    if self._after is not None and self.sent + len(piece) >= self._after:
                        self._strike()
                        server.sendall(piece[: self._after - self.sent])
                        return
                    self.sent += len(piece)
                server.sendall(piece)

    def _strike(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while piece := source.recv(65536):
            target.sendall(piece)


def moments() -> list[object]:
    """Shares of the bytes of the request at which the process dies; the default suite has one of them."""
    shares = [0.0, 0.01, 0.3, 0.6, 0.99, 1.0]
    return [pytest.param(share, marks=() if share == 0.6 else pytest.mark.crash) for share in shares]


@pytest.mark.parametrize("share", moments())
def test_a_run_killed_while_an_object_is_sent_leaves_the_old_one_until_the_last_byte_has_come(
    s3: S3Server, tmp_path: Path, share: float
) -> None:
    """Nothing half written can be seen, no part is left that somebody pays for, and the same command goes on."""
    command = [sys.executable, "-m", "bansong", "enrich", "in.csv", "-o", f"s3://{BUCKET}/out.csv"]
    whole = KillingProxy(s3, None)
    subprocess.run(
        command,
        cwd=tmp_path,
        env=environment(s3, tmp_path, AWS_ENDPOINT_URL=whole.url),
        check=True,
        capture_output=True,
    )
    whole.close()
    new = s3.get("out.csv")
    assert whole.sent > len(new) > len(OLD)
    s3.put("out.csv", OLD)
    proxy = KillingProxy(s3, max(1, int(whole.sent * share)))
    proxy.process = subprocess.Popen(
        command, cwd=tmp_path, env=environment(s3, tmp_path, AWS_ENDPOINT_URL=proxy.url), stderr=subprocess.DEVNULL
    )
    assert proxy.process.wait() == -signal.SIGKILL
    proxy.close()
    if share == 1.0:
        deadline = time.monotonic() + 120
        while s3.get("out.csv") == OLD and time.monotonic() < deadline:
            time.sleep(0.01)
        assert s3.get("out.csv") == new
    else:
        assert s3.get("out.csv") == OLD
    assert (s3.names(), s3.unfinished_uploads()) == (["out.csv"], 0)
    assert enrich_again(s3, tmp_path) == new


@pytest.mark.skipif(os.name != "posix", reason="Windows has no SIGTERM")
def test_a_run_that_is_stopped_while_it_reads_removes_its_copy(s3: S3Server, tmp_path: Path) -> None:
    """SIGTERM ends the wait for a store that says nothing more; people's data does not stay in the temporary folder."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        process = subprocess.Popen(
            [sys.executable, "-m", "bansong", "enrich", f"s3://{BUCKET}/in.csv"],
            cwd=tmp_path,
            env=environment(s3, tmp_path, AWS_ENDPOINT_URL=url),
            stderr=subprocess.PIPE,
            text=True,
        )
        client = silent.accept()[0]
        client.recv(1)
        copies = [path for path in (tmp_path / "copies").iterdir() if path.name.startswith("bansong-")]
        assert [stat_of(path) for path in copies] == [0o700]
        assert [stat_of(path) for path in copies[0].iterdir()] == [0o600]
        process.terminate()
        _, said = process.communicate(timeout=20)
        client.close()
    assert process.returncode == 130
    assert "interrupted; nothing was published" in said
    assert not list((tmp_path / "copies").iterdir())


@pytest.mark.skipif(os.name != "posix", reason="threads are told of Ctrl-C by a signal")
def test_an_interrupt_at_any_moment_of_a_request_ends_it(tmp_path: Path) -> None:
    """Also while its event loop is being started or ended: two of sixty runs hung when these waited for locks."""
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "every one ended\n"), done.stderr


def stat_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_a_hundred_megabytes_go_out_and_in_with_little_memory(s3: S3Server, tmp_path: Path) -> None:
    """It is sent and fetched in pieces: what is in memory of it does not grow with its size."""
    size, most = 100_000_000, 50_000_000  # 23 million where nothing else runs
    (tmp_path / "large").write_bytes(os.urandom(1_000_000) * (size // 1_000_000))
    command = [sys.executable, "-c", MEMORY, f"s3://{BUCKET}/large", "large", "back"]
    done = subprocess.run(command, cwd=tmp_path, env=environment(s3, tmp_path), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) < most
    assert (tmp_path / "back").read_bytes() == (tmp_path / "large").read_bytes()
