"""Answers of the fake service, derived from the record alone, so that tests can predict them."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Final, NamedTuple


class Lookup(NamedTuple):
    """A paid question; missing names and addresses are empty."""

    b_no: str
    name: str = ""
    address: str = ""


Verdict = Callable[[str, str, str], dict[str, Any]]

STATUSES: Final = (
    "active",
    "계속사업자",
    "closed",
    "휴업자",
    "active",
    "suspended",
    "폐업자",
    "unregistered",
    "unknown",
    "under_review",
)
"""``biz_status`` by the number's last digit, in two languages, with unknown words."""

ACTIONS: Final = ("send", "send", "confirm", "hold", "do_not_send")
"""``action`` by grade, A to E."""


def verdict(b_no: str, name: str = "", address: str = "") -> dict[str, Any]:
    """The seven fields of INTERFACE §2.2 for a record; risk is judged when both name and address are given (§1).

    >>> verdict("1248100998")["biz_status"]
    'unknown'
    >>> answer = verdict("1248100998", "삼성전자", "경기 수원시 영통구 삼성로 129")
    >>> answer["bounce_prob"], answer["grade"], answer["fixed_address"]
    (0.839, 'E', '경기 수원시 영통구 삼성로 129')
    """
    status = STATUSES[int(b_no[-1])]
    answer: dict[str, Any] = {
        "biz_status": status,
        "bounce_prob": None,
        "grade": None,
        "action": None,
        "fixed_zipcode": None,
        "fixed_address": None,
        "reasons": [f"[상태 {int(b_no[-1]) - 5:+d}] {b_no}: {status} (nts)"],
    }
    if name and address:
        mark = int.from_bytes(blake2b(f"{b_no}\x1f{name}\x1f{address}".encode(), digest_size=6).digest(), "big")
        level = mark % 1000 // 200
        answer["bounce_prob"] = mark % 1000 / 1000
        answer["grade"] = "ABCDE"[level]
        answer["action"] = ACTIONS[level]
        answer["fixed_zipcode"] = f"{mark // 1000 % 100_000:05d}"
        answer["fixed_address"] = address
        answer["reasons"] += [
            f"[주소 {mark % 41 - 20:+d}] {address} (juso)",
            f"[상호 {mark % 23 - 11:+d}] {name} (model)",
        ]
    return answer
