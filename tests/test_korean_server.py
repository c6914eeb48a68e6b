"""The server says to people what it says in the language that a request asks for; codes are the same in each."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest

import bansong as bs
from bansong.base.messages import VARIABLE, use_language
from bansong.errors import AuthenticationError
from conftest import write
from korean import english_sentences, english_words
from serving import HTTP, make_key, served

FILE = ("x.csv", b"b_no\n1248100998\n")
KOREAN = {"ko": True, "ko-KR,ko;q=0.9,en;q=0.8": True, "fr": False, "en,ko;q=0.5": False, "\u00ff;;q=x,,": False}


@pytest.mark.parametrize(("tags", "korean"), [*KOREAN.items(), ("ko" + ",x" * 5000, True), (None, False)])
def test_a_refusal_is_in_the_language_of_its_request(tags: str | None, korean: bool, tmp_path: Path) -> None:
    """By Accept-Language; English where none is asked for, or none that is known; a long header is no way to harm."""
    with served(tmp_path / "server.sqlite") as server:
        headers = [] if tags is None else [(b"Accept-Language", tags.encode("latin-1"))]
        answer = HTTP.post(f"{server.url}/verify", headers=httpx.Headers(headers), json={"b_no": "1248100998"})
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (401, "missing_key")
        english = "the API key is missing: send it in the header X-API-Key"
        assert answer.headers["content-language"] == ("ko" if korean else "en")
        assert answer.headers["vary"] == "accept-language"
        assert error["message"] == ("API 키가 없습니다. X-API-Key 헤더로 보내 주세요" if korean else english)


def test_what_is_wrong_with_a_request_or_file_is_said_in_korean(tmp_path: Path) -> None:
    """Fields, uploads that cannot be read (said by a process of its own), paths: no English sentence."""
    with served(tmp_path / "server.sqlite") as server:
        head = {"X-API-Key": make_key(tmp_path / "server.sqlite"), "Accept-Language": "ko-KR"}
        said = [
            HTTP.post(f"{server.url}/verify", headers=head, json={"b_no": "12"}),
            HTTP.post(f"{server.url}/verify", headers=head, json={"b_no": 1248100998}),
            HTTP.post(f"{server.url}/verify", headers=head, json={"name": "가"}),
            HTTP.post(f"{server.url}/verify", headers=head | {"Content-Type": "application/json"}, content=b"{"),
            HTTP.get(f"{server.url}/batch/none", headers=head),
            HTTP.get(f"{server.url}/nothing", headers=head),
            HTTP.post(f"{server.url}/batch", headers=head, files={"file": ("x.csv", b"")}),
            HTTP.post(f"{server.url}/batch", headers=head, files={"file": ("x.csv", "이름,등급\n가,A\n".encode())}),
            HTTP.post(f"{server.url}/batch", headers=head, files={"file": ("x.xlsx", b"PK\3\4nothing")}),
            HTTP.post(f"{server.url}/batch", headers=head, files={"file": ("x.gz", b"\x1f\x8b..")}),
        ]
        for answer in said:
            assert answer.status_code >= 400
            message = re.sub(r"\([^)]*\)", "", answer.json()["error"]["message"])  # a library's words in brackets
            assert english_words(message) == [], answer.text


def test_a_korean_program_asks_a_service_to_speak_korean(tmp_path: Path) -> None:
    """What the service says comes through in Korean, with our own words around it."""
    with served(tmp_path / "server.sqlite") as server, use_language("ko"):
        source = write(tmp_path / "in.csv", "사업자번호\n124-81-00998\n")
        (tmp_path / "key").write_text("bv_" + "x" * 40)
        with pytest.raises(AuthenticationError) as refused:
            bs.enrich(
                source, tmp_path / "out.csv", engine="verify", base_url=server.url, key_file=tmp_path / "key", budget=1
            )
    assert "API 키" in str(refused.value)
    assert english_sentences(str(refused.value)) == []


def test_what_the_writer_refuses_is_in_the_language_of_its_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quota that is used up is found in the writer's thread: English without the header on a Korean server, too."""
    monkeypatch.setenv(VARIABLE, "ko")
    with served(tmp_path / "server.sqlite") as server:
        head = {"X-API-Key": make_key(tmp_path / "server.sqlite", quota=0)}
        for path, body in {"/verify": {"json": {"b_no": "1248100998"}}, "/batch": {"files": {"file": FILE}}}.items():
            plain = HTTP.post(server.url + path, headers=head, **body)
            korean = HTTP.post(server.url + path, headers=head | {"Accept-Language": "ko"}, **body)
            assert plain.json()["error"]["message"].startswith("the monthly quota of 0 lookups has 0 left"), path
            assert korean.json()["error"]["message"].startswith("월 조회 한도 0건 중 0건이 남았는데"), path
            assert [one.json()["error"]["code"] for one in (plain, korean)] == ["quota_exceeded"] * 2


def test_no_english_noun_is_left_in_a_korean_sentence(tmp_path: Path) -> None:
    """What is too large or not there, and the unit of the limit; the field ``unit`` is in no language."""
    with served(tmp_path / "server.sqlite") as server:
        head = {"X-API-Key": make_key(tmp_path / "server.sqlite"), "Accept-Language": "ko"}
        large = HTTP.post(f"{server.url}/verify", headers=head, content=b"1" * 70_000).json()["error"]
        assert large["message"] == "크기가 너무 큽니다(요청 본문). 한 번에 65,536바이트까지 받으니 나누어 보내 주세요"
        assert (large["code"], large["unit"]) == ("too_large", "bytes")
        for path, noun in {"/watch/none": "감시 항목", "/batch/none": "작업"}.items():
            message = HTTP.delete(server.url + path, headers=head).json()["error"]["message"]
            assert message == f"{noun}: 없거나 이 키의 것이 아닙니다"
