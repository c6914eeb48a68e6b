"""Uploads of every bad kind: refused in the one error shape, in bounded time and memory, with nothing left behind."""

from __future__ import annotations

import errno
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import polars as pl
import pytest

from bansong.base.isolation import IsolationError, SizeLimits
from bansong.errors import AuthenticationError, TooLargeError
from bansong.server import bodies
from bansong.server import job_files as results
from bansong.server.settings import load_plans
from memory import STEADY, peak
from serving import (
    HTTP,
    Account,
    Served,
    ServedProcess,
    error_in,
    hosted,
    line_from,
    make_key,
    read_here,
    refused,
    rows_of,
    served,
    wait_until,
)
from test_hostile import far, workbook

BUSINESS = load_plans()["business"]
PLANS = {"business": BUSINESS, "small": msgspec.structs.replace(BUSINESS, upload_bytes=300_000, rows=5, jobs=99)}
ROWS = b"b_no,name\n1248100998,x\n"
MIB = 1 << 20
FILE = 'name="file"; filename="in.csv"'
KIND = "multipart/form-data; boundary=b"


@pytest.fixture(scope="module", autouse=True)
def quickly_read() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        read_here(patch)
        yield


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Account]:
    with hosted(tmp_path_factory.mktemp("server") / "db.sqlite", plans=PLANS) as running:
        yield running.account("small", 1_000)


@pytest.fixture(scope="module")
def connected(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Account]:
    """A key at a server with a socket, which has little patience."""
    settings = {"plans": PLANS, "stall_seconds": 0.5, "body_seconds": 1.5}
    with served(tmp_path_factory.mktemp("connected") / "db.sqlite", **settings) as running:
        yield running.account("small", 1_000)


def assert_nothing_is_left(key: Account) -> None:
    """No upload, no folder without a job, and nothing charged without one."""
    files = key.server.files
    wait_until(lambda: not list((files / "uploads").iterdir()))
    jobs = {name for (name,) in rows_of(key.server.db, "SELECT id FROM jobs")}
    assert {path.name for path in (files / "jobs").iterdir()} <= jobs
    ((used, charged),) = rows_of(
        key.server.db, "SELECT (SELECT total(used) FROM usage), (SELECT total(charged) FROM jobs)"
    )
    assert used == charged


def form(*parts: tuple[str, bytes], end: str = "--b--\r\n") -> bytes:
    """A multipart body with the boundary ``b``: each part's disposition (after ``form-data;``) and its content."""
    head = "--b\r\nContent-Disposition: form-data; {}\r\n\r\n"
    return b"".join(head.format(said).encode() + content + b"\r\n" for said, content in parts) + end.encode()


def send(key: Account, body: bytes, kind: str = KIND) -> httpx.Response:
    return key.ask("POST", "/batch", content=body, headers={"Content-Type": kind})


def named(name: str, content: bytes = ROWS) -> bytes:
    return form((f'name="file"; filename="{name}"', content))


REFUSED = [
    (b'{"file": 1}', "application/json", 415),
    (b"b_no\n1", "text/csv", 415),
    (named("in.csv"), "multipart/form-data", 400),
    (named("in.csv"), f"multipart/form-data; boundary={'b' * 300}", 400),
    (named("in.csv"), "multipart/form-data; boundary=other", 400),
    (b"", KIND, 400),
    (form(), KIND, 400),
    (form(('name="other"; filename="in.csv"', ROWS)), KIND, 400),
    (form(('name="file"', ROWS)), KIND, 400),
    (named("", b""), KIND, 400),
    (named("in.csv", b""), KIND, 400),
    (form((FILE, ROWS), (FILE, ROWS)), KIND, 400),
    (form((FILE, ROWS), end=""), KIND, 400),
    (named("in.csv")[:-9], KIND, 400),
    (b"noise" * 100, KIND, 400),
    (b"--b\r\nno header\r\n\r\n" + ROWS, KIND, 400),
    (form((FILE + f'; x="{"y" * 20_000}"', ROWS)), KIND, 400),
    (form(*[(f'name="f{place}"', b"x") for place in range(99)], (FILE, ROWS)), KIND, 400),
    (form((FILE + "\r\nContent-Transfer-Encoding: base64", ROWS)), KIND, 400),
    *(
        (b"--b\r\n" + head + named("in.csv")[5:], KIND, 400)
        for head in (b"x" * 100_000 + b": 1\r\n", b"x: 1\r\n" * 10_000)
    ),
    (named("in.csv", b"\x1f\x8b\x08\x00" + ROWS), KIND, 415),
    (named("in.csv", b"\x28\xb5\x2f\xfd" + ROWS), KIND, 415),
    (named("in.csv.gz"), KIND, 415),
    (named("in.parquet"), KIND, 415),
    (named("in.csv", b"name,address\nx,y\n"), KIND, 400),
    (named("in.csv", b"\x00" * 5_000), KIND, 400),
    (named("in.exe", b"MZ\x00\x01\x02" + ROWS), KIND, 400),
    (named("in.csv", ROWS + b"1248100998,x\n" * 5), KIND, 413),
    (named("in.csv", ROWS + b" " * 300_000), KIND, 413),
    (form((FILE, ROWS), ('name="more"', b" " * 400_000)), KIND, 413),
]


