"""The embedded engine: reasons that add up, the rules of the column contract, unknown that stays unknown."""

from __future__ import annotations

import random
import re
from datetime import date
from pathlib import Path

import polars as pl
import pytest

import bansong as bs
from bansong.base.schema import ACTIONS, BIZ_STATUSES, GRADES
from bansong.engine.overlays import HISTORY_SCHEMA
from bansong.engine.risk.scorecard import Scorecard
from bansong.errors import ModelError, RegistryError, UsageError
from conftest import NINE
from scorecards import TEXT

TODAY = date(2026, 11, 21)
REASON = re.compile(
    r"^\[([a-z_]+) ([+-]\d+)\] (.+) \((nts|registry|juso|postal|number|file|label|model)(?:, [0-9-]{10})?\)$"
)

AS_OF = date(2026, 11, 21)


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("registry")
    rows = [
        ("1248100998", "계속사업자", "", "2000-01-01"),
        ("2208162517", "폐업자", "2026-10-01", ""),
        ("1208147521", "폐업자", "2026-03-01", ""),
        ("1078614075", "폐업자", "2020-01-01", "2019-01-01"),
        ("1268103725", "폐업자", "", ""),
        ("1018109147", "휴업자", "2026-01-01", "2026-06-01"),
        ("1028142945", "국세청에 등록되지 않은 사업자등록번호입니다.", "", ""),
        ("1298200103", "계속사업자", "", "2025-01-01"),
    ]
    source = folder / "status.csv"
    source.write_text("b_no,상태,폐업일,개업일\n" + "\n".join(",".join(row) for row in rows), encoding="utf-8")
    bs.build_registry([source], folder / "registry.parquet", as_of=AS_OF)
    return folder / "registry.parquet"


def ask(registry: Path | None = None, lang: str = "en", **columns: object) -> dict[str, object]:
    engine = bs.LocalEngine(registry, lang=lang, today=TODAY)
    frame = pl.LazyFrame({name: [value] for name, value in columns.items()}, schema=dict.fromkeys(columns, pl.String))
    return engine.verify(frame).collect().row(0, named=True)


def labels(answer: dict[str, object]) -> list[str]:
    return [REASON.match(reason).group(1) for reason in answer["reasons"]]


ADDRESS = "경기도 수원시 영통구 삼성로 129"


@pytest.mark.parametrize(
    ("b_no", "biz_status", "points", "text"),
    [
        ("1248100998", "active", -3, "business active"),
        ("2208162517", "closed", 45, "closed less than 3 months ago (2026-10-01)"),
        ("1208147521", "closed", 57, "closed 3 to 12 months ago (2026-03-01)"),
        ("1078614075", "closed", 66, "closed more than 12 months ago (2020-01-01)"),
        ("1268103725", "closed", 57, "closed, date not known"),
        ("1018109147", "suspended", 30, "business suspended"),
        ("1028142945", "unregistered", 40, "number not registered with the tax authority"),
        ("6038129936", "unknown", 0, "status not known: the number is not in the registry"),
    ],
)
def test_the_registry_gives_the_status_and_its_points(
    registry: Path, b_no: str, biz_status: str, points: int, text: str
) -> None:
    answer = ask(registry, b_no=b_no, name="가나다", address=ADDRESS)
    assert answer["biz_status"] == biz_status
    source = "registry" if biz_status == "unknown" else f"registry, {AS_OF}"
    assert f"[status {points:+d}] {text} ({source})" in answer["reasons"]


def test_without_a_registry_the_status_is_unknown_and_costs_nothing() -> None:
    answer = ask(b_no="6038129936", name="가나다", address=ADDRESS)
    assert answer["biz_status"] == "unknown"
    assert "[status +0] status not checked: no registry was given (registry)" in answer["reasons"]


def test_with_the_number_alone_the_status_is_given_and_no_risk(registry: Path) -> None:
    answer = ask(registry, b_no="2208162517")
    assert answer["biz_status"] == "closed"
    assert answer["reasons"] == ["[status +45] closed less than 3 months ago (2026-10-01) (registry, 2026-11-21)"]
    assert [answer[name] for name in ("bounce_prob", "grade", "action")] == [None, None, None]
    assert answer["row_status"] == "verified"


