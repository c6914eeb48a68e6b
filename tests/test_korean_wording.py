"""The Korean of reasons and notes is worded as mailing teams say it, and older wordings are read still."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from babel.messages.pofile import read_po

import bansong as bs
from bansong.base.business_number import PROBLEMS
from bansong.base.messages import gettext, use_language
from bansong.base.schema import ACTIONS
from bansong.engine.local import ROW_PROBLEMS
from bansong.engine.risk.reasons import parse_reasons
from bansong.engine.risk.scorecard import Scorecard
from bansong.purchase.answers import _NOTES
from bansong.watch import store as watch_forget
from conftest import SAMPLE, write

Run = Callable[..., subprocess.CompletedProcess[str]]

REASONS = {
    ("status", "not_checked"): "휴·폐업 미확인: 상태 자료를 지정하지 않음",
    ("status", "not_found"): "휴·폐업 미확인: 상태 자료에 없는 번호",
    ("status", "closed_over_12_months"): "폐업한 지 12개월 초과(폐업일 {since})",
    ("age", "over_10_years"): "개업한 지 10년 초과",
    ("address", "exact_with_unit"): "도로명주소와 일치(상세주소 포함)",
    ("address", "building_only"): "건물 본번만 확인됨(해당 부번 없음)",
    ("change", "changed"): "도로명주소 표준 표기로 변경: {changes}",
    ("region", "seoul"): "서울 지역의 과거 반송률 반영",
    ("history", "moved"): "이 주소로 보낸 우편물이 '이사'로 반송된 이력 있음",
}

EARLIER = {
    ("status", "closed_over_12_months"): "폐업 12개월 초과 (2024-05-21 폐업)",
    ("status", "not_found"): "상태 미확인: 등록 자료에 없는 번호",
    ("status", "not_checked"): "휴·폐업 미확인: 사업자 상태 자료를 지정하지 않음",
    ("age", "over_10_years"): "개업 10년 초과",
    ("address", "exact_with_unit"): "상세주소까지 갖춘 공식 주소",
    ("address", "building_only"): "건물 본번은 있으나 부번이 없음",
    ("change", "changed"): "공식 표기로 바꿈: 도로명",
    ("region", "seoul"): "서울 지역 우편물의 실적",
    ("history", "moved"): "이 주소로 보낸 우편물 반송됨: 이사",
}
"""What the release wrote whose Korean was reworded, by the level that it tells."""


def test_reasons_are_worded_as_agreed() -> None:
    """Each sentence that an editor chose stands in the scorecard to the letter."""
    card = Scorecard.load()
    assert card.base.ko == "기본 점수(일반 사업자 우편물 기준)"
    assert {place: card.features[place[0]][place[1]].ko for place in REASONS} == REASONS


def test_notes_are_worded_as_agreed() -> None:
    """The notes of rows that get no answer say what happened, and what to do."""
    assert PROBLEMS["scientific"]["ko"] == (
        "엑셀 지수 표기(1.248E+09)로 저장되어 원래 번호를 알 수 없습니다. 원본에서 텍스트 형식으로 다시 받아 주세요"
    )
    assert PROBLEMS["letters"]["ko"].startswith("숫자와 하이픈(-) 외의 문자")
    assert ROW_PROBLEMS["header_row"]["ko"].startswith("중간에 반복된 제목 행")
    assert _NOTES["refused"]["ko"].startswith("서비스에서 거절됨(과금 없음)")


@pytest.mark.parametrize(("place", "text"), EARLIER.items(), ids=[".".join(place) for place in EARLIER])
def test_reasons_of_the_release_before_are_read_back(place: tuple[str, str], text: str) -> None:
    """A file with the wording of before tells the same level as one with the wording of today."""
    level = Scorecard.load().features[place[0]][place[1]]
    subject = {"change": "address"}.get(place[0], place[0])
    reasons = f"[base -50] 일반 사업자 우편의 출발점 (model) | [{subject} {level.points:+d}] {text} ({level.source})"
    found = parse_reasons(pl.LazyFrame({"reasons": [reasons]}), "reasons").collect().row(0, named=True)
    assert (found[f"level:{place[0]}"], found["unread"]) == (place[1], False)


# ── kinds of slips, in every message ─────────────────────────────────────────────────────────────────────────────

_QUOTED = re.compile(r"`[^`]*`|--[a-z-]+(?:[ =][^\s)]+)?|\S+\.[a-z]{2,5}\b")
"""Commands, options and file names, in which codes are what they are."""

OTHER_WORDS = {
    "휴·폐업 상태": r"영업 상태|사업자 상태",
    "반송 등급": r"(?<!반송 )등급",
    "판정 근거": r"판정 사유|작용한 사유|가장 큰 사유",
    "처리 상태": r"행 처리 결과",
    "원본 파일": r"입력 파일",
    "결과 불명": r"결과 미확인",
}
"""The one word for a thing, and others that were used for it."""


def messages() -> dict[str, str]:
    """Every message of the catalogue in Korean, by its English."""
    path = Path(bs.__file__).parent / "locale" / "ko" / "LC_MESSAGES" / "bansong.po"
    with path.open("rb") as file:
        found = [message for message in read_po(file) if message.id]
    plain = [(one.id, one.string) if isinstance(one.id, str) else (one.id[-1], one.string[0]) for one in found]
    return dict(plain)


@pytest.mark.parametrize(("word", "others"), OTHER_WORDS.items())
def test_one_thing_has_one_word(word: str, others: str) -> None:
    """The columns, the report and the messages say the same."""
    assert {english: korean for english, korean in messages().items() if re.search(others, korean)} == {}, word


def test_no_code_of_an_action_stands_in_a_sentence() -> None:
    """People read 발송, 보류; only commands, options and columns have the codes."""
    code = re.compile(rf"(?<![\w.=-])(?:{'|'.join(ACTIONS)})(?![\w=-])|`(?:{'|'.join(ACTIONS)})`")
    ticked = re.compile(rf"`(?:{'|'.join(ACTIONS)})`")
    found = {korean for korean in messages().values() if ticked.search(korean) or code.search(_QUOTED.sub("", korean))}
    assert found == set()


def test_no_word_stands_twice_and_no_stop_follows_a_stop() -> None:
    """Nor does a message end in a stop that another would follow, unless the English has it, too."""
    twice = re.compile(r"(?<![가-힣])([가-힣]{2,}) \1(?![가-힣])")
    slips = {
        korean for korean in messages().values() if twice.search(korean) or re.search(r"[가-힣]\.\s*\.(?!\w)", korean)
    }
    stops = {
        korean
        for english, korean in messages().items()
        if re.search(r"[가-힣]\.$|[가-힣]\.\{", korean) and not re.search(r"[.…]$", english)
    }
    assert (slips, stops) == (set(), set())


@pytest.mark.parametrize("option", ["--letters", "--review", "--manifest"])
@pytest.mark.parametrize("other", ["in.xlsx", "out.xlsx"])
def test_two_uses_of_a_file_are_named_in_korean_and_once(run: Run, tmp_path: Path, option: str, other: str) -> None:
    """What fills a message is Korean and does not repeat the message's own noun."""
    shutil.copy(SAMPLE / "customers.xlsx", tmp_path / "in.xlsx")
    reference = ["--gazetteer", SAMPLE / "gazetteer.parquet"]
    done = run("enrich", "in.xlsx", "-o", "out.xlsx", option, other, *reference, env={"BANSONG_LANG": "ko"})
    assert done.returncode == 2
    assert not re.search(r"([가-힣]{2,}) \1|(?<![-/\w.])[a-z]{3,}(?![.\w])", done.stderr.removeprefix("bansong: "))


