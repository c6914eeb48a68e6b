"""The server: who is let in, what is refused and how, and single lookups."""

from __future__ import annotations

from pathlib import Path

import pytest

from bansong.errors import AuthenticationError, PlanError, QuotaError
from serving import HTTP, served


def test_a_lookup_is_answered_and_counted(tmp_path: Path) -> None:
    """A single lookup is answered with the seven fields and takes one of the month's quota."""
    with served(tmp_path / "db.sqlite") as server, server.client(server.key(quota=7)) as client:
        verified = client.verify("1248100998", "삼성전자", "경기 수원시 영통구 삼성로 129")
        account = client.me()
    assert verified.biz_status == "unknown"
    assert verified.grade in "ABCDE"
    assert (account.limit, account.used, account.remaining, account.plan) == (7, 1, 6, "business")


def test_a_key_that_is_not_known_is_refused(tmp_path: Path) -> None:
    """Without a key, and with a wrong one, everything but health and description is 401 in the one error shape."""
    with served(tmp_path / "db.sqlite") as server:
        with server.client("wrong-key") as client, pytest.raises(AuthenticationError):
            client.me()
        answer = HTTP.get(f"{server.url}/me")
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "missing_key")
        assert HTTP.get(f"{server.url}/healthz").json() == {"status": "ok"}


def test_a_plan_without_api_is_refused(tmp_path: Path) -> None:
    """A key of a plan without API gets 403."""
    with (
        served(tmp_path / "db.sqlite") as server,
        server.client(server.key(plan="free")) as client,
        pytest.raises(PlanError),
    ):
        client.me()


def test_a_used_up_quota_is_refused(tmp_path: Path) -> None:
    """When the quota is used up the answer is 429, and nothing more is counted."""
    with served(tmp_path / "db.sqlite") as server, server.client(server.key(quota=1)) as client:
        client.verify("1248100998")
        with pytest.raises(QuotaError):
            client.verify("1248100998")
        assert client.me().used == 1
