"""The tax authority's open API: every reply is statuses or one clean sentence, and the key is shown nowhere."""

from __future__ import annotations

import copy
import json
import logging
import pickle
import subprocess
import sys
import traceback
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

from bansong.client.errors import Action, error_action, is_overload, may_pass
from bansong.engine.registry import MORE, SCHEMA, STATUS_SCHEMA
from bansong.errors import (
    AuthenticationError,
    NotFoundError,
    NotSentError,
    PlanError,
    QuotaError,
    RejectedError,
    ServiceConnectionError,
    ServiceError,
    ServiceTimeoutError,
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
from bansong.testing import (
    NTS_FAULTS,
    Act,
    Body,
    FakeNts,
    Fault,
    Faults,
    Hang,
    Reset,
    Status,
    nts_row,
    portal_code,
    serve,
)
from examples import examples

pytestmark = pytest.mark.anyio

KEY = "Ab+cd/efgh0123456789=="
ENCODED = quote(KEY, safe="")
DAY = date(2026, 11, 23)
HERE = "http://127.0.0.1"
NUMBERS = ["1248100998", "1208800767", "2208162517"]
TRUTH = {
    "1248100998": nts_row("1248100998", "active"),
    "1208800767": nts_row("1208800767", "closed", since="20240131", taxation="simplified", merged=True),
    "2208162517": "unregistered",
}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def fake() -> FakeNts:
    return FakeNts(KEY, TRUTH)


async def ask(
    app: FakeNts | None, numbers: list[str] | pl.Series = NUMBERS, key: str = KEY, url: str = HERE, **more: Any
) -> StatusReply:
    async with NtsClient(NtsKey(key), url, today=lambda: DAY, app=app, **more) as nts:
        return await nts.status(numbers)


async def error_of(app: FakeNts | None, **more: Any) -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        await ask(app, **more)
    return caught.value


async def error_by(act: Act) -> ServiceError:
    return await error_of(FakeNts(KEY, TRUTH, faults=Faults(Fault("status", act))))


def read(rows: object, asked: list[str] = NUMBERS) -> StatusReply:
    found = read_reply(json.dumps({"status_code": "OK", "data": rows}).encode(), 200, asked, DAY, "the API")
    assert isinstance(found, StatusReply)
    return found


async def test_a_reply_is_a_frame_of_statuses_by_number(fake: FakeNts) -> None:
    reply = await ask(fake)
    assert reply.statuses.schema == STATUS_SCHEMA == SCHEMA | {name: MORE[name] for name in ("taxation", "merged")}
    assert reply.statuses.rows() == [
        (1208800767, "closed", date(2024, 1, 31), None, DAY, "simplified", True),
        (1248100998, "active", None, None, DAY, "general", False),
        (2208162517, "unregistered", None, None, DAY, None, None),
    ]
    assert (reply.missing, reply.problems) == ((), {})
    assert fake.asks == dict.fromkeys(NUMBERS, 1)
    await ask(fake, ["124-81-00998", "1248100998"])
    await ask(fake, pl.Series([1248100998, 123456789], dtype=pl.UInt64))
    assert (fake.asks["1248100998"], fake.asks["0123456789"]) == (3, 1)
    assert (await ask(fake, [str(1000000000 + place) for place in range(100)])).statuses.height == 100


async def test_what_is_no_call_of_numbers_is_not_sent(fake: FakeNts) -> None:
    wrong: list[Any] = [[], ["abc"], [None], [0], [10**10], [10**30], [1.5], [str(10**9 + n) for n in range(101)]]
    for numbers in wrong:
        with pytest.raises(UsageError):
            await ask(fake, numbers)
    assert fake.calls == 0


async def test_only_numbers_are_sent() -> None:
    """The request is a POST of ``b_no`` alone: no key and no returnType in its URL."""
    sent: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        return httpx.Response(200, json={"status_code": "OK", "data": []})

    await ask(None, url="https://api.odcloud.kr", http_client=httpx.MockTransport(answer))
    (request,) = sent
    assert str(request.url) == "https://api.odcloud.kr/api/nts-businessman/v1/status"
    assert json.loads(request.content) == {"b_no": NUMBERS}
    assert request.headers["authorization"] == f"Infuser {KEY}"
    assert "x-api-key" not in request.headers


async def test_rows_are_matched_by_number_alone_and_what_is_not_plainly_answered_is_missing(fake: FakeNts) -> None:
    expected = (await ask(fake)).statuses
    first: list[str] = NUMBERS[:1]
    strange = {"fewer": (first, ""), "more": ([], NOT_ASKED), "conflicting": (first, CONFLICTING)}
    strange |= {"new_word": (first, "the status '영업정지자' is not known")}
    strange |= dict.fromkeys(("reordered", "hyphens", "repeated"), ([], ""))
    for fault, (missing, problem) in strange.items():
        fake.faults.clear()
        fake.faults.add(Fault("status", NTS_FAULTS[fault]))
        reply = await ask(fake)
        assert list(reply.missing) == missing, fault
        assert reply.statuses.equals(expected.filter(~pl.col("b_no").is_in([int(number) for number in missing])))
        assert list(reply.problems.values()) == [1] * bool(problem)
        assert next(iter(reply.problems), "").startswith(problem)


CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"b_stt": "계속사업자", "b_stt_cd": "03"}, "the status '계속사업자' has the code '03'"),
    ({"b_stt": "", "b_stt_cd": "", "tax_type": ""}, NO_STATUS),
    ({"b_stt": None}, NO_STATUS),
    ({"b_stt": "", "b_stt_cd": "09", "tax_type": ""}, "the status '09' is not known"),
    ({"b_stt": {"a": 1}}, "the status '{'a': 1}' is not known"),
]
CLEAR: list[tuple[dict[str, Any], tuple[str, date | None]]] = [
    ({"b_stt": "", "b_stt_cd": "02"}, ("suspended", None)),
    ({"b_no": 1248100998}, ("active", None)),
    ({"end_dt": "2024-01-31"}, ("active", date(2024, 1, 31))),
    ({"end_dt": "99999999"}, ("active", None)),
    ({"end_dt": "언젠가"}, ("active", None)),
    ({"tax_type": "새로운 과세"}, ("active", None)),
    ({"tax_type": 1, "utcc_yn": None}, ("active", None)),
]


