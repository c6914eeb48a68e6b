"""Scores, grades, actions and reasons, held against a reference that works them out row by row, and read back."""

from __future__ import annotations

import random
import re
from datetime import date, timedelta
from pathlib import Path

import msgspec
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from bansong.base.messages import Lang
from bansong.engine.risk import assess
from bansong.engine.risk.reasons import (
    AT_BEST,
    FEATURES,
    LABELS,
    LEVEL_DTYPES,
    WITHOUT_ASSESSMENT,
    earlier_wordings,
    parse_reasons,
    terms_of,
)
from bansong.engine.risk.scorecard import Scorecard

TEXTS = ("title", "address", "zipcode_given", "fixed_zipcode", "changes", *(f"is:{feature}" for feature in FEATURES))
SCHEMA = dict.fromkeys(("since", "as_of"), pl.Date) | dict.fromkeys(TEXTS, pl.String)
LEVELS = {feature: {name: pl.col(f"is:{feature}") == name for name in names} for feature, names in FEATURES.items()}
UNKNOWN = {
    "en": {"since": "date not known", "zipcode": "not known", "fixed_zipcode": "not known", "changes": "spelling"},
    "ko": {"since": "날짜 미상", "zipcode": "미상", "fixed_zipcode": "미상", "changes": "표기"},
}
ADDRESSES = ["세종특별자치시 한누리대로 2130", "서울 강남구 테헤란로 1", "", None, "서울 강남구 ***", " - "]


def rows(count: int, seed: int) -> list[dict[str, object]]:
    """Rows in which anything may hold, beside anything else; what is put into texts may be missing."""
    dice = random.Random(seed)
    made = []
    for _ in range(count):
        row: dict[str, object] = {
            f"is:{feature}": dice.choice(names) if dice.random() < 0.5 else None for feature, names in FEATURES.items()
        }
        row |= {
            "title": dice.choice(["가나다", "", None, "홍**"]),
            "address": dice.choice(ADDRESSES if dice.random() < 0.3 else ADDRESSES[:2]),
            "since": dice.choice([None, date(2020, 1, 1) + timedelta(dice.randrange(2000))]),
            "as_of": dice.choice([None, date(2026, 1, 1) + timedelta(dice.randrange(300))]),
            "zipcode_given": dice.choice([None, "06130", "30151"]),
            "fixed_zipcode": dice.choice([None, "06131"]),
            "changes": dice.choice([None, "강남 → 강남구", "a | b\n[status +66] c", "{since} $1 \\1"]),
        }
        made.append(row)
    return made


def frame_of(made: list[dict[str, object]]) -> pl.LazyFrame:
    frame = pl.LazyFrame(made, schema=SCHEMA)
    return frame.with_columns(pl.col("title").alias("name"), pl.lit(None, pl.String).alias("zipcode"))


def reference(card: Scorecard, row: dict[str, object], lang: Lang) -> dict[str, object]:
    """The rules of the model in plain words, for one row."""
    address, title = row["address"] or "", row["title"] or ""
    assessable = bool(address.strip(" -")) and "*" not in address
    held = {
        feature: row[f"is:{feature}"]
        for feature in card.features
        if row[f"is:{feature}"] is not None and (assessable or feature in WITHOUT_ASSESSMENT)
    }
    restraints = {AT_BEST[place] for place in held.items() if place in AT_BEST}
    points = {feature: card.features[feature][name].points for feature, name in held.items()}
    score = card.base.points + sum(points.values())
    answer: dict[str, object] = {
        "score": score,
        "bounce_prob": None,
        "grade": None,
        "action": "fix_address" if title or address.strip(" -") else None,
    }
    usual = "do_not_send"
    if assessable:
        grade = next((name for name in "ABCD" if score <= card.grades[name]), "E")
        repair = max([points.get(feature, 0) for feature in card.actions.repair_features], default=0)
        others = max(points.get(name, 0) for name in card.features if name not in card.actions.repair_features)
        mended = grade >= card.actions.repair_from and repair > 0 and repair >= others
        answer |= {
            "bounce_prob": card.ceiling / (1 + 2 ** (-score / card.points_to_double)),
            "grade": grade,
            "action": "fix_address" if mended else getattr(card.actions, grade),
        }
        usual = getattr(card.actions, grade)
    kept_back = "hold" not in restraints and "confirm" in restraints and answer["action"] == "send"
    if kept_back:
        answer["action"] = "confirm"
    if "hold" in restraints and answer["action"] is not None:
        answer["action"] = usual if usual in ("hold", "do_not_send") else "hold"
    told = [place for place in held.items() if is_told(card, *place)]
    ranked = [(feature, name) for feature, levels in card.features.items() for name in levels]
    told.sort(key=lambda place: (-abs(card.features[place[0]][place[1]].points), ranked.index(place)))
    if kept_back:
        told.sort(key=lambda place: AT_BEST.get(place) != "confirm" or card.features[place[0]][place[1]].points != 0)
    else:
        told.sort(key=lambda place: AT_BEST.get(place) == "confirm" and not card.features[place[0]][place[1]].points)
    texts = [reason(card, row, *place, lang) for place in told]
    base = [f"[base {card.base.points:+d}] {getattr(card.base, lang)} (model)"] if assessable else []
    return answer | {"reasons": " | ".join(texts + base)}


