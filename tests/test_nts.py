"""The tax authority's open API: every reply is statuses or one clean sentence, and the key is shown nowhere."""

from __future__ import annotations

import copy
import json
import logging
import pickle
import ssl
import subprocess
import sys
import traceback
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
import httpx
import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bansong.client.retries import Action, error_action, is_overload, may_pass
from bansong.engine.registry import MORE, SCHEMA, STATUS_SCHEMA
from bansong.errors import (
    AuthenticationError,
    CertificateError,
    NotFoundError,
    NotSentError,
    PlanError,
    QuotaError,
    RejectedError,
    ServiceError,
    ShapeError,
    TooLargeError,
    UnavailableError,
    UsageError,
)
from bansong.reference.nts import (
    CONFLICTING,
    NO_STATUS,
    NOT_ASKED,
    UNREADABLE,
    NtsClient,
    NtsKey,
    StatusReply,
    read_reply,
)
from bansong.testing import NTS_FAULTS, Body, Delay, FakeNts, Fault, Hang, Reset, Status, nts_row, portal_code, serve
from examples import examples

KEY = "Ab+cd/efgh0123456789=="
ENCODED = quote(KEY, safe="")
DAY = date(2026, 11, 23)
NUMBERS = ["1248100998", "1208800767", "2208162517"]
TRUTH = {
    "1248100998": nts_row("1248100998", "active"),
    "1208800767": nts_row("1208800767", "closed", since="20240131", taxation="simplified", merged=True),
    "2208162517": "unregistered",
}


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def fake() -> FakeNts:
    return FakeNts(KEY, TRUTH)


@pytest.fixture
def url(fake: FakeNts) -> Iterator[str]:
    with serve(fake) as base_url:
        yield base_url


async def ask(url: str, numbers: list[str] | pl.Series = NUMBERS, key: str = KEY, **more: Any) -> StatusReply:
    async with NtsClient(NtsKey(key), url, today=lambda: DAY, **more) as nts:
        return await nts.status(numbers)


async def error_of(url: str, **more: Any) -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        await ask(url, **more)
    return caught.value


def read(rows: object, asked: list[str] = NUMBERS) -> StatusReply:
    found = read_reply(json.dumps({"status_code": "OK", "data": rows}).encode(), 200, asked, DAY, "the API")
    assert isinstance(found, StatusReply)
    return found


# ------------------------------------------------------------------------------------------ what is asked and answered


@pytest.mark.anyio
async def test_a_reply_is_a_frame_of_statuses_by_number(fake: FakeNts, url: str) -> None:
    """Words become the registry's values, and an unregistered number is answered, too."""
    reply = await ask(url)
    assert reply.statuses.schema == STATUS_SCHEMA == SCHEMA | {name: MORE[name] for name in ("taxation", "merged")}
    assert reply.statuses.rows() == [
        (1208800767, "closed", date(2024, 1, 31), None, DAY, "simplified", True),
        (1248100998, "active", None, None, DAY, "general", False),
        (2208162517, "unregistered", None, None, DAY, None, None),
    ]
    assert (reply.missing, reply.problems) == ((), {})
    assert fake.asks == dict.fromkeys(NUMBERS, 1)


@pytest.mark.anyio
async def test_numbers_are_asked_once_in_any_form(fake: FakeNts, url: str) -> None:
    """Texts with hyphens and a registry's whole numbers are the same; zeros in front are kept."""
    await ask(url, ["124-81-00998", "1248100998"])
    await ask(url, pl.Series([1248100998, 123456789], dtype=pl.UInt64))
    assert fake.asks == {"1248100998": 2, "0123456789": 1}


@pytest.mark.anyio
@pytest.mark.parametrize(
    "numbers", [[], ["abc"], [None], [0], [10**10], [10**30], [1.5], [str(10**9 + n) for n in range(101)]]
)
async def test_what_is_no_call_of_numbers_is_not_sent(fake: FakeNts, url: str, numbers: Any) -> None:
    """One to a hundred usable numbers make a call; anything else is the caller's mistake."""
    with pytest.raises(UsageError):
        await ask(url, numbers)
    assert fake.calls == 0