@pytest.mark.parametrize("address", [None, "", "  ", "-", "null", "없음", "서울특별시 강남구 역삼로 *** *층"])
def test_a_blank_or_masked_address_asks_for_repair_and_gets_no_probability(address: str | None) -> None:
    answer = ask(b_no="1248100998", name="가나다", address=address)
    assert (answer["bounce_prob"], answer["grade"], answer["action"]) == (None, None, "fix_address")
    assert "no probability can be given" in " ".join(answer["reasons"])


@pytest.mark.parametrize("b_no", [None, "", "1.248E+09", "248100998", "9001011234567", "번호"])
def test_what_cannot_be_a_number_is_invalid_with_a_note_and_no_answer(b_no: str | None) -> None:
    answer = ask(b_no=b_no, name="가나다", address=ADDRESS)
    assert answer["row_status"] == "invalid"
    assert answer["row_note"]
    assert [answer[name] for name in NINE[:7]] == [None] * 7


def test_a_wrong_check_digit_is_a_flag_and_not_a_verdict() -> None:
    answer = ask(b_no="1248100999", name="가나다", address=ADDRESS)
    assert answer["row_status"] == "verified"
    assert "[number +30] check digit of the business number is wrong (number)" in answer["reasons"]


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"address": "서울특별시 강남구"}, "[address +34]"),
        ({"address": "(137-070) 서울특별시 서초구"}, "[address +34]"),
        ({"address": "06236 서울특별시 강남구"}, "[address +34]"),
        ({"address": "(137-070) 서울특별시 서초구 서초동 1"}, "[postal +6]"),
        ({"zipcode": "137-070"}, "[postal +6]"),
        ({"zipcode": "137070"}, "[postal +6]"),
        ({"zipcode": "6236"}, "[postal +3]"),
        ({"zipcode": "06236"}, "[postal +13] postal code 06236 belongs to another district than the address (postal)"),
        ({"name": ""}, "[name +3]"),
        ({"name": "홍**"}, "[name +5]"),
    ],
)
def test_what_the_file_says_takes_and_adds_points(columns: dict[str, str], reason: str) -> None:
    answer = ask(**{"b_no": "6037129936", "name": "가나다", "address": ADDRESS} | columns)
    assert any(found.startswith(reason) for found in answer["reasons"])


@pytest.mark.parametrize(
    "columns",
    [
        {"address": "서울특별시 강남구 테헤란로 1"},
        {"address": "06236 서울특별시 강남구 테헤란로 1"},
        {"address": "서울 강남구 역삼동 １２"},
        {"zipcode": "16677"},
        {"zipcode": "16677.0"},
        {"zipcode": ""},
        {"zipcode": None},
        {"address": "서울특별시 강남구 테헤란로 152", "zipcode": "6236"},
    ],
)
def test_what_is_in_order_or_missing_is_no_negative_fact(columns: dict[str, str | None]) -> None:
    answer = ask(**{"b_no": "6032429936", "name": "가나다", "address": ADDRESS} | columns)
    assert not {"address", "postal", "name"} & set(labels(answer))


@pytest.mark.parametrize("zipcode", ["6236", " 6236 ", "6236.0"])
def test_a_postal_code_that_lost_its_zero_is_read_as_five_digits(zipcode: str) -> None:
    """Four digits in a postal column are a code of Seoul: given back with its zero, and no fault."""
    seoul = ask(b_no="6032429936", name="가나다", address="서울특별시 강남구 테헤란로 152", zipcode=zipcode)
    assert seoul["fixed_zipcode"] == "06236"
    assert "postal" not in labels(seoul)
    far = ask(b_no="6032429936", name="가나다", address=ADDRESS, zipcode=zipcode)  # the address speaks against it
    assert far["fixed_zipcode"] is None
    assert "[postal +3] the postal code is not five digits (postal)" in far["reasons"]


