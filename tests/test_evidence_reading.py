"""What was known at mailing is read back out of the reasons of an enriched file, whatever became of the file."""

from __future__ import annotations

from pathlib import Path

import msgspec
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from bansong.base.messages import Lang
from bansong.engine.risk.reasons import (
    FEATURES,
    LEVEL_DTYPES,
    WITHOUT_ASSESSMENT,
    earlier_wordings,
    parse_reasons,
    terms_of,
)
from bansong.engine.risk.scorecard import Scorecard
from test_reasons import LEVELS, cards, frame_of, is_told, rows, with_features


def enriched(card: Scorecard, lang: Lang, count: int = 400, seed: int = 16) -> pl.DataFrame:
    frame = card.assess(frame_of(rows(count, seed)), LEVELS, lang).collect()
    return frame.with_columns(pl.when(pl.col("reasons") != "").then("reasons").alias("reasons"))


def read(frame: pl.DataFrame, card: Scorecard, **options: object) -> pl.DataFrame:
    return parse_reasons(frame.lazy(), "reasons", cards=[card], **options).collect()


def told_levels(card: Scorecard, frame: pl.DataFrame) -> pl.DataFrame:
    """Of each feature the level that a row has, where the card tells it."""
    wanted = []
    for feature, names in FEATURES.items():
        told = [name for name in names if is_told(card, feature, name)]
        there = pl.col(f"is:{feature}").is_in(told) & (pl.col("assessable") | (feature in WITHOUT_ASSESSMENT))
        column = f"level:{feature}"
        wanted.append(pl.when(there).then(f"is:{feature}").cast(LEVEL_DTYPES[column]).alias(column))
    return frame.select(wanted)


@pytest.mark.parametrize(
    ("which", "lang", "form"), [("built-in", "en", "text"), ("learned", "ko", "list"), ("learned", "en", "csv")]
)
def test_reasons_give_back_the_levels_and_the_score(which: str, lang: Lang, form: str, tmp_path: Path) -> None:
    """From text, lists and CSV, in both languages: exactly the levels that have points or are always told."""
    card = cards()[which]
    frame = enriched(card, lang)
    file = frame.select("reasons", "bounce_prob")
    if form == "list":
        file = file.with_columns(pl.col("reasons").str.split(" | "))
    if form == "csv":
        file.write_csv(tmp_path / "enriched.csv")
        file = pl.read_csv(tmp_path / "enriched.csv")
    back = read(file, card)
    assert not back["unread"].any()
    assert back.select(*LEVEL_DTYPES).equals(told_levels(card, frame))
    scored = frame.select(score=pl.when("assessable").then("score"))
    assert back["score"].equals(scored["score"])
    assert back["score"].null_count() < back.height


def test_of_two_cards_with_the_same_texts_either_reads_the_other() -> None:
    """A reason is known by its words; other points under the same words change the score, not the level."""
    old, new = cards()["built-in"], cards()["learned"]
    frame = enriched(new, "en")
    back = parse_reasons(frame.select("reasons").lazy(), "reasons", cards=[old, new]).collect()
    assert back.select(*LEVEL_DTYPES).equals(told_levels(new, frame))


BASE = "[base -50] where an ordinary business letter starts (model)"
ACTIVE = "[status -3] business active (registry)"


UNREAD = [
    f"{BASE} | [status -3] business brisk (registry)",
    f"{BASE} | [status -3] business active (juso)",
    f"{BASE} | {ACTIVE} | {ACTIVE}",
    f"{BASE} | {ACTIVE} | [status +30] business suspended (registry)",
    f"{BASE} | [status] business active (registry)",
    f"{BASE} | [status -99999999999999] business active (registry)",
    f"{BASE} | [status -3] business active (registry) and more",
    f"{BASE} | called them on Monday",
    f"{BASE} | [",
    "휴업 중",
]


def test_what_no_card_says_is_unread() -> None:
    """Edited, doubled and contradictory reasons mark the row: no score, and no level of a feature with two."""
    back = read(pl.DataFrame({"reasons": UNREAD}), Scorecard.load())
    assert back["unread"].all()
    assert back["score"].null_count() == len(UNREAD)
    assert back["level:status"][3] is None


def test_a_row_without_reasons_says_nothing_and_spaces_around_the_separator_do_not_matter() -> None:
    back = read(pl.DataFrame({"reasons": [None, "", "  ", " | "]}), Scorecard.load())
    assert not back["unread"].any()
    assert back.select("score", *LEVEL_DTYPES).null_count().sum_horizontal().item() == 4 * (1 + len(LEVEL_DTYPES))
    spaced = pl.DataFrame({"reasons": [f"{BASE}|{ACTIVE}  |\n[kind -3] a company by its number (number)"]})
    told = read(spaced, Scorecard.load()).select("score", "level:status", "level:kind")
    assert told.rows() == [(-56, "active", "corporation")]