@pytest.mark.anyio
async def test_a_hundred_numbers_are_one_call(fake: FakeNts, url: str) -> None:
    reply = await ask(url, [str(1000000000 + place) for place in range(100)])
    assert (reply.statuses.height, fake.calls, fake.numbers) == (100, 1, 100)


@pytest.mark.anyio
async def test_only_numbers_are_sent() -> None:
    """The request is a POST of ``b_no`` alone: no key and no returnType in its URL."""
    sent: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        return httpx.Response(200, json={"status_code": "OK", "data": []})

    await ask("https://api.odcloud.kr", http=httpx.MockTransport(answer))
    (request,) = sent
    assert str(request.url) == "https://api.odcloud.kr/api/nts-businessman/v1/status"
    assert json.loads(request.content) == {"b_no": NUMBERS}
    assert request.headers["authorization"] == f"Infuser {KEY}"
    assert "x-api-key" not in request.headers


# ------------------------------------------------------------------------------------------------- rows of a reply


@pytest.mark.anyio
@pytest.mark.parametrize("fault", ["reordered", "hyphens", "repeated"])
async def test_rows_are_matched_by_number_alone(fake: FakeNts, url: str, fault: str) -> None:
    """Another order, hyphens, and the same row twice change nothing."""
    expected = (await ask(url)).statuses
    fake.faults.add(Fault("status", NTS_FAULTS[fault]))
    reply = await ask(url)
    assert reply.statuses.equals(expected)
    assert (reply.missing, reply.problems) == ((), {})


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("fault", "missing", "problem"),
    [
        ("fewer", NUMBERS[:1], None),
        ("more", [], NOT_ASKED),
        ("conflicting", NUMBERS[:1], CONFLICTING),
        ("new_word", NUMBERS[:1], "the status '영업정지자' is not known"),
    ],
)
async def test_what_is_not_plainly_answered_is_missing_and_said(
    fake: FakeNts, url: str, fault: str, missing: list[str], problem: str | None
) -> None:
    """No number gets the status of another, or one that is not certain."""
    fake.faults.add(Fault("status", NTS_FAULTS[fault]))
    reply = await ask(url)
    assert list(reply.missing) == missing
    assert reply.statuses["b_no"].to_list() == sorted(int(number) for number in NUMBERS if number not in missing)
    assert list(reply.problems.values()) == ([] if problem is None else [1])
    assert problem is None or next(iter(reply.problems)).startswith(problem)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"b_stt": "계속사업자", "b_stt_cd": "03"}, "the status '계속사업자' has the code '03'"),
        ({"b_stt": "", "b_stt_cd": "", "tax_type": ""}, NO_STATUS),
        ({"b_stt": None}, NO_STATUS),
        ({"b_stt": "", "b_stt_cd": "09", "tax_type": ""}, "the status '09' is not known"),
        ({"b_stt": {"a": 1}}, "the status '{'a': 1}' is not known"),
    ],
)
def test_a_row_that_contradicts_itself_or_says_nothing_is_no_answer(row: dict[str, Any], problem: str) -> None:
    reply = read([nts_row(NUMBERS[0]) | {"b_stt_cd": ""} | row, nts_row(NUMBERS[1])], NUMBERS[:2])
    assert reply.missing == (NUMBERS[0],)
    assert [text.startswith(problem) for text in reply.problems] == [True]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"b_stt": "", "b_stt_cd": "02"}, ("suspended", None)),
        ({"b_no": 1248100998}, ("active", None)),
        ({"end_dt": "2024-01-31"}, ("active", date(2024, 1, 31))),
        ({"end_dt": "99999999"}, ("active", None)),
        ({"end_dt": "언젠가"}, ("active", None)),
        ({"tax_type": "새로운 과세"}, ("active", None)),
        ({"tax_type": 1, "utcc_yn": None}, ("active", None)),
    ],
)
def test_a_field_in_another_form_is_read_where_it_is_clear(row: dict[str, Any], expected: tuple[str, Any]) -> None:
    """A day or taxation that is not understood says nothing, and the status counts."""
    reply = read([nts_row("1248100998") | row], ["1248100998"])
    assert reply.statuses.select("biz_status", "since").row(0) == expected


