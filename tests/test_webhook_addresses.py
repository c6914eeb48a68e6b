"""Where a server posts closures: to public addresses and allowed networks alone, whatever a name resolves to."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import pytest
import trustme
from click.testing import CliRunner

from bansong.cli.app import app as command_line
from bansong.client.address import AddressPolicy, parse_network
from bansong.client.webhook import Outcome, WebhookSender, WebhookUrl
from bansong.errors import UsageError
from hooks import receiving

PUBLIC, PRIVATE = "93.184.215.14", "10.0.0.7"


class Network:
    """A resolver that gives one answer after the other, and a network on which every address leads to ``port``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, port: int, *answers: Sequence[str]) -> None:
        self.asked: list[str] = []
        self.dialled: list[str] = []
        self._answers = list(answers)
        self._port = port
        self._connect = anyio.connect_tcp
        monkeypatch.setattr(socket, "getaddrinfo", self._resolve)
        monkeypatch.setattr(anyio, "connect_tcp", self._dial)

    def _resolve(self, host: bytes, port: int, *_: Any, **__: Any) -> list[tuple[Any, ...]]:
        self.asked.append(host.decode())
        return [
            (socket.AF_INET6 if ":" in one else socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port))
            for one in self._answers.pop(0)
        ]

    async def _dial(self, remote_host: str, **_: Any) -> anyio.abc.SocketStream:
        self.dialled.append(remote_host)
        return await self._connect("127.0.0.1", self._port)


def post(url: str, *, times: int = 1, networks: Sequence[str] = ()) -> list[Outcome]:
    """Post a notice some times as a server does that allows these networks."""

    async def run() -> list[Outcome]:
        sender = WebhookSender(check=AddressPolicy(map(parse_network, networks)).check)
        return [await sender.send(WebhookUrl.parse(url, allow_http=True), {}, b"{}") for _ in range(times)]

    return anyio.run(run)


def port_of(url: str) -> int:
    return int(url.rsplit(":", 1)[1].partition("/")[0])


REFUSED = [
    *("10.0.0.1", "172.16.0.1", "192.168.1.1", "127.0.0.1", "127.8.8.8", "0.0.0.0", "169.254.169.254"),
    *("100.64.0.1", "224.0.0.1", "239.1.2.3", "240.0.0.1", "255.255.255.255", "192.0.0.8", "192.0.2.1"),
    *("192.88.99.1", "198.18.0.1", "198.51.100.1", "203.0.113.1"),
    *("::", "::1", "fe80::1", "fe80::1%lo", "fec0::1", "fc00::1", "fd12:3456::1", "ff02::1", "2001:db8::1"),
    *("::ffff:10.0.0.1", "::ffff:127.0.0.1", "::ffff:0:10.0.0.1", "::127.0.0.1", "::7f00:1", "64:ff9b::10.0.0.1"),
    *("64:ff9b::7f00:1", "64:ff9b:1::8.8.8.8", "2002:7f00:1::1", "2002:808:808::1", "2001:0:808:808::1"),
    *("2001:20::1", "100::1", "3fff::1", "5f00::1", "4000::1"),
]
ALLOWED = ["8.8.8.8", "211.249.220.24", "2606:4700::6810:84e5", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8"]


def test_public_addresses_and_the_operators_networks_are_allowed_and_no_other() -> None:
    policy = AddressPolicy()
    assert [one for one in REFUSED + ALLOWED if policy.is_allowed(ip_address(one))] == ALLOWED
    policy = AddressPolicy([parse_network("10.20.0.0/16"), parse_network("fd00::7")])
    own = ["10.20.3.4", "::ffff:10.20.3.4", "fd00::7", "8.8.8.8"]
    asked = [*own, "10.21.0.1", "fd00::8", "127.0.0.1"]
    assert [one for one in asked if policy.is_allowed(ip_address(one))] == own


def test_what_is_no_network() -> None:
    for text in ("", "10.0.0.0/33", "10.0.0.1/8", "example.com"):
        with pytest.raises(UsageError, match="give it like"):
            parse_network(text)


def test_a_name_is_resolved_once_for_each_delivery(monkeypatch: pytest.MonkeyPatch) -> None:
    with receiving() as receiver:
        network = Network(monkeypatch, port_of(receiver.url), [PUBLIC], [PRIVATE], [PUBLIC])
        outcomes = post("http://rebind.example/hook", times=3)
    assert network.asked == ["rebind.example"] * 3
    assert network.dialled == [PUBLIC, PUBLIC]
    assert [outcome.error is None for outcome in outcomes] == [True, False, True]
    assert f"{PRIVATE} is no public address" in str(outcomes[1].error)
    assert f"--webhook-network {PRIVATE}" in str(outcomes[1].error)
    assert [got.headers["Host"] for got in receiver.received] == ["rebind.example"] * 2


def test_every_address_of_a_name_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    for answer in ([PUBLIC, PRIVATE], ["2606:4700::1", "::ffff:127.0.0.1"], ["fe80::1%lo", PUBLIC]):
        with monkeypatch.context() as patch:
            network = Network(patch, 9, answer)
            (outcome,) = post("http://both.example/")
        assert network.dialled == []
        assert "is no public address" in str(outcome.error)


def test_no_spelling_of_this_machine_is_posted_to() -> None:
    with receiving() as receiver:
        for host in ("127.0.0.1", "127.1", "2130706433", "0x7f.1", "localhost", "[::ffff:127.0.0.1]"):
            url = f"http://{host}:{port_of(receiver.url)}/hook"
            assert "is no public address" in str(post(url)[0].error)
        assert receiver.received == []
        assert post(url, networks=["127.0.0.0/8", "::1"])[0].error is None


def test_no_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with receiving() as receiver, receiving() as proxy:
        for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url.removesuffix("/hook"))
        Network(monkeypatch, port_of(receiver.url), [PUBLIC])
        assert post("http://hooks.example/hook")[0].error is None
    assert (len(receiver.received), proxy.received) == (1, [])


