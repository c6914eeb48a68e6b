"""§2.7, §4.9, §8: the account."""

from __future__ import annotations

import re

from conformance.target import Target, texts


def test_the_account_tells_its_limits(target: Target) -> None:
    """§2.7, §4.9, §8: GET /me is JSON and says the limits: there are numbers in it."""
    answer = target.account.ask("GET", "/me")
    assert answer.is_success, answer.text
    assert answer.headers["content-type"].partition(";")[0] == "application/json"
    assert [text for text in texts(answer.json()) if re.fullmatch(r"\d[\d,]*", text)]


def test_asking_for_the_account_costs_nothing(target: Target) -> None:
    """§1, §4.9: what counts against the quota is lookups: asked twice, /me says the same numbers."""
    numbers = [
        [text for text in texts(target.account.ask("GET", "/me").json()) if re.fullmatch(r"\d[\d,]*", text)]
        for _ in range(2)
    ]
    assert numbers[0] == numbers[1]