def test_a_probability_without_its_base_is_not_believed() -> None:
    back = read(pl.DataFrame({"reasons": [ACTIVE] * 2, "bounce_prob": [0.02, None]}), Scorecard.load())
    assert back.select("unread", "score").rows() == [(True, None), (False, None)]


def test_points_must_be_those_of_the_model_if_it_is_known() -> None:
    version = Scorecard.load().version
    changed = f"{BASE} | {ACTIVE.replace('-3', '-9')}"
    frame = pl.DataFrame({"reasons": [changed, f"{BASE} | {ACTIVE}", changed], "model": [version, version, "2020.1"]})
    assert read(frame, Scorecard.load()).select("unread", "score").rows() == [(True, None), (False, -53), (False, -59)]


def test_a_column_of_anything_raises_no_error() -> None:
    """What is no text is unread where it is anything at all."""
    for column in (
        pl.Series([1, 2]),
        pl.Series([None, None]),
        pl.Series([[1], [2]]),
        pl.Series([[], None], dtype=pl.List(pl.String)),
        pl.Series([{"a": 1}, {"a": 2}]),
        pl.Series([b"a", None]),
        pl.Series([["a"], ["b"]], dtype=pl.Array(pl.String, 1)),
        pl.Series(["a", None], dtype=pl.Categorical),
        pl.Series([[[BASE]], None]),
    ):
        back = read(pl.DataFrame({"reasons": column}), Scorecard.load())
        assert back["unread"].to_list() == [bool(value) for value in column.to_list()]


def test_the_address_tells_the_region_where_no_reason_does() -> None:
    """A region without points leaves no reason; a learned one is told by its reason, whatever the address says."""
    reasons = [f"{BASE} | {ACTIVE}", None, f"{BASE} | [region +2] what letters to Busan have shown (model)"]
    frame = pl.DataFrame({"reasons": reasons, "address": ["서울특별시 강남구 테헤란로 1"] * 3})
    back = read(frame, Scorecard.load(), address="address")
    assert back["level:region"].to_list() == ["seoul", None, "busan"]
    assert read(frame, Scorecard.load())["level:region"].to_list() == [None, None, "busan"]


def test_a_text_that_two_cards_use_for_two_levels_tells_neither() -> None:
    card = Scorecard.load()
    texts = {one: card.features["status"][one].en for one in ("suspended", "active")}
    status = {"suspended": {"en": texts["active"]}, "active": {"en": texts["suspended"]}}
    other = msgspec.structs.replace(with_features(card, status=status), version="other")
    back = parse_reasons(pl.LazyFrame({"reasons": [f"{BASE} | {ACTIVE}"]}), "reasons", cards=[card, other]).collect()
    assert back["unread"].to_list() == [True]


def test_points_that_do_not_come_to_the_probability_are_unread() -> None:
    """A text cut off between two reasons looks whole: the probability beside it, rounded or not, tells otherwise."""
    card, given = Scorecard.load(), [0.0228, 0.023, 0.1, 0.0282, None]
    frame = pl.DataFrame({"bounce_prob": given}).with_columns(
        reasons=pl.lit(f"{BASE} | [kind -3] a company by its number (number)"), model=pl.lit(card.version)
    )
    assert read(frame, card)["unread"].to_list() == [False, False, True, True, False]
    assert not read(frame.with_columns(model=pl.lit("another")), card)["unread"].any()


def test_korean_reasons_of_the_release_before_are_read_back() -> None:
    card = Scorecard.load()
    worded = {(term.feature, term.name): earlier for term in terms_of(card) for earlier in earlier_wordings(term)}
    assert len(worded) > 40
    before = msgspec.structs.replace(
        card,
        base=worded[None, "base"].level,
        features={
            feature: {name: getattr(worded.get((feature, name)), "level", level) for name, level in levels.items()}
            for feature, levels in card.features.items()
        },
    )
    frame = enriched(before, "ko")
    assert frame["reasons"].str.contains("일반 사업자 우편의 출발점", literal=True).any()
    found = read(frame.select("reasons", "bounce_prob"), card)
    assert not found["unread"].any()
    assert_frame_equal(found.select(LEVEL_DTYPES.keys()), told_levels(card, frame).select(LEVEL_DTYPES.keys()))
