"""The real server for tests: in a thread on a loopback port, or as a process of its own that can be killed."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import IO, Any, Final

import httpx
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from bansong import BlockingClient
from bansong.server import job_files as isolated_reader
from bansong.server import keys as key_table
from bansong.server import settings as server_settings
from bansong.server.app import create_app, listen, server_for, url_of
from bansong.server.engines import StatusSource
from bansong.server.lookups import PreparedQuery
from bansong.server.payloads import VerificationPayload, VerifyRequest
from bansong.server.settings import Clock, Settings
from bansong.server.store import open_server_file

HTTP: Final = httpx.Client(trust_env=False, verify=False, timeout=60, limits=httpx.Limits(max_keepalive_connections=0))
"""For single requests: made once, as making one takes longer than a request; each has its own connection."""
NUMBER: Final = "1248100998"
ADDRESSED: Final = {"b_no": NUMBER, "name": "삼성전자", "address": "경기 수원시 영통구 삼성로 129"}
CSV: Final = "사업자번호,상호,주소\n124-81-00998,삼성전자,경기 수원시 영통구 삼성로 129\n12345,가게,서울\n"


@dataclass(frozen=True)
class Served:
    """A server under test: ``app.state.context`` has its parts."""

    url: str
    db: Path
    app: Any
    http: httpx.Client = HTTP
    portal: BlockingPortal | None = None

    def call(self, work: Callable[[], Awaitable[Any]]) -> Any:
        """Do it in the loop of a hosted server, whose one writer wakes the waiters of one loop."""
        assert self.portal is not None
        return self.portal.call(work)

    @property
    def files(self) -> Path:
        return self.db.with_name(f"{self.db.name}.files")

    @property
    def context(self) -> Any:
        return self.app.state.context

    def key(self, plan: str = "business", quota: int = 5_000, **more: Any) -> str:
        return make_key(self.db, plan, quota, **more)

    def account(self, plan: str = "business", quota: int = 5_000) -> Account:
        return Account(self, self.key(plan, quota))

    def client(self, key: str | None = None) -> BlockingClient:
        return BlockingClient(self.url, key or self.key())


@dataclass(frozen=True)
class Account:
    """A key at a server, and what it asks."""

    server: Served
    secret: str

    @property
    def id(self) -> str:
        ((found,),) = rows_of(
            self.server.db, "SELECT key_id FROM secrets WHERE digest = ?", key_table.digest_of(self.secret)
        )
        return str(found)

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        headers = {"X-API-Key": self.secret} | more.pop("headers", {})
        return self.server.http.request(method, self.server.url + path, headers=headers, timeout=60, **more)

    def get(self, path: str) -> Any:
        return self.ask("GET", path).json()

    def verify(self, number: str = NUMBER, query: str = "", **more: Any) -> httpx.Response:
        headers = more.pop("headers", {})
        return self.ask("POST", f"/verify{query}", json={"b_no": number, **more}, headers=headers)

    def upload(self, content: bytes | str = CSV, query: str = "", name: str = "in.csv", **more: Any) -> httpx.Response:
        data = content.encode() if isinstance(content, str) else content
        return self.ask("POST", f"/batch{query}", files={"file": (name, data)}, **more)

    def until(self, job_id: str, *states: str, preview: int = 10) -> Any:
        """The job, when it is in one of the states (done)."""
        found: dict[str, Any] = {"status": ""}

        def is_there() -> bool:
            found.update(self.get(f"/batch/{job_id}?preview={preview}"))
            return found["status"] in (states or ("done",))

        wait_until(is_there)
        return found

    def job(self, content: bytes | str = CSV, query: str = "", *, preview: int = 10, **more: Any) -> Any:
        """A job of a file, when it is done."""
        answer = self.upload(content, query, **more)
        assert answer.status_code == 200, answer.text
        return self.until(answer.json()["job_id"], preview=preview)

    def label(self, job_id: str, row_id: int, bounced: bool = True, reason: str | None = None) -> httpx.Response:
        body = {"row_id": row_id, "bounced": bounced, "reason": reason}
        return self.ask("POST", f"/batch/{job_id}/label", json=body)

    def used(self) -> int:
        return int(self.get("/me")["quota"]["used"])


def refused(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def make_key(db: Path, plan: str = "business", quota: int = 5_000, **more: Any) -> str:
    """A new key's secret, made in the file as `bansong keys create` makes it."""
    with closing(open_server_file(db)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        _, secret = key_table.create_key(connection, plan=plan, quota=quota, now=time.time(), **more)
        connection.execute("COMMIT")
    return secret


def read_here(patch: pytest.MonkeyPatch) -> None:
    """Have uploads read in this process, not each in one of its own: for tests that are about something else."""

    def run_here(function: str, arguments: dict[str, Any], *, folder: Path, **_: Any) -> Any:
        return isolated_reader.write_records(**arguments | {"path": folder / arguments["path"]})

    patch.setattr(isolated_reader, "run_isolated", run_here)


@contextmanager
def served(
    db: Path, clock: Clock | None = None, *, status_sources: Sequence[StatusSource] = (), **settings: Any
) -> Iterator[Served]:
    """Serve in a thread of this process for as long as the block lasts."""
    listener = listen("127.0.0.1", 0)
    server = server_for(Settings(db=db, **settings), lambda: None, clock, status_sources=status_sources)
    thread = Thread(target=server.run, kwargs={"sockets": [listener]}, name="bansong-served", daemon=True)
    thread.start()
    try:
        while not server.started:
            if not thread.is_alive():
                raise RuntimeError("the server did not start; its thread says why")
            time.sleep(0.005)
        yield Served(url_of(listener), db, server.config.app)
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


class InProcess(httpx.BaseTransport):
    """Asks an app without a socket."""

    def __init__(self, app: Any, portal: BlockingPortal) -> None:
        self._app = httpx.ASGITransport(app, client=("127.0.0.1", 1), raise_app_exceptions=False)
        self._portal = portal

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        request.read()
        return self._portal.call(self._answer, request)

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        answer = await self._app.handle_async_request(request)
        return httpx.Response(answer.status_code, headers=answer.headers, content=await answer.aread())


@contextmanager
def hosted(
    db: Path, clock: Clock | None = None, *, status_sources: Sequence[StatusSource] = (), **settings: Any
) -> Iterator[Served]:
    """Serve without a socket for as long as the block lasts: for what is not about connections."""
    app = create_app(Settings(db=db, **settings), clock, status_sources=status_sources)
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(app.router.lifespan_context(app)),
        httpx.Client(transport=InProcess(app, portal)) as http,
    ):
        yield Served("http://hosted", db, app, http, portal)


