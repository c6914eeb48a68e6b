"""Reference data, the tax authority's replies and the files with state are spoken of in Korean."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from bansong.base.messages import use_language
from bansong.reference.nts import reply_error
from bansong.reference.registry import build_registry
from korean import english_sentences

STATUSES = (200, 302, 400, 401, 403, 404, 407, 413, 500)


def test_replies_of_the_tax_authority_are_explained_in_korean() -> None:
    """A reply without statuses is explained with what to do, whatever its status and body."""
    with use_language("ko"):
        said = [str(reply_error("국세청 API", status, b"{}")) for status in STATUSES]
        portal = str(reply_error("국세청 API", 200, b'{"returnReasonCode": "22"}'))
    assert english_sentences("\n".join(said)) == []
    assert "오늘 이 키로 쓸 수 있는 조회를 모두 썼습니다(HTTP 200, returnReasonCode 22)" in portal


def test_reports_of_building_are_korean_and_codes_stay(tmp_path: Path) -> None:
    """A registry's report is Korean for people; its plain values, as JSON has them, are not translated."""
    source, output = tmp_path / "목록.csv", tmp_path / "registry.parquet"
    pl.DataFrame({"사업자번호": ["1248100998", "2208162517"], "상태": ["계속사업자", "폐업자"]}).write_csv(source)
    with use_language("ko"):
        report = build_registry([source], output)
        lines, text = dict(report.lines()), str(report)
    assert lines["사업자"] == "2 (영업 중 1, 폐업 1)"
    assert english_sentences(text) == []
    assert report.as_dict()["by_status"] == {"active": 1, "suspended": 0, "closed": 1, "unregistered": 0}
