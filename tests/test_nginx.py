"""The proxy file, in a real nginx before a real server."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
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
from serving import Served, logged, refused, served, wait_until

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
    assert (tested.returncode, "warn" in tested.stderr) == (0, False), tested.stderr
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: listens(port))
        trusting = create_default_context()
        authority.configure_trust(trusting)
        yield f"https://127.0.0.1:{port}", trusting
    finally:
        process.terminate()
        process.wait()


def listens(port: int) -> bool:
    with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def line_to(url: str, trusting: SSLContext) -> socket.socket:
    plain = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=20)
    return trusting.wrap_socket(plain, server_hostname="127.0.0.1")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "db.sqlite", trusted_proxies=parse_proxies(["127.0.0.1"])) as running:
        yield running


def test_requests_and_uploads_go_through(tmp_path: Path) -> None:
    """Over TLS, with bodies of the plan's size, and with the client's address as nginx sees it, not as it says."""
    trusted = parse_proxies(["127.0.0.1"])
    with (
        logged() as lines,
        served(tmp_path / "db.sqlite", trusted_proxies=trusted) as server,
        proxied(server, tmp_path) as (url, trusting),
    ):
        transport = httpx.HTTPTransport(verify=trusting, local_address="127.0.0.5")
        headers = {"X-API-Key": server.key(), "X-Forwarded-For": "198.51.100.7"}
        with httpx.Client(transport=transport, base_url=url, headers=headers, timeout=60) as client:
            assert client.get("/me").status_code == 200
            rows = b"b_no,name\n" + b"1248100998,x\n" * 100_000
            assert client.post("/batch?paid=false", files={"file": ("in.csv", rows)}).json()["total"] == 100_000
            assert refused(client.get("/me", headers={"X-API-Key": "wrong"})) == (401, "invalid_key")
    assert {line["client"] for line in lines if line["event"] == "request"} == {"127.0.0.5"}


def test_too_many_requests_of_an_address_are_no_end_of_the_quota(server: Served, tmp_path: Path) -> None:
    """What nginx refuses for its own bounds is a bound for our client, too; what the server says goes through."""
    key = server.key(quota=0)
    with proxied(server, tmp_path, **{"rate=200r/s": "rate=1r/m", "burst=1000": "burst=2"}) as (url, trusting):
        with httpx.Client(verify=trusting, trust_env=False, base_url=url) as client:
            answer = client.post("/verify", json={"b_no": "1248100998"}, headers={"X-API-Key": key})
            assert refused(answer) == (429, "quota_exceeded")
            assert [client.get("/healthz").status_code for _ in range(2)] == [200, 200]
            refusal = client.get("/healthz")
        assert (refusal.status_code, refusal.headers["retry-after"]) == (429, "1")
        assert refusal.headers["content-type"] == "application/json"
        with BlockingClient(url, key, verify=trusting, max_retries=0) as ours, pytest.raises(LimitError) as told:
            ours.me()
        assert told.value.retry_after == 1.0


def test_connections_of_an_address_are_bounded(server: Served, tmp_path: Path) -> None:
    """A client with more uploads under way than the file allows is told so by nginx; the server takes the others."""
    head = b"POST /batch HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=b\r\n"
    fewer = {"limit_conn bansong_connections 64": "limit_conn bansong_connections 5"}
    with proxied(server, tmp_path, **fewer) as (url, trusting), ExitStack() as stack:
        key = server.key("enterprise")
        for _ in range(5):
            line = stack.enter_context(line_to(url, trusting))
            line.sendall(head + f"Content-Length: 9000\r\nX-API-Key: {key}\r\n\r\n".encode())
        client = stack.enter_context(httpx.Client(verify=trusting, trust_env=False))
        wait_until(lambda: client.get(f"{url}/healthz").status_code == 429)
        assert client.get(f"{url}/healthz").json()["error"]["bound"] == "proxy"
        assert httpx.get(f"{server.url}/healthz", trust_env=False).status_code == 200


def test_slow_and_idle_connections_lock_nobody_out(server: Served, tmp_path: Path) -> None:
    """A head that never ends is closed at its deadline; a thousand silent sockets reach the server not at all."""
    sooner = {"client_header_timeout 15s": "client_header_timeout 1s"}
    with proxied(server, tmp_path, **sooner) as (url, trusting), ExitStack() as stack:
        port = int(url.rpartition(":")[2])
        for number in range(1_000):
            here = (f"127.0.1.{number % 200 + 1}", 0)
            stack.enter_context(socket.create_connection(("127.0.0.1", port), source_address=here))
        slow = stack.enter_context(line_to(url, trusting))
        slow.sendall(b"GET /healthz HTTP/1.1\r\nHost:")
        with httpx.Client(verify=trusting, trust_env=False) as client:
            assert client.get(f"{url}/healthz").status_code == 200
        assert server.app.state.metrics.connections() <= 1
        assert slow.recv(65536) == b""


def test_a_head_that_may_be_read_in_two_ways_or_has_no_end_stays_outside(server: Served, tmp_path: Path) -> None:
    with proxied(server, tmp_path) as (url, trusting):
        for more in ("Content-Length: 4\r\nTransfer-Encoding: chunked", "X: " + "x" * 40_000):
            with line_to(url, trusting) as line:
                line.sendall(f"POST /verify HTTP/1.1\r\nHost: x\r\n{more}\r\n\r\n0\r\n\r\n".encode())
                assert line.recv(65536).startswith(b"HTTP/1.1 400")
