"""A receiver of webhooks on a real socket, which does what a test asks of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any

from bansong.watch import verify_signature


@dataclass(frozen=True)
class Received:
    """A request as it came."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def notice(self) -> dict[str, Any]:
        return dict(json.loads(self.body))

    def is_signed(self, secret: str, now: float, tolerance: float = 300.0) -> bool:
        return verify_signature(secret, self.headers, self.body, now=now, tolerance=tolerance)


Answer = tuple[int, dict[str, str], bytes]
OK: Answer = (200, {}, b"thanks")


@dataclass
class Receiver:
    """``answer`` is asked what to answer to each request; ``hung`` ends those that answer nothing."""

    url: str = ""
    received: list[Received] = field(default_factory=list)
    answer: Callable[[Received], Answer | None] = lambda _: OK
    hung: Event = field(default_factory=Event)


@contextmanager
def receiving(answer: Callable[[Received], Answer | None] = lambda _: OK) -> Iterator[Receiver]:
    """Receive webhooks for as long as the block lasts."""
    receiver = Receiver(answer=answer)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got = Received(self.path, dict(self.headers.items()), body)
            receiver.received.append(got)
            answer = receiver.answer(got)
            if answer is None:
                receiver.hung.wait(30)
                self.close_connection = True
                return
            status, headers, content = answer
            self.send_response(status)
            for name, value in {"Content-Length": str(len(content)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def do_GET(self) -> None:
            receiver.received.append(Received(self.path, dict(self.headers.items()), b""))
            self.send_error(405)

        def log_message(self, format: str, *args: Any) -> None:
            del format, args

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    receiver.url = f"http://127.0.0.1:{server.server_address[1]}/hook"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.hung.set()
        server.shutdown()
        server.server_close()
