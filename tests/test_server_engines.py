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
from serving import served

NUMBER = "1248100998"


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


def opened(tmp_path: Path, clock: HandClock, **settings: object) -> EnginePool:
    return EnginePool(Settings(db=tmp_path / "db.sqlite", **settings), clock.clock)  # type: ignore[arg-type]


def status(engine: LocalEngine) -> str:
    frame = pl.LazyFrame({"b_no": [NUMBER], "name": ["가"], "address": ["서울 중구 세종대로 110"]})
    found: str = engine.answer(frame).collect()["biz_status"][0]
    return found


def test_an_engine_is_the_same_object_until_something_changes(tmp_path: Path, registry: Path) -> None:
    """Asked again, and after looking for newer files, a key has its engine; all keys share the registry."""
    engines = opened(tmp_path, HandClock(), registry=registry)
    first = engines.engine("a")
    anyio.run(engines.look)
    assert engines.engine("a") is first
    assert engines.engine("b") is not first
    assert engines.engine("b").registry is first.registry
    assert anyio.run(engines.open_engine, "a") is first


def test_what_is_not_paid_for_looks_nothing_up(tmp_path: Path, registry: Path) -> None:
    """With paid=False the engine knows no registry, whatever the server has."""
    engines = opened(tmp_path, HandClock(), registry=registry)
    assert status(engines.engine("a")) == "active"
    assert status(engines.engine("a", paid=False)) == "unknown"
    assert engines.engine("a", paid=False) is engines.engine("a", paid=False)


def test_the_next_day_has_its_own_engine(tmp_path: Path) -> None:
    """Ages are reckoned on the day in Korea: at midnight there, and not before, the engine is another."""
    clock = HandClock()
    engines = opened(tmp_path, clock)
    today = engines.engine("a")
    assert today.today == date(2026, 11, 20)
    clock.forward(hours=11, minutes=59)
    assert engines.engine("a") is today
    clock.forward(minutes=1)
    assert engines.engine("a").today == date(2026, 11, 21)


def test_a_newer_file_is_used_and_the_engine_before_stays_usable(tmp_path: Path, registry: Path) -> None:
    """A registry that takes the place of another, with other columns, is used by new engines and by no old one."""
    engines = opened(tmp_path, HandClock(), registry=registry)
    before = engines.engine("a")
    planned = before.answer(pl.LazyFrame({"b_no": [NUMBER]}))
    build(tmp_path, "폐업자", more="가나상사").replace(registry)
    anyio.run(engines.look)
    after = engines.engine("a")
    assert (status(before), status(after)) == ("active", "closed")
    assert planned.collect()["biz_status"][0] == "active"
    assert engines.data.registry is after.registry


