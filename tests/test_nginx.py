"""The proxy file, in a real nginx before a real server."""

from __future__ import annotations

import json
import logging
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from ssl import SSLContext, create_default_context
from typing import Final

import httpx
import pytest
import trustme

from bansong import BlockingClient
from bansong.errors import LimitError
from bansong.server.settings import parse_proxies
from conftest import ROOT
from serving import Served, served

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed: apt install nginx"),
]
OWN: Final = """daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections {sockets}; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
{example}
}}
"""
"""What stands around the proxy file, with all of nginx's files in a folder of its own."""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextmanager
def proxied(server: Served, folder: Path, **changes: str) -> Iterator[tuple[str, SSLContext]]:
    """The base URL of nginx before a server, by the proxy file with some words of it changed, and who trusts it."""
    authority, port = trustme.CA(), free_port()
    certificate = authority.issue_cert("127.0.0.1")
    certificate.cert_chain_pems[0].write_to_path(folder / "bansong.crt")
    certificate.private_key_pem.write_to_path(folder / "bansong.key")
    text = (ROOT / "deploy" / "nginx.conf").read_text(encoding="utf-8")
    given = {
        "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
        "http://127.0.0.1:8080": server.url,
        "/etc/nginx/bansong.": f"{folder}/bansong.",
    }
    for words, others in (given | changes).items():
        assert words in text
        text = text.replace(words, others)
    file = folder / "nginx.conf"
    file.write_text(OWN.format(folder=folder, example=text, sockets=2_048))
    command = ["nginx", "-c", str(file), "-p", str(folder), "-e", str(folder / "error.log")]
    tested = subprocess.run([*command, "-t"], capture_output=True, text=True, check=False)
    assert tested.returncode == 0, tested.stderr
    assert "warn" not in tested.stderr
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        until_listening(port)
        trusting = create_default_context()
        authority.configure_trust(trusting)
        yield f"https://127.0.0.1:{port}", trusting
    finally:
        process.terminate()
        process.wait()


def until_listening(port: int) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except ConnectionRefusedError:
            time.sleep(0.02)
        else:
            return
    raise AssertionError("nginx does not listen")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    trusted = parse_proxies(["127.0.0.1"])
    with served(tmp_path / "db.sqlite", trusted_proxies=trusted) as running:
        yield running


def test_requests_and_uploads_go_through(server: Served, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Over TLS, with bodies of the plan's size, and with the client's address as nginx sees it, not as it says."""
    caplog.set_level(logging.INFO, "bansong.server")
    key = server.key()
    with proxied(server, tmp_path) as (url, trusting), ExitStack() as stack:
        transport = httpx.HTTPTransport(verify=trusting, local_address="127.0.0.5")
        client = stack.enter_context(httpx.Client(transport=transport))
        headers = {"X-API-Key": key, "X-Forwarded-For": "198.51.100.7"}
        assert client.get(f"{url}/me", headers=headers).status_code == 200
        rows = b"b_no,name\n" + b"1248100998,x\n" * 100_000
        answer = client.post(f"{url}/batch?paid=false", files={"file": ("in.csv", rows)}, headers=headers, timeout=60)
        assert answer.json()["total"] == 100_000
        refused = client.post(f"{url}/verify", json={"b_no": "1248100998"}, headers={"X-API-Key": "wrong"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_key")
    server.app.state.context.requests.write()
    logged = [json.loads(line) for record in caplog.records for line in record.getMessage().splitlines() if "{" in line]
    assert {line["client"] for line in logged if line["event"] == "request"} == {"127.0.0.5"}


def test_too_many_requests_of_an_address_are_no_end_of_the_quota(server: Served, tmp_path: Path) -> None:
    """What nginx refuses for its own bounds is a bound for our client, too; what the server says goes through."""
    key = server.key(quota=0)
    with proxied(server, tmp_path, **{"rate=200r/s": "rate=1r/m", "burst=1000": "burst=2"}) as (url, trusting):
        with httpx.Client(verify=trusting, trust_env=False) as client:
            answer = client.post(f"{url}/verify", json={"b_no": "1248100998"}, headers={"X-API-Key": key})
            assert (answer.status_code, answer.json()["error"]["code"]) == (429, "quota_exceeded")
            for _ in range(2):
                assert client.get(f"{url}/healthz").status_code == 200
            refused = client.get(f"{url}/healthz")
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert refused.headers["content-type"] == "application/json"
        with BlockingClient(url, key, verify=trusting, max_retries=0) as ours, pytest.raises(LimitError) as told:
            ours.me()
        assert told.value.retry_after == 1.0


def test_connections_of_an_address_are_bounded(server: Served, tmp_path: Path) -> None:
    """A client with more uploads under way than the file allows is told so by nginx; the server takes the others."""
    head = b"POST /batch HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=b\r\n"
    key = server.key("enterprise")
    with (
        proxied(server, tmp_path, **{"limit_conn bansong_connections 64": "limit_conn bansong_connections 5"}) as (
            url,
            trusting,
        ),
        ExitStack() as stack,
    ):
        for _ in range(5):
            plain = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=20)
            line = stack.enter_context(trusting.wrap_socket(plain, server_hostname="127.0.0.1"))
            line.sendall(head + f"Content-Length: 9000\r\nX-API-Key: {key}\r\n\r\n".encode())
        client = stack.enter_context(httpx.Client(verify=trusting, trust_env=False))
        deadline = time.monotonic() + 120
        while (answer := client.get(f"{url}/healthz")).status_code == 200:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert (answer.status_code, answer.json()["error"]["bound"]) == (429, "proxy")
        assert httpx.get(f"{server.url}/healthz", trust_env=False).status_code == 200


def test_slow_and_idle_connections_lock_nobody_out(server: Served, tmp_path: Path) -> None:
    """A head that never ends is closed at its deadline; a thousand silent sockets reach the server not at all."""
    with (
        proxied(server, tmp_path, **{"client_header_timeout 15s": "client_header_timeout 1s"}) as (url, trusting),
        ExitStack() as stack,
    ):
        port = int(url.rpartition(":")[2])
        for number in range(1_000):
            here = (f"127.0.1.{number % 200 + 1}", 0)
            stack.enter_context(socket.create_connection(("127.0.0.1", port), source_address=here))
        plain = socket.create_connection(("127.0.0.1", port), timeout=20)
        slow = stack.enter_context(trusting.wrap_socket(plain, server_hostname="127.0.0.1"))
        slow.sendall(b"GET /healthz HTTP/1.1\r\nHost:")
        with httpx.Client(verify=trusting, trust_env=False) as client:
            assert client.get(f"{url}/healthz").status_code == 200
        assert server.app.state.metrics.connections() <= 1
        assert slow.recv(65536) == b""


@pytest.mark.parametrize("more", ["Content-Length: 4\r\nTransfer-Encoding: chunked", "X: " + "x" * 40_000])
def test_a_head_that_may_be_read_in_two_ways_or_has_no_end_stays_outside(
    server: Served, tmp_path: Path, more: str
) -> None:
    with proxied(server, tmp_path) as (url, trusting):
        plain = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=20)
        with trusting.wrap_socket(plain, server_hostname="127.0.0.1") as line:
            line.sendall(f"POST /verify HTTP/1.1\r\nHost: x\r\n{more}\r\n\r\n0\r\n\r\n".encode())
            assert line.recv(65536).startswith(b"HTTP/1.1 400")