def test_a_row_is_read_where_it_is_clear_and_no_answer_where_it_contradicts_itself() -> None:
    for row, problem in CONTRADICTIONS:
        reply = read([nts_row(NUMBERS[0]) | {"b_stt_cd": ""} | row, nts_row(NUMBERS[1])], NUMBERS[:2])
        assert reply.missing == (NUMBERS[0],)
        assert [text.startswith(problem) for text in reply.problems] == [True]
    found = [read([nts_row("1248100998") | row], ["1248100998"]).statuses for row, _ in CLEAR]
    assert [one.select("biz_status", "since").row(0) for one in found] == [expected for _, expected in CLEAR]
    reply = read([None, "x", {"b_no": True}, {"b_no": "12"}, nts_row(NUMBERS[0])], NUMBERS[:1])
    assert (reply.missing, reply.problems) == ((), {UNREADABLE: 4})
    assert read([]).missing == tuple(NUMBERS)


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
    "unknown_code": (UnavailableError, RETRY, "it answers with a code that is not known (HTTP 200, returnReasonCode"),
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
    "cut_connection": (ServiceConnectionError, RETRY, "the connection broke ("),
}


def assert_is_one_sentence(error: ServiceError) -> None:
    text = str(error)
    assert "\n" not in text
    assert "  " not in text
    assert text.isprintable()
    assert len(text) < 400
    assert "paid" not in text  # the API is free
    assert text.count("; ") >= 1  # what is wrong, and what to do


