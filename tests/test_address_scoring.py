"""What the address engine finds becomes points, and reasons that say it in words: each level, in both languages."""

from __future__ import annotations

import random
import re
from datetime import date
from pathlib import Path

import polars as pl
import pytest

from bansong.engine.risk.features import levels
from bansong.engine.risk.reasons import FEATURES, LABELS
from bansong.engine.risk.scorecard import Scorecard
from bansong.errors import ModelError
from scorecards import TEXT

TODAY = date(2026, 11, 22)
REASON = re.compile(
    r"^\[([a-z_]+) ([+-]\d+)\] (.+) \((nts|registry|juso|postal|number|file|label|model)(?:, [0-9-]{10})?\)$"
)
ADDRESS = "세종특별자치시 한누리대로 2130"
FOUND = {"match_level": "exact", "covered": True, "form": "road", "fixed_address": ADDRESS, "fixed_zipcode": "30151"}
PLAIN: dict[str, object] = {
    "name": "가나다",
    "address": ADDRESS,
    "zipcode": "30151",
    "kind": "individual",
    "check_digit_ok": True,
    "biz_status": "active",
    "since": None,
    "opened": None,
    "as_of": TODAY,
    "match_level": None,
    "covered": False,
    "form": None,
    "unit": None,
    "region_given": True,
    "numbered": True,
    "beside": False,
    "postal_match": None,
    "supported": None,
    "zipcode_given": "30151",
    "changes": None,
    "fixed_zipcode": None,
    "fixed_address": None,
}
"""A row as it comes to the scorecard when nothing is known of its address."""
SCHEMA = dict.fromkeys(PLAIN, pl.String) | {
    "check_digit_ok": pl.Boolean,
    "covered": pl.Boolean,
    **dict.fromkeys(("supported", "region_given", "numbered", "beside"), pl.Boolean),
    "since": pl.Date,
    "opened": pl.Date,
    "as_of": pl.Date,
}


def assessed(rows: list[dict[str, object]], lang: str = "en", gazetteer: bool = True) -> pl.DataFrame:
    frame = pl.LazyFrame([PLAIN | row for row in rows], schema=SCHEMA)
    return Scorecard.load().assess(frame, levels(TODAY, registry=True, gazetteer=gazetteer), lang).collect()


def reasons(lang: str = "en", gazetteer: bool = True, **row: object) -> list[str]:
    """What is said of an address and its postal code."""
    found = assessed([row], lang, gazetteer)["reasons"][0].split(" | ")
    return [reason for reason in found if reason.startswith(("[address", "[postal"))]


