"""Uploads of every bad kind: refused in the one error shape, in bounded time and memory, with nothing left behind."""

from __future__ import annotations

import errno
import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from zipfile import ZipFile

import httpx
import msgspec
import polars as pl
import pytest

from bansong.base.isolation import SizeLimits
from bansong.errors import AuthenticationError, TooLargeError
from bansong.server import bodies as upload_form
from bansong.server.settings import load_plans
from memory import STEADY, peak
from serving import HTTP, Served, ServedProcess, make_key, rows_of, served
from test_hostile import BARE, HEAD, LAUGHS, START, far, pieces, workbook

BUSINESS = load_plans()["business"]
PLANS = {"business": BUSINESS, "small": msgspec.structs.replace(BUSINESS, upload_bytes=300_000, rows=5, jobs=99)}
ROWS = b"b_no,name\n1248100998,x\n"
MIB = 1 << 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("server")
    with served(folder / "db.sqlite", plans=PLANS) as running:
        yield running


@pytest.fixture(scope="module")
def key(server: Served) -> str:
    return server.key("small", 1_000)


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test here no upload is left, no folder without a job, and nothing is charged without one."""
    yield
    if "server" not in request.fixturenames:
        return
    server: Served = request.getfixturevalue("server")
    files = server.db.parent / "db.sqlite.files"
    deadline = time.monotonic() + 120
    while (left := list((files / "uploads").iterdir())) and time.monotonic() < deadline:
        time.sleep(0.01)
    jobs = {name for (name,) in rows_of(server.db, "SELECT id FROM jobs")}
    assert (left, {path.name for path in (files / "jobs").iterdir()} - jobs) == ([], set())
    charged = rows_of(server.db, "SELECT (SELECT total(used) FROM usage), (SELECT total(charged) FROM jobs)")
    assert charged[0][0] == charged[0][1]


def form(*parts: tuple[str, bytes], end: str = "--b--\r\n") -> bytes:
    """A multipart body with the boundary ``b``: each part's disposition (after ``form-data;``) and its content."""
    head = "--b\r\nContent-Disposition: form-data; {}\r\n\r\n"
    return b"".join(head.format(said).encode() + content + b"\r\n" for said, content in parts) + end.encode()


FILE = 'name="file"; filename="in.csv"'
KIND = "multipart/form-data; boundary=b"


def send(server: Served, key: str, body: Any, kind: str = KIND) -> httpx.Response:
    headers = {"X-API-Key": key, "Content-Type": kind}
    return HTTP.post(f"{server.url}/batch", content=body, headers=headers, timeout=60)


def refusal(answer: httpx.Response) -> tuple[int, str]:
    error = answer.json()["error"]
    assert isinstance(error["message"], str)
    return answer.status_code, error["code"]


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b'{"file": 1}', "application/json", 415),
        (b"b_no\n1", "text/csv", 415),
        (form((FILE, ROWS)), "multipart/form-data", 400),
        (form((FILE, ROWS)), f"multipart/form-data; boundary={'b' * 300}", 400),
        (form((FILE, ROWS)), "multipart/form-data; boundary=other", 400),
        (b"", KIND, 400),
        (form(), KIND, 400),
        (form(('name="other"; filename="in.csv"', ROWS)), KIND, 400),
        (form(('name="file"', ROWS)), KIND, 400),
        (form(('name="file"; filename=""', b"")), KIND, 400),
        (form((FILE, b"")), KIND, 400),
        (form((FILE, ROWS), (FILE, ROWS)), KIND, 400),
        (form((FILE, ROWS), end=""), KIND, 400),
        (form((FILE, ROWS))[:-9], KIND, 400),
        (b"noise" * 100, KIND, 400),
        (b"--b\r\nno header\r\n\r\n" + ROWS, KIND, 400),
        (form((FILE + f'; x="{"y" * 20_000}"', ROWS)), KIND, 400),
        (form(*[(f'name="f{place}"', b"x") for place in range(99)], (FILE, ROWS)), KIND, 400),
        (form((FILE + "\r\nContent-Transfer-Encoding: base64", ROWS)), KIND, 400),
        (form((FILE, b"\x1f\x8b\x08\x00" + ROWS)), KIND, 415),
        (form((FILE, b"\x28\xb5\x2f\xfd" + ROWS)), KIND, 415),
        (form(('name="file"; filename="in.csv.gz"', ROWS)), KIND, 415),
        (form(('name="file"; filename="in.parquet"', ROWS)), KIND, 415),
        (form((FILE, b"name,address\nx,y\n")), KIND, 400),
        (form((FILE, b"\x00" * 5_000)), KIND, 400),
        (form(('name="file"; filename="in.exe"', b"MZ\x00\x01\x02" + ROWS)), KIND, 400),
        (form((FILE, ROWS + b"1248100998,x\n" * 5)), KIND, 413),
        (form((FILE, ROWS + b" " * 300_000)), KIND, 413),
        (form((FILE, ROWS), ('name="more"', b" " * 400_000)), KIND, 413),
    ],
)
def test_an_upload_that_is_none_is_refused(server: Served, key: str, body: bytes, kind: str, status: int) -> None:
    """What is no file part, broken, of another kind or too large is told apart by its status, in the one shape."""
    codes = {400: ("invalid_request", "unreadable_file", "no_number_column"), 413: ("too_large",)}
    found, code = refusal(send(server, key, body, kind))
    assert found == status
    assert code in codes.get(status, ("unsupported_media_type",))


