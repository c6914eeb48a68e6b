"""§2.5, §2.6, §4.5 to §4.8: the watch list."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from conformance.target import BUSINESS, NUMBER, OTHER_NUMBER, Target, found, watch_ids


@pytest.fixture
def watched(target: Target) -> Iterator[str]:
    """A watch of one number that was not watched before; removed again."""
    if watch_ids(target.account.ask("GET", "/watch").json(), NUMBER):
        pytest.skip("the number is watched already, and stays so")
    body = {"biz_no": NUMBER, "name": BUSINESS["name"], "address": BUSINESS["address"]}
    answer = target.account.ask("POST", "/watch", json=body)
    assert answer.is_success, answer.text
    (watch_id,) = watch_ids(target.account.ask("GET", "/watch").json(), NUMBER)
    yield watch_id
    target.account.ask("DELETE", f"/watch/{watch_id}")


def test_the_list_is_the_whole_list(target: Target, watched: str) -> None:
    """§4.5, §4.6: GET /watch gives every watch, with no parameter that asks for more."""
    if watch_ids(target.account.ask("GET", "/watch").json(), OTHER_NUMBER):
        pytest.skip("the second number is watched already, and stays so")
    assert target.account.ask("POST", "/watch", json={"biz_no": OTHER_NUMBER, "name": "네이버"}).is_success
    listed = target.account.ask("GET", "/watch").json()
    (second,) = watch_ids(listed, OTHER_NUMBER)
    assert watch_ids(listed, NUMBER) == [watched]
    assert second != watched
    assert target.account.ask("DELETE", f"/watch/{second}").is_success


def test_a_watch_that_was_removed_is_gone(target: Target, watched: str) -> None:
    """§4.7, §5.6: after DELETE it is not on the list, and asked for again it is 404."""
    assert target.account.ask("DELETE", f"/watch/{watched}").is_success
    assert watch_ids(target.account.ask("GET", "/watch").json(), NUMBER) == []
    assert target.account.ask("DELETE", f"/watch/{watched}").status_code == 404
    assert target.account.ask("GET", f"/watch/{watched}/history").status_code == 404


def test_the_history_can_be_read(target: Target, watched: str) -> None:
    """§2.6, §4.8: the history of a watch is JSON, for a Business plan."""
    answer = target.account.ask("GET", f"/watch/{watched}/history")
    assert answer.is_success, answer.text
    assert isinstance(answer.json(), list | dict)


@pytest.mark.parametrize("body", [{}, {"b_no": NUMBER}, {"biz_no": "12481"}], ids=["nothing", "b_no", "too short"])
def test_the_number_is_called_biz_no_here(target: Target, body: dict[str, str]) -> None:
    """§2.5: the field is biz_no, ten digits, and not b_no as in 2.1."""
    answer = target.account.ask("POST", "/watch", json=body)
    if answer.is_success:
        target.account.ask("DELETE", f"/watch/{found(answer.json(), 'watch_id')}")
    assert 400 <= answer.status_code < 500
    assert answer.status_code not in {401, 403, 404, 413, 429}
