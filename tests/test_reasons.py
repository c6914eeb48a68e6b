"""Scores, probabilities, grades, actions and reasons, held against a reference that works them out row by row."""

from __future__ import annotations

import random
import re
from datetime import date, timedelta

import msgspec
import polars as pl
import pytest

from bansong.base.messages import Lang
from bansong.engine.risk import assess
from bansong.engine.risk.reasons import AT_BEST, FEATURES, LABELS, WITHOUT_ASSESSMENT
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