def test_a_file_without_numbers_is_told_what_helps_here(server: Served, key: str) -> None:
    """An option of the command line is no remedy for who uploads: the header is to be renamed."""
    answer = send(server, key, form((FILE, b"name,address\nx,y\n")))
    assert refusal(answer) == (400, "no_number_column")
    assert answer.json()["error"]["message"].endswith("rename the column's header to b_no")


def test_parquet_by_another_name_is_refused(server: Served, key: str, tmp_path: Path) -> None:
    """Parquet is told by its content, too."""
    pl.DataFrame({"b_no": ["1248100998"]}).write_parquet(tmp_path / "x")
    assert refusal(send(server, key, form(('name="file"; filename="x"', (tmp_path / "x").read_bytes()))))[0] == 415


def test_other_fields_are_ignored(server: Served, key: str) -> None:
    """A form may say more than the file; the file's content may look like a boundary that is not one."""
    body = form(('name="note"', b"x"), (FILE, ROWS + b'1248100998,"--b--x"\n'), ('name="more"', b"y"))
    assert send(server, key, body).json()["total"] == 2


def test_messages_name_the_clients_file_and_no_path(server: Served, key: str) -> None:
    """The name that a message says is the client's, without its folders; the server's own names are not told."""
    for called in ("../../etc/고객 명단.csv", "C:\\\\Users\\\\x\\\\고객 명단.csv", "/고객 명단.csv"):
        answer = send(server, key, form((f'name="file"; filename="{called}"', b"name\nx\n")))
        message = answer.json()["error"]["message"]
        assert message.startswith("고객 명단.csv")
        assert not any(word in message for word in ("upload-", "etc", "Users", str(server.db.parent)))
    xlsx = send(server, key, form(('name="file"; filename="a.xlsx"', b"PK\x03\x04noise")))
    assert refusal(xlsx) == (400, "unreadable_file")
    assert xlsx.json()["error"]["message"].startswith("a.xlsx: ")


def test_a_remedy_is_open_to_the_client(server: Served, key: str) -> None:
    """Limits of reading are set where the server runs: its client reads what is wrong, not how to set one."""
    wide = ",".join(["b_no", *(f"c{number}" for number in range(SizeLimits().columns))]).encode() + b"\n1248100998\n"
    answer = send(server, key, form((FILE, wide)))
    assert refusal(answer) == (400, "unreadable_file")
    message = answer.json()["error"]["message"]
    assert message.endswith("take out those that are not needed")
    assert "BANSONG" not in message


