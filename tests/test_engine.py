"""The embedded engine: reasons that add up, the rules of the column contract, unknown that stays unknown."""

from __future__ import annotations

import json
import random
import re
import subprocess
from collections.abc import Callable
from datetime import date
from pathlib import Path

import polars as pl
import pytest

import bansong as bs
from bansong.base.schema import ACTIONS, BIZ_STATUSES, GRADES
from bansong.engine.overlays import HISTORY_SCHEMA
from bansong.errors import RegistryError, UsageError
from conftest import NINE, SAMPLE, write
from golden_cases import cases, check
from scorecards import TEXT

TODAY = date(2026, 11, 21)
ADDRESS = "경기도 수원시 영통구 삼성로 129"
REASON = re.compile(
    r"^\[([a-z_]+) ([+-]\d+)\] (.+) \((nts|registry|juso|postal|number|file|label|model)(?:, [0-9-]{10})?\)$"
)
STATUSES = """b_no,상태,폐업일,개업일
1248100998,계속사업자,,2000-01-01
2208162517,폐업자,2026-10-01,
1208147521,폐업자,2026-03-01,
1078614075,폐업자,2020-01-01,2019-01-01
1268103725,폐업자,,
1018109147,휴업자,2026-01-01,2026-06-01
1028142945,국세청에 등록되지 않은 사업자등록번호입니다.,,
1298200103,계속사업자,,2025-01-01
"""


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("registry")
    bs.build_registry([write(folder / "status.csv", STATUSES)], folder / "registry.parquet", as_of=TODAY)
    return folder / "registry.parquet"


def score(probability: float) -> float:
    return pytest.approx(probability, abs=5.1e-5)


def test_each_fact_of_a_row_gives_its_points_and_the_answer_follows(registry: Path) -> None:
    asked = cases("engine.csv").select("source", "why", "b_no", "name", "address", "zipcode")
    found = []
    for source, path in (("registry", registry), ("none", None)):
        rows = asked.filter(pl.col("source") == source).lazy()
        said, korean = (bs.LocalEngine(path, lang=lang, today=TODAY).answer(rows).collect() for lang in ("en", "ko"))
        points, same = (one["reasons"].str.extract_all(r"\[[a-z_]+ [+-]\d+\]").list.join(" ") for one in (said, korean))
        assert points.equals(same)
        assert said["row_note"].is_null().equals(korean["row_note"].is_null())
        found.append(said.with_columns(points=points, has_note=pl.col("row_note").is_not_null()))
    check("engine.csv", pl.concat(found, how="diagonal"), inputs=6)


@pytest.mark.parametrize("dtype", [pl.Int64, pl.Float64, pl.UInt16])
def test_postal_codes_that_are_numbers_have_lost_their_zeros(dtype: type[pl.DataType]) -> None:
    addresses = ["서울특별시 강남구 테헤란로 152", ADDRESS, "서울특별시 강남구 테헤란로 152"]
    zipcodes = pl.Series("zipcode", [6236, 16677, None], dtype)
    frame = pl.LazyFrame({"b_no": ["6032429936"] * 3, "address": addresses}).with_columns(zipcodes)
    found = bs.LocalEngine(today=TODAY).verify(frame).collect()
    assert found["fixed_zipcode"].to_list() == ["06236", None, None]
    assert not found["reasons"].list.join("").str.contains("[postal", literal=True).any()


def generated(rows: int) -> pl.DataFrame:
    chance = random.Random(7)
    numbers = [*(line.split(",")[0] for line in STATUSES.splitlines()[1:]), "6038129936", "1248100999"]
    numbers += ["", "1.2E9", "124-81-00998"]
    names = [None, "", "가나다", "홍**", "(주)라마바"]
    addresses = [None, "", "서울특별시 강남구", ADDRESS, "역삼로 ***", "(137-070) 서울 서초동 1", "06236 서울 강남구"]
    zipcodes = [None, "", "06236", "137-070", "6236", "16677.0"]
    sources = {"b_no": numbers, "name": names, "address": addresses, "zipcode": zipcodes}
    return pl.DataFrame({name: chance.choices(values, k=rows) for name, values in sources.items()})


