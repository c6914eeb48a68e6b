"""§5, §7, §8: keys, plans, what does not exist, and what is too much."""

from __future__ import annotations

import pytest

from conformance.target import BUSINESS, NUMBER, UNKNOWN_ID, Key, Target, endpoints, job_path, texts, upload, watch_ids


def statuses(account: object, asked: dict[str, tuple[str, str, dict[str, object]]]) -> dict[str, int]:
    return {section: account.ask(method, path, **more).status_code for section, (method, path, more) in asked.items()}  # type: ignore[attr-defined]


@pytest.mark.parametrize("key", [None, "", "no-such-key"], ids=["missing", "empty", "invalid"])
def test_a_missing_or_invalid_key_is_401(target: Target, key: str | None) -> None:
    """§5.1, §5.4, §7: each endpoint answers 401 to a request whose key is missing or invalid."""
    stranger = type(target.account)(target.account.url, Key(key))
    answered = statuses(stranger, endpoints())
    assert answered == dict.fromkeys(answered, 401)


@pytest.mark.parametrize(("header", "status"), [("x-ApI-kEy", 200), ("Authorization", 401)])
def test_the_key_counts_only_in_its_header_in_any_case(target: Target, header: str, status: int) -> None:
    """§5.1: the case of the header does not matter; a key that comes as a bearer token is a missing one."""
    account = type(target.account)(target.account.url, target.account.key.under(header))
    assert account.ask("GET", "/me").status_code == status


def test_a_plan_without_the_api_is_403(target: Target) -> None:
    """§1, §5.5, §7, §8: each endpoint answers 403 to a key of a plan below Business."""
    free = target.needs("free", "--free-key: a key of a plan without API")
    answered = statuses(free, endpoints())
    assert answered == dict.fromkeys(answered, 403)


def test_what_does_not_exist_is_404(target: Target) -> None:
    """§4.3, §5.6, §7: jobs and watches that do not exist are 404, whatever is asked of them."""
    asked = {section: request for section, request in endpoints().items() if UNKNOWN_ID in request[1]}
    assert set(asked) == {"4.3", "4.4", "4.7", "4.8"}
    assert statuses(target.account, asked) == dict.fromkeys(asked, 404)


def test_anothers_job_is_404(target: Target, job_id: str) -> None:
    """§4.3, §5.6: a job of another key is answered as one that does not exist."""
    other = target.needs("other", "--other-key: a key of another account")
    assert other.ask("GET", job_path(job_id)).status_code == 404
    label = {"row_id": 2, "bounced": True, "reason": "이사"}
    assert other.ask("POST", f"{job_path(job_id)}/label", json=label).status_code == 404


def test_anothers_watch_is_404(target: Target) -> None:
    """§5.6: a watch of another key is not on the list, has no history, and cannot be removed."""
    other = target.needs("other", "--other-key: a key of another account")
    before = watch_ids(target.account.ask("GET", "/watch").json(), NUMBER)
    if before and target.name == "foreign":
        pytest.skip("the number is watched already, and stays so")
    target.account.ask("POST", "/watch", json={"biz_no": NUMBER})
    (watch_id,) = watch_ids(target.account.ask("GET", "/watch").json(), NUMBER)
    try:
        assert watch_id not in texts(other.ask("GET", "/watch").json())
        assert other.ask("GET", f"/watch/{watch_id}/history").status_code == 404
        assert other.ask("DELETE", f"/watch/{watch_id}").status_code == 404
    finally:
        assert target.account.ask("DELETE", f"/watch/{watch_id}").is_success


def test_a_used_up_quota_is_429(target: Target) -> None:
    """§7, §8: lookups beyond the month's quota are 429, one by one and in a batch; /me can still be read."""
    small = target.needs("small", "--small-quota-key: a key with few lookups left")
    answered = [small.ask("POST", "/verify", json=BUSINESS).status_code for _ in range(6)]
    assert 429 in answered
    assert set(answered[answered.index(429) :]) == {429}
    assert small.ask("POST", "/batch", files=upload(1)).status_code == 429
    assert small.ask("GET", "/me").is_success


def test_a_file_that_is_too_large_is_413(target: Target) -> None:
    """§4.2, §7: an upload beyond the limit is 413."""
    target.must("too large")
    assert target.too_large is not None
    content = b"b_no\n" + b"1248100998\n" * (target.too_large // 11 + 1)
    answer = target.account.ask("POST", "/batch", files={"file": ("large.csv", content, "text/csv")})
    assert answer.status_code == 413