def test_rows_without_numbers_are_left_out_and_said() -> None:
    reply = read([None, "x", {"b_no": True}, {"b_no": "12"}, nts_row(NUMBERS[0])], NUMBERS[:1])
    assert (reply.missing, reply.problems) == ((), {UNREADABLE: 4})


def test_no_rows_at_all_are_no_answers() -> None:
    assert read([]).missing == tuple(NUMBERS)


# ------------------------------------------------------------------------------------------------------- the faults

RETRY, WAIT, REFUSE, END = Action.RETRY_OR_HOLD, Action.WAIT, Action.REFUSE, Action.END_RUN
FAULTS: dict[str, tuple[type[ServiceError], Action, str]] = {
    "bad_key": (AuthenticationError, END, "the key is not registered (HTTP 401, -4); copy it again"),
    "no_such_service": (NotFoundError, END, "there is no such API (HTTP 404, -3); check BANSONG_NTS_URL"),
    "unknown": (UnavailableError, RETRY, "it failed and does not say why (HTTP 400, -999)"),
    "bad_json": (RejectedError, REFUSE, "it calls the request malformed (HTTP 400, BAD_JSON_REQUEST)"),
    "malformed": (RejectedError, REFUSE, "it calls the request malformed (HTTP 411, REQUEST_DATA_MALFORMED)"),
    "too_large": (TooLargeError, REFUSE, "it calls the request too large (HTTP 413, TOO_LARGE_REQUEST)"),
    "internal": (UnavailableError, RETRY, "it failed with an error of its own (HTTP 500, INTERNAL_ERROR)"),
    "forbidden": (PlanError, END, "the key has no access to this API (yet) (HTTP 403, Forbidden); see at data.go.kr"),
    "no_access": (PlanError, END, "the key has no access to this API (yet) (HTTP 200, returnReasonCode 20)"),
    "day_limit": (QuotaError, WAIT, "the key's requests of the day are used up (HTTP 200, returnReasonCode 22)"),
    "day_limit_429": (QuotaError, WAIT, "the key's requests of the day are used up (HTTP 429, returnReasonCode 22)"),
    "day_limit_text": (QuotaError, WAIT, "the key's requests of the day are used up (HTTP 200, API token quota exceed"),
    "day_limit_text_429": (QuotaError, WAIT, "the key's requests of the day are used up (HTTP 429, API token quota e"),
    "second_limit": (QuotaError, WAIT, "too many requests in one second (HTTP 200, returnReasonCode 23)"),
    "blocked_address": (PlanError, END, "it does not take requests from this network's IP address (HTTP 200, returnR"),
    "unregistered_key": (AuthenticationError, END, "the key is not registered (HTTP 200, returnReasonCode 30)"),
    "expired_key": (AuthenticationError, END, "the key's term (활용기간) has ended (HTTP 200, returnReasonCode 31)"),
    "portal_error": (UnavailableError, RETRY, "it failed with an error of its own (HTTP 200, returnReasonCode 99)"),
    "unknown_code": (
        UnavailableError,
        RETRY,
        "it answers with a code that is not known (HTTP 200, returnReasonCode 77)",
    ),
    "too_many": (QuotaError, WAIT, "too many requests in one second (HTTP 429, Too Many Requests)"),
    "overloaded": (UnavailableError, RETRY, "it did not answer in time (HTTP 504, Gateway Time-out)"),
    "unavailable": (UnavailableError, RETRY, "it failed with an error of its own (HTTP 503)"),
    "page": (UnavailableError, RETRY, "a web page came instead of an answer (HTTP 200, 서비스 점검 안내)"),
    "page_503": (UnavailableError, RETRY, "a web page came instead of an answer (HTTP 503, 서비스 점검 안내)"),
    "english_page": (UnavailableError, RETRY, "a web page came instead of an answer (HTTP 200, an HTML page)"),
    "redirect": (RejectedError, END, "it redirects elsewhere, which is not followed (HTTP 307)"),
    "other_shape": (ShapeError, Action.HOLD, "the answer has another shape than the API's (HTTP 200)"),
    "other_list": (ShapeError, Action.HOLD, "the answer has another shape than the API's (HTTP 200)"),
    "cut_json": (UnavailableError, RETRY, "the answer is damaged (HTTP 200, is not JSON)"),
    "not_utf8": (UnavailableError, RETRY, "the answer is damaged (HTTP 200, is not JSON)"),
    "empty": (UnavailableError, RETRY, "the answer is damaged (HTTP 200, is empty)"),
    "cut_connection": (UnavailableError, RETRY, "the connection broke (peer closed connection without sending"),
}
ROWS = {"reordered", "fewer", "more", "repeated", "conflicting", "hyphens", "new_word"}


