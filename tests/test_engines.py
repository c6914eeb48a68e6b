"""Engines as objects, options as values: what may be given to a run instead of a name and many keywords."""

from __future__ import annotations

import importlib.metadata
import traceback
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
from bansong.errors import QuotaError, UsageError
from bansong.testing import FakeService, serve
from conftest import NINE, SAMPLE, write
from customers import KEY, QUICK, customers

REGISTRY = SAMPLE / "registry.parquet"
ENGINES: dict[str, Any] = {
    "verify": partial(bs.ServiceEngine, "verify"),
    "batch": partial(bs.ServiceEngine, "batch"),
    "hybrid": bs.HybridEngine,
}


@pytest.fixture
def service() -> FakeService:
    return FakeService(KEY, quota=1000)


@pytest.fixture
def url(service: FakeService) -> Iterator[str]:
    with serve(service) as address:
        yield address


def nine(path: Path) -> pl.DataFrame:
    return pl.read_csv(path, infer_schema=False).select(NINE)


def test_a_local_engine_answers_as_its_keywords_do(tmp_path: Path) -> None:
    """The same rows, whether the registry is a keyword of the run or the engine's own; a frame and one business too."""
    source, engine = SAMPLE / "customers.csv", bs.LocalEngine(REGISTRY, lang="ko")
    by_name = bs.enrich(source, tmp_path / "a.csv", registry=REGISTRY, lang="ko")
    by_object = bs.enrich(source, tmp_path / "b.csv", engine=engine)
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    assert (by_object.engine, by_object.versions) == ("local", by_name.versions)
    frame = pl.read_csv(source, infer_schema=False)
    assert bs.verify_frame(frame, engine=engine).equals(bs.verify_frame(frame, registry=REGISTRY, lang="ko"))
    assert bs.verify("124-81-00998", engine=engine) == bs.verify("124-81-00998", registry=REGISTRY, lang="ko")
    assert "biz_status" in engine.verify(pl.LazyFrame({"b_no": ["1248100998"]})).collect_schema()


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_that_buys_answers_as_its_name_does(
    name: str, service: FakeService, url: str, tmp_path: Path
) -> None:
    """Given as an object it buys the same lookups once, and can be used again; the ledger answers then."""
    source = customers(tmp_path / "in.csv", 12, repeats=2)
    options: Any = {"base_url": url, "api_key": KEY, **QUICK}
    by_name = bs.enrich(source, tmp_path / "a.csv", engine=name, ledger=tmp_path / "a.sqlite", **options)  # type: ignore[arg-type]
    engine = ENGINES[name](bs.ServiceOptions(**options, ledger=tmp_path / "b.sqlite"))
    by_object = bs.enrich(source, tmp_path / "b.csv", engine=engine)
    assert nine(tmp_path / "a.csv").equals(nine(tmp_path / "b.csv"))
    assert (by_object.engine, by_object.counts) == (name, by_name.counts)
    assert bs.enrich(source, tmp_path / "c.csv", engine=engine).counts["cached"] == 14
    assert bs.plan(source, engine=engine).purchase.cached == 12  # type: ignore[union-attr]
    assert service.paid_total == 24


def test_what_an_engine_has_of_its_own_is_not_said_again(tmp_path: Path) -> None:
    """A keyword that would be ignored is refused, and so is an option of another kind of engine."""
    source, local = write(tmp_path / "in.csv", "사업자번호\n124-81-00998\n"), bs.LocalEngine()
    wrong: list[dict[str, Any]] = [{"registry": REGISTRY}, {"lang": "ko"}, {"today": "2026-11-22"}, {"budget": 5}]
    for keyword in wrong:
        with pytest.raises(UsageError, match=f"`{next(iter(keyword))}=` is said when an engine is made"):
            bs.enrich(source, engine=local, **keyword)
    with pytest.raises(UsageError, match=r"`band=` is for `engine='hybrid'`, not for verify"):
        bs.ServiceEngine("verify", bs.ServiceOptions(base_url="http://127.0.0.1:1", band=(0.1, 0.2)))
    with pytest.raises(UsageError, match="give 'verify' or 'batch'"):
        bs.ServiceEngine("hybrid")  # type: ignore[arg-type]
    assert not (tmp_path / "in.enriched.csv").exists()