async def test_each_fault_is_one_sentence_with_a_remedy() -> None:
    rows = {"reordered", "fewer", "more", "repeated", "conflicting", "hyphens", "new_word"}
    assert NTS_FAULTS.keys() - FAULTS == rows
    for name, (kind, action, words) in FAULTS.items():
        error = await error_by(NTS_FAULTS[name])
        assert (type(error), error_action(error)) == (kind, action), name
        assert str(error).startswith(f"the tax authority's API ({HERE}): {words}")
        assert_is_one_sentence(error)
        assert KEY not in repr(vars(error))
        assert pickle.loads(pickle.dumps(error)).args == error.args


async def test_a_second_s_limit_passes_and_a_day_s_does_not() -> None:
    names = ("second_limit", "too_many", "day_limit", "day_limit_text_429")
    errors = [await error_by(NTS_FAULTS[name]) for name in names]
    assert [may_pass(error) for error in errors] == [True, True, False, False]
    slow = await error_by(NTS_FAULTS["overloaded"])
    assert (slow.status, is_overload(slow)) == (504, True)
    for code, expected in ((22, None), (23, 3.0)):  # else the whole budget of retries would be spent on a day's limit
        assert (await error_by(replace(portal_code(code, status=429), retry_after=3))).retry_after == expected
    others = {402: RejectedError, 405: RejectedError, 407: AuthenticationError, 408: UnavailableError}
    for status, kind in (others | {599: UnavailableError}).items():
        error = await error_by(portal_code("", status=status))
        assert type(error) is kind
        assert_is_one_sentence(error)


def test_the_portal_s_code_is_found_in_each_of_its_forms_and_an_xml_bomb_is_not_read() -> None:
    for body in (
        b'{"OpenAPI_ServiceResponse":{"cmmMsgHeader":{"errMsg":"SERVICE ERROR","returnReasonCode":"22"}}}',
        b'{"returnReasonCode":22}',
        b"<a><returnReasonCode> 022 </returnReasonCode></a>",
        b'<a xmlns="urn:x"><returnReasonCode>22</returnReasonCode></a>',
    ):
        assert isinstance(read_reply(body, 200, NUMBERS, DAY, "the API"), QuotaError)
    entities = "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 9))
    bomb = f'<!DOCTYPE a [<!ENTITY a0 "x">{entities}]><a>&a8;</a>'.encode()
    assert isinstance(read_reply(bomb, 200, NUMBERS, DAY, "the API"), UnavailableError)


async def test_a_hang_a_reset_and_a_closed_port_may_be_asked_again(fake: FakeNts) -> None:
    fake.faults.add(Fault("status", Hang(), at=1), Fault("status", Reset("after"), at=2))
    with serve(fake) as url:
        for kind, words in (
            (ServiceTimeoutError, "no answer in time (timeout 0.2 s); it is free to ask again"),
            (ServiceConnectionError, "the connection broke ("),
        ):
            error = await error_of(None, url=url, timeout=0.2)
            assert type(error) is kind
            assert words in str(error)
            assert_is_one_sentence(error)
            assert may_pass(error)
        fake.faults.release()
    error = await error_of(None, url=f"{HERE}:9")
    assert isinstance(error, NotSentError)
    assert_is_one_sentence(error)


WORDS = ["data", "b_no", "b_stt", "b_stt_cd", "tax_type", "end_dt", "utcc_yn", "code", "returnReasonCode"]
LEAF = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from([*NUMBERS, "OK", "계속사업자"])
)
JSON = st.recursive(
    LEAF,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(WORDS) | st.text(), inner, max_size=5),
    max_leaves=20,
)
FIELD = st.none() | st.integers() | st.sampled_from([*NUMBERS, "계속사업자", "03", "20240131", "20249999"]) | JSON
ROW = st.fixed_dictionaries(
    {"b_no": FIELD}, optional=dict.fromkeys(("b_stt", "b_stt_cd", "tax_type", "end_dt", "utcc_yn"), FIELD)
)