@pytest.mark.parametrize("damage", [lambda _: b"no parquet", lambda data: data[: len(data) // 2], lambda _: b""])
def test_a_file_that_cannot_be_opened_changes_nothing(
    tmp_path: Path, registry: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[bytes], bytes]
) -> None:
    """The engine stays and a warning names the file, once; when the file is repaired it is used."""
    engines = opened(tmp_path, HandClock(), registry=registry)
    before = engines.engine("a")
    good = build(tmp_path, "폐업자")
    bad = tmp_path / "bad.parquet"
    bad.write_bytes(damage(good.read_bytes()))
    bad.replace(registry)
    with caplog.at_level(logging.WARNING, "bansong.server"):
        anyio.run(engines.look)
        anyio.run(engines.look)
    assert engines.engine("a") is before
    assert status(before) == "active"
    [record] = caplog.records
    assert str(registry) in record.getMessage()
    assert "/proc/" not in record.getMessage()
    good.replace(registry)
    anyio.run(engines.look)
    assert status(engines.engine("a")) == "closed"


def test_a_file_damaged_inside_changes_nothing(
    tmp_path: Path, registry: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A newer file whose rows cannot be read, though it opens, is not used either."""
    engines = opened(tmp_path, HandClock(), registry=registry)
    data = bytearray(build(tmp_path, "폐업자").read_bytes())
    data[4:200] = bytes(196)
    (tmp_path / "bad.parquet").write_bytes(data)
    (tmp_path / "bad.parquet").replace(registry)
    anyio.run(engines.look)
    assert status(engines.engine("a")) == "active"
    assert "cannot be used" in caplog.text


def test_a_file_that_is_gone_changes_nothing(tmp_path: Path, registry: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without its file the registry is used all the same, for it is open; the missing file is said."""
    engines = opened(tmp_path, HandClock(), registry=registry)
    registry.unlink()
    anyio.run(engines.look)
    assert status(engines.engine("a")) == "active"
    assert "there is no such registry file" in caplog.text


def test_a_server_does_not_start_without_its_registry(tmp_path: Path) -> None:
    """A file that is not there is told with its name at the start."""
    with pytest.raises(RegistryError, match=r"none\.parquet: there is no such registry"):
        opened(tmp_path, HandClock(), registry=tmp_path / "none.parquet")
    (tmp_path / "text.parquet").write_text("text")
    with pytest.raises(RegistryError, match=r"text\.parquet: is not a registry"):
        opened(tmp_path, HandClock(), registry=tmp_path / "text.parquet")


def test_keys_are_kept_within_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound the key that was not asked for longest is let go, and the others keep their engines."""
    monkeypatch.setattr(engine_pool, "_MAX_KEYS", 2)
    engines = opened(tmp_path, HandClock())
    first, second = engines.engine("a"), engines.engine("b")
    assert engines.engine("a") is first
    engines.engine("c")
    assert engines.engine("a") is first
    assert not engines.ready("b")
    assert engines.engine("b") is not second


def test_a_key_with_a_damaged_scorecard_is_answered(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where a key's scorecards cannot be read it is answered by the built-in one, and that is said."""
    engines = opened(tmp_path, HandClock())
    folder = engines.folder("a") / "models"
    folder.mkdir(parents=True)
    (folder / "journal.jsonl").write_text("damaged\n")
    assert engines.engine("a").model == Scorecard.load()
    assert "key a: its scorecard cannot be used" in caplog.text


def test_a_key_with_a_damaged_label_book_is_answered(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where a key's outcomes cannot be read it is answered without them, and that is said."""
    engines = opened(tmp_path, HandClock())
    (engines.folder("a") / "labels").mkdir(parents=True)
    (engines.folder("a") / "labels" / "job.parquet").write_bytes(b"damaged")
    assert engines.engine("a").history is None
    assert "key a: its outcomes cannot be used" in caplog.text


def test_a_scorecard_changed_beside_the_server_answers(tmp_path: Path) -> None:
    """What another process promotes or rolls back answers a key after the next look; a mere note changes nothing."""
    engines = opened(tmp_path, HandClock())
    builtin, other = engines.engine("a"), engines.engine("b")
    engines.store("a").promote(msgspec.structs.replace(Scorecard.load(), version="better"), {})
    anyio.run(engines.look)
    better = engines.engine("a")
    assert (builtin.model.version, better.model.version) == (Scorecard.load().version, "better")
    engines.store("a").note("refused", {"why": ["nothing new"]})
    anyio.run(engines.look)
    assert engines.engine("a") is better
    assert engines.engine("b") is other
    engines.store("a").rollback()
    anyio.run(engines.look)
    assert engines.engine("a").model == builtin.model


def test_a_registry_is_swapped_while_requests_are_answered(tmp_path: Path, registry: Path) -> None:
    """Whatever is exchanged under the server, each answer is that of the file before or of the one after."""
    clock, stop = HandClock(), Event()
    found: list[str | None] = []
    with served(tmp_path / "db.sqlite", clock.clock, registry=registry) as server:
        key = server.key()

        def ask() -> None:
            with server.client(key) as client:
                while not stop.is_set():
                    found.append(client.verify(NUMBER, "가", "서울 중구 세종대로 110").biz_status)

        askers = [Thread(target=ask) for _ in range(3)]
        for asker in askers:
            asker.start()
        try:
            for word, expected in [("폐업자", "closed"), ("휴업자", "suspended"), ("계속사업자", "active")]:
                build(tmp_path, word, more="가나상사" * (word == "휴업자")).replace(registry)
                clock.until(lambda expected=expected: bool(found) and found[-1] == expected, seconds=10)  # type: ignore[misc]
        finally:
            stop.set()
            for asker in askers:
                asker.join()
        with server.client(key) as client:
            assert client.me().used == len(found)
    assert set(found) == {"active", "closed", "suspended"}


def test_a_key_that_asks_for_nothing_does_not_keep_old_files(tmp_path: Path, registry: Path) -> None:
    """Files that were replaced twice are closed, also where a key that was served from them is not used any more."""
    engines = opened(tmp_path, HandClock(), registry=registry)
    status(engines.engine("idle"))
    (first,) = [weakref.ref(held) for held in engines.engine("idle").data.held]  # type: ignore[attr-defined]
    for word in ("폐업자", "휴업자"):
        build(tmp_path, word).replace(registry)
        anyio.run(engines.look)
        status(engines.engine("busy"))
    gc.collect()
    assert first() is None
    assert status(engines.engine("idle")) == "suspended"


def test_a_label_book_that_is_written_to_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A file of the book that was replaced between its listing and its reading makes no answer do without outcomes."""
    letters = pl.LazyFrame(schema=HISTORY_SCHEMA)
    engines = opened(tmp_path, HandClock())
    reads: list[Path] = []

    def history(book: LabelStore) -> pl.LazyFrame:
        reads.append(book.folder)
        if len(reads) == 1:
            book.folder.mkdir(parents=True)
            raise FileNotFoundError(book.folder / "job.parquet")
        return letters

    monkeypatch.setattr(LabelStore, "history", history)
    assert engines.engine("a").history is not None
    assert len(reads) == 2
    assert caplog.messages == []