def test_service_options_are_checked_when_they_are_made() -> None:
    """A value that cannot be is refused by itself, and a key given as text is hidden at once."""
    with pytest.raises(UsageError, match="`rate=0`: must be requests per second"):
        bs.ServiceOptions(rate=0)
    options = bs.ServiceOptions(api_key="secret-key-of-a-user")  # type: ignore[arg-type]
    assert isinstance(options.api_key, bs.ApiKey)
    assert "secret" not in repr(options)


def test_reading_and_writing_options_are_one_value_each(tmp_path: Path) -> None:
    """They say what the keywords say; where both are given the run is refused, since one would be ignored."""
    source = write(tmp_path / "in.csv", "124-81-00998,가\n")
    flat = {"columns": {"b_no": "#1"}, "has_header": False, "prefix": "bv_", "select": ["#1"]}
    bs.enrich(source, tmp_path / "a.csv", **flat)  # type: ignore[arg-type]
    read, writing = bs.ReadOptions({"b_no": "#1"}, has_header=False), bs.WriteOptions(prefix="bv_", select=["#1"])
    bs.enrich(source, tmp_path / "b.csv", read=read, write=writing)
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    with pytest.raises(UsageError, match="`prefix=` is a field of `write=`"):
        bs.enrich(source, write=writing, prefix="x")
    with pytest.raises(UsageError, match="`sheet=` is a field of `read=`"):
        bs.plan(source, read=read, sheet="x")


def test_an_engine_that_does_not_exist_is_refused_before_anything_is_opened(tmp_path: Path) -> None:
    """Whoever mistypes the engine's name hears of that, not of a registry or a label store that is missing, too."""
    source, nowhere = write(tmp_path / "in.csv", "사업자번호\n124-81-00998\n"), tmp_path / "nowhere"
    calls = (partial(bs.enrich, source), partial(bs.plan, source), partial(bs.verify_frame, pl.DataFrame()))
    for call in (*calls, partial(bs.verify, "124-81-00998")):
        with pytest.raises(UsageError, match="unknown engine 'nonsense'; use local or verify or batch or hybrid"):
            call(engine="nonsense", registry=nowhere, labels=nowhere, model=nowhere)  # type: ignore[arg-type]


def test_an_async_run_may_be_given_no_cancel_token(tmp_path: Path) -> None:
    """``cancel=None`` is the default said aloud: the file is published and the report returned."""
    source = write(tmp_path / "in.csv", "사업자번호\n124-81-00998\n")
    report = anyio.run(lambda: bs.aenrich(source, tmp_path / "out.csv", cancel=None))
    assert report.rows == 1
    assert (tmp_path / "out.csv").exists()


def test_an_async_run_that_ends_does_not_cancel_the_token(service: FakeService, url: str, tmp_path: Path) -> None:
    """A token may be given to one run after the other; only who cancels it cancels them."""
    source, token = customers(tmp_path / "in.csv", 3), bs.CancelToken()
    options: Any = {"engine": "verify", "base_url": url, "api_key": KEY, "cancel": token, **QUICK}
    for _ in range(2):
        assert anyio.run(lambda: bs.aenrich(source, **options)).exit_code == 0
    assert bs.enrich(source, **options | {"max_age": 0}).exit_code == 0


def test_what_a_public_signature_names_can_be_imported() -> None:
    """A program can name in its own annotations whatever a function of bansong takes or returns."""
    functions = [bs.enrich, bs.plan, bs.aenrich, bs.verify, bs.verify_frame, bs.LocalEngine.__init__]
    functions += [bs.ServiceEngine.__init__, bs.HybridEngine.__init__]

    def classes(hint: Any) -> Iterator[type]:
        arguments = typing.get_args(hint)
        yield from (found for argument in arguments for found in classes(argument))
        if isinstance(hint, type) and hint.__module__.startswith("bansong"):
            yield hint

    named = {
        one for function in functions for hint in typing.get_type_hints(function).values() for one in classes(hint)
    }
    assert {one.__name__ for one in named} >= {"Registry", "Scorecard", "Engine", "CancelToken", "ReadOptions"}
    assert [one for one in named if getattr(bs, one.__name__, None) is not one] == []


def test_an_engine_of_the_user_s_own_answers(tmp_path: Path) -> None:
    """Whatever has the methods of :class:`bansong.Engine` is asked as the others are: no name is compared."""
    from bansong.engine.protocol import Answers, LocalEngineAdapter, Records

    class Careful(LocalEngineAdapter):
        def answer(self, records: Records, context: Any) -> Answers:
            answers = super().answer(records, context)
            return Answers(lambda rows: answers.of(rows).with_columns(pl.lit("hold").alias("action")))

    source = write(tmp_path / "in.csv", "사업자번호\n124-81-00998\n")
    engine = Careful(bs.LocalEngine(), bs.EngineKind("careful", answers_locally=True, buys=False))
    report = bs.enrich(source, tmp_path / "out.csv", engine=engine)
    assert report.engine == "careful"
    assert nine(tmp_path / "out.csv")["action"].to_list() == ["hold"]