def test_an_upload_that_is_none_is_refused(key: Account, tmp_path: Path) -> None:
    """What is no file part, broken, of another kind or too large is told apart by its status, in the one shape."""
    codes = {413: ("too_large",), 415: ("unsupported_media_type",)}
    pl.DataFrame({"b_no": ["1248100998"]}).write_parquet(tmp_path / "x")
    for place, (body, kind, status) in enumerate([*REFUSED, (named("x", (tmp_path / "x").read_bytes()), KIND, 415)]):
        found, code = refused(send(key, body, kind))
        assert found == status, (place, code)
        assert code in codes.get(status, ("invalid_request", "unreadable_file", "no_number_column")), place
    assert_nothing_is_left(key)


def test_other_fields_are_ignored(key: Account) -> None:
    """A form may say more than the file; the file's content may look like a boundary that is not one."""
    body = form(('name="note"', b"x"), (FILE, ROWS + b'1248100998,"--b--x"\n'), ('name="more"', b"y"))
    assert send(key, body).json()["total"] == 2


def test_messages_name_the_clients_file_and_a_remedy_that_is_open_to_it(key: Account) -> None:
    """The client's name without its folders, no path or option of the server's."""
    for called in ("../../etc/고객 명단.csv", "C:\\\\Users\\\\x\\\\고객 명단.csv", "/고객 명단.csv"):
        answer = send(key, named(called, b"name\nx\n"))
        assert refused(answer) == (400, "no_number_column")
        message = answer.json()["error"]["message"]
        assert message.startswith("고객 명단.csv")
        assert message.endswith("rename the column's header to b_no")
        assert not any(word in message for word in ("upload-", "etc", "Users", str(key.server.db.parent)))
    wide = ",".join(["b_no", *(f"c{number}" for number in range(SizeLimits().columns))]).encode() + b"\n1248100998\n"
    answer = send(key, named("a.csv", wide))
    assert refused(answer) == (400, "unreadable_file")
    assert answer.json()["error"]["message"].endswith("take out those that are not needed")
    assert "BANSONG" not in answer.text


def raw(key: Account, length: int, body: bytes, every: float | None = None) -> tuple[int, dict[str, Any]]:
    """The refusal of a request of which ``body`` is sent, and then a space every so many seconds."""
    head = f"POST /batch HTTP/1.1\r\nHost: x\r\nX-API-Key: {key.secret}\r\nContent-Type: {KIND}\r\n"
    with line_from(key.server) as line:
        line.sendall(f"{head}Content-Length: {length}\r\n\r\n".encode() + body)
        line.settimeout(every or 20)
        told = b""
        while not told.endswith(b"}}"):
            try:
                told += line.recv(65536)
            except TimeoutError:
                line.sendall(b" ")
    return error_in(told)


def test_too_large_is_told_before_anything_is_read(connected: Account) -> None:
    status, error = raw(connected, 10 * MIB, b"")
    assert (status, error["limit"]) == (413, 300_000)


@pytest.mark.parametrize("every", [None, 0.2], ids=["stalled", "dripping"])
def test_a_slow_body_is_refused(connected: Account, every: float | None) -> None:
    status, error = raw(connected, 5_000, form((FILE, ROWS), end=""), every)
    assert (status, error["code"]) == (408, "timeout")
    assert_nothing_is_left(connected)


