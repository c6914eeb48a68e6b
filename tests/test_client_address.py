"""Whose request it is: the peer's, or what a trusted proxy says, and nothing that a client can invent."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from bansong.base.messages import use_audience
from bansong.cli.app import app as cli
from bansong.cli.options import COMMAND_LINE
from bansong.errors import UsageError
from bansong.server.settings import client_of, parse_proxies
from serving import HTTP, logged, served

PROXIES = ("10.0.0.0/8", "::1", "127.0.0.1")
FORWARDED = {
    "": "127.0.0.1",
    "198.51.100.1": "198.51.100.1",
    "6.6.6.6, 198.51.100.1": "198.51.100.1",  # the client sent the first itself
    "6.6.6.6, 198.51.100.1, 10.1.2.3": "198.51.100.1",
    "10.9.9.9, 10.1.2.3": "10.9.9.9",
    "2001:db8::0:1": "2001:db8::1",
    "198.51.100.1, nonsense": "",  # no text of a client reaches the log
    "1" * 5_000: "",
}
"""What a trusted proxy says, and the address in the log."""


def test_a_client_cannot_choose_its_address(tmp_path: Path) -> None:
    """Only what a trusted hop wrote counts, the last of it that is no proxy of ours."""
    with logged() as lines, served(tmp_path / "db.sqlite", trusted_proxies=parse_proxies(PROXIES)) as server:
        for forwarded in FORWARDED:
            HTTP.get(f"{server.url}/me", headers={"X-Forwarded-For": forwarded})
    assert [line.get("client", "") for line in lines if line["event"] == "request"] == list(FORWARDED.values())


def test_the_server_believes_nobody_unless_told_so(tmp_path: Path) -> None:
    """Without a trusted proxy a request's address is the peer's, also for a client on the same machine."""
    with logged() as lines, served(tmp_path / "db.sqlite") as server:
        HTTP.get(f"{server.url}/healthz", headers={"X-Forwarded-For": "6.6.6.6"})
    assert [line["client"] for line in lines if line["event"] == "request"] == ["127.0.0.1"]


def test_a_unix_socket_has_no_address() -> None:
    assert client_of({"client": None}) == ""


def test_a_proxy_of_ipv4_is_known_on_a_socket_of_ipv6() -> None:
    assert parse_proxies(["10.0.0.0/8", "::1"]) == ("10.0.0.0/8", "::ffff:10.0.0.0/104", "::1/128")


@pytest.mark.parametrize("text", ["nginx", "*", "10.0.0.1/8", "", "10.0.0.0/40"])
def test_a_proxy_is_an_address_or_a_network(text: str) -> None:
    """Anything else is refused, in words that name the option."""
    with pytest.raises(UsageError, match="trusted_proxies"):
        parse_proxies([text])
    run = CliRunner().invoke(cli, ["serve", "--db", "nowhere.sqlite", "--port", "0", "--trusted-proxy", text])
    assert isinstance(run.exception, UsageError)
    with use_audience(COMMAND_LINE):
        assert str(run.exception).startswith("--trusted-proxy ")


def test_the_bound_of_connections_is_taken_and_said_to_be_ignored(tmp_path: Path) -> None:
    """A unit file of an earlier release still starts the service."""
    with logged() as lines, served(tmp_path / "db.sqlite", connections_per_address=50) as server:
        assert HTTP.get(f"{server.url}/healthz").status_code == 200
    assert [line["level"] for line in lines if "connections_per_address is ignored" in line["event"]] == ["warning"]
    words = ["serve", "--check", "--db", str(tmp_path / "new.sqlite"), "--port", "0", "--connections-per-address", "50"]
    assert CliRunner().invoke(cli, words).exit_code == 0