def assert_is_one_sentence(error: ServiceError) -> None:
    text = str(error)
    assert "\n" not in text
    assert "  " not in text
    assert text.isprintable()
    assert len(text) < 400
    assert "paid" not in text  # the API is free
    assert text.count("; ") >= 1  # what is wrong, and what to do


def test_every_fault_of_the_fake_is_in_the_table() -> None:
    assert set(NTS_FAULTS) == FAULTS.keys() | ROWS


@pytest.mark.anyio
@pytest.mark.parametrize("name", FAULTS)
async def test_each_fault_is_one_sentence_with_a_remedy(fake: FakeNts, url: str, name: str) -> None:
    """It says who was asked, what is wrong, by what that was seen, and what to do; and a run knows what follows."""
    fake.faults.add(Fault("status", NTS_FAULTS[name]))
    kind, action, words = FAULTS[name]
    error = await error_of(url)
    assert type(error) is kind
    assert str(error).startswith(f"the tax authority's API ({url}): {words}")
    assert_is_one_sentence(error)
    assert error_action(error) is action
    assert KEY not in repr(vars(error))
    assert pickle.loads(pickle.dumps(error)).args == error.args


@pytest.mark.anyio
async def test_a_second_s_limit_passes_and_a_day_s_does_not(fake: FakeNts, url: str) -> None:
    """Both come with HTTP 429, too; only the first is worth a wait."""
    for name, passes in {
        "second_limit": True,
        "too_many": True,
        "day_limit": False,
        "day_limit_text_429": False,
    }.items():
        fake.faults.clear()
        fake.faults.add(Fault("status", NTS_FAULTS[name]))
        error = await error_of(url)
        assert (may_pass(error), is_overload(error)) == (passes, passes), name


@pytest.mark.anyio
async def test_a_retry_after_counts_for_a_second_s_limit_and_not_for_a_day_s(fake: FakeNts, url: str) -> None:
    """A gateway that says "in three seconds" of the day's limit would have the whole budget of retries spent."""
    for code, expected in ((22, None), (23, 3.0)):
        fake.faults.clear()
        fake.faults.add(Fault("status", replace(portal_code(code, status=429), retry_after=3)))
        assert (await error_of(url)).retry_after == expected


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (402, RejectedError),
        (405, RejectedError),
        (407, AuthenticationError),
        (408, UnavailableError),
        (599, UnavailableError),
    ],
)
async def test_any_other_status_has_its_sentence_too(
    fake: FakeNts, url: str, status: int, kind: type[ServiceError]
) -> None:
    fake.faults.add(Fault("status", portal_code("", status=status)))
    error = await error_of(url)
    assert type(error) is kind
    assert_is_one_sentence(error)


@pytest.mark.parametrize(
    "body",
    [
        b'{"OpenAPI_ServiceResponse":{"cmmMsgHeader":{"errMsg":"SERVICE ERROR","returnReasonCode":"22"}}}',
        b'{"returnReasonCode":22}',
        b"<a><returnReasonCode> 022 </returnReasonCode></a>",
        b'<a xmlns="urn:x"><returnReasonCode>22</returnReasonCode></a>',
    ],
)
def test_the_portal_s_code_is_found_in_each_of_its_forms(body: bytes) -> None:
    error = read_reply(body, 200, NUMBERS, DAY, "the API")
    assert isinstance(error, QuotaError)
    assert error.retry_after is None


