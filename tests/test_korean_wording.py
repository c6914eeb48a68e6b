"""The Korean of reasons and notes is worded as mailing teams say it, and older wordings are read still."""

from __future__ import annotations

import polars as pl
import pytest

from bizverify.business_number import PROBLEMS
from bizverify.engine.local import ROW_PROBLEMS
from bizverify.engine.risk.reason_parser import parse_reasons
from bizverify.engine.risk.scorecard import Scorecard
from bizverify.purchase.answer_join import _NOTES

REASONS = {
    ("status", "not_checked"): "휴·폐업 미확인: 사업자 상태 자료를 지정하지 않음",
    ("status", "not_found"): "휴·폐업 미확인: 사업자 상태 자료에 없는 번호",
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
    ("status", "not_checked"): "상태 미확인: 등록 자료가 지정되지 않음",
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
