"""What the service may well answer, in several dialects, each written by hand from INTERFACE.md (`tests/golden/`)."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bansong.client import Acknowledged
from bansong.client.evidence import (
    DONE_WORDS,
    FAILED_WORDS,
    WORKING_WORDS,
    UnreadableError,
    as_whole_number,
    is_other,
    parse_json,
)
from bansong.client.responses import (
    read_account,
    read_acknowledged,
    read_created,
    read_history,
    read_result,
    read_status,
    read_verified,
    read_watch,
    read_watches,
)
from conftest import ROOT, json_of
from examples import examples

READERS: dict[str, Callable[[Any], Any]] = {
    "verify": read_verified,
    "batch_created": read_created,
    "batch_status": read_status,
    "me": read_account,
    "watch": read_watches,
    "history": read_history,
}


def read_of(name: str, found: Any) -> dict[str, Any]:
    """What a golden line says of a body, from what was read."""
    if name == "verify":
        answer = found.answer
        fields = [getattr(answer, field.name) for field in dataclasses.fields(answer)]
        return {"answer": [*fields[:-1], list(fields[-1])]}
    if name == "batch_created":
        return {"job": [found.job_id, found.total]}
    if name == "batch_status":
        results = [
            [one.key, one.b_no, one.name, one.address, one.answer and one.answer.biz_status, one.error]
            for one in found.results
        ]
        return {"status": [found.status, found.state, found.total, found.done], "results": results}
    if name == "me":
        return {"account": [found.limit, found.used, found.remaining, found.plan]}
    if name == "watch":
        return {"entries": [[one.watch_id, one.biz_no, one.name, one.address, one.grade] for one in found]}
    return {"changes": [[change.at, change.before, change.after] for change in found]}


def differs(name: str, case: dict[str, Any]) -> Any:
    """What is read of a golden body, where the file says otherwise."""
    try:
        found = READERS[name](case["body"])
    except UnreadableError as error:
        return None if case.get("error", "-") in str(error) else str(error)
    read = read_of(name, found)
    for result, wanted in zip(read.get("results", ()), case.get("results", ()), strict=True):
        if wanted[-1] and wanted[-1] in (result[-1] or ""):  # a part of the error's text
            result[-1] = wanted[-1]
            result[-2] = wanted[-2] if result[-2] is None else result[-2]
    if getattr(found, "raw", case["body"]) != case["body"]:
        return found
    return None if "error" not in case and all(case[key] == value for key, value in read.items()) else read


@pytest.mark.parametrize("name", READERS)
def test_bodies_in_many_dialects_are_read_as_the_golden_files_say(name: str) -> None:
    """G1 to G20: what fits is read, what could be read wrongly is not read at all."""
    cases = json_of(ROOT / "tests" / "golden" / f"{name}.json")
    assert {case["case"]: found for case in cases if (found := differs(name, case)) is not None} == {}
    assert [case["case"] for case in cases if not re.fullmatch(r"(G\d+)?", case["guess"])] == []


def test_a_new_watch_entry_may_be_wrapped_too() -> None:
    """G1, G18"""
    assert read_watch({"watch": {"id": 3, "biz_no": "1248100998"}}).watch_id == "3"
    with pytest.raises(UnreadableError, match="has no watch_id"):
        read_watch({"ok": True})


def test_status_words_are_told_apart_and_unknown_ones_are_still_at_work() -> None:
    """G8: in any case, with spaces, dashes or underscores; of an unusual word the user can be told."""
    for words, state in [(DONE_WORDS, "done"), (FAILED_WORDS, "failed"), (WORKING_WORDS, "working")]:
        for word in words:
            for written in (word, word.upper(), f" {word.replace('_', ' ')} ", word.replace("_", "-")):
                status = read_status({"status": written})
                assert (status.state, status.known_word, status.status) == (state, True, written)
    assert not DONE_WORDS & FAILED_WORDS | DONE_WORDS & WORKING_WORDS | FAILED_WORDS & WORKING_WORDS
    strange = read_status({"status": "percolating"})
    assert (strange.state, strange.known_word) == ("working", False)


def test_unknown_fields_are_kept_and_a_result_is_shown_without_its_raw_form() -> None:
    verified = read_verified({"grade": "A", "model_version": 7, "nested": {"a": [1]}})
    assert verified.model_extra == {"model_version": 7, "nested": {"a": [1]}}
    status = read_status({"status": "done", "results": [{"row_id": 0, "grade": "A", "score": 99}], "eta": 5})
    assert (status.model_extra, status.results[0].model_extra["score"]) == ({"eta": 5}, 99)
    result = read_result({"row_id": 0, "grade": "A", "raw": "x"})
    assert result.raw == {"row_id": 0, "grade": "A", "raw": "x"}
    assert "raw=" not in repr(result)


def test_anything_is_an_acknowledgement() -> None:
    """G21"""
    assert read_acknowledged({"ok": True}).model_extra == {"ok": True}
    for value in (None, "OK", [], 1):
        assert read_acknowledged(value).raw == value
    assert isinstance(read_acknowledged({}), Acknowledged)


def test_json_is_read_as_services_write_it() -> None:
    """G24: NaN is how Python's own writer says that there is no number; half a pair is a text cut in UTF-16."""
    for body, value in {
        b'{"bounce_prob": NaN, "grade": "A"}': {"bounce_prob": None, "grade": "A"},
        b'\xef\xbb\xbf{"grade": "A"}': {"grade": "A"},
        b'{"n": 123456789012345678901234567890}': {"n": 123456789012345678901234567890},
        b'{"name": "\\ud83d\\ude00 \\ud83d"}': {"name": "😀 \ufffd"},
    }.items():
        assert parse_json(body) == value