def test_a_client_that_is_still_sending_reads_the_refusal(connected: Account, tmp_path: Path) -> None:
    """Our own client, and curl with and without a length, see the 413 (or 401) although their upload is not over."""
    content = ROWS + b" " * (16 * MIB)
    for secret, error in ((connected.secret, TooLargeError), ("wrong", AuthenticationError)):
        with connected.server.client(secret) as client, pytest.raises(error):
            client.create_batch(content)
    if (curl := shutil.which("curl")) is None:
        return
    (tmp_path / "in.csv").write_bytes(content)
    for more in (["-H", "Transfer-Encoding: chunked"], ["-H", "Expect:"]):
        command = [
            curl,
            "-sS",
            "-w",
            "%{http_code}",
            "-H",
            f"X-API-Key: {connected.secret}",
            "-F",
            "file=@in.csv",
            *more,
        ]
        command += ["-F", "file=@in.csv", f"{connected.server.url}/batch"]
        said = subprocess.run(command, cwd=tmp_path, capture_output=True)
        assert (said.stdout[-3:], b"too_large" in said.stdout) == (b"413", True), (more, said)


def test_a_client_that_goes_away_leaves_nothing(connected: Account) -> None:
    with line_from(connected.server) as line:
        head = f"POST /batch HTTP/1.1\r\nHost: x\r\nX-API-Key: {connected.secret}\r\nContent-Type: {KIND}\r\n"
        line.sendall(f"{head}Content-Length: 200000\r\n\r\n".encode() + form((FILE, ROWS), end=""))
        wait_until(lambda: list((connected.server.files / "uploads").iterdir()))
    assert_nothing_is_left(connected)


def test_a_full_disk_refuses_the_upload_and_the_records(key: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(bodies.os, "fdopen", full)
        assert refused(send(key, named("in.csv"))) == (507, "insufficient_storage")
    with monkeypatch.context() as patch:
        missing = lambda home, job_id: home / "jobs" / job_id / "missing" / "records.parquet"  # noqa: E731
        patch.setattr(results, "records_path", missing)
        assert refused(send(key, named("in.csv"))) == (507, "insufficient_storage")
    assert_nothing_is_left(key)


@pytest.mark.parametrize("reason", results._ABANDONED)
def test_a_file_that_its_process_cannot_read_is_refused(
    key: Account, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    """A small one is tried with the bounds of large ones first."""
    memories: list[int] = []

    async def fails(upload: Any, target: Path, most: int, memory: int, seconds: float) -> int:
        memories.append(memory)
        raise IsolationError(reason)

    monkeypatch.setattr(results, "read_isolated", fails)
    assert refused(send(key, named("in.csv"))) == results._ABANDONED[reason][:2]
    assert memories == sorted(set(memories))
    assert len(memories) == 2
    assert_nothing_is_left(key)


def hostile(folder: Path) -> dict[str, Path]:
    """Files that are made to hurt whoever reads them."""
    folder.mkdir()
    workbook(folder / "far.xlsx", far('r="XFD1048576"'))
    workbook(folder / "bomb.xlsx", [b"<row/>" * 200_000] * 80)
    texts = {
        "deep.json": b"[" * 5_000_000,
        "many.json": b"[" + b",".join(b'{"k%d":1}' % place for place in range(50_000)) + b"]",
        "line.csv": b"b_no," + b"x" * (30 * MIB),
        "noise.xls": b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(range(256)) * 64,
    }
    for name, content in texts.items():
        (folder / name).write_bytes(content)
    return {path.name: path for path in sorted(folder.iterdir())}


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="looks at a process as Linux shows it")
@pytest.mark.process
def test_hostile_files_leave_the_server_as_it_was(tmp_path: Path) -> None:
    """Each is refused with a 4xx or taken as the harmless table it is; the server's own memory stays flat."""
    process = ServedProcess(tmp_path / "db.sqlite", env=STEADY)
    key = Account(Served(process.start(), process.db, None), make_key(process.db, quota=0))
    assert process.process is not None
    pid = process.process.pid
    try:
        key.upload(ROWS)
        before, told = peak(pid), {}
        for name, path in hostile(tmp_path / "hostile").items():
            answer = key.upload(path.read_bytes(), name=name)
            told[name] = (*refused(answer), answer.json()["error"]["message"])
        assert {said[0] for said in told.values()} <= {400, 413, 415, 429}, told
        assert [name for name, said in told.items() if said[0] == 429] in ([], ["many.json"]), told
        assert not any(str(tmp_path) in said[2] for said in told.values())
        assert peak(pid) - before < 100 * MIB
        assert HTTP.get(f"{key.server.url}/healthz").status_code == 200
        assert not Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    finally:
        process.kill()
    assert SizeLimits().memory < 2_000_000_000