def test_roles_may_be_named_in_korean(run: Run, tmp_path: Path) -> None:
    """On the command line and in Python; who names an unknown one is told the names."""
    source = write(tmp_path / "in.csv", "갑,을,병\n124-81-00998,삼성전자,경기 수원시 영통구 삼성로 129\n")
    roles = {"사업자번호": "갑", "상호": "을", "주소": "병"}
    report = bs.enrich(source, tmp_path / "out.csv", columns=roles)
    assert {role: one.header for role, one in report.columns.items()} == {"b_no": "갑", "name": "을", "address": "병"}
    given = ",".join(f"{role}={header}" for role, header in roles.items())
    assert run("plan", source, "--columns", given).returncode == 0
    unknown = run("plan", source, "--columns", "번호=갑", env={"BANSONG_LANG": "ko"})
    assert (unknown.returncode, "사업자번호, 상호, 주소, 우편번호" in unknown.stderr) == (2, True)


def test_forgetting_speaks_korean_and_calls_nothing_erased_that_was_not_there(run: Run) -> None:
    """All kinds of what stores hold have Korean names."""
    assert run("watch", "add", "124-81-00998", "--local").returncode == 0
    with use_language("ko"):
        kinds = [*watch_forget.HELD, "summaries", "answers", "changes", "labels", "letters", "statuses", "choices"]
        kinds += ["results of jobs", "records of jobs", "repeatable answers"]
        assert [kind for kind in kinds if not re.search("[가-힣]", gettext(kind))] == []
        assert bs.forget("220-81-62517").lines()[0] == ("저장된 것 없음", "220-81-62517")
        assert bs.forget("124-81-00998").lines()[0] == ("지움", "124-81-00998")