UNFIXED = {"fixed_address": None, "fixed_zipcode": None}
WRONG = {"zipcode_given": "30100", "fixed_zipcode": "30098"}
CASES: dict[str, tuple[dict[str, object], list[str]]] = {
    "exact": (FOUND, ["[address +0] the address is an official one (juso)"]),
    "exact, with its unit": (
        FOUND | {"unit": "given"},
        ["[address -4] the address is an official one, with its unit (juso)"],
    ),
    "exact, the unit missing": (
        FOUND | {"unit": "missing"},
        [
            "[address +15] an apartment building, but no unit is given (juso)",
            "[address +0] the address is an official one (juso)",
        ],
    ),
    "exact, an old name": (
        FOUND | {"changes": "강원도 → 강원특별자치도"},
        [
            "[address +0] the address is an official one (juso)",
            "[address +0] written officially: 강원도 → 강원특별자치도 (juso)",
        ],
    ),
    "lot to road": (
        FOUND | {"match_level": "lot_to_road", "form": "lot", "changes": "lot 교동 672-1 → 전주천동로 150"},
        [
            "[address +3] written as a lot number, not as a road-name address (file)",
            "[address +0] the address is an official one (juso)",
            "[address +0] written officially: lot 교동 672-1 → 전주천동로 150 (juso)",
        ],
    ),
    "region repaired": (
        FOUND | {"match_level": "region_repaired", "changes": "region from the postal code"},
        ["[address +6] corrected automatically: region from the postal code (juso)"],
    ),
    "typo repaired": (
        FOUND | {"match_level": "typo_repaired", "changes": "한누라대로 → 한누리대로", "unit": "missing"},
        [
            "[address +15] an apartment building, but no unit is given (juso)",
            "[address +6] corrected automatically: 한누라대로 → 한누리대로 (juso)",
        ],
    ),
    "repaired on nothing but likeness": (
        FOUND | {"match_level": "typo_repaired", "changes": "한누라대로 → 한누리대로", "supported": False},
        [
            "[address +6] corrected automatically, and nothing else in the row confirms it: "
            "한누라대로 → 한누리대로 (juso)"
        ],
    ),
    "renumbered": (
        FOUND | {"match_level": "renumbered", "changes": "abolished address 나성로 1 → 한누리대로 2130"},
        ["[address +6] corrected automatically: abolished address 나성로 1 → 한누리대로 2130 (juso)"],
    ),
    "abolished": (
        FOUND | UNFIXED | {"match_level": "abolished", "changes": "abolished address 나성로 1"},
        [
            "[address +34] this address was abolished, and no successor is certain (juso)",
            "[address +0] read as: abolished address 나성로 1 (file)",
        ],
    ),
    "building by its name": (
        FOUND | {"match_level": "building_only", "changes": "building 왕관빌딩 → 한누리대로 1820"},
        ["[address +6] corrected automatically: building 왕관빌딩 → 한누리대로 1820 (juso)"],
    ),
    "building only": (
        FOUND | UNFIXED | {"match_level": "building_only", "changes": "there is no number 하동1길 9-17"},
        ["[address +11] the main building number exists, the number after the hyphen does not (juso)"],
    ),
    "road only": (
        FOUND | UNFIXED | {"match_level": "road_only"},
        ["[address +40] the road exists, but the address names no building that is on it (juso)"],
    ),
    "road absent": (
        FOUND | UNFIXED | {"match_level": "region_only"},
        ["[address +44] there is no such road in the district (juso)"],
    ),
    "lot unknown": (
        FOUND | UNFIXED | {"match_level": "region_only", "form": "lot"},
        [
            "[address +8] no official address is known for this lot number (juso)",
            "[address +3] written as a lot number, not as a road-name address (file)",
        ],
    ),
    "ambiguous": (
        FOUND | UNFIXED | {"match_level": "ambiguous"},
        ["[address +16] the address fits more than one place, so it was not corrected (juso)"],
    ),
    "not covered": (
        FOUND | UNFIXED | {"match_level": "region_only", "covered": False},
        ["[address +0] not checked: the gazetteer does not hold this district (juso)"],
    ),
    "none": (
        FOUND | UNFIXED | {"match_level": "none", "covered": False},
        ["[address +0] not found among the official addresses (juso)"],
    ),
    "no number": (
        UNFIXED | {"match_level": "region_only", "covered": True, "address": "서울특별시 강남구"},
        ["[address +34] the address has no building or lot number (file)"],
    ),
    "no number, and found by its building's name": (
        FOUND | {"address": "세종시 정부세종청사"},
        ["[address +0] the address is an official one (juso)"],
    ),
    "wrong postal code": (
        FOUND | WRONG | {"postal_match": "other_district"},
        [
            "[postal +13] postal code 30100 does not belong to this address, should be 30098 (juso)",
            "[address +0] the address is an official one (juso)",
        ],
    ),
    "neighbouring postal code": (
        FOUND | WRONG | {"postal_match": "neighbouring"},
        [
            "[postal +3] postal code 30100 is that of a neighbouring area, should be 30098 (juso)",
            "[address +0] the address is an official one (juso)",
        ],
    ),
    "ambiguous, and all that fits has another postal code": (
        FOUND | WRONG | {"match_level": "ambiguous", "fixed_address": None},
        [
            "[address +16] the address fits more than one place, so it was not corrected (juso)",
            "[postal +3] postal code 30100 differs from 30098, the one of all buildings of this number (juso)",
        ],
    ),
    "a Latin address, not read": (
        {"address": "123 Teheran-ro, Gangnam-gu"},
        ["[address +0] the address is not written in Korean, so it was not read (file)"],
    ),
    "no postal code given": (
        FOUND | {"zipcode": None, "zipcode_given": None},
        [
            "[address +0] the address is an official one (juso)",
            "[postal +0] the postal code of this address is 30151 (juso)",
        ],
    ),
    "old six digits": (
        FOUND | {"zipcode": "339-012", "zipcode_given": None},
        [
            "[postal +6] an old six-digit postal code (five digits since August 2015) (postal)",
            "[address +0] the address is an official one (juso)",
            "[postal +0] the postal code of this address is 30151 (juso)",
        ],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_each_match_level_is_told_in_one_sentence_with_its_points(case: str) -> None:
    row, said = CASES[case]
    assert reasons(**row) == said


@pytest.mark.parametrize("case", CASES)
def test_the_korean_reasons_bear_the_same_points_labels_and_sources(case: str) -> None:
    row, said = CASES[case]
    found = [REASON.match(reason) for reason in reasons("ko", **row)]
    assert all(found)
    assert [match.group(1, 2, 4) for match in found] == [REASON.match(reason).group(1, 2, 4) for reason in said]


def test_without_a_gazetteer_only_the_postal_code_and_the_form_are_judged() -> None:
    """Even if a match level were there: what was not looked up proves nothing."""
    row = {"match_level": "region_only", "covered": True, "form": "road", "unit": "missing"}
    assert reasons(gazetteer=False, **row) == []
    assert reasons(gazetteer=False, postal_match="other_district", zipcode_given="06236") == [
        "[postal +13] postal code 06236 belongs to another district than the address (postal)"
    ]
    assert reasons(gazetteer=False, match_level="region_only", changes="강원도 → 강원특별자치도") == [
        "[address +0] read as: 강원도 → 강원특별자치도 (file)"
    ]


def test_an_address_of_which_nothing_is_known_gets_no_points() -> None:
    assert reasons(gazetteer=False) == []
    assert reasons(gazetteer=True) == ["[address +0] not found among the official addresses (juso)"]


def test_with_the_number_alone_nothing_is_said_of_an_address() -> None:
    assert reasons(name=None, address=None) == []


@pytest.mark.parametrize("level", ["exact", "typo_repaired", "building_only", "road_only", "region_only", "ambiguous"])
@pytest.mark.parametrize("address", ["", "서울특별시 강남구 역삼로 *** *층"])
def test_a_blank_or_masked_address_is_told_as_that_and_nothing_else(address: str, level: str) -> None:
    found = assessed([FOUND | WRONG | {"address": address, "match_level": level, "postal_match": "other_district"}])
    assert found["bounce_prob"].to_list() == [None]
    assert found["action"].to_list() == ["fix_address"]
    said = [reason for reason in found["reasons"][0].split(" | ") if reason.startswith(("[address", "[postal"))]
    assert len(said) == 1
    assert "no probability can be given" in said[0]


@pytest.mark.parametrize("row", [{"unit": "missing"}, WRONG | {"postal_match": "other_district"}])
def test_what_can_be_repaired_in_the_address_asks_for_it_from_grade_c_on(row: dict[str, object]) -> None:
    """A missing unit and a wrong postal code are things of the address, whatever their feature is called."""
    bad = FOUND | row | {"form": "lot", "match_level": "building_only", "fixed_address": None}
    assert assessed([FOUND | row])["action"].to_list() == ["send"]
    assert assessed([bad | {"unit": "missing"}])["action"].to_list() == ["fix_address"]


def generated(rows: int) -> list[dict[str, object]]:
    chance = random.Random(5)
    found = ["exact", "lot_to_road", "region_repaired", "typo_repaired"]
    choices: dict[str, list[object]] = {
        "name": [None, "가나다", "홍**"],
        "address": [None, "", ADDRESS, ADDRESS, ADDRESS, "서울특별시 강남구", "역삼로 ***"],
        "zipcode": [None, "", "30151", "339-012", "3015"],
        "kind": ["individual", "company", "public"],
        "check_digit_ok": [True, True, False, None],
        "biz_status": [None, "active", "closed", "suspended"],
        "since": [None, date(2026, 10, 1), date(2020, 1, 1)],
        "opened": [None, date(2026, 3, 1), date(2000, 1, 1)],
        "match_level": [
            None,
            *found,
            "renumbered",
            "building_only",
            "abolished",
            "road_only",
            "region_only",
            "ambiguous",
            "none",
        ],
        "covered": [True, True, False],
        "supported": [True, True, False],
        "form": [None, "road", "lot"],
        "unit": [None, "given", "missing"],
        "region_given": [True, True, False],
        "numbered": [True, True, False],
        "beside": [True, False, False],
        "postal_match": [None, "right", "neighbouring", "other_district"],
        "zipcode_given": [None, "30100"],
        "changes": [None, "가 → 나", "a | b\nc\u2028d"],
        "fixed_zipcode": [None, "30098"],
        "fixed_address": [None, ADDRESS],
    }
    return [{name: chance.choice(values) for name, values in choices.items()} for _ in range(rows)]


@pytest.mark.parametrize("gazetteer", [True, False])
@pytest.mark.parametrize("lang", ["en", "ko"])
def test_the_points_of_all_reasons_add_up_in_every_row(lang: str, gazetteer: bool) -> None:
    """bounce_prob = 0.93 / (1 + 2^(-S/10)) with S the sum of the signed integers; whatever a null does to a text."""
    rows = generated(8_000)
    said = set()
    answers = assessed(rows, lang, gazetteer).select("reasons", "bounce_prob", "action")
    for reasons_, probability, action in answers.iter_rows():
        matches = [REASON.match(reason) for reason in reasons_.split(" | ")]
        assert all(matches), reasons_
        sizes = [abs(int(match.group(2))) for match in matches if match.group(1) != "base"]
        # first stands what kept the row from being sent
        kept_back = next((place for place, size in enumerate(sizes) if size), 0) if action == "confirm" else 0
        assert sizes[kept_back:] == sorted(sizes[kept_back:], reverse=True)
        assert probability is None or matches[-1].group(1) == "base"
        said |= {match.group(1, 2, 4) for match in matches}
        if probability is not None:
            score = sum(int(match.group(2)) for match in matches)
            assert probability == pytest.approx(0.93 / (1 + 2 ** (-score / 10)), abs=5.1e-5)
    if gazetteer:  # every level of the address and its postal code was there
        card = Scorecard.load().features
        subjects = ("address", "form", "unit", "change", "postal", "postal_filled")
        wanted = {
            (LABELS.get(feature, feature), f"{level.points:+d}", level.source)
            for feature in subjects
            for level in card[feature].values()
        }
        assert wanted <= said


def test_words_of_the_file_cannot_break_a_reason_in_two() -> None:
    row = FOUND | {"match_level": "typo_repaired", "changes": "a | b\r\nc\x85d\u2028e [status +66] f"}
    assert reasons(**row) == ["[address +6] corrected automatically: a   b c d e [status +66] f (juso)"]


def test_a_reason_whose_placeholder_is_unknown_stands_with_its_points() -> None:
    row = FOUND | {"match_level": "typo_repaired", "postal_match": "neighbouring", "zipcode_given": None}
    assert reasons(**row)[0] == "[address +6] corrected automatically: spelling (juso)"
    assert reasons("ko", **row)[0] == "[address +6] 자동 보정: 표기 (juso)"
    assert reasons(**row)[1].startswith("[postal +3] postal code not known is that")


def test_every_level_has_a_reason_in_the_scorecard_in_both_languages() -> None:
    for feature, names in FEATURES.items():
        for name in names:
            level = Scorecard.load().features[feature][name]
            assert level.points or level.always or feature == "region"  # which only learning gives points
            assert re.findall(r"\{\w+\}", level.en) == re.findall(r"\{\w+\}", level.ko), (feature, name)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("{changes}", "{chances}", r"holds \{chances\}, .*; known are \{since\}, \{zipcode\}, .*\{changes\}"),
        ("business active", "business {}", r"holds \{\}, which nothing is put in for"),
    ],
)
def test_a_scorecard_with_a_placeholder_that_nobody_fills_is_refused(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    head, tail = TEXT.split("[features.status.merged]")
    path = tmp_path / "mine.toml"
    path.write_text(f"{head}[features.status.merged]{tail.replace(old, new, 1)}", encoding="utf-8")
    with pytest.raises(ModelError, match=message):
        Scorecard.load(path)