def test_too_large_is_told_before_anything_is_read(server: Served, key: str) -> None:
    """A Content-Length beyond the plan is 413 at once; the limit is said."""
    answer = raw(server, key, f"Content-Length: {10 * MIB}\r\n", b"")
    assert b" 413 " in answer.split(b"\r\n")[0]
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["limit"] == 300_000


def test_a_client_that_is_still_sending_reads_the_refusal(server: Served, key: str, tmp_path: Path) -> None:
    """Our own client, and curl with and without a length, see the 413 (or 401) although their upload is not over."""
    content = ROWS + b" " * (16 * MIB)
    with server.client(key) as client, pytest.raises(TooLargeError):
        client.create_batch(content)
    with server.client("wrong") as client, pytest.raises(AuthenticationError):
        client.create_batch(content)
    if (curl := shutil.which("curl")) is None:
        return
    (tmp_path / "in.csv").write_bytes(content)
    for more in ([], ["-H", "Transfer-Encoding: chunked"], ["-H", "Expect:"]):
        command = [curl, "-sS", "-w", "%{http_code}", "-H", f"X-API-Key: {key}", "-F", "file=@in.csv", *more]
        said = subprocess.run([*command, f"{server.url}/batch"], cwd=tmp_path, capture_output=True, check=False)
        assert said.stdout.endswith(b"413"), (more, said)
        assert b"too_large" in said.stdout


@pytest.mark.parametrize("every", [None, 0.2], ids=["stalled", "dripping"])
def test_a_slow_body_is_refused(tmp_path: Path, every: float | None) -> None:
    """A body that stops, or comes in drop by drop for too long, is 408, and nothing of it is left."""
    with served(tmp_path / "db.sqlite", stall_seconds=0.5, body_seconds=2.0) as server:
        answer = raw(server, server.key(), "Content-Length: 5000\r\n", form((FILE, ROWS), end=""), every)
    assert b" 408 " in answer.split(b"\r\n")[0]
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "timeout"
    assert list((tmp_path / "db.sqlite.files" / "uploads").iterdir()) == []
    assert rows_of(tmp_path / "db.sqlite", "SELECT total(used) FROM usage") == [(0.0,)]


@pytest.mark.parametrize("head", [b"x" * 100_000 + b": 1\r\n", b"x: " + b"1" * 100_000 + b"\r\n", b"x: 1\r\n" * 10_000])
def test_the_head_of_a_part_is_bounded(server: Served, head: bytes) -> None:
    """Its bytes and its lines, for they are kept in memory until the file begins: 400."""
    body = b"--b\r\n" + head + form((FILE, ROWS)).removeprefix(b"--b\r\n")
    assert refusal(send(server, server.key(), body)) == (400, "invalid_request")


def raw(server: Served, key: str, length: str, body: bytes, every: float | None = None) -> bytes:
    """The answer to a request of which ``body`` is sent, and then a space every so many seconds."""
    place = urlsplit(server.url)
    assert place.hostname is not None
    with socket.create_connection((place.hostname, place.port or 80), timeout=every or 20) as connection:
        head = f"POST /batch HTTP/1.1\r\nHost: x\r\nX-API-Key: {key}\r\nContent-Type: {KIND}\r\n{length}\r\n"
        connection.sendall(head.encode() + body)
        told = b""
        for _ in range(200):
            try:
                told += connection.recv(65536)
            except TimeoutError:
                connection.sendall(b" ")
            if told.endswith(b"}}"):
                return told
    raise AssertionError(f"no whole answer: {told!r}")


def test_a_client_that_goes_away_leaves_nothing(server: Served, key: str) -> None:
    """When the connection is closed in the middle of an upload, the file is deleted and nothing is charged."""
    jobs = rows_of(server.db, "SELECT count(*) FROM jobs")
    place = urlsplit(server.url)
    assert place.hostname is not None
    with socket.create_connection((place.hostname, place.port or 80)) as connection:
        head = f"POST /batch HTTP/1.1\r\nHost: x\r\nX-API-Key: {key}\r\nContent-Type: {KIND}\r\n"
        connection.sendall(f"{head}Content-Length: 200000\r\n\r\n".encode() + form((FILE, ROWS), end=""))
        folder = server.db.parent / "db.sqlite.files" / "uploads"
        while not list(folder.iterdir()):
            time.sleep(0.005)
    deadline = time.monotonic() + 20  # before the server would lose patience, which takes half a minute
    while list(folder.iterdir()):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    assert rows_of(server.db, "SELECT count(*) FROM jobs") == jobs