def is_told(card: Scorecard, feature: str, name: str) -> bool:
    level = card.features[feature][name]
    return bool(level.points or level.always or (feature, name) in AT_BEST)


def reason(card: Scorecard, row: dict[str, object], feature: str, name: str, lang: Lang) -> str:
    level, day = card.features[feature][name], row["as_of"]
    dated = feature == "status" and name not in ("not_found", "not_checked", "without_numbers") and day is not None
    source = f"{level.source}, {day.isoformat()}" if dated else level.source
    return f"[{LABELS.get(feature, feature)} {level.points:+d}] {filled(getattr(level, lang), row, lang)} ({source})"


def filled(text: str, row: dict[str, object], lang: Lang) -> str:
    values = {
        "since": None if row["since"] is None else row["since"].isoformat(),
        "zipcode": row["zipcode_given"],
        "fixed_zipcode": row["fixed_zipcode"],
        "changes": None if row["changes"] is None else re.sub(r"[|\n]+", " ", row["changes"]),
    }
    return re.sub(r"\{(\w+)\}", lambda found: values[found[1]] or UNKNOWN[lang][found[1]], text)


def with_features(card: Scorecard, **changed: dict[str, dict[str, object]]) -> Scorecard:
    """Return a card with other fields in some levels, unchecked."""
    features = {feature: dict(levels) for feature, levels in card.features.items()}
    for feature, levels in changed.items():
        for name, fields in levels.items():
            features[feature][name] = msgspec.structs.replace(features[feature][name], **fields)
    return msgspec.structs.replace(card, features=features)


def cards() -> dict[str, Scorecard]:
    card = Scorecard.load()
    regions = {name: {"points": place - 8} for place, name in enumerate(FEATURES["region"])}
    texts = {
        "moved": {"en": "{changes} {since} {changes} {zipcode}", "ko": "{changes}"},
        "absent": {"en": "{since}{fixed_zipcode}{zipcode}", "ko": "{zipcode}{zipcode}"},
    }
    return {
        "built-in": card,
        "learned": with_features(card, region=regions),
        "odd texts": with_features(card, history=texts),
        "no repair": msgspec.structs.replace(card, actions=msgspec.structs.replace(card.actions, repair_features=[])),
    }


@pytest.mark.parametrize(("lang", "engine"), [("en", "streaming"), ("ko", "in-memory")])
@pytest.mark.parametrize("which", ["built-in", "learned", "odd texts", "no repair"])
def test_every_row_gets_what_the_rules_say(which: str, lang: Lang, engine: str) -> None:
    card, made = cards()[which], rows(500, seed=6)
    answers = card.assess(frame_of(made), LEVELS, lang).collect(engine=engine)
    assert answers.height == len(made)
    for row, answer in zip(made, answers.iter_rows(named=True), strict=True):
        wanted = reference(card, row, lang)
        probability = wanted.pop("bounce_prob")
        assert {name: answer[name] for name in wanted} == wanted
        assert answer["bounce_prob"] == (None if probability is None else pytest.approx(probability, abs=5.1e-5))


def test_levels_that_cannot_hold_are_never_told() -> None:
    """Without a gazetteer its levels are not among those handed in: their columns may say anything, or be missing."""
    possible = {"status": LEVELS["status"], "kind": LEVELS["kind"]}
    answers = Scorecard.load().assess(frame_of(rows(300, seed=7)).drop("changes"), possible, "en").collect()
    labels = {label for text in answers["reasons"] for label in re.findall(r"\[(\w+) ", text)}
    assert labels == {"base", "status", "kind"}


def test_patterns_are_told_alike_however_many_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assess, "_MAX_PATTERNS_KEPT", 50)
    card = msgspec.structs.replace(Scorecard.load(), version="forgetful")
    for count, seed in ((40, 1), (40, 1), (40, 2), (1_100, 3), (40, 1)):
        made = rows(count, seed)
        answers = card.assess(frame_of(made), LEVELS, "en").collect()
        assert answers["reasons"].to_list() == [reference(card, row, "en")["reasons"] for row in made]


def test_a_probability_has_a_value_for_every_score() -> None:
    for double in (1, 10, 100):
        card = msgspec.structs.replace(Scorecard.load(), points_to_double=double)
        assert all(0 <= card.probability(score) <= card.ceiling for score in range(-3000, 3001, 250))


# ── reasons are read back ────────────────────────────────────────────────────────────────────────────────────────────


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
