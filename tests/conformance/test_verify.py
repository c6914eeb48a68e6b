"""§2.1, §2.2, §4.1: single lookups."""

from __future__ import annotations

import re
from typing import Any

import pytest

from conformance.target import BUSINESS, NUMBER, Target

REASON = re.compile(
    r"\[(?P<label>\S.*?) (?P<number>[+-]\d+(\.\d+)?|0)\] (?P<text>.*\S) \((?P<source>\w+)(, \d{4}-\d\d-\d\d)?\)"
)


def test_a_number_alone_is_enough(target: Target) -> None:
    """§2.1, §4.1: b_no is all that is required; the answer is a JSON object with the registration status."""
    answer = target.account.ask("POST", "/verify", json={"b_no": NUMBER})
    assert answer.is_success, answer.text
    assert answer.headers["content-type"].partition(";")[0] == "application/json"
    body = answer.json()
    assert isinstance(body["biz_status"], str)
    assert all(isinstance(reason, str) for reason in body.get("reasons") or [])


def test_a_full_answer_has_risk_corrections_and_reasons_in_the_shapes_that_are_shown(target: Target) -> None:
    """§1, §2.2: a fraction, texts, and reasons as `[<label> <signed number>] <text> (<source tag>)`."""
    answer = target.account.ask("POST", "/verify", json=BUSINESS)
    assert answer.is_success, answer.text
    full = answer.json()
    assert type(full["bounce_prob"]) in (int, float)
    assert 0 <= full["bounce_prob"] <= 1
    for name in ("biz_status", "grade", "action"):
        assert isinstance(full[name], str)
    for name in ("fixed_zipcode", "fixed_address"):
        assert full.get(name) is None or isinstance(full[name], str)
    assert full["reasons"]
    assert [reason for reason in full["reasons"] if not REASON.fullmatch(reason)] == []


@pytest.mark.parametrize(
    "body", [{}, {"name": "삼성전자"}, {"b_no": 1248100998}, {"b_no": "12481"}, {"b_no": "124810099a"}]
)
def test_a_number_that_is_none_is_refused(target: Target, body: dict[str, Any]) -> None:
    """§2.1: b_no is required, text, and ten digits; what is not is refused, and not as something that §7 names."""
    status = target.account.ask("POST", "/verify", json=body).status_code
    assert 400 <= status < 500
    assert status not in {401, 403, 404, 413, 429}