@pytest.mark.parametrize("lang", ["en", "ko"])
def test_the_points_of_the_reasons_add_up_to_the_probability_in_every_row(registry: Path, lang: str) -> None:
    """bounce_prob = 0.93 / (1 + 2^(-S/10)) with S the sum of the signed integers, the base among them."""
    rows = generated(4_000)
    found = bs.LocalEngine(registry, lang=lang, today=TODAY).verify(rows.lazy()).collect()
    assert found.select(rows.columns).equals(rows)
    for name, words in {"biz_status": BIZ_STATUSES, "grade": GRADES, "action": ACTIONS}.items():
        assert set(found[name].drop_nulls()) <= set(words)
    assert set(found["row_status"]) == {"verified", "invalid"}
    bands = {"A": (-999, -50), "B": (-49, -35), "C": (-34, -19), "D": (-18, 2), "E": (3, 999)}
    assessed = 0
    for row in found.unique(NINE).iter_rows(named=True):
        matches = [REASON.match(reason) for reason in row["reasons"] or ()]
        assert all(matches)
        sizes = [abs(int(match[2])) for match in matches if match[1] != "base"]
        kept_back = row["action"] == "confirm" and sizes[0] == 0  # first stands what kept the row from being sent
        assert sizes[kept_back:] == sorted(sizes[kept_back:], reverse=True)
        if row["bounce_prob"] is None:
            assert row["grade"] is None
            continue
        points = sum(int(match[2]) for match in matches)
        assert row["bounce_prob"] == score(0.93 / (1 + 2 ** (-points / 10)))
        low, high = bands[row["grade"]]
        assert low <= points <= high
        assert [match[1] for match in matches].count("base") == 1
        assessed += 1
    assert assessed > 100


def test_the_engine_keeps_the_callers_columns_and_their_order(registry: Path) -> None:
    rows = generated(1000).with_row_index("key").with_columns(score=pl.col("key"), since=pl.lit("mine"))
    rows = rows.with_columns(pl.lit(1248100998, pl.UInt64).alias("bv:number"))
    found = bs.LocalEngine(registry).verify(rows.lazy()).collect(engine="streaming")
    assert found.columns == [*rows.columns, *NINE]
    assert found.select(rows.columns).equals(rows)
    assert set(found.filter(pl.col("b_no") == "1.2E9")["row_status"]) == {"invalid"}


@pytest.mark.parametrize("with_all", [False, True])
def test_the_engine_is_one_lazy_query_that_streams(registry: Path, with_all: bool) -> None:
    rows, history = generated(10), pl.LazyFrame(schema=HISTORY_SCHEMA) if with_all else None
    if with_all:
        rows = rows.with_columns(confirmed=pl.lit("2020-01-01"), crowded=True, several_addresses=False)
    gazetteer = SAMPLE / "gazetteer.parquet" if with_all else None
    query = bs.LocalEngine(registry, gazetteer=gazetteer, history=history).verify(rows.lazy())
    assert isinstance(query, pl.LazyFrame)
    plan = query.show_graph(plan_stage="physical", engine="streaming", raw_output=True) or ""
    kinds = dict(re.findall(r'label="([a-z-]+)[^"]*"(?:,style=filled,fillcolor="([0-9.]+) )?', plan))
    assert ("equi-join" in kinds) == with_all  # the registry is looked up, and moves no row
    assert [kind for kind, colour in kinds.items() if colour == "0.0"] == []  # the legend's in-memory fallback
    twice = {"multiplexer"} if with_all else set()  # the history, read once and joined twice
    assert {kind for kind, colour in kinds.items() if colour} <= {"in-memory-source", "equi-join", *twice}


def test_the_engine_refuses_frames_it_cannot_answer() -> None:
    engine = bs.LocalEngine()
    for frame, code in (
        (pl.LazyFrame({"a": [1]}), "columns.number_column_missing"),
        (pl.LazyFrame({"b_no": ["1"], "grade": ["A"]}), "columns.added_column_exists"),
        *((pl.LazyFrame({"b_no": [value]}), "columns.column_type_unusable") for value in (["1"], {"x": 1}, b"1")),
    ):
        with pytest.raises(UsageError) as caught:
            engine.verify(frame)
        assert caught.value.code == code
    with pytest.raises(UsageError) as caught:
        bs.LocalEngine(lang="fr")  # type: ignore[arg-type]
    assert caught.value.code == "options.unknown_language"
    short = pl.LazyFrame({"b_no": pl.Series([1248100998.0], dtype=pl.Float32)})  # seven digits of it are right
    assert engine.verify(short).collect()["row_status"].to_list() == ["invalid"]