@pytest.mark.parametrize("dtype", [pl.Int64, pl.Float64, pl.UInt16])
def test_postal_codes_that_are_numbers_have_lost_their_zeros(dtype: type[pl.DataType]) -> None:
    """A column of numbers holds no zero in front: 6236 and 6236.0 are 06236, beside codes of five digits."""
    addresses = ["서울특별시 강남구 테헤란로 152", ADDRESS, "서울특별시 강남구 테헤란로 152"]
    zipcodes = pl.Series("zipcode", [6236, 16677, None], dtype)
    frame = pl.LazyFrame({"b_no": ["6032429936"] * 3, "address": addresses}).with_columns(zipcodes)
    found = bs.LocalEngine(today=TODAY).verify(frame).collect()
    assert found["fixed_zipcode"].to_list() == ["06236", None, None]
    assert not any("postal" in labels(row) for row in found.iter_rows(named=True))


def test_address_trouble_asks_for_repair_unless_something_graver_is_known(registry: Path) -> None:
    bare = "서울특별시 강남구"
    assert ask(registry, b_no="1248100998", name="가", address=bare)["action"] == "fix_address"
    gone = ask(registry, b_no="1078614075", name="가", address=bare)
    assert (gone["grade"], gone["action"]) == ("E", "do_not_send")


def generated(rows: int) -> pl.DataFrame:
    chance = random.Random(7)
    numbers = ["1248100998", "2208162517", "1208147521", "1078614075", "1268103725", "1018109147", "1028142945"]
    numbers += ["1298200103", "6038129936", "1248100999", "", "1.2E9", "124-81-00998"]
    names = [None, "", "가나다", "홍**", "(주)라마바"]
    addresses = [None, "", "서울특별시 강남구", ADDRESS, "역삼로 ***", "(137-070) 서울 서초동 1", "06236 서울 강남구"]
    zipcodes = [None, "", "06236", "137-070", "6236", "16677.0"]
    sources = {"b_no": numbers, "name": names, "address": addresses, "zipcode": zipcodes}
    return pl.DataFrame({name: chance.choices(values, k=rows) for name, values in sources.items()})


@pytest.mark.parametrize("lang", ["en", "ko"])
def test_the_points_of_the_reasons_add_up_to_the_probability_in_every_row(registry: Path, lang: str) -> None:
    """bounce_prob = 0.93 / (1 + 2^(-S/10)) with S the sum of the signed integers, the base among them."""
    rows = generated(20_000)
    found = bs.LocalEngine(registry, lang=lang, today=TODAY).verify(rows.lazy()).collect()
    assert found.select(rows.columns).equals(rows)
    bands = {"A": (-999, -50), "B": (-49, -35), "C": (-34, -19), "D": (-18, 2), "E": (3, 999)}
    assessed = 0
    for row in found.unique(NINE).iter_rows(named=True):
        matches = [REASON.match(reason) for reason in row["reasons"] or ()]
        assert all(matches)
        sizes = [abs(int(match.group(2))) for match in matches if match.group(1) != "base"]
        kept_back = row["action"] == "confirm" and sizes[0] == 0  # first stands what kept the row from being sent
        assert sizes[kept_back:] == sorted(sizes[kept_back:], reverse=True)
        if row["bounce_prob"] is None:
            assert row["grade"] is None
            continue
        score = sum(int(match.group(2)) for match in matches)
        assert row["bounce_prob"] == pytest.approx(0.93 / (1 + 2 ** (-score / 10)), abs=5.1e-5)
        low, high = bands[row["grade"]]
        assert low <= score <= high
        assert labels(row).count("base") == 1
        assessed += 1
    assert assessed > 100


def test_answers_keep_to_the_vocabularies(registry: Path) -> None:
    found = bs.LocalEngine(registry, today=TODAY).verify(generated(5_000).lazy()).collect()
    assert set(found["biz_status"].drop_nulls()) <= set(BIZ_STATUSES)
    assert set(found["grade"].drop_nulls()) <= set(GRADES)
    assert set(found["action"].drop_nulls()) <= set(ACTIONS)
    assert set(found["row_status"]) == {"verified", "invalid"}
    assert found["fixed_address"].null_count() == found.height
    restored = found.filter(pl.col("fixed_zipcode").is_not_null())
    assert set(restored["zipcode"]) == {"6236"}
    assert set(restored["fixed_zipcode"]) == {"06236"}


def test_the_engine_keeps_the_callers_columns_and_their_order(registry: Path) -> None:
    rows = generated(1000).with_row_index("key").with_columns(score=pl.col("key"), since=pl.lit("mine"))
    found = bs.LocalEngine(registry).verify(rows.lazy()).collect(engine="streaming")
    assert found.columns == [*rows.columns, *NINE]
    assert found.select(rows.columns).equals(rows)