def test_a_hybrid_engine_keeps_the_quota(service: FakeService, url: str, tmp_path: Path) -> None:
    """An object refuses what its name refuses: without a budget, a plan that the quota does not last for."""
    service.quota = 2
    options: Any = {"base_url": url, "api_key": KEY, **QUICK}
    with pytest.raises(QuotaError):
        bs.enrich(customers(tmp_path / "in.csv", 5), engine=bs.HybridEngine(bs.ServiceOptions(**options)))
    assert service.paid_total == 0


def test_the_version_needs_no_installation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Run from a source tree there is no metadata of a package: the version is that of the code."""

    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    report = bs.enrich(write(tmp_path / "in.csv", "사업자번호\n124-81-00998\n"))
    assert report.versions.bansong == bs.__version__
    paths = (path for path in Path(bs.__file__).parent.rglob("*.py") if path.parent.name != "upkeep")  # of others
    source = "".join(path.read_text("utf-8") for path in paths)
    assert "importlib.metadata" not in source


def test_every_kind_of_engine_is_named_once() -> None:
    """The kinds say all that a run, a report, labels and the command line ask of an engine's name."""
    assert list(ENGINE_KINDS) == ["local", "verify", "batch", "hybrid"]
    assert [kind.name for kind in ENGINE_KINDS.values() if kind.buys] == ["verify", "batch", "hybrid"]
    assert [kind.name for kind in ENGINE_KINDS.values() if kind.has_jobs] == ["batch", "hybrid"]
    assert [kind.name for kind in ENGINE_KINDS.values() if kind.answers_locally] == ["local", "hybrid"]


NO_ENGINES = [None, 1, ["verify"], Path("local"), b"local", bs.LocalEngine, ENGINE_KINDS["local"]]


@pytest.mark.parametrize("engine", NO_ENGINES)
def test_what_is_no_engine_is_refused_in_words(engine: Any) -> None:
    """A wrong type is a usage error with the choices, before anything is opened."""
    with pytest.raises(UsageError, match=r"unknown engine .*; use local or verify or batch or hybrid"):
        bs.verify("124-81-00998", engine=engine)


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"read": bs.WriteOptions()}, "`read=` is a WriteOptions; give a bansong.ReadOptions"),
        ({"write": {"prefix": "x"}}, "`write=` is a dict; give a bansong.WriteOptions"),
        ({"bugdet": 3}, r"enrich\(\) has no parameter 'bugdet'; did you mean `budget=`.*, keep_going, "),
        ({"engine": bs.LocalEngine(), "gazeteer": 3}, "did you mean `gazetteer=`"),
        ({"brake": None}, "did you mean `cancel=`"),
        ({"columns": "상호"}, "`columns='상호'`: must be"),
        ({"columns": {"b_no": 0}}, "`columns={'b_no': 0}`: must be"),
        ({"extra_columns": "sido"}, "`extra_columns='sido'`: must be a list"),
        ({"prefix": None}, "`prefix=None`: must be"),
        ({"sheet": 0}, "`sheet=0`: must be"),
    ],
)
def test_options_of_a_wrong_type_or_name_are_refused_in_words(keywords: dict[str, Any], words: str) -> None:
    """The message names what was given and what is taken."""
    with pytest.raises(UsageError, match=words):
        bs.enrich(SAMPLE / "customers.csv", **keywords)


@pytest.mark.parametrize("wrong", [{"budget": -1}, {"api_key": f"{KEY}\n"}, {"rate": "fast"}])
def test_a_key_shows_in_no_frame_of_options_that_are_refused(wrong: dict[str, Any]) -> None:
    """Tracebacks may be shown with the variables of their frames."""
    with pytest.raises(UsageError) as caught:
        bs.ServiceOptions(**({"api_key": KEY} | wrong))
    frames = [frame for frame, _ in traceback.walk_tb(caught.value.__traceback__)][1:]
    shown = [repr(value) for frame in frames for name, value in frame.f_locals.items() if name != "self"]
    assert shown
    assert KEY not in str(shown)