def test_a_full_disk_refuses_the_upload(server: Served, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """When there is no room for the upload the answer is 507, and nothing is charged."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(upload_form.os, "fdopen", full)
    assert refusal(send(server, key, form((FILE, ROWS)))) == (507, "insufficient_storage")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_refuses_the_records(server: Served, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the rows that were read cannot be stored the answer is 507, and nothing is charged."""
    from bansong.server import job_files as results

    monkeypatch.setattr(
        results, "records_path", lambda home, job_id: home / "jobs" / job_id / "missing" / "records.parquet"
    )
    assert refusal(send(server, key, form((FILE, ROWS)))) == (507, "insufficient_storage")


def hostile(folder: Path) -> dict[str, Path]:
    """Files that are made to hurt whoever reads them."""
    folder.mkdir()
    workbook(folder / "far.xlsx", far('r="XFD1048576"'))
    workbook(folder / "nowhere.xlsx", f"<row>{BARE * 16384}</row>{f'<row>{BARE}</row>' * 100_000}")
    workbook(folder / "bomb.xlsx", pieces((b"<row/>" * 200_000, 80)))
    workbook(folder / "laughs.xlsx", sheet=LAUGHS + START + HEAD)
    workbook(folder / "called.csv", far('r="XFD1048576"'))
    with ZipFile(folder / "zip.xlsx", "w") as archive:
        archive.writestr("a.txt", "x")
    texts = {
        "deep.json": b"[" * 5_000_000,
        "wide.json": b"[{" + b",".join(b'"k%d":1' % place for place in range(100_000)) + b"}]",
        "many.json": b"[" + b",".join(b'{"k%d":1}' % place for place in range(50_000)) + b"]",
        "line.csv": b"b_no," + b"x" * (60 * MIB),
        "quote.csv": b'b_no,name\n1,"' + b"x,\n" * (2 * MIB),
        "columns.csv": b"b_no" + b"," * 200_000 + b"\n1\n",
        "noise.xls": b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(range(256)) * 64,
        "nul.csv": b"b_no\x00,name\n" + b"\x00" * MIB,
    }
    for name, content in texts.items():
        (folder / name).write_bytes(content)
    return {path.name: path for path in sorted(folder.iterdir())}


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="looks at a process as Linux shows it")
@pytest.mark.process
def test_hostile_files_leave_the_server_as_it_was(tmp_path: Path) -> None:
    """Each is refused with a 4xx or taken as the harmless table it is; the server's own memory stays flat."""
    process = ServedProcess(tmp_path / "db.sqlite", env=STEADY)
    url = process.start()
    try:
        headers = {"X-API-Key": make_key(tmp_path / "db.sqlite", quota=0)}
        assert process.process is not None
        HTTP.post(f"{url}/batch", headers=headers, files={"file": ("in.csv", ROWS)}, timeout=60)
        before, told = peak(process.process.pid), {}
        for name, path in hostile(tmp_path / "hostile").items():
            with path.open("rb") as file:
                answer = HTTP.post(f"{url}/batch", headers=headers, files={"file": (name, file)}, timeout=120)
            told[name] = (*refusal(answer), answer.json()["error"]["message"])
        assert {said[0] for said in told.values()} <= {400, 413, 415, 429}, told
        assert [name for name, said in told.items() if said[0] == 429] in ([], ["many.json"]), told
        assert not any(str(tmp_path) in said[2] for said in told.values())
        assert peak(process.process.pid) - before < 100 * MIB
        assert HTTP.get(f"{url}/healthz").status_code == 200
        assert not children(process.process.pid)
    finally:
        process.kill()
    assert SizeLimits().memory < 2_000_000_000


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
