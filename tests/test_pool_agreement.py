"""The letters from which a scorecard of the pool is learned, and whom it answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest

from bansong.engine.risk.scorecard import Scorecard
from bansong.history.labels import LabelStore
from bansong.history.scorecards import ModelStore
from bansong.server.references import PoolMember, find_agreed, write_training_store
from handclock import HandClock
from mailings import NOW, letters, mail
from outcome_scene import Asking, Scene, scene
from serving import read_here, rows_of

TODAY = date(2026, 11, 21)
QUORUM = 3


@pytest.fixture(scope="module", autouse=True)
def quickly_read() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        read_here(patch)
        yield


def mailed_to(first: int, rows: int, seed: int = 1) -> pl.DataFrame:
    """Letters to so many businesses, counted from ``first``."""
    number = pl.int_range(1_000_000_000 + first, 1_000_000_000 + first + rows, eager=True).cast(pl.String)
    return letters(seed, rows).with_columns(
        b_no=number, address_key="서울강남구테헤란로" + number, fixed_key=pl.lit(None, pl.String)
    )


def record(store: LabelStore, known: pl.DataFrame, name: str, *, paid: bool = True, **mailing: Any) -> None:
    mail(store, known, name=name, **mailing)
    rows, about = store.read(store.path(name))
    store.put(rows, msgspec.structs.replace(about, paid=paid))


def member(folder: Path, key: str, customer: str | None = None) -> PoolMember:
    """A key of the pool without letters; by default it is the only one of its customer."""
    return PoolMember(LabelStore(folder / key), customer or key)


def pool_of(folder: Path, *sizes: int, customers: Sequence[str | None] = ()) -> dict[str, PoolMember]:
    """Keys that have mailed so many letters each, all to different businesses; ``customers``: whose they are."""
    members = {}
    for place, size in enumerate(sizes):
        whose = customers[place] if customers else None
        members[f"key{place}"] = one = member(folder, f"key{place}", whose)
        record(one.store, mailed_to(place * 10_000, size, place), f"job{place}")
    return members


def training_letters(members: dict[str, PoolMember], folder: Path, today: date = TODAY) -> pl.DataFrame:
    """The letters that count, in the order in which learning takes them; ``key`` is whose they are."""
    target = LabelStore(folder)
    count = write_training_store(members, target, QUORUM, today)
    rows = target.evidence(addressee=True).collect()
    assert rows.height == count
    return rows.with_columns(key=pl.col("mailing").str.head(4)).sort("recorded", "mailing", "row_id")


def test_no_key_has_more_than_its_share(tmp_path: Path) -> None:
    """Of four keys each has at most a third of the letters, however many it mailed; the smallest has all of its own."""
    rows = training_letters(pool_of(tmp_path, 300, 200, 50, 10), tmp_path / "training")
    assert dict(rows["key"].value_counts().iter_rows()) == {"job0": 50, "job1": 50, "job2": 50, "job3": 10}


@pytest.mark.parametrize("sizes", [(500,), (500, 500)])
def test_fewer_keys_than_must_agree_teach_nothing(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    """One key, or two, have no letters that count, however many they mailed."""
    assert training_letters(pool_of(tmp_path, *sizes), tmp_path / "training").is_empty()


def test_letters_that_nobody_paid_for_are_not_learned_from(tmp_path: Path) -> None:
    """A key whose jobs cost nothing has no letters in the pool, and is none of those that must be there."""
    members = pool_of(tmp_path, 40, 40)
    free = members["free"] = member(tmp_path, "free")
    record(free.store, mailed_to(90_000, 500), "gift", paid=False)
    assert training_letters(members, tmp_path / "two").is_empty()
    members |= {"key2": member(tmp_path, "key2")}
    record(members["key2"].store, mailed_to(20_000, 40), "job2")
    assert set(training_letters(members, tmp_path / "three")["key"]) == {"job0", "job1", "job2"}


def test_letters_to_one_addressee_count_once_for_a_key(tmp_path: Path) -> None:
    """A key that wrote to one business in a thousand rows has said one thing."""
    members = pool_of(tmp_path, 30, 30)
    same = mailed_to(20_000, 1).select(pl.all().repeat_by(1_000).explode())
    members["key2"] = member(tmp_path, "key2")
    record(members["key2"].store, same, "job2")
    rows = training_letters(members, tmp_path / "training")
    assert dict(rows["key"].value_counts().iter_rows()) == {"job0": 1, "job1": 1, "job2": 1}


def test_what_is_added_later_comes_behind(tmp_path: Path) -> None:
    """More letters of any key leave those that counted before as they were, in their order: the gate goes on."""
    members = pool_of(tmp_path, 300, 20, 20)
    before = training_letters(members, tmp_path / "before")
    later = NOW + timedelta(days=1)
    record(members["key1"].store, mailed_to(50_000, 100), "job1b", recorded=later)
    record(members["key2"].store, mailed_to(60_000, 200), "job2b", recorded=later)
    after = training_letters(members, tmp_path / "after", TODAY + timedelta(days=2))
    shown = ["mailing", "row_id", "bounced", "recorded"]
    assert after.height == 3 * 120
    assert after.head(before.height).select(shown).equals(before.select(shown))
    assert after["recorded"][before.height] == later


def test_at_every_moment_no_key_has_more_than_its_share(tmp_path: Path) -> None:
    """Letters that came in at different times are ordered so that no key ever has more than a third."""
    members = pool_of(tmp_path, 0, 0, 0, 0)
    for step, sizes in enumerate([(90, 5, 0, 0), (0, 40, 10, 1), (50, 0, 60, 30)]):
        for place, size in enumerate(sizes):
            if size:
                known = mailed_to(place * 10_000 + step * 1_000, size)
                at = NOW + timedelta(days=step)
                record(members[f"key{place}"].store, known, f"job{place}{step}", recorded=at)
    rows = training_letters(members, tmp_path / "training", TODAY + timedelta(days=9))
    for moment in rows["recorded"].unique():
        counted = rows.filter(pl.col("recorded") <= moment)["key"].value_counts()["count"]
        assert counted.max() <= counted.sum() / QUORUM
    assert rows.height > 100


def change_rows(store: LabelStore, name: str, **columns: pl.Expr) -> None:
    rows, about = store.read(store.path(name))
    store.put(rows.with_columns(**columns), about)


def moved_of(folder: Path, *customers: str) -> dict[str, PoolMember]:
    """Keys of these customers, each of which says that one addressee moved away."""
    members = {f"key{place}": member(folder, f"key{place}", whose) for place, whose in enumerate(customers)}
    for one in members.values():
        record(one.store, mailed_to(7, 1).with_columns(bounced=pl.lit(True)), "job")
        change_rows(one.store, "job", reason_code=pl.lit("moved"))
    return members


def test_three_keys_agree_on_an_addressee(tmp_path: Path) -> None:
    """What three keys say of their newest paid letter within a year is agreed on, as of the day of asking."""
    members = moved_of(tmp_path, "key0", "key1", "key2")
    found = find_agreed(members, QUORUM, TODAY)
    assert found.frame.rows() == [(1_000_000_007, "서울강남구테헤란로1000000007", "moved", TODAY)]
    assert find_agreed(members, QUORUM, date(2027, 6, 1)).frame.is_empty()
    assert find_agreed(members, QUORUM + 1, TODAY).frame.is_empty()
    last = members["key2"].store
    record(last, mailed_to(7, 1).with_columns(bounced=pl.lit(False)), "later", mailed=date(2026, 6, 2))
    assert find_agreed(members, QUORUM, TODAY).frame.is_empty()


def test_rows_that_were_given_back_say_nothing(tmp_path: Path) -> None:
    """A row of a paid job that could not be looked up has no probability, was not charged, and teaches nobody."""
    members = moved_of(tmp_path, "key0", "key1", "key2")
    change_rows(members["key1"].store, "job", bounce_prob=pl.lit(None))
    assert find_agreed(members, QUORUM, TODAY).frame.is_empty()
    assert training_letters(members, tmp_path / "training").is_empty()


def test_keys_of_one_customer_have_one_voice(tmp_path: Path) -> None:
    """However many keys of one customer say so, others must say so, too; and none of its keys hears what they agree on.

    The newest letter is the customer's voice, whichever of its keys wrote it.
    """
    members = moved_of(tmp_path, "mill", "mill", "mill", "key3", "key4")
    assert find_agreed({name: one for name, one in members.items() if name != "key4"}, QUORUM, TODAY).frame.is_empty()
    found = find_agreed(members, QUORUM, TODAY)
    assert found.frame.height == 1
    assert {whose: frame.height for whose, frame in found.apart.items()} == {"mill": 0}
    later = mailed_to(7, 1).with_columns(bounced=pl.lit(False))
    record(members["key1"].store, later, "later", mailed=date(2026, 6, 2))
    assert find_agreed(members, QUORUM, TODAY).frame.is_empty()


def test_a_customer_hears_of_whom_none_of_its_keys_has_spoken(tmp_path: Path) -> None:
    """Two keys of a customer that wrote to nobody hear all that three others agree on."""
    members = moved_of(tmp_path, "key0", "key1", "key2")
    members |= {name: member(tmp_path, name, "mill") for name in ("left", "right")}
    found = find_agreed(members, QUORUM, TODAY)
    assert (found.frame.height, found.apart, found.customers["left"]) == (1, {}, "mill")


def test_no_customer_has_more_than_its_share(tmp_path: Path) -> None:
    """Four keys of two customers teach nothing; with a third customer each has a third, over all of its keys."""
    two = pool_of(tmp_path, 300, 200, 100, 100, customers=["mill", "mill", "mill", "shop"])
    assert training_letters(two, tmp_path / "two").is_empty()
    two["key4"] = member(tmp_path, "key4")
    record(two["key4"].store, mailed_to(90_000, 80), "job4")
    rows = training_letters(two, tmp_path / "three")
    counts = dict(rows["key"].value_counts().iter_rows())
    assert (counts.pop("job3"), counts.pop("job4"), sum(counts.values())) == (80, 80, 80)


@contextmanager
def learned_from(folder: Path, mailers: int) -> Iterator[tuple[Scene, list[Asking]]]:
    """A server on which so many of four keys of the pool have mailed, when it has learned from that."""
    clock = HandClock()
    with scene(folder, clock) as one:
        keys = [one.key(pool=True) for _ in range(4)]
        jobs = [key.batch(clock, "사업자등록번호\n1248100998\n") for key in keys]
        found = dict(rows_of(one.server.db, "SELECT id, key_id FROM jobs"))
        learning = one.learning
    ids = [found[job] for job in jobs]
    for place, id_ in enumerate(ids[:mailers]):
        record(LabelStore(learning / id_ / "labels"), mailed_to(place * 10_000, 1_200 // mailers), f"mailing{place}")
    clock.forward(days=2)
    with scene(folder, clock) as one:
        models = ModelStore(learning / ("pool" if mailers >= QUORUM else ids[0]) / "models")
        clock.until(lambda: models.champion_version() != "builtin")
        yield one, [Asking(one.server.url, key.secret) for key in keys]


def model_of(one: Scene, key: Asking) -> str:
    """The version of the scorecard that answers a key."""
    job = key.batch(one.clock)
    return str(rows_of(one.server.db, "SELECT model FROM jobs WHERE id = ?", job)[0][0])


@pytest.mark.fuzz
def test_a_scorecard_of_several_keys_answers_all_members(tmp_path: Path) -> None:
    """Three keys that mailed make a scorecard: it answers them and a fourth, no key outside, and after a restart."""
    expert = Scorecard.load().version
    with learned_from(tmp_path, 3) as (one, keys):
        fresh, outsider = keys[3], one.key()
        assert [model_of(one, key) for key in (fresh, keys[0], outsider)] == [f"pool-{expert}+1"] * 2 + [expert]
        assert fresh.verify()["bounce_prob"] != outsider.verify()["bounce_prob"]
        job = fresh.batch(one.clock)
        fresh.label(job, 0, True)
        one.learned()
        [path] = one.learning.glob(f"*/labels/{job}.parquet")
        rows, _ = LabelStore(path.parent).read(path)
        assert (rows["unread"].to_list(), rows["model"].to_list()) == ([False], [f"pool-{expert}+1"])
        assert not (one.learning / "pool-training").exists()
        assert not (one.learning / "pool" / "labels").exists()


@pytest.mark.fuzz
def test_a_key_alone_makes_no_scorecard_for_others(tmp_path: Path) -> None:
    """One key that mailed is answered by its own scorecard; the others by the built-in one."""
    expert = Scorecard.load().version
    with learned_from(tmp_path, 1) as (one, keys):
        assert [model_of(one, key) for key in (keys[0], keys[3])] == [f"{expert}+1", expert]
        assert ModelStore(one.learning / "pool" / "models").versions() == []
