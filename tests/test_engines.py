"""Engines as objects, options as values: what may be given to a run instead of a name and many keywords."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import polars as pl
import pytest

import bansong as bs
from bansong.base.options import ENGINE_KINDS
from bansong.errors import UsageError
from bansong.testing import FakeService, serve
from conftest import NINE, SAMPLE, write
from customers import KEY, QUICK, customers

REGISTRY = SAMPLE / "registry.parquet"
ENGINES: dict[str, Any] = {"batch": partial(bs.ServiceEngine, "batch"), "hybrid": bs.HybridEngine}


@pytest.fixture
def service() -> FakeService:
    return FakeService(KEY, quota=1000)


@pytest.fixture
def url(service: FakeService) -> Iterator[str]:
    with serve(service) as address:
        yield address


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write(tmp_path / "in.csv", "사업자번호,주소\n124-81-00998,서울 종로구 종로 426\n")


def nine(path: Path) -> pl.DataFrame:
    return pl.read_csv(path, infer_schema=False).select(NINE)


def refused(call: Any) -> str:
    with pytest.raises(UsageError) as caught:
        call()
    return caught.value.code


def test_a_local_engine_answers_as_its_keywords_do(source: Path, tmp_path: Path) -> None:
    engine, keywords = bs.LocalEngine(REGISTRY, lang="ko"), {"registry": REGISTRY, "lang": "ko"}
    by_name = bs.enrich(source, tmp_path / "a.csv", **keywords)
    by_object = bs.enrich(source, tmp_path / "b.csv", engine=engine)
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    assert (by_object.engine, by_object.versions) == ("local", by_name.versions)
    frame = pl.read_csv(source, infer_schema=False)
    assert bs.verify_frame(frame, engine=engine).equals(bs.verify_frame(frame, **keywords))
    assert bs.verify("124-81-00998", engine=engine) == bs.verify("124-81-00998", **keywords)


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_that_buys_answers_as_its_name(name: str, service: FakeService, url: str, tmp_path: Path) -> None:
    source = customers(tmp_path / "in.csv", 12, repeats=2)
    options: Any = {"base_url": url, "api_key": KEY, **QUICK}
    by_name = bs.enrich(source, tmp_path / "a.csv", engine=name, ledger=tmp_path / "a.sqlite", **options)  # type: ignore[arg-type]
    engine = ENGINES[name](bs.ServiceOptions(**options, ledger=tmp_path / "b.sqlite"))
    by_object = bs.enrich(source, tmp_path / "b.csv", engine=engine)
    assert nine(tmp_path / "a.csv").equals(nine(tmp_path / "b.csv"))
    assert (by_object.engine, by_object.counts) == (name, by_name.counts)
    assert bs.plan(source, engine=engine).purchase.cached == 12
    assert service.paid_total == 24


def test_an_async_run_leaves_its_token_alone(service: FakeService, url: str, source: Path, tmp_path: Path) -> None:
    options: Any = {"engine": "verify", "base_url": url, "api_key": KEY, **QUICK}
    for token in (*[bs.CancelToken()] * 2, None):
        report = anyio.run(lambda token=token: bs.aenrich(source, tmp_path / "out.csv", cancel=token, **options))
        assert (report.exit_code, report.rows) == (0, 1)


def test_an_engine_of_the_user_s_own_answers(source: Path, tmp_path: Path) -> None:
    from bansong.engine.protocol import Answers, LocalEngineAdapter, Records

    class Careful(LocalEngineAdapter):
        def answer(self, records: Records, context: Any) -> Answers:
            answers = super().answer(records, context)
            return Answers(lambda rows: answers.of(rows).with_columns(pl.lit("hold").alias("action")))

    engine = Careful(bs.LocalEngine(), bs.EngineKind("careful", answers_locally=True, buys=False))
    report = bs.enrich(source, tmp_path / "out.csv", engine=engine)
    assert report.engine == "careful"
    assert nine(tmp_path / "out.csv")["action"].to_list() == ["hold"]


def test_what_an_engine_has_of_its_own_is_not_said_again(source: Path) -> None:
    wrong: list[dict[str, Any]] = [{"registry": REGISTRY}, {"lang": "ko"}, {"today": "2026-11-22"}, {"budget": 5}]
    for keyword in wrong:
        with pytest.raises(UsageError, match=f"`{next(iter(keyword))}=` is said when an engine is made"):
            bs.enrich(source, engine=bs.LocalEngine(), **keyword)
    other = bs.ServiceOptions(base_url="http://127.0.0.1:1", band=(0.1, 0.2))
    assert refused(lambda: bs.ServiceEngine("verify", other)) == "options.other_engine_only"
    with pytest.raises(UsageError, match="give 'verify' or 'batch'"):
        bs.ServiceEngine("hybrid")  # type: ignore[arg-type]


def test_reading_and_writing_options_are_one_value_each(tmp_path: Path) -> None:
    source = write(tmp_path / "in.csv", "124-81-00998,가\n")
    flat: Any = {"columns": {"b_no": "#1"}, "has_header": False, "prefix": "bv_", "select": ["#1"]}
    bs.enrich(source, tmp_path / "a.csv", **flat)
    read, writing = bs.ReadOptions({"b_no": "#1"}, has_header=False), bs.WriteOptions(prefix="bv_", select=["#1"])
    bs.enrich(source, tmp_path / "b.csv", read=read, write=writing)
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    assert refused(lambda: bs.enrich(source, write=writing, prefix="x")) == "options.field_said_twice"
    assert refused(lambda: bs.plan(source, read=read, sheet="x")) == "options.field_said_twice"


def test_an_engine_that_does_not_exist_is_refused_before_anything_is_opened(source: Path, tmp_path: Path) -> None:
    nowhere: Any = dict.fromkeys(("registry", "labels", "model"), tmp_path / "nowhere")
    calls = (partial(bs.enrich, source), partial(bs.plan, source), partial(bs.verify_frame, pl.DataFrame()))
    for call in (*calls, partial(bs.verify, "124-81-00998")):
        assert refused(partial(call, engine="nonsense", **nowhere)) == "options.engine_unknown"
    for engine in (None, 1, ["verify"], Path("local"), b"local", bs.LocalEngine, ENGINE_KINDS["local"]):
        assert refused(partial(bs.verify, "124-81-00998", engine=engine)) == "engines.engine_unknown"


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"read": bs.WriteOptions()}, "option_type_wrong", "`read=` is a WriteOptions; give a bansong.ReadOptions"),
    ({"write": {"prefix": "x"}}, "option_type_wrong", "`write=` is a dict; give a bansong.WriteOptions"),
    ({"columns": "상호"}, "value_invalid", "`columns='상호'`: must be"),
    ({"columns": {"b_no": 0}}, "value_invalid", "`columns={'b_no': 0}`: must be"),
    ({"extra_columns": "sido"}, "value_invalid", "`extra_columns='sido'`: must be a list"),
    ({"prefix": None}, "value_invalid", "`prefix=None`: must be"),
    ({"sheet": 0}, "value_invalid", "`sheet=0`: must be"),
]


def test_options_of_a_wrong_type_or_name_are_refused_in_words() -> None:
    for keywords, code, words in WRONG:
        with pytest.raises(UsageError) as caught:
            bs.enrich(SAMPLE / "customers.csv", **keywords)
        assert (caught.value.code, words in str(caught.value)) == (f"options.{code}", True), words


def test_what_a_public_signature_names_can_be_imported() -> None:
    functions = [bs.enrich, bs.plan, bs.aenrich, bs.verify, bs.verify_frame, bs.LocalEngine.__init__]
    functions += [bs.ServiceEngine.__init__, bs.HybridEngine.__init__]

    def classes(hint: Any) -> Iterator[type]:
        yield from (found for argument in typing.get_args(hint) for found in classes(argument))
        if isinstance(hint, type) and hint.__module__.startswith("bansong"):
            yield hint

    hints = (hint for function in functions for hint in typing.get_type_hints(function).values())
    named = {one for hint in hints for one in classes(hint)}
    assert {one.__name__ for one in named} >= {"Registry", "Scorecard", "Engine", "CancelToken", "ReadOptions"}
    assert [one for one in named if getattr(bs, one.__name__, None) is not one] == []
