"""What the address engine finds becomes points, and reasons that say it in words: each level, in both languages."""

from __future__ import annotations

import re
from datetime import date

import polars as pl
import pytest

from bansong.engine.risk.features import levels
from bansong.engine.risk.reasons import FEATURES
from bansong.engine.risk.scorecard import Scorecard
from golden_cases import cases, check

TODAY = date(2026, 11, 22)
INPUTS = cases("address_reasons.csv").drop("case", "reasons", "reasons_ko")
BOOLEANS = ("covered", "supported")
PLAIN: dict[str, object] = {
    **{"name": "가나다", "kind": "individual", "check_digit_ok": True, "biz_status": "active", "as_of": TODAY},
    **{"region_given": True, "numbered": True, "beside": False},
    **dict.fromkeys(("since", "opened"), pl.lit(None, pl.Date)),
}


def assessed(rows: pl.DataFrame, lang: str = "en", gazetteer: bool = True) -> pl.DataFrame:
    frame = rows.with_columns(pl.col(name) == "true" for name in BOOLEANS).lazy()
    plain = {name: value for name, value in PLAIN.items() if name not in rows.columns}
    frame = frame.with_columns(
        **{name: pl.lit(value) if not isinstance(value, pl.Expr) else value for name, value in plain.items()}
    )
    return Scorecard.load().assess(frame, levels(TODAY, registry=True, gazetteer=gazetteer), lang).collect()


def said(rows: pl.DataFrame, lang: str = "en", gazetteer: bool = True) -> pl.Series:
    reasons = assessed(rows, lang, gazetteer)["reasons"].str.split(" | ")
    return reasons.list.eval(pl.element().filter(pl.element().str.contains(r"^\[(?:address|postal)"))).list.join(" | ")


def row(case: str = "exact", **others: str | None) -> pl.DataFrame:
    found = INPUTS.filter(cases("address_reasons.csv")["case"] == case)
    return found.with_columns(pl.lit(value, pl.String).alias(name) for name, value in others.items())


def test_each_match_level_is_told_in_one_sentence_with_its_points() -> None:
    found = cases("address_reasons.csv").with_columns(reasons=said(INPUTS), reasons_ko=said(INPUTS, "ko"))
    check("address_reasons.csv", found, inputs=1)
    marks = [
        found[name].str.extract_all(r"\[[a-z_]+ [+-]\d+\]|\([a-z]+\)(?: \||$)") for name in ("reasons", "reasons_ko")
    ]
    assert marks[0].equals(marks[1].rename("reasons"))


def test_without_a_gazetteer_only_the_postal_code_and_the_form_are_judged() -> None:
    rows = pl.concat(
        [
            row("road absent", unit="missing"),
            row("none", postal_match="other_district", zipcode_given="06236"),
            row("road absent", changes="강원도 → 강원특별자치도", form=None),
            row("none", match_level=None),
        ]
    )
    assert said(rows, gazetteer=False).to_list() == [
        "",
        "[postal +13] postal code 06236 belongs to another district than the address (postal)",
        "[address +0] read as: 강원도 → 강원특별자치도 (file)",
        "",
    ]


@pytest.mark.parametrize("others", [{"unit": "missing"}, {"postal_match": "other_district", "fixed_zipcode": "30098"}])
def test_what_can_be_repaired_in_the_address_asks_for_it_from_grade_c_on(others: dict[str, str]) -> None:
    bad = row("building only", form="lot", unit="missing")
    assert assessed(row(**others))["action"].to_list() == ["send"]
    assert assessed(bad)["action"].to_list() == ["fix_address"]


def test_words_of_the_file_cannot_break_a_reason_in_two_and_a_missing_word_leaves_its_points() -> None:
    rows = pl.concat(
        [
            row("typo repaired", unit=None, changes="a | b\r\nc\x85d\u2028e [status +66] f"),
            row("typo repaired", unit=None, changes=None),
        ]
    )
    assert said(rows).to_list() == [
        "[address +6] corrected automatically: a   b c d e [status +66] f (juso)",
        "[address +6] corrected automatically: spelling (juso)",
    ]
    assert said(rows, "ko")[1] == "[address +6] 자동 보정: 표기 (juso)"


def test_every_level_has_a_reason_in_the_scorecard_in_both_languages() -> None:
    for feature, names in FEATURES.items():
        for name in names:
            level = Scorecard.load().features[feature][name]
            assert level.points or level.always or feature == "region"  # which only learning gives points
            assert re.findall(r"\{\w+\}", level.en) == re.findall(r"\{\w+\}", level.ko), (feature, name)