@pytest.mark.parametrize("besides", [False, True])
def test_the_engine_is_one_lazy_query_that_streams(registry: Path, besides: bool) -> None:
    """No step falls back to holding all rows: only what is joined to them (the history) is kept in memory."""
    rows, history = generated(10), pl.LazyFrame(schema=HISTORY_SCHEMA) if besides else None
    if besides:
        rows = rows.with_columns(confirmed=pl.lit("2020-01-01"), crowded=True, several_addresses=False)
    query = bs.LocalEngine(registry, history=history).verify(rows.lazy())
    assert isinstance(query, pl.LazyFrame)
    plan = query.show_graph(plan_stage="physical", engine="streaming", raw_output=True) or ""
    kinds = dict(re.findall(r'label="([a-z-]+)[^"]*"(?:,style=filled,fillcolor="([0-9.]+) )?', plan))
    assert ("equi-join" in kinds) == besides  # the registry is looked up, and moves no row
    fallbacks = [kind for kind, colour in kinds.items() if colour == "0.0"]  # the legend's in-memory fallback
    assert fallbacks == []
    twice = {"multiplexer"} if besides else set()  # the history, read once and joined twice
    assert {kind for kind, colour in kinds.items() if colour} <= {"in-memory-source", "equi-join", *twice}


def test_the_engine_refuses_frames_it_cannot_answer() -> None:
    engine = bs.LocalEngine()
    with pytest.raises(UsageError, match="no column 'b_no'; it has a"):
        engine.verify(pl.LazyFrame({"a": [1]}))
    with pytest.raises(UsageError, match="already has a column 'grade'"):
        engine.verify(pl.LazyFrame({"b_no": ["1"], "grade": ["A"]}))
    with pytest.raises(UsageError, match="unknown language 'fr'"):
        bs.LocalEngine(lang="fr")  # type: ignore[arg-type]


# ── the scorecard's file ─────────────────────────────────────────────────────────────────────────────────────────


def test_another_scorecard_changes_the_answers(tmp_path: Path) -> None:
    text = TEXT
    (tmp_path / "mine.toml").write_text(text.replace("points = -50", "points = -20", 1), encoding="utf-8")
    answer = bs.verify("1248100998", name="가", address=ADDRESS, model=tmp_path / "mine.toml")
    assert answer.bounce_prob == pytest.approx(0.93 / (1 + 2**2.3), abs=1e-4)
    assert "[base -20] where an ordinary business letter starts (model)" in answer.reasons


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("points = 66", 'points = "many"', "features"),
        ("points = 66", "points = nan", "features"),
        ("ceiling = 0.93", "ceiling = nan", "ceiling"),
        ("ceiling = 0.93", "ceiling = 1.5", "ceiling"),
        ("[features.kind.corporation]", "[features.kind.corp]", r"\[features.kind.corporation\] is missing"),
        ("B = -35", "B = -60", "rising"),
        ('E = "do_not_send"', 'E = "burn"', "actions"),
        ('"address", "form"', '"adress", "form"', "'adress', which is not a feature"),
        ("business active", "business | active", "separates reasons"),
        ("[base]", "[base", "scorecard"),
        ('version = "2026.11.5"', "", "version"),
    ],
)
def test_a_scorecard_that_does_not_hold_together_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = TEXT
    assert old in text
    broken = tmp_path / "scorecard.toml"
    broken.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(ModelError, match=message):
        Scorecard.load(broken)


def test_a_missing_scorecard_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        Scorecard.load(tmp_path / "none.toml")


# ── the registry's file ──────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_no_registry_is_refused(tmp_path: Path) -> None:
    for name, content in (("a.parquet", b"text"), ("b.parquet", None), ("none.parquet", b"")):
        path = tmp_path / name
        if content is None:
            pl.DataFrame({"b_no": [1]}).write_parquet(path)
        elif content:
            path.write_bytes(content)
        with pytest.raises(RegistryError, match="build one with"):
            bs.LocalEngine(path)