@contextmanager
def receiving_tls(authority: trustme.CA, name: str) -> Iterator[tuple[int, list[Any]]]:
    """A receiver with a certificate for ``name``, and what it got: the name asked for in TLS, then the request."""
    context, got = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), []
    authority.issue_cert(name).configure_cert(context)
    context.sni_callback = lambda _, asked, __: got.append(asked)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            line, _ = listener.accept()
            try:
                with context.wrap_socket(line, server_side=True) as secure:
                    asked = secure.recv(1 << 16)
                    while not asked.endswith(b"}"):  # head and body may come one after the other
                        asked += secure.recv(1 << 16)
                    got.append(asked.decode())
                    secure.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")
            except OSError:
                line.close()

        thread = threading.Thread(target=answer)
        thread.start()
        yield listener.getsockname()[1], got
        thread.join()


@pytest.mark.parametrize(("certified", "error"), [("hooks.example", None), ("other.example", "certificate")])
def test_tls_stays_on_the_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, certified: str, error: str | None
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    with receiving_tls(authority, certified) as (port, got):
        network = Network(monkeypatch, port, [PUBLIC])
        (outcome,) = post("https://hooks.example/closures?t=1")
    assert network.dialled == [PUBLIC]
    assert got[0] == "hooks.example"
    assert (outcome.error is None) == (error is None)
    assert error is None or error in str(outcome.error)
    posted = "POST /closures?t=1 HTTP/1.1\r\nHost: hooks.example\r\n"
    assert [one.startswith(posted) for one in got[1:]] == [True] * (error is None)


def test_a_webhook_that_is_obviously_private_is_refused_when_it_is_set(tmp_path: Path) -> None:
    private = ["10.0.0.7", "127.0.0.1", "localhost", "fd00::1", "127.1", "2130706433", "metadata.localhost"]
    assert [host for host in [*private, "example.com"] if AddressPolicy().is_allowed_host(host)] == ["example.com"]
    db = tmp_path / "db.sqlite"
    keys = CliRunner()
    keys.invoke(command_line, ["keys", "create", "--db", str(db)])
    listed = keys.invoke(command_line, ["keys", "list", "--db", str(db), "--json"])
    key = json.loads(listed.stdout)["keys"][0]["id"]
    words = ["keys", "webhook", key, "--db", str(db), "--url", "https://[::ffff:10.0.0.7]/x"]
    assert isinstance(keys.invoke(command_line, words).exception, UsageError)
    assert keys.invoke(command_line, [*words, "--allow-private"]).exit_code == 0
