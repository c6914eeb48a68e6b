"""What INTERFACE.md leaves open, as docs/service.md decides it. Only our own server is held to this."""

from __future__ import annotations

from datetime import datetime

import httpx

from conformance.target import (
    BUSINESS,
    NUMBER,
    OTHER_NUMBER,
    Account,
    Key,
    Target,
    finished,
    job_path,
    upload,
)

SEVEN = ["biz_status", "bounce_prob", "grade", "action", "fixed_zipcode", "fixed_address", "reasons"]


def used(account: Account) -> int:
    return int(account.ask("GET", "/me").json()["quota"]["used"])


def refused(answer: httpx.Response) -> tuple[int, str]:
    """§7, not shown: the one shape of every error; its status and code."""
    body = answer.json()
    assert list(body) == ["error"]
    assert isinstance(body["error"]["message"], str)
    assert body["error"]["message"]
    return answer.status_code, body["error"]["code"]


def test_a_wrong_key_is_not_asked_what_it_wants(target: Target) -> None:
    """§5.4, not shown: the key is looked at before the body and the path."""
    stranger = Account(target.account.url, Key("wrong"))
    assert stranger.ask("POST", "/verify", content=b"nonsense").status_code == 401
    assert stranger.ask("GET", "/nothing").status_code == 401


def test_a_lookup_has_the_seven_fields_and_no_more(target: Target) -> None:
    """§1, §2.2: all seven, in their order; unknown fields are ignored; a number alone has its status only."""
    answer = target.account.ask("POST", "/verify", json={**BUSINESS, "phone": "02", "bounced": True}).json()
    alone = target.account.ask("POST", "/verify", json={"b_no": NUMBER, "name": None}).json()
    assert list(answer) == list(alone) == SEVEN
    assert answer["grade"] in {"A", "B", "C", "D", "E"}
    assert [alone[name] for name in ("bounce_prob", "grade")] == [None, None]


def test_a_batch_takes_its_rows_or_nothing(target: Target) -> None:
    """§8: a batch takes all its rows at acceptance, and one that does not fit takes none."""
    before = used(target.account)
    created = target.account.ask("POST", "/batch", files=upload(3))
    assert used(target.account) == before + 3
    finished(target.account, created.json()["job_id"], target.pause)
    assert used(target.account) == before + 3
    small = target.needs("small", "")
    spent = used(small)
    assert refused(small.ask("POST", "/batch", files=upload(3))) == (429, "quota_exceeded")
    assert used(small) == spent


def test_paid_false_and_a_flag_that_is_none_cost_nothing(target: Target) -> None:
    """§4.2, not shown: with paid=false nothing is looked up; words other than true and false are refused."""
    before = used(target.account)
    created = target.account.ask("POST", "/batch", files=upload(3), params={"paid": "false"}).json()
    finished(target.account, created["job_id"], target.pause)
    for name in ("offline", "paid"):
        assert refused(target.account.ask("POST", "/batch", files=upload(), params={name: "maybe"}))[0] == 400
    assert used(target.account) == before


def test_a_job_tells_all_rows_the_riskiest_first(target: Target) -> None:
    """§4.3, not shown: items are flat, with row_id from 0 and b_no; preview ≥ total gives all, by default 10."""
    lines = [
        "b_no,name,address",
        *(f"{NUMBER},삼성전자,경기 수원시 영통구 삼성로 {number}" for number in range(1, 12)),
        f"{OTHER_NUMBER},,",
    ]
    content = "\n".join([*lines, "12345,잘못,서울", ""]).encode()
    created = target.account.ask("POST", "/batch", files={"file": ("a.csv", content, "text/csv")}).json()
    assert created["total"] == 13
    record = finished(target.account, created["job_id"], target.pause, preview=100)
    results = record["results"]
    assert sorted(item["row_id"] for item in results) == list(range(13))
    assert {tuple(item) for item in results} == {("row_id", "b_no", *SEVEN, "error")}
    risks = [item["bounce_prob"] for item in results]
    known = [risk for risk in risks if risk is not None]
    assert known == sorted(known, reverse=True)
    assert risks[: len(known)] == known
    by_row = {item["row_id"]: item for item in results}
    assert by_row[12]["error"]
    assert by_row[12]["biz_status"] is None
    assert all(by_row[row]["error"] is None for row in range(12))
    assert (record["total"], record["processed"], record["progress"]) == (13, 13, 1.0)
    assert sum(record["grades"].values()) == 13
    path = job_path(created["job_id"])
    assert len(target.account.ask("GET", path).json()["results"]) == 10
    assert target.account.ask("GET", path, params={"preview": 0}).json()["results"] == []
    assert refused(target.account.ask("GET", path, params={"preview": "all"})) == (400, "invalid_request")
    assert refused(target.account.ask("GET", path, params={"preview": -1})) == (400, "invalid_request")


def test_a_row_without_a_number_is_given_back(target: Target) -> None:
    """§8, not shown: a row whose number is none cannot be looked up, and is not paid for when the job is done."""
    before = used(target.account)
    content = f"b_no\n{NUMBER}\n12345\n".encode()
    created = target.account.ask("POST", "/batch", files={"file": ("a.csv", content, "text/csv")}).json()
    finished(target.account, created["job_id"], target.pause)
    assert used(target.account) == before + 1


def test_a_watch_is_upserted(target: Target) -> None:
    """§4.5 to §4.7: one entry a business: 201 new, 200 known; what is not given again is kept."""
    account = target.account
    new = account.ask("POST", "/watch", json={"biz_no": OTHER_NUMBER, "name": "네이버", "address": "경기 성남시"})
    assert new.status_code == 201
    known = account.ask("POST", "/watch", json={"biz_no": OTHER_NUMBER, "name": "네이버(주)"})
    assert known.status_code == 200
    entry = known.json()
    assert entry["watch_id"] == new.json()["watch_id"]
    assert (entry["name"], entry["address"]) == ("네이버(주)", "경기 성남시")
    datetime.fromisoformat(entry["created_at"])
    listed = account.ask("GET", "/watch").json()
    assert listed["total"] == len(listed["watches"])
    assert entry["watch_id"] in [one["watch_id"] for one in listed["watches"]]
    history = account.ask("GET", f"/watch/{entry['watch_id']}/history").json()
    assert (history["watch_id"], history["biz_no"]) == (entry["watch_id"], OTHER_NUMBER)
    assert isinstance(history["history"], list)
    removed = account.ask("DELETE", f"/watch/{entry['watch_id']}")
    assert (removed.status_code, removed.json()) == (200, {"watch_id": entry["watch_id"], "removed": True})