@examples(50)
@given(
    (JSON | st.fixed_dictionaries({"data": st.lists(ROW, max_size=5)})).map(lambda value: json.dumps(value).encode())
    | st.binary()
    | st.binary().map(lambda tail: b"<a><returnReasonCode>" + tail)
)
@example(b'{"code": "\\ud823\\udcd6"}')  # no character, as far as this Python knows
def test_any_reply_is_statuses_or_an_error_of_the_tree(body: bytes) -> None:
    """Whatever the shape, each number is answered once or missing, and nothing else is raised."""
    found = read_reply(body, 200, NUMBERS, DAY, "the API")
    if isinstance(found, ServiceError):
        assert_is_one_sentence(found)
    else:
        assert found.statuses.schema == STATUS_SCHEMA
        answered = {f"{number:010d}" for number in found.statuses["b_no"]}
        assert found.statuses.height == len(answered) == len(NUMBERS) - len(found.missing)
        assert answered | set(found.missing) == set(NUMBERS)
        assert all(problem.isprintable() for problem in found.problems)


PASTED = [
    *("{}", '"{}"', "'{}'", "“{}”", " {}\t", "serviceKey={}", 'serviceKey="{}"', '"serviceKey={}"'),
    *("?serviceKey={}&page=1", "https://api.odcloud.kr/api/nts-businessman/v1/status?ServiceKey={}"),
]


def test_a_key_works_in_either_form_and_what_is_pasted_around_it_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for form in (KEY, ENCODED, ENCODED.lower().replace("ab", "Ab", 1)):
        for pasted in PASTED:
            text = pasted.format(form)
            monkeypatch.setenv("BANSONG_NTS_KEY", text)
            (tmp_path / "key").write_text(f"{text}\n", encoding="utf-8")
            assert NtsKey(text).reveal() == NtsKey.load().reveal() == NtsKey.load(tmp_path / "key").reveal() == KEY
            assert form not in NtsKey(text).redact(f"x {text} y")
    for value in ("", "a b", "열쇠", "%EC%9D%B8", "a%0Ab", 5, None):
        with pytest.raises(UsageError, match=r"the NTS API key .*copy it again from data.go.kr") as caught:
            NtsKey(value)  # type: ignore[arg-type]
        frames = traceback.TracebackException.from_exception(caught.value, capture_locals=True).stack
        shown = [str(caught.value), *(str(frame.locals) for frame in frames if frame.filename != __file__)]
        assert value in ("", 5, None) or not any(str(value) in text for text in shown)


def test_a_key_is_blotted_out_in_each_of_its_forms_and_never_shown_pickled_or_copied() -> None:
    key = NtsKey(ENCODED)
    lower = ENCODED.lower().replace("ab", "Ab", 1)
    for form in (KEY, ENCODED, lower, quote(KEY), json.dumps({"k": KEY}), quote(ENCODED, safe="")):
        for text in (key.redact(form), key.redact(form.encode()).decode()):
            assert "efgh" not in text
            assert "[key]" in text
    assert (repr(key), str(key), f"{[key]}") == ("NtsKey(…)", "NtsKey(…)", "[NtsKey(…)]")
    for copying in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="not pickled or copied"):
            copying(key)


async def test_the_key_is_in_no_log_error_or_traceback(fake: FakeNts, caplog: pytest.LogCaptureFixture) -> None:
    echo = Status(401, body=f'{{"code":-4,"msg":"key {KEY} {ENCODED}"}}'.encode())
    echo_200 = Body(f'{{"key":"{KEY}","encoded":"{ENCODED}"}}'.encode())
    known = [NTS_FAULTS[name] for name in ("bad_key", "internal", "cut_json", "cut_connection")]
    caplog.set_level(logging.DEBUG)
    with serve(fake) as url:
        for act in (echo, echo_200, *known, None):
            fake.faults.clear()
            if act is not None:
                fake.faults.add(Fault("status", act))
            client = NtsClient(NtsKey(ENCODED), f"{HERE}:9" if act is None else url)
            with pytest.raises(ServiceError) as caught:
                async with client as nts:
                    await nts.status(NUMBERS)
            assert caught.value.__context__ is None
            trace = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
            own = [frame for frame in trace.stack if frame.filename != __file__]
            shown = [*map(repr, own), *(str(frame.locals) for frame in own), str(caught.value), repr(client)]
            shown += [repr(vars(caught.value)), caplog.text, *fake.urls]
            assert [text for text in shown if "efgh" in text] == []
    assert "127.0.0.1" in caplog.text  # the log is on


