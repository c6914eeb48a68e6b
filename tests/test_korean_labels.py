"""Returned letters, and what is learned from them, are spoken of in Korean."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import bansong as bs
from bansong.base.messages import use_language
from bansong.learning.report import calibration
from conftest import write
from korean import english_sentences

_LIST = "사업자등록번호,상호,주소\n124-81-00998,가나상사,경기도 수원시 영통구 삼성로 129\n,번호 없음,서울 중구 1\n"
_OUTCOMES = "사업자번호,반송,사유\n124-81-00998,Y,이사\n999-99-99999,Y,\n,?,\n"


@pytest.fixture
def mailed(tmp_path: Path) -> Path:
    bs.enrich(write(tmp_path / "list.csv", _LIST), tmp_path / "mailed.csv")
    return tmp_path / "mailed.csv"


def _label(enriched: Path, text: str = _OUTCOMES, **options: Any) -> bs.LabelReport:
    given = {"file": enriched, "mailed": date(2026, 10, 5), "returns_requested": True, "today": date(2026, 11, 22)}
    with use_language("ko"):
        return bs.label(write(enriched.with_name("outcomes.csv"), text), **given | options)


def test_a_report_of_outcomes_is_korean_and_its_values_are_codes(mailed: Path) -> None:
    """The report is Korean, its headings too; as plain values it has the same codes as in English."""
    report = _label(mailed, unmatched=mailed.with_name("unused.csv"))
    with use_language("ko"):
        said = f"{report}\n" + "\n".join(report.warnings)
    assert english_sentences(said) == []
    assert "반송              1 (이사 1)" in said
    assert "발송한 파일에 없는 사업자번호입니다" in said
    assert "2026-10-05 발송, 반송 요청함, 일부 결과" in said
    assert report.as_dict()["by_reason"] == {"moved": 1}
    assert report.as_dict()["ways"] == {"number": 1}
    unused = pl.read_csv(mailed.with_name("unused.csv"), infer_schema=False)
    assert unused["problem"].to_list() == ["unknown_number", "not_understood"]
    assert unused["why"][0] == "발송한 파일에 없는 사업자번호입니다"


def test_learning_speaks_korean(mailed: Path) -> None:
    """The report of a calibration and the figures of probabilities are Korean; keys of the plain values stay."""
    _label(mailed)
    rows = pl.DataFrame({"bounce_prob": [0.1, 0.2, 0.9] * 30, "bounced": [False, True, True] * 30})
    with use_language("ko"):
        learned, figures = bs.calibrate(), calibration(rows)
        said = f"{learned}\n{figures}"
    assert english_sentences(said) == []
    assert "예상의 1.67배(95% 구간 1.41~1.89): 예상보다 많이 반송됨" in said
    assert set(learned.as_dict()["left_out"]) <= {"mailed less than 45 days ago", "outcome not certain"}  # type: ignore[call-overload]