def test_an_xml_bomb_is_not_read() -> None:
    """Entities that expand a thousandfold are refused, and the answer counts as damaged."""
    entities = "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 9))
    body = f'<!DOCTYPE a [<!ENTITY a0 "x">{entities}]><a>&a8;</a>'.encode()
    assert isinstance(read_reply(body, 200, NUMBERS, DAY, "the API"), UnavailableError)


@pytest.mark.anyio
async def test_a_hang_a_reset_and_a_closed_port_may_be_asked_again(fake: FakeNts, url: str) -> None:
    """Asking is free, so nothing is in doubt."""
    fake.faults.add(Fault("status", Hang(), at=1), Fault("status", Reset("after"), at=2))
    for words in ("no answer in time (timeout 0.2 s); it is free to ask again", "the connection broke ("):
        error = await error_of(url, timeout=0.2)
        assert type(error) is UnavailableError
        assert words in str(error)
        assert_is_one_sentence(error)
        assert may_pass(error)
    fake.faults.release()
    error = await error_of("http://127.0.0.1:9")
    assert isinstance(error, NotSentError)
    assert_is_one_sentence(error)


@pytest.mark.anyio
async def test_a_slow_gateway_s_504_is_waited_for(fake: FakeNts, url: str) -> None:
    """The portal hangs for 30 s and then says 504: the client's own timeout is longer than that."""
    fake.faults.add(Fault("status", Delay(0.05)), Fault("status", NTS_FAULTS["overloaded"]))
    error = await error_of(url)
    assert error.status == 504
    assert is_overload(error)


@pytest.mark.anyio
async def test_a_certificate_that_is_not_trusted_ends_the_run() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        cause = ssl.SSLCertVerificationError(1, "certificate verify failed")
        cause.verify_message = "self-signed certificate"
        raise httpx.ConnectError("no", request=request) from cause

    error = await error_of("https://api.odcloud.kr", http=httpx.MockTransport(refuse))
    assert isinstance(error, CertificateError)
    assert "paid" not in str(error)
    assert error_action(error) is END


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from([*NUMBERS, "OK", "계속사업자", "01"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                [
                    "data",
                    "b_no",
                    "b_stt",
                    "b_stt_cd",
                    "tax_type",
                    "end_dt",
                    "utcc_yn",
                    "code",
                    "status_code",
                    "returnReasonCode",
                ]
            )
            | st.text(),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)
FIELD = (
    st.none()
    | st.integers()
    | st.text(max_size=9)
    | st.sampled_from([*NUMBERS, "계속사업자", "03", "20240131", "20249999"])
    | JSON
)
ROW = st.fixed_dictionaries(
    {"b_no": FIELD}, optional=dict.fromkeys(("b_stt", "b_stt_cd", "tax_type", "end_dt", "utcc_yn"), FIELD)
)


def assert_is_reply_or_error(body: bytes, status: int) -> None:
    found = read_reply(body, status, NUMBERS, DAY, "the API")
    if isinstance(found, ServiceError):
        assert_is_one_sentence(found)
    else:
        assert found.statuses.schema == STATUS_SCHEMA
        answered = {f"{number:010d}" for number in found.statuses["b_no"]}
        assert found.statuses.height == len(answered) == len(NUMBERS) - len(found.missing)
        assert answered | set(found.missing) == set(NUMBERS)
        assert all(problem.isprintable() for problem in found.problems)


@examples(300)
@given(JSON | st.fixed_dictionaries({"data": st.lists(ROW, max_size=5)}))
@example({"code": "\U00018cd6"})  # no character, as far as this Python knows
def test_any_json_is_statuses_or_an_error_of_the_tree(value: object) -> None:
    """Whatever the shape, each number is answered once or missing, and nothing else is raised."""
    assert_is_reply_or_error(json.dumps(value).encode(), 200)


@examples(200)
@given(st.binary() | st.binary().map(lambda tail: b"<a><returnReasonCode>" + tail) | st.text().map(str.encode))
def test_any_bytes_are_an_error_of_the_tree(body: bytes) -> None:
    assert_is_reply_or_error(body, 200)


# -------------------------------------------------------------------------------------------------------- the key


