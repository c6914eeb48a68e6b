"""The engines of a server: made anew when what they answer from has changed, and only then."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Callable
from datetime import date
from pathlib import Path
from threading import Event, Thread

import anyio
import msgspec
import polars as pl
import pytest

import bansong as bs
from bansong.engine.local import LocalEngine
from bansong.engine.overlays import HISTORY_SCHEMA
from bansong.engine.risk.scorecard import Scorecard
from bansong.errors import RegistryError
from bansong.history.labels import LabelStore
from bansong.server import engines as engine_pool
from bansong.server.engines import EnginePool
from bansong.server.settings import Settings
from handclock import HandClock
from serving import NUMBER, hosted


def build(folder: Path, status: str, more: str = "") -> Path:
    """A registry of one business, under a name of its own."""
    source, built = folder / f"{status}.csv", folder / f"{status}.parquet"
    header, values = ("사업자등록번호,사업자상태,폐업일자", f"{NUMBER},{status},2026-01-02")
    if more:
        header, values = f"{header},상호", f"{values},{more}"
    source.write_text(f"{header}\n{values}\n", encoding="utf-8")
    bs.build_registry([source], built)
    return built


@pytest.fixture
def registry(tmp_path: Path) -> Path:
    return build(tmp_path, "계속사업자").rename(tmp_path / "registry.parquet")


@pytest.fixture
def hand() -> HandClock:
    return HandClock()


@pytest.fixture
def bare(tmp_path: Path, hand: HandClock) -> EnginePool:
    return EnginePool(Settings(db=tmp_path / "db.sqlite"), hand.clock)


@pytest.fixture
def engines(tmp_path: Path, hand: HandClock, registry: Path) -> EnginePool:
    return EnginePool(Settings(db=tmp_path / "db.sqlite", registry=registry), hand.clock)


def status(engine: LocalEngine) -> str:
    frame = pl.LazyFrame({"b_no": [NUMBER], "name": ["가"], "address": ["서울 중구 세종대로 110"]})
    found: str = engine.answer(frame).collect()["biz_status"][0]
    return found


def test_an_engine_is_the_same_object_until_the_next_day(engines: EnginePool, hand: HandClock) -> None:
    """At midnight in Korea, and not before; all keys share the registry, which is not there where nothing is paid."""
    first = engines.engine("a")
    anyio.run(engines.look)
    assert anyio.run(engines.open_engine, "a") is first is not engines.engine("b")
    assert engines.engine("b").registry is first.registry
    assert [status(engines.engine("a", paid=paid)) for paid in (True, False)] == ["active", "unknown"]
    assert engines.engine("a", paid=False) is engines.engine("a", paid=False)
    hand.forward(hours=11, minutes=59)
    assert (engines.engine("a"), first.today) == (first, date(2026, 11, 20))
    hand.forward(minutes=1)
    assert engines.engine("a").today == date(2026, 11, 21)


def test_a_newer_file_is_used_and_the_engine_before_stays_usable(
    tmp_path: Path, engines: EnginePool, registry: Path
) -> None:
    """A registry with other columns is used by new engines and by no old one."""
    before = engines.engine("a")
    planned = before.answer(pl.LazyFrame({"b_no": [NUMBER]}))
    build(tmp_path, "폐업자", more="가나상사").replace(registry)
    anyio.run(engines.look)
    after = engines.engine("a")
    assert (status(before), status(after), planned.collect()["biz_status"][0]) == ("active", "closed", "active")
    assert engines.data.registry is after.registry


def zeroed(data: bytes) -> bytes:
    return data[:4] + bytes(196) + data[200:]


@pytest.mark.parametrize("damage", [lambda _: b"no parquet", lambda data: data[: len(data) // 2], zeroed, None])
def test_a_file_that_cannot_be_used_changes_nothing(
    tmp_path: Path,
    engines: EnginePool,
    registry: Path,
    caplog: pytest.LogCaptureFixture,
    damage: Callable[[bytes], bytes] | None,
) -> None:
    """The engine stays and a warning names the file, once; when the file is there and repaired it is used."""
    before, good = engines.engine("a"), build(tmp_path, "폐업자")
    registry.unlink()
    if damage is not None:
        registry.write_bytes(damage(good.read_bytes()))
    with caplog.at_level(logging.WARNING, "bansong.server"):
        anyio.run(engines.look)
        anyio.run(engines.look)
    assert (engines.engine("a"), status(before)) == (before, "active")
    [text] = caplog.messages
    assert (str(registry) in text, "/proc/" in text) == (True, False)
    good.replace(registry)
    anyio.run(engines.look)
    assert status(engines.engine("a")) == "closed"


def test_a_server_does_not_start_without_its_registry(tmp_path: Path, hand: HandClock) -> None:
    (tmp_path / "text.parquet").write_text("text")
    for name, said in (("none", "there is no such registry"), ("text", "is not a registry")):
        with pytest.raises(RegistryError, match=rf"{name}\.parquet: {said}"):
            EnginePool(Settings(db=tmp_path / "db.sqlite", registry=tmp_path / f"{name}.parquet"), hand.clock)


def test_keys_are_kept_within_bounds(bare: EnginePool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound the key that was not asked for longest is let go, and the others keep their engines."""
    monkeypatch.setattr(engine_pool, "_MAX_KEYS", 2)
    first, second = bare.engine("a"), bare.engine("b")
    assert bare.engine("a") is first
    bare.engine("c")
    assert (bare.engine("a"), bare.ready("b")) == (first, False)
    assert bare.engine("b") is not second