def damaged(registry: Path, path: Path) -> Path:
    """A copy of a registry whose metadata are whole and whose pages are not."""
    data = bytearray(registry.read_bytes())
    data[4:80] = b"\xff" * 76
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 1}', '{"format": 1, "version": "1", "rows": null}'])
def test_a_registry_whose_metadata_are_broken_is_refused(registry: Path, tmp_path: Path, text: str) -> None:
    path = tmp_path / "r.parquet"
    pl.read_parquet(registry).write_parquet(path, metadata={"bizverify.registry": text})
    with pytest.raises(RegistryError, match=r"r\.parquet: is a registry"):
        bs.LocalEngine(path)


def test_a_damaged_registry_is_blamed_and_not_the_input(registry: Path, tmp_path: Path) -> None:
    path = damaged(registry, tmp_path / "r.parquet")
    source = tmp_path / "s.csv"
    source.write_text("b_no,address\n1248100998,x\n", encoding="utf-8")
    with pytest.raises(RegistryError, match=r"r\.parquet: the registry is damaged"):
        bs.enrich(source, registry=path)
    with pytest.raises(RegistryError, match=r"r\.parquet: the registry is damaged"):
        bs.verify("1248100998", registry=path)
    with pytest.raises(RegistryError, match=r"r\.parquet: the registry is damaged"):
        bs.verify_frame(pl.read_csv(source), registry=path)


# ── what the engine makes of odd columns and models ──────────────────────────────────────────────────────────────


def test_the_engine_reads_no_number_from_a_32_bit_float() -> None:
    rows = pl.LazyFrame({"b_no": pl.Series([1248100998.0], dtype=pl.Float32)})
    assert bs.LocalEngine().verify(rows).collect()["row_status"].to_list() == ["invalid"]


@pytest.mark.parametrize("value", [["1248100998"], {"x": 1}, b"1248100998"], ids=["list", "struct", "bytes"])
def test_a_column_of_other_things_than_text_and_numbers_is_refused_by_name(value: object) -> None:
    with pytest.raises(UsageError, match=r"the column 'b_no' holds .*; give text or numbers"):
        bs.LocalEngine().verify(pl.LazyFrame({"b_no": [value]}))


@pytest.mark.parametrize(("lang", "word"), [("en", "date not known"), ("ko", "날짜 미상")])
def test_a_reason_that_wants_a_date_stands_without_one_too(
    registry: Path, tmp_path: Path, lang: str, word: str
) -> None:
    text = TEXT
    for old, new in (("closed, date not known", "closed {since}"), ("business active", "active {since}")):
        text = text.replace(f'"{old}"', f'"{new}"')
    ko = re.sub(r'(closed_undated.*?ko = ")[^"]*', r"\1폐업 {since}", text, count=1, flags=re.S)
    (tmp_path / "mine.toml").write_text(ko, encoding="utf-8")
    one = bs.verify(
        "1268103725", name="가", address=ADDRESS, registry=registry, model=tmp_path / "mine.toml", lang=lang
    )
    assert any(word in reason and reason.startswith("[status +57]") for reason in one.reasons)
    score = sum(int(REASON.match(reason).group(2)) for reason in one.reasons)
    assert one.bounce_prob == pytest.approx(0.93 / (1 + 2 ** (-score / 10)), abs=5.1e-5)


def test_a_blank_address_is_blank_for_the_plan_and_for_the_engine(tmp_path: Path) -> None:
    blanks = ["", " 없음 ", "-", "\u3000", " N/A"]
    rows = "\n".join(f"1248100998,가,{blank}" for blank in blanks)
    (tmp_path / "s.csv").write_text(f"b_no,name,address\n{rows}\n", encoding="utf-8")
    assert bs.plan(tmp_path / "s.csv").plan.without_address == len(blanks)
    for blank in blanks:
        assert any("[address" in reason for reason in ask(b_no="1248100998", name="가", address=blank)["reasons"])


def test_the_number_is_read_in_b_no_whatever_other_columns_say() -> None:
    """A caller's column may be called as one of a run's is: it passes through, and the answer does not depend on it."""
    given = pl.Series([1248100998, 1248100998], dtype=pl.UInt64)
    frame = pl.LazyFrame({"b_no": ["0000000000", "2208162517"], "bv:number": given})
    answered = bs.LocalEngine().verify(frame).collect()
    assert answered["row_status"].to_list() == ["invalid", "verified"]
    assert answered["bv:number"].equals(given)