@pytest.mark.anyio
@pytest.mark.parametrize("given_key", [KEY, ENCODED, ENCODED.lower().replace("ab", "Ab", 1)])
async def test_a_key_works_in_either_form_of_the_portal(url: str, given_key: str) -> None:
    """An encoded key is decoded once."""
    assert (await ask(url, key=given_key)).missing == ()


def test_a_key_comes_from_the_environment_or_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A file that is named beats the environment; without any, ``find`` is None and ``load`` says what to set."""
    for name in ("BANSONG_NTS_KEY", "BANSONG_NTS_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)
    assert NtsKey.find() is None
    with pytest.raises(UsageError, match=r"no NTS API key: set BANSONG_NTS_KEY to it, or BANSONG_NTS_KEY_FILE "):
        NtsKey.load()
    file = tmp_path / "key"
    file.write_text(f"{ENCODED}\n")
    monkeypatch.setenv("BANSONG_NTS_KEY_FILE", str(file))
    assert NtsKey.load() == NtsKey(KEY)
    monkeypatch.setenv("BANSONG_NTS_KEY", "another-key")
    assert NtsKey.load().reveal() == "another-key"
    assert NtsKey.load(file) == NtsKey.find(file) == NtsKey(KEY)


@pytest.mark.parametrize("value", ["", "a b", "열쇠", "%EC%9D%B8", "a%0Ab", 5, None])
def test_what_is_no_key_is_refused_and_not_repeated(value: Any) -> None:
    with pytest.raises(UsageError, match=r"the NTS API key .*copy it again from data.go.kr") as caught:
        NtsKey(value)
    frames = traceback.TracebackException.from_exception(caught.value, capture_locals=True).stack
    shown = [str(frame.locals) for frame in frames if frame.filename != __file__]
    assert value in ("", 5, None) or not any(value in text for text in [*shown, str(caught.value)])


@pytest.mark.parametrize(
    "pasted",
    [
        '"{}"',
        "'{}'",
        "“{}”",
        " {}\t",
        "serviceKey={}",
        'serviceKey="{}"',
        '"serviceKey={}"',
        "?serviceKey={}&page=1",
        "https://api.odcloud.kr/api/nts-businessman/v1/status?ServiceKey={}",
    ],
)
@pytest.mark.parametrize("form", [KEY, ENCODED])
def test_what_is_pasted_around_a_key_is_dropped(
    pasted: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the environment, a file and an argument alike; each form is blotted out."""
    text = pasted.format(form)
    monkeypatch.setenv("BANSONG_NTS_KEY", text)
    (tmp_path / "key").write_text(f"{text}\n", encoding="utf-8")
    assert NtsKey(text).reveal() == NtsKey.load().reveal() == NtsKey.load(tmp_path / "key").reveal() == KEY
    assert form not in NtsKey(text).redact(f"x {text} y")


def test_a_key_is_blotted_out_in_each_of_its_forms() -> None:
    key = NtsKey(ENCODED)
    for form in (
        KEY,
        ENCODED,
        ENCODED.lower().replace("ab", "Ab", 1),
        quote(KEY),
        json.dumps({"k": KEY}),
        quote(ENCODED, safe=""),
    ):
        for text in (key.redact(form), key.redact(form.encode()).decode()):
            assert "efgh" not in text
            assert "[key]" in text


def test_a_key_is_never_shown_pickled_or_copied() -> None:
    key = NtsKey(KEY)
    assert (repr(key), str(key), f"{[key]}") == ("NtsKey(…)", "NtsKey(…)", "[NtsKey(…)]")
    for copying in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="not pickled or copied"):
            copying(key)


