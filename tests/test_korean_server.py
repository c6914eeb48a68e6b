"""The server says to people what it says in the language that a request asks for; codes are the same in each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import bansong as bs
from bansong.base.messages import VARIABLE, use_language
from bansong.errors import AuthenticationError
from conftest import write
from korean import english_sentences, english_words
from serving import Served, hosted, refused, served

ENGLISH = "the API key is missing: send it in the header X-API-Key"
KOREAN = "API 키가 없습니다. X-API-Key 헤더로 보내 주세요"
TAGS = {"ko": True, "ko-KR,ko;q=0.9,en;q=0.8": True, "ko" + ",x" * 5000: True}
TAGS |= dict.fromkeys(("fr", "en,ko;q=0.5", "\u00ff;;q=x,,", None), False)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with hosted(tmp_path_factory.mktemp("korean") / "server.sqlite") as running:
        yield running


def test_a_refusal_is_in_the_language_of_its_request(server: Served) -> None:
    for tags, korean in TAGS.items():
        headers = [] if tags is None else [(b"Accept-Language", tags.encode("latin-1"))]
        answer = server.http.post(f"{server.url}/verify", headers=headers)
        assert refused(answer) == (401, "missing_key")
        assert (answer.headers["content-language"], answer.headers["vary"]) == (
            "ko" if korean else "en",
            "accept-language",
        )
        assert answer.json()["error"]["message"] == (KOREAN if korean else ENGLISH)


def test_what_a_process_of_its_own_says_of_an_upload_is_korean(server: Served) -> None:
    answer = server.account().upload(b"\x1f\x8b..", name="x.gz", headers={"Accept-Language": "ko-KR"})
    message = re.sub(r"\([^)]*\)", "", answer.json()["error"]["message"])  # a library's words in brackets
    assert (answer.status_code >= 400, english_words(message)) == (True, [])


def test_the_writer_refuses_in_the_request_s_language(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "ko")
    key = server.account(quota=0)
    for tags, begin in (
        ({}, "the monthly quota of 0 lookups"),
        ({"Accept-Language": "ko"}, "월 조회 한도 0건 중 0건이"),
    ):
        answer = key.verify(headers=tags)
        assert refused(answer) == (429, "quota_exceeded")
        assert answer.json()["error"]["message"].startswith(begin)


def test_a_korean_program_asks_a_service_to_speak_korean(tmp_path: Path) -> None:
    with served(tmp_path / "server.sqlite") as server, use_language("ko"):
        source = write(tmp_path / "in.csv", "사업자번호\n124-81-00998\n")
        (tmp_path / "key").write_text("bv_" + "x" * 40)
        options = {"base_url": server.url, "key_file": tmp_path / "key", "budget": 1}
        with pytest.raises(AuthenticationError) as error:
            bs.enrich(source, tmp_path / "out.csv", engine="verify", **options)
    assert ("API 키" in str(error.value), english_sentences(str(error.value))) == (True, [])
