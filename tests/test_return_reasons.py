"""What is written on returned letters, and in the columns that say whether one came back."""

from __future__ import annotations

import tomllib
from collections import Counter
from importlib.resources import files

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from bansong.history.outcomes import REASON_CODES, came_back, reason_code
from examples import examples

WORDS = tomllib.loads(files("bansong.history").joinpath("return_reasons.toml").read_text(encoding="utf-8"))


def code_of(*texts: str | None) -> list[str | None]:
    return pl.select(reason_code(pl.lit(pl.Series(texts, dtype=pl.String)))).to_series().to_list()


def back(header: str, *texts: str | None) -> list[bool | None]:
    return pl.select(came_back(pl.lit(pl.Series(texts, dtype=pl.String)), header)).to_series().to_list()


def test_a_reason_is_found_in_what_people_write_around_it() -> None:
    """The words of the post; a text that fits two codes is guessed to be neither, and a blank one is no reason."""
    codes: dict[str | None, str | None] = {
        "수취인불명": "unknown_addressee",
        "이사불명": "moved",
        "주소불명": "unknown_address",
        "폐문부재": "absent",
        "수취거절": "refused",
        "수취인부재": "absent",
        "폐업": "closed",
        "기타": "other",
        "02. 폐문 부재(2회)": "absent",
        "이사불명 / 전화 안받음": "moved",
        "２．수취인 불명": "unknown_addressee",
        "Moved, left no address": "moved",
        "ADDRESSEE UNKNOWN": "unknown_addressee",
        "반송(주소불명)": "unknown_address",
        "업체 폐업으로 배달불가": "closed",
        "수취인불명 또는 이사불명": "other",
        "개가 물었음": "other",
        "99": "other",
        **dict.fromkeys((None, "", "  ", "-", "…")),
    }
    assert dict(zip(codes, code_of(*codes), strict=True)) == codes


def test_no_word_has_two_meanings() -> None:
    plain = [word for forms in WORDS["reasons"].values() for word in forms["exact"]]
    assert [word for word, count in Counter(plain).items() if count > 1] == []
    assert set(WORDS["reasons"]) == set(REASON_CODES)
    for code, forms in WORDS["reasons"].items():
        assert code_of(*forms["exact"]) == [code] * len(forms["exact"])
    every = [word for kind in ("bounced", "delivered") for part in WORDS[kind].values() for word in part]
    assert len(every) == len(set(every))


def test_flags_are_read_under_a_header_that_asks_about_returns() -> None:
    """Y means that the letter came back where the header asks that; under one of delivery nobody can say."""
    yes, no = ("Y", "o", "○", "1", "TRUE", "예", "Ｙ", " 1.0 "), ("N", "X", "×", "0", "false", "아니오", "Ｎ", "0.0")
    assert back("반송여부", *yes, *no) == back("bounced", *yes, *no) == [True] * len(yes) + [False] * len(no)
    assert back("배달결과", *yes, *no) == [None] * (len(yes) + len(no))


def test_words_speak_for_themselves() -> None:
    words = ["반송", "반송 완료", "배달완료", "정상", "폐문부재", "보류", None, "", "delivered", "Returned"]
    expected = [True, True, False, False, True, None, None, None, False, True]
    assert back("배달결과", *words) == back("반송여부", *words) == expected


@examples(20)
@given(st.lists(st.one_of(st.none(), st.text(max_size=12)), min_size=1, max_size=20))
def test_any_text_has_a_code_or_none(texts: list[str | None]) -> None:
    assert set(code_of(*texts)) <= {*REASON_CODES, None}
    assert set(back("반송여부", *texts)) <= {True, False, None}