class ServedProcess:
    """``bansong serve`` (or ``command``) as a process: to be killed, and started again on the same file and port."""

    def __init__(
        self,
        db: Path,
        *options: object,
        port: int = 0,
        env: dict[str, str] | None = None,
        command: Sequence[str] = (),
        folder: Path | None = None,
    ) -> None:
        self.db = db
        self._command = command
        self._folder = folder
        self._options = [str(option) for option in options]
        self._env = env or {}
        self.port = port
        self.process: subprocess.Popen[str] | None = None
        self._log: deque[str] = deque(maxlen=50)
        self._drain: Thread | None = None

    def start(self) -> str:
        """Start it and return its base URL when it takes requests."""
        command = [sys.executable, "-m", "bansong", "serve", "--db", str(self.db), "--port", str(self.port)]
        process = subprocess.Popen(
            self._command or [*command, *self._options],
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | self._env,
            cwd=self._folder,
        )
        self.process = process
        assert process.stderr is not None
        for line in process.stderr:
            self._log.append(line)
            found = re.search(r"http://[^\s;]+:(\d+)", line)
            if found:
                self.port = int(found[1])
                self._drain = Thread(target=self._read_on, args=(process.stderr,), daemon=True)
                self._drain.start()
                return found[0]
        process.stderr.close()
        raise RuntimeError(f"the server did not start (exit {process.wait()}): {''.join(self._log)}")

    def state(self) -> str:
        """How it ended, or that it runs, and the last lines of its log: for the message of a test that fails."""
        assert self.process is not None
        code = self.process.poll()
        return f"{'runs' if code is None else f'exit {code}'}; its log: {''.join(self._log) or 'empty'}"

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """Ask it to end, and return its exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> int:
        assert self.process is not None
        self.process.send_signal(how)
        code = self.process.wait(timeout=60)
        if self._drain is not None:
            self._drain.join()
        return code

    def _read_on(self, log: IO[str]) -> None:
        with log:  # to its end: a full pipe would stop the server
            self._log.extend(log)


def rows_of(db: Path, query: str, *values: Any) -> list[tuple[Any, ...]]:
    """What a query finds in the server's file, seen from outside."""
    with closing(sqlite3.connect(db)) as connection:
        return connection.execute(query, values).fetchall()


def wait_until(holds: Callable[[], object], seconds: float = 120.0) -> None:
    """Look again and again until something holds, each time after a longer pause: a look may be a request."""
    deadline, pause = time.monotonic() + seconds, 0.005
    while not holds():
        assert time.monotonic() < deadline, "it did not come to hold"
        time.sleep(pause)
        pause = min(1.5 * pause, 0.05)


@contextmanager
def logged() -> Iterator[list[dict[str, Any]]]:
    """Log as `bansong serve` does for as long as the block lasts; then the list holds the lines."""
    stream, lines = io.StringIO(), list[dict[str, Any]]()
    loggers = [logging.getLogger(name) for name in (server_settings.LOGGER_ROOT, "asyncio")]
    before = [(logger.handlers[:], logger.propagate, logger.level) for logger in loggers]
    server_settings.configure_logging(stream, "info")
    try:
        yield lines
    finally:
        for logger, (handlers, propagate, level) in zip(loggers, before, strict=True):
            logger.handlers[:], logger.propagate = handlers, propagate
            logger.setLevel(level)
        lines += [json.loads(line) for line in stream.getvalue().splitlines()]


def answers_held(monkeypatch: pytest.MonkeyPatch) -> tuple[Event, Event]:
    """Hold back what the engine answers to single lookups; return the events "it was asked" and "let it go"."""
    begun, go = Event(), Event()
    answers = PreparedQuery.answers

    def held(prepared: PreparedQuery, asked: Sequence[VerifyRequest]) -> list[VerificationPayload]:
        begun.set()
        assert go.wait(30)
        return answers(prepared, asked)

    monkeypatch.setattr(PreparedQuery, "answers", held)
    return begun, go


def address_of(server: Served) -> tuple[str, int]:
    host, port = server.url.removeprefix("http://").split(":")
    return host, int(port)


def line_from(server: Served, address: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(address_of(server), timeout=20, source_address=(address, 0))


def said_to(line: socket.socket) -> bytes:
    """What comes until the server closes the connection."""
    said = b""
    try:
        while chunk := line.recv(65536):
            said += chunk
    except ConnectionResetError:
        pass
    return said


def error_in(said: bytes) -> tuple[int, dict[str, Any]]:
    head, _, body = said.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]