def test_a_key_with_damaged_files_is_answered(bare: EnginePool, caplog: pytest.LogCaptureFixture) -> None:
    """By the built-in scorecard, and without its outcomes; that is said."""
    for name, file in (("models", "journal.jsonl"), ("labels", "job.parquet")):
        (bare.folder("a") / name).mkdir(parents=True)
        (bare.folder("a") / name / file).write_bytes(b"damaged\n")
    engine = bare.engine("a")
    assert (engine.model, engine.history) == (Scorecard.load(), None)
    for said in ("its scorecard cannot be used", "its outcomes cannot be used"):
        assert f"key a: {said}" in caplog.text


def test_a_scorecard_changed_beside_the_server_answers(bare: EnginePool) -> None:
    """What another process promotes or rolls back answers a key after the next look; a mere note changes nothing."""
    builtin, other = bare.engine("a"), bare.engine("b")
    bare.store("a").promote(msgspec.structs.replace(Scorecard.load(), version="better"), {})
    anyio.run(bare.look)
    better = bare.engine("a")
    assert (builtin.model.version, better.model.version) == (Scorecard.load().version, "better")
    bare.store("a").note("refused", {"why": ["nothing new"]})
    anyio.run(bare.look)
    assert (bare.engine("a"), bare.engine("b")) == (better, other)
    bare.store("a").rollback()
    anyio.run(bare.look)
    assert bare.engine("a").model == builtin.model


def test_a_registry_is_swapped_while_requests_are_answered(tmp_path: Path, registry: Path, hand: HandClock) -> None:
    """Each answer is that of the file before or of the one after."""
    stop, found = Event(), list[str]()
    with hosted(tmp_path / "db.sqlite", hand.clock, registry=registry) as server:
        key = server.account()

        def ask() -> None:
            while not stop.is_set():
                found.append(key.verify(name="가", address="서울 중구 세종대로 110").json()["biz_status"])

        askers = [Thread(target=ask) for _ in range(2)]
        for asker in askers:
            asker.start()
        try:
            for word, expected in [("폐업자", "closed"), ("휴업자", "suspended")]:
                build(tmp_path, word, more="가나상사" * (word == "휴업자")).replace(registry)
                hand.until(lambda expected=expected: bool(found) and found[-1] == expected, seconds=10)  # type: ignore[misc]
        finally:
            stop.set()
            for asker in askers:
                asker.join()
        assert key.used() == len(found)
    assert set(found) <= {"active", "closed", "suspended"}


def test_a_key_that_asks_for_nothing_does_not_keep_old_files(
    tmp_path: Path, engines: EnginePool, registry: Path
) -> None:
    """Files that were replaced are closed, also where a key that was served from them is not used any more."""
    status(engines.engine("idle"))
    (first,) = [weakref.ref(held) for held in engines.engine("idle").data.held]  # type: ignore[attr-defined]
    for word in ("폐업자", "휴업자"):
        build(tmp_path, word).replace(registry)
        anyio.run(engines.look)
        status(engines.engine("busy"))
    gc.collect()
    assert (first(), status(engines.engine("idle"))) == (None, "suspended")


def test_a_label_book_that_is_written_to_is_read_again(
    bare: EnginePool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A file of the book that was replaced between its listing and its reading makes no answer do without outcomes."""
    reads: list[Path] = []

    def history(book: LabelStore) -> pl.LazyFrame:
        reads.append(book.folder)
        if len(reads) == 1:
            book.folder.mkdir(parents=True)
            raise FileNotFoundError(book.folder / "job.parquet")
        return pl.LazyFrame(schema=HISTORY_SCHEMA)

    monkeypatch.setattr(LabelStore, "history", history)
    assert bare.engine("a").history is not None
    assert (len(reads), caplog.messages) == (2, [])