OURS = {
    "상사 주식회사": ["(주)상사"],
    "acme Inc.": ["ACME"],
    "서울시 중구 세종대로 110, 3층": ["서울특별시 중구 세종대로 110"],
    "서울 중구 세종대로 110": ["서울특별시 중구 세종대로 110 (태평로1가)", "서울 중구 세종대로 1**", "서울 중…"],
    "충남 천안시 동남구 만남로 43": ["충청남도 천안시 동남구 만남로 043"],
    "홍길동": ["홍*동"],
    "경기도 수원시 영통구 매탄로 108번길 12, 3층": ["경기도 수원시 영통구 매탄로 108번길 1"],
    "상사": ["상\ufffd", "!!"],
}
OTHERS = {
    "상사 1": ["상사 2"],
    "상사 12": ["상사 1"],
    "상사 5": ["다른 상사"],
    "삼성전자": ["삼성물산"],
    "서울 중구 세종대로 110": ["서울 강남구 테헤란로 110", "서울 중구 세종대로 112"],
    "홍길동": ["김*수"],
}


def test_a_text_may_be_repeated_cleaned_completed_cut_or_masked() -> None:
    """G32: none of this proves that another record is meant; other numbers or words do."""
    assert [said for sent, texts in OURS.items() for said in texts if is_other(said, sent)] == []
    assert [said for sent, texts in OTHERS.items() for said in texts if not is_other(said, sent)] == []
    for sent, (said, *_) in OURS.items():
        assert read_verified({"input": {"name": said}, "grade": "A"}, "1248100998", sent).grade == "A"
    for sent, (said, *_) in OTHERS.items():
        for echo in ({"input": {"b_no": "124-81-00998", "name": said}}, {"name": said}):
            with pytest.raises(UnreadableError, match="repeats another name than was sent with 1248100998") as caught:
                read_verified(echo | {"grade": "A"}, "1248100998", sent)
            assert said not in str(caught.value)  # names are people's data


@pytest.mark.parametrize(
    ("item", "b_no", "key", "error"),
    [
        ({"row_id": 1, "result": {"b_no": "2208162517", "grade": "A"}}, "2208162517", 1, None),
        ({"row_id": 1, "b_no": "1248100998", "result": {"b_no": "2208162517", "grade": "A"}}, None, 1, "two numbers"),
        ({"input": {"b_no": 1248100998}, "row": {"b_no": "2208162517"}, "grade": "A"}, None, None, "two numbers"),
        ({"row_id": 1, "b_no": "124-81-00998", "input": {"b_no": 1248100998}, "grade": "A"}, "1248100998", 1, None),
        (
            {"row_id": "1\ufffd", "b_no": "12481\ufffd0998", "name": "\ufffd", "grade": "A"},
            "12481\ufffd0998",
            None,
            None,
        ),
    ],
)
def test_every_echo_of_an_item_counts(item: Any, b_no: str | None, key: int | None, error: str | None) -> None:
    """G32, G33: an item about two numbers is nobody's; a number that bytes were replaced in is none."""
    result = read_result(item)
    assert (result.b_no, result.key) == (b_no, key)
    assert (result.error is None) == (error is None)
    assert error is None or error in str(result.error)
    assert result.name is None


