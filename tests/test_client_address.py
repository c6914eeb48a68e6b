"""Whose request it is: the peer's, or what a trusted proxy says, and nothing that a client can invent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from starlette.responses import Response

from bansong.base.messages import use_audience
from bansong.cli.app import app as cli
from bansong.cli.options import COMMAND_LINE
from bansong.errors import UsageError
from bansong.server.settings import TrustedProxies, site_of
from serving import HTTP, served

PROXIES = ("10.0.0.0/8", "::1", "127.0.0.1")


@pytest.mark.parametrize(
    ("peer", "headers", "client"),
    [
        ("203.0.113.9", ["198.51.100.1"], "203.0.113.9"),  # no proxy of ours: its word is nothing
        ("127.0.0.1", [], "127.0.0.1"),
        ("127.0.0.1", ["198.51.100.1"], "198.51.100.1"),
        ("::ffff:127.0.0.1", ["198.51.100.1"], "198.51.100.1"),
        ("127.0.0.1", ["6.6.6.6, 198.51.100.1"], "198.51.100.1"),  # the client sent the first itself
        ("127.0.0.1", ["6.6.6.6, 198.51.100.1, 10.1.2.3"], "198.51.100.1"),
        ("127.0.0.1", ["6.6.6.6", "198.51.100.1, 10.1.2.3"], "198.51.100.1"),
        ("127.0.0.1", ["10.9.9.9, 10.1.2.3"], "10.9.9.9"),
        ("127.0.0.1", ["198.51.100.1, nonsense"], "127.0.0.1"),
        ("127.0.0.1", ["198.51.100.1, nonsense, 10.1.2.3"], "10.1.2.3"),
        ("127.0.0.1", ["198.51.100.1, "], "127.0.0.1"),
        ("127.0.0.1", ["198.51.100.1:4711"], "127.0.0.1"),
        ("127.0.0.1", ["2001:db8::0:1"], "2001:db8::1"),
        ("127.0.0.1", ["fe80::1%eth0"], "127.0.0.1"),
        ("127.0.0.1", ["1" * 5_000], "127.0.0.1"),
    ],
)
def test_a_client_cannot_choose_its_address(peer: str, headers: list[str], client: str) -> None:
    """Only what a trusted hop wrote counts, the last of it that is no proxy of ours."""
    scope = {"client": (peer, 5), "headers": [(b"x-forwarded-for", text.encode()) for text in headers]}
    assert TrustedProxies(PROXIES).client_of(scope) == client
    assert TrustedProxies().client_of(scope) == peer


def test_a_unix_socket_has_no_address() -> None:
    """A peer without an address is nobody's proxy."""
    assert TrustedProxies(PROXIES).client_of({"client": None, "headers": [(b"x-forwarded-for", b"1.2.3.4")]}) == ""


def test_addresses_of_ipv6_count_as_their_site() -> None:
    """Whoever has a network of 64 bits has as many addresses as it likes: they count as one."""
    assert site_of("2001:db8:1:2:aaaa::1") == site_of("2001:db8:1:2:ffff::9") == "2001:db8:1:2::/64"
    assert site_of("2001:db8:1:3::1") != site_of("2001:db8:1:2::1")
    assert (site_of("::ffff:192.0.2.1"), site_of("192.0.2.1"), site_of("")) == ("192.0.2.1", "192.0.2.1", "")
    assert site_of("fe80::1%eth0") == "fe80::/64"


@pytest.mark.parametrize("text", ["nginx", "10.0.0.1/8", "", "10.0.0.0/40"])
def test_a_proxy_is_an_address_or_a_network(text: str) -> None:
    """Anything else is refused, in words that name the option."""
    with pytest.raises(UsageError, match="trusted_proxies"):
        TrustedProxies([text])
    run = CliRunner().invoke(cli, ["serve", "--db", "nowhere.sqlite", "--port", "0", "--trusted-proxy", text])
    assert isinstance(run.exception, UsageError)
    with use_audience(COMMAND_LINE):
        assert str(run.exception).startswith("--trusted-proxy ")


def test_the_server_believes_nobody_unless_told_so(tmp_path: Path) -> None:
    """Without a trusted proxy a request's address is the peer's, also for a client on the same machine."""
    seen: list[str] = []

    async def note(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["client"][0])
        await Response()(scope, receive, send)

    with served(tmp_path / "db.sqlite") as running:
        running.app.router.middleware_stack = note
        HTTP.get(f"{running.url}/healthz", headers={"X-Forwarded-For": "6.6.6.6"})
    assert seen == ["127.0.0.1"]