@pytest.mark.anyio
@pytest.mark.parametrize("name", ["bad_key", "internal", "cut_json", "cut_connection", "echo", "echo_200", "refused"])
async def test_the_key_is_in_no_log_error_or_traceback(
    fake: FakeNts, url: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither form is in the debug log, the message, the raw body, or a frame's variables; no URL holds it."""
    acts = {
        "echo": Status(401, body=f'{{"code":-4,"msg":"key {KEY} {ENCODED}"}}'.encode()),
        "echo_200": Body(f'{{"key":"{KEY}","encoded":"{ENCODED}"}}'.encode()),
    }
    fake.faults.add(Fault("status", acts.get(name) or NTS_FAULTS.get(name) or NTS_FAULTS["empty"]))
    caplog.set_level(logging.DEBUG)
    key = NtsKey(ENCODED)
    client = NtsClient(key, "http://127.0.0.1:9" if name == "refused" else url)
    with pytest.raises(ServiceError) as caught:
        async with client as nts:
            await nts.status(NUMBERS)
    assert caught.value.__context__ is None
    trace = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
    own = [frame for frame in trace.stack if frame.filename != __file__]
    shown = [
        *map(repr, own),
        *(str(frame.locals) for frame in own),
        str(caught.value),
        repr(vars(caught.value)),
        caplog.text,
        repr(client),
    ]
    shown += list(fake.urls)
    assert "127.0.0.1" in caplog.text  # the log is on
    assert [text for text in shown if "efgh" in text] == []


RUN = """
import asyncio, logging, sys
import polars as pl
from bansong.base.options import StatusOptions
from bansong.reference.fetch import fetch_statuses
logging.basicConfig(level=logging.DEBUG)
options = StatusOptions(base_url=sys.argv[1], store="statuses.sqlite", rate=1000)
report = asyncio.run(fetch_statuses(pl.Series(range(1000000001, 1000000501), dtype=pl.UInt64), options))
print(repr(report), report.halt)
"""


@pytest.mark.process
@pytest.mark.parametrize("last", ["bad_key", "forbidden", "day_limit", "expired_key"])
def test_a_whole_run_at_debug_level_shows_and_stores_no_key(
    fake: FakeNts, url: str, last: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither form of the key is in what a run prints, in a file that it writes, or in a URL."""
    echo = Status(400, body=f'{{"code":-999,"msg":"{KEY} {ENCODED}"}}'.encode())
    acts = (NTS_FAULTS["cut_json"], echo, NTS_FAULTS["other_shape"])
    fake.faults.add(*(Fault("status", act, at=place) for place, act in enumerate(acts, 1)))
    fake.faults.add(Fault("status", NTS_FAULTS[last], at=range(6, 100)))
    monkeypatch.setenv("BANSONG_NTS_KEY", ENCODED)
    done = subprocess.run([sys.executable, "-c", RUN, url], cwd=tmp_path, capture_output=True, timeout=120, check=True)
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert b"the tax authority's API" in done.stderr
    assert b"halt" in done.stdout
    assert len(written) >= 1
    found = [*written, done.stdout, done.stderr, "".join(fake.urls).encode()]
    assert [text for text in found if b"efgh" in text] == []


def test_plain_http_is_for_this_machine_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BANSONG_NTS_URL", "http://nts.example.com")
    with pytest.raises(UsageError, match=r"plain http would show the NTS API key .*BANSONG_NTS_URL"):
        NtsClient(NtsKey(KEY))
    monkeypatch.setenv("BANSONG_NTS_URL", "nts.example.com")
    with pytest.raises(UsageError, match=r"BANSONG_NTS_URL\): 'nts.example.com' is not a base URL"):
        NtsClient(NtsKey(KEY))
    monkeypatch.setenv("BANSONG_NTS_URL", "https://nts.example.com/mirror")
    assert "https://nts.example.com/mirror/api/nts-businessman/v1/status" in repr(NtsClient(NtsKey(KEY)))


@pytest.mark.parametrize(
    "end",
    ["", "/", "/api", "/api/nts-businessman/v1", "/api/nts-businessman/v1/status", "/api/nts-businessman/v1/status/"],
)
@pytest.mark.parametrize("query", ["", "?serviceKey=efgh"])
@pytest.mark.parametrize("base", ["https://api.odcloud.kr", "https://proxy.example.com/mirror"])
def test_a_url_may_hold_the_whole_path(base: str, end: str, query: str) -> None:
    """What the portal's page shows may be pasted as it is; a key in it is not repeated."""
    client = NtsClient(NtsKey(KEY), f"{base}{end}{query}")
    assert f"'{base}/api/nts-businessman/v1/status'" in repr(client)


@pytest.mark.anyio
async def test_a_client_is_used_inside_of_its_block(url: str) -> None:
    client = NtsClient(NtsKey(KEY), url)
    with pytest.raises(UsageError, match="is not open"):
        await client.status(NUMBERS)
    async with client:
        with pytest.raises(UsageError, match="open already"):
            async with client:
                pass


# ------------------------------------------------------------------------------------------------------- the fake


@pytest.mark.anyio
@pytest.mark.parametrize(("unit", "calls"), [("numbers", 2), ("calls", 3)])
async def test_the_fake_counts_its_day_in_numbers_or_calls(fake: FakeNts, url: str, unit: Any, calls: int) -> None:
    """Above the limit comes code 22, until a new day begins."""
    fake.daily_limit, fake.limit_unit = (8, "numbers") if unit == "numbers" else (3, "calls")
    for _ in range(calls):
        await ask(url)
    assert "returnReasonCode 22" in str(await error_of(url))
    fake.start_day()
    await ask(url)
    assert (fake.numbers, fake.asked_again) == (3 * (calls + 1), 3 * calls)


@pytest.mark.anyio
async def test_the_fake_counts_its_seconds() -> None:
    now = [0.0]
    fake = FakeNts(KEY, TRUTH, per_second=2, clock=lambda: now[0])
    for at, passes in ((0.0, True), (0.5, True), (0.9, False), (1.1, True), (1.4, False)):
        now[0] = at
        if passes:
            await ask("http://127.0.0.1", app=fake)
        else:
            with pytest.raises(QuotaError, match="returnReasonCode 23"):
                await ask("http://127.0.0.1", app=fake)


@pytest.mark.anyio
async def test_the_fake_says_how_many_calls_it_had_at_once(fake: FakeNts, url: str) -> None:
    fake.latency = 0.05
    async with NtsClient(NtsKey(KEY), url, concurrency=4) as nts, anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(nts.status, NUMBERS)
    counts = httpx.get(f"{url}/counts").json()
    assert counts == {"calls": 8, "numbers": 24, "asked_again": 21, "most_in_flight": 4}


@pytest.mark.parametrize(
    ("content", "status", "word"),
    [
        (b"{", 400, "BAD_JSON_REQUEST"),
        (b'{"b_no":[]}', 411, "REQUEST_DATA_MALFORMED"),
        (b'{"b_no":["124-81-00998"]}', 411, "REQUEST_DATA_MALFORMED"),
        (json.dumps({"b_no": ["1248100998"] * 101}).encode(), 413, "TOO_LARGE_REQUEST"),
    ],
)
def test_the_fake_refuses_what_the_api_refuses(url: str, content: bytes, status: int, word: str) -> None:
    path = f"{url}/api/nts-businessman/v1/status"
    reply = httpx.post(path, content=content, headers={"Authorization": f"Infuser {KEY}"})
    assert (reply.status_code, reply.json()) == (status, {"status_code": word})
    assert httpx.post(path, content=content, headers={"X-API-Key": KEY}).json()["code"] == -4
    assert httpx.get(path).json()["code"] == -3


def test_the_fake_is_a_process_of_its_own(tmp_path: Path) -> None:
    """It prints its URL, and answers by the truth and with the faults that it was given."""
    truth = tmp_path / "truth.json"
    truth.write_text(json.dumps(TRUTH), encoding="utf-8")
    command = [sys.executable, "-m", "bansong.testing", "nts", "--api-key", KEY, "--statuses", str(truth)]
    limits = ["--daily-limit", "4", "--fault", "internal", "--fault-share", "0"]
    with subprocess.Popen([*command, *limits], stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            base_url = running.stdout.readline().strip()
            assert anyio.run(ask, base_url).statuses["biz_status"].to_list() == ["closed", "active", "unregistered"]
            assert anyio.run(ask, base_url, ["5000000001"]).statuses["biz_status"].item() == "active"
            assert "returnReasonCode 22" in str(anyio.run(error_of, base_url))
            assert httpx.get(f"{base_url}/counts").json()["numbers"] == 4
        finally:
            running.kill()