def test_the_url_is_of_this_machine_or_encrypted_and_may_hold_the_whole_path(monkeypatch: pytest.MonkeyPatch) -> None:
    for url, words in {
        "http://nts.example.com": r"plain http would show the NTS API key .*BANSONG_NTS_URL",
        "nts.example.com": r"BANSONG_NTS_URL\): the base URL lacks https://",
    }.items():
        monkeypatch.setenv("BANSONG_NTS_URL", url)
        with pytest.raises(UsageError, match=words):
            NtsClient(NtsKey(KEY))
    path = "/api/nts-businessman/v1/status"
    for base in ("https://api.odcloud.kr", "https://proxy.example.com/mirror"):
        for end in ("", "/", "/api", "/api/nts-businessman/v1", path, f"{path}/"):
            for query in ("", "?serviceKey=efgh"):  # pasted from the portal's page; its key is not repeated
                monkeypatch.setenv("BANSONG_NTS_URL", f"{base}{end}{query}")
                assert f"'{base}{path}'" in repr(NtsClient(NtsKey(KEY)))


async def test_the_fake_counts_its_day_and_its_seconds() -> None:
    for unit, limit, calls in (("numbers", 8, 2), ("calls", 3, 3)):
        fake = FakeNts(KEY, TRUTH, daily_limit=limit, limit_unit=unit)  # type: ignore[arg-type]
        for _ in range(calls):
            await ask(fake)
        assert "returnReasonCode 22" in str(await error_of(fake))
        fake.start_day()
        await ask(fake)
        assert (fake.numbers, fake.asked_again) == (3 * (calls + 1), 3 * calls)
    now = [0.0]
    fake = FakeNts(KEY, TRUTH, per_second=2, clock=lambda: now[0])
    for at, passes in ((0.0, True), (0.5, True), (0.9, False), (1.1, True), (1.4, False)):
        now[0] = at
        if passes:
            await ask(fake)
        else:
            assert "returnReasonCode 23" in str(await error_of(fake))


async def test_the_fake_says_how_many_calls_it_had_at_once_and_refuses_what_the_api_refuses(fake: FakeNts) -> None:
    fake.latency = 0.02
    async with NtsClient(NtsKey(KEY), HERE, concurrency=4, app=fake) as nts, anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(nts.status, NUMBERS)
    path, headers = "/api/nts-businessman/v1/status", {"Authorization": f"Infuser {KEY}"}
    refused = {b"{": "BAD_JSON_REQUEST", b'{"b_no":["124-81-00998"]}': "REQUEST_DATA_MALFORMED"}
    refused[json.dumps({"b_no": NUMBERS[:1] * 101}).encode()] = "TOO_LARGE_REQUEST"
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=fake), base_url=HERE) as asking:
        counts = (await asking.get("/counts")).json()
        assert counts == {"calls": 8, "numbers": 24, "asked_again": 21, "most_in_flight": 4}
        for content, word in refused.items():
            assert (await asking.post(path, content=content, headers=headers)).json() == {"status_code": word}
        assert (await asking.post(path, content=b"{}", headers={"X-API-Key": KEY})).json()["code"] == -4


def test_the_fake_is_a_process_of_its_own(tmp_path: Path) -> None:
    truth = tmp_path / "truth.json"
    truth.write_text(json.dumps(TRUTH), encoding="utf-8")
    command = [sys.executable, "-m", "bansong.testing", "nts", "--api-key", KEY, "--statuses", str(truth)]
    limits = ["--daily-limit", "3", "--fault", "internal", "--fault-share", "0"]
    with subprocess.Popen([*command, *limits], stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            url = running.stdout.readline().strip()
            found = anyio.run(lambda: ask(None, url=url)).statuses["biz_status"].to_list()
            assert found == ["closed", "active", "unregistered"]
            assert "returnReasonCode 22" in str(anyio.run(lambda: error_of(None, url=url)))
            assert httpx.get(f"{url}/counts").json()["numbers"] == 3
        finally:
            running.kill()