def test_another_scorecard_changes_the_answers(registry: Path, tmp_path: Path) -> None:
    text = TEXT.replace("points = -50", "points = -20", 1)
    for old, new in (("closed, date not known", "closed {since}"), ("business active", "active {since}")):
        text = text.replace(f'"{old}"', f'"{new}"')
    text = re.sub(r'(closed_undated.*?ko = ")[^"]*', r"\1폐업 {since}", text, count=1, flags=re.S)
    mine = write(tmp_path / "mine.toml", text)
    asked = {"name": "가", "address": ADDRESS, "model": mine, "registry": registry}
    for lang, word in (("en", "date not known"), ("ko", "날짜 미상")):
        one = bs.verify("1268103725", **asked, lang=lang)
        assert any(word in reason and reason.startswith("[status +57]") for reason in one.reasons)
        assert any(reason.startswith("[base -20]") for reason in one.reasons)
        points = sum(int(REASON.match(reason)[2]) for reason in one.reasons)
        assert one.bounce_prob == score(0.93 / (1 + 2 ** (-points / 10)))


def test_what_is_no_registry_is_refused(registry: Path, tmp_path: Path) -> None:
    path = tmp_path / "r.parquet"
    for content in (b"", b"text"):
        path.write_bytes(content)
        with pytest.raises(RegistryError):
            bs.LocalEngine(path)
    for text in (None, "{", "[]", '{"format": 1}', '{"format": 1, "version": "1", "rows": null}'):
        pl.read_parquet(registry).write_parquet(path, metadata=text and {"bizverify.registry": text})
        with pytest.raises(RegistryError):
            bs.LocalEngine(path)
    with pytest.raises(RegistryError):
        bs.LocalEngine(tmp_path / "none.parquet")


def test_a_damaged_registry_is_blamed_and_not_the_input(registry: Path, tmp_path: Path) -> None:
    data, path = bytearray(registry.read_bytes()), tmp_path / "r.parquet"
    data[4:80] = b"\xff" * 76  # the metadata are whole, the pages are not
    path.write_bytes(data)
    source = write(tmp_path / "s.csv", "b_no,address\n1248100998,x\n")
    with pytest.raises(RegistryError, match=r"r\.parquet: the registry is damaged"):
        bs.enrich(source, registry=path)


def test_a_blank_address_is_blank_for_the_plan_and_for_the_engine(tmp_path: Path) -> None:
    blanks = ["", " 없음 ", "-", "\u3000", " N/A"]
    rows = "\n".join(f"1248100998,가,{blank}" for blank in blanks)
    assert bs.plan(write(tmp_path / "s.csv", f"b_no,name,address\n{rows}\n")).plan.without_address == len(blanks)
    frame = pl.LazyFrame({"b_no": "1248100998", "name": "가", "address": blanks})
    assert bs.LocalEngine().verify(frame).collect()["bounce_prob"].null_count() == len(blanks)


def test_what_an_engine_answers_with_is_shown_in_one_line() -> None:
    statuses = pl.DataFrame({"b_no": ["1248100998"], "biz_status": ["closed"], "as_of": [date(2026, 11, 2)]})
    engine = bs.LocalEngine(
        SAMPLE / "registry.parquet", gazetteer=SAMPLE / "gazetteer.parquet", status=statuses, today="2026-11-20"
    )
    shown = repr(engine)
    assert "\n" not in shown
    registry, gazetteer = bs.Registry.open(SAMPLE / "registry.parquet"), bs.Gazetteer.open(SAMPLE / "gazetteer.parquet")
    for part in (
        f"registry.parquet'), version='{registry.version}', rows={registry.rows}",
        f"gazetteer.parquet'), version='{gazetteer.version}', buildings={gazetteer.buildings}",
        "status=StatusOverlay(version='2026-11-02', rows=1)",
        f"Scorecard(version='{engine.model.version}', features=",
        "history=False",
    ):
        assert part in shown
    assert "1248100998" not in shown
    assert "registry" not in repr(bs.LocalEngine())


def test_one_answer_is_json_as_the_command_prints_it(run: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    answer = bs.verify("124-81-00998", name="삼성전자", labels=False)
    printed = json.loads(run("verify", "124-81-00998", "--name", "삼성전자", "--no-labels", "--json").stdout)
    assert json.loads(json.dumps(answer.as_dict())) == answer.as_dict() == printed
    assert printed["reasons"]