def test_an_item_that_contradicts_the_key_of_its_object_is_nobodys() -> None:
    """G11, G32: two numbers leave no answer, two row keys no key."""
    numbered = {"1248100998": {"b_no": "2208162517", "grade": "A"}, "2208162517": {"grade": "B"}}
    first, second = read_status({"status": "done", "results": numbered}).results
    assert (first.answer, first.b_no, second.b_no) == (None, None, "2208162517")
    ids = {"1700000001": {"b_no": "124-81-00998", "grade": "A"}, "1700000002": {"b_no": "2208162517", "grade": "B"}}
    found = read_status({"status": "done", "results": ids}).results
    assert [(row.b_no, row.answer.grade) for row in found if row.answer] == [("1248100998", "A"), ("2208162517", "B")]
    rows = read_status({"status": "done", "results": {"0": {"row_id": 1, "grade": "A"}, "1": {"grade": "B"}}}).results
    assert [row.key for row in rows] == [None, 1]


def test_a_number_without_its_leading_zeros_and_a_source_are_no_contradiction() -> None:
    """G13, G32: a JSON number cannot begin with zero, and the source of an answer is no echo of its question."""
    asked = ("0178100998", "상사")
    assert read_verified({"b_no": 178100998, "source": {"name": "국세청"}, "grade": "A"}, *asked).grade == "A"
    with pytest.raises(UnreadableError, match="another number"):
        read_verified({"b_no": 178100999, "grade": "A"}, *asked)


def test_bytes_that_are_not_utf8_are_replaced_where_an_answer_is_paid_for() -> None:
    """G33: and nowhere else; what is no JSON then either (UTF-16, garbage) stays unreadable."""
    assert parse_json(b'{"grade": "\xff"}', replacing=True) == {"grade": "\ufffd"}
    assert parse_json(b'\xef\xbb\xbf{"grade": "\xff"}', replacing=True) == {"grade": "\ufffd"}
    for body in ('{"grade": "A"}'.encode("utf-16"), b'{"grade": "A", \xff\x00'):
        with pytest.raises(UnreadableError, match="is not JSON"):
            parse_json(body, replacing=True)


def test_an_infinite_probability_is_no_number() -> None:
    """G4, G24"""
    with pytest.raises(UnreadableError, match="not a number"):
        read_verified(parse_json(b'{"bounce_prob": Infinity}'))


def test_what_is_no_json_is_said_to_be_none() -> None:
    for body, error in {
        b" \n": "is empty",
        b"<!doctype html><title>Log in</title>": "is the base URL right?",
        b'{"a": 1': "is not JSON",
        b'{"a": "\xff"}': "is not JSON",
        b"[" * 100_000: "is nested too deeply",
    }.items():
        with pytest.raises(UnreadableError) as caught:
            parse_json(body)
        assert error in str(caught.value)


def test_whole_numbers_are_found_in_texts_and_nowhere_else() -> None:
    assert [as_whole_number(value) for value in (5, 5.0, "5", " 1,300 ", "5.0", "-1")] == [5, 5, 5, 1300, 5, -1]
    assert [as_whole_number(value) for value in (True, 5.5, "5.5", "x", "", None, [], {}, float("nan"), "٣")] == [
        None
    ] * 10
    assert as_whole_number("999999999999999999") == 999999999999999999


NAMES = st.sampled_from(
    (
        *("status", "data", "results", "result", "items", "row_id", "id", "job_id", "total", "progress", "input"),
        *("error", "biz_status", "bounce_prob", "reasons", "quota", "limit", "usage", "used", "monthly", "raw"),
    )
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES | st.text(max_size=3), inner, max_size=5),
    max_leaves=12,
)


@examples(400)
@given(JSON)
def test_no_answer_breaks_a_reader(value: object) -> None:
    """Whatever comes: a value, or the one error that says that it cannot be read."""
    for reader in (*READERS.values(), read_watch, read_result, read_acknowledged):
        with suppress(UnreadableError):
            reader(value)


def test_the_guesses_on_the_page_in_the_code_and_in_the_tests_are_the_same() -> None:
    """Each guess has one line in `docs/guesses.md`, a place in the code and a test that names it."""
    page = re.findall(r"^\| (G\d+) \|", (ROOT / "docs" / "guesses.md").read_text(encoding="utf-8"), flags=re.M)
    assert page == [f"G{number}" for number in range(1, len(page) + 1)]
    assert named_in("src/bansong/client/*.py") == set(page)
    assert named_in(
        "tests/test_client*.py", "tests/test_shapes.py", "tests/test_transport.py", "tests/golden/*.json"
    ) == set(page)


def named_in(*patterns: str) -> set[str]:
    """The guesses that files name, a range (``G1 to G5``) standing for all in it."""
    found = set()
    for pattern in patterns:
        for path in ROOT.glob(pattern):
            text = path.read_text(encoding="utf-8")
            found |= {int(number) for number in re.findall(r"\bG(\d+)\b", text)}
            for start, end in re.findall(r"\bG(\d+) to G(\d+)\b", text):
                found |= set(range(int(start), int(end) + 1))
    return {f"G{number}" for number in found}
