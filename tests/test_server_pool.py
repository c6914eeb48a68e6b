"""What keys of a pool learn from each other: what several say of letters that were paid for, and nothing else."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bansong.engine.risk.scorecard import Learned, Scorecard
from bansong.history.labels import LabelStore
from bansong.history.scorecards import ModelStore
from bansong.server import learning as former_pool
from bansong.server.store import open_server_file
from handclock import HandClock
from outcome_scene import ADDRESSEES, Asking, Scene, scene
from serving import HTTP, make_key, read_here, rows_of
from test_keys_cli import keys

MOVED = "이사불명"
EVERY_HOUR: dict[str, Any] = {"learn_hours": 1}
CONTROL = 2
"""The addressee by which a test sees that the pool's keys were told anew: three keys of its own agree on it."""


@pytest.fixture(scope="module", autouse=True)
def quickly_read() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        read_here(patch)
        yield


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Scene]:
    with scene(tmp_path, **EVERY_HOUR) as one:
        yield one


def members(one: Scene, count: int) -> list[Asking]:
    return [one.key(pool=True) for _ in range(count)]


def tell(one: Scene, keys: list[Asking], addressee: int = 0, *, bounced: bool = True, **query: str) -> None:
    """Each key mails a batch and tells what became of one letter; the label stores have it when this returns."""
    for key in keys:
        job = key.batch(one.clock, **query)
        assert key.label(job, addressee, bounced, MOVED if bounced else None).status_code == 201
    one.learned()


def let_them_be_told(one: Scene, observer: Asking, control: int = CONTROL) -> None:
    """Let the pool's keys be told anew: an agreement on the control reaches an observer that is not part of it."""
    before = observer.verify(control)
    tell(one, members(one, 3), control)
    one.clock.until(lambda: observer.verify(control) != before, minutes=10)


def all_answers(key: Asking, *addressees: int) -> list[bytes]:
    """What a key is answered, byte for byte."""
    found = []
    for place in addressees or (0, 1):
        b_no, name, address = ADDRESSEES[place]
        found.append(key.post("/verify", {"b_no": b_no, "name": name, "address": address}).content)
    return found


def results_of(one: Scene, key: Asking) -> list[dict[str, Any]]:
    job = key.batch(one.clock)
    found: list[dict[str, Any]] = HTTP.get(
        f"{key.url}/batch/{job}", params={"preview": 3}, headers=key.headers, timeout=60
    ).json()["results"]
    return sorted(found, key=lambda row: int(row["row_id"]))


def test_a_key_that_paid_nothing_teaches_nobody(here: Scene) -> None:
    """Labels of rows that cost nothing change no other key's answers, however many give them; they teach their own."""
    victim, *free = members(here, 6)
    before, own = all_answers(victim), free[0].verify()
    tell(here, free, paid="false")
    assert free[0].verify()["bounce_prob"] > own["bounce_prob"]
    let_them_be_told(here, victim)
    assert all_answers(victim) == before
    assert results_of(here, victim)[0]["bounce_prob"] == victim.verify()["bounce_prob"] == own["bounce_prob"]


def test_what_several_paying_keys_say_reaches_the_others(here: Scene) -> None:
    """Three keys that paid and agree teach a fourth at the next round, not at once; a key outside of the pool never."""
    other, outsider, *three = [*members(here, 1), here.key(), *members(here, 3)]
    before = other.verify()
    tell(here, three)
    assert other.verify() == before
    here.clock.until(lambda: other.verify() != before, minutes=10)
    after = other.verify()
    assert after["bounce_prob"] > before["bounce_prob"]
    assert any(reason.endswith("a letter to this address came back: moved (label)") for reason in after["reasons"])
    assert results_of(here, other)[0]["bounce_prob"] == after["bounce_prob"]
    assert other.verify(1)["bounce_prob"] == outsider.verify(1)["bounce_prob"]
    assert outsider.verify() == before


def test_own_outcomes_count_at_once_and_go_before_what_others_say(here: Scene) -> None:
    """A member knows its own letters at once, and goes on knowing them when the others agree on something else."""
    member = here.key(pool=True)
    before = member.verify()["bounce_prob"]
    tell(here, [member], bounced=False)
    arrived = member.verify()
    assert arrived["bounce_prob"] < before
    tell(here, members(here, 3))
    let_them_be_told(here, member)
    assert member.verify() == arrived


def test_a_single_outcome_of_another_key_cannot_be_seen(tmp_path: Path) -> None:
    """With and without one key's outcome all others are answered the same bytes, also those that labelled the same."""
    seen = []
    for told in (False, True):
        (tmp_path / str(told)).mkdir()
        with scene(tmp_path / str(told), **EVERY_HOUR) as one:
            third, first, second, silent = members(one, 4)
            tell(one, [first])
            for addressee in (0, 1) if told else ():
                tell(one, [third], addressee)
            let_them_be_told(one, silent)
            answers = [all_answers(key, 0, 1, 2) for key in (first, silent)]
            tell(one, [second])
            let_them_be_told(one, silent, 1)
            seen.append(answers + [all_answers(key, 0, 1, 2) for key in (first, second)])
    assert seen[0] == seen[1]


def test_of_two_that_agree_nobody_else_hears(here: Scene) -> None:
    """A key that labels an addressee as one other did is not told so, nor is a third: two are not enough."""
    one, other, third = members(here, 3)
    before = all_answers(third)
    tell(here, [one])
    own = all_answers(one)
    tell(here, [other])
    let_them_be_told(here, third)
    assert all_answers(third) == before
    assert all_answers(one) == own == all_answers(other)


@pytest.mark.parametrize("customer", [pytest.param(None, marks=pytest.mark.fuzz), "제분소"])
def test_three_keys_in_one_hand_read_no_fourth_outcome(tmp_path: Path, customer: str | None) -> None:
    """Two keys of a customer label, its third asks: with `--customer` it is answered the same, whatever a fourth said.

    Without, it reads the fourth's outcome: so the test tells one from the other.
    """
    seen = []
    for told in (False, True):
        (tmp_path / str(told)).mkdir()
        with scene(tmp_path / str(told), **EVERY_HOUR) as one:
            hand = [one.key(pool=True, customer=customer) for _ in range(3)]
            victim, silent = members(one, 2)
            tell(one, hand[:2])
            if told:
                tell(one, [victim])
            let_them_be_told(one, silent)
            seen.append([all_answers(key) for key in (hand[2], silent)])
    assert (seen[0] == seen[1]) is (customer is not None)


def test_one_key_has_one_voice_for_an_addressee(here: Scene) -> None:
    """However many paid rows and jobs of a key say so, it is one key that says so."""
    loud, victim = members(here, 2)
    before = all_answers(victim)
    b_no, name, address = ADDRESSEES[0]
    rows = "\n".join(["사업자등록번호,상호,주소", *[f"{b_no},{name},{address}"] * 3, ""])
    for _ in range(2):
        job = loud.batch(here.clock, rows)
        for row in range(3):
            loud.label(job, row, True, MOVED)
    here.learned()
    let_them_be_told(here, victim)
    assert all_answers(victim) == before


def test_a_contested_addressee_is_left_alone(here: Scene) -> None:
    """Where as many keys say otherwise the others learn nothing; where more say so they learn that."""
    victim, *keys = members(here, 8)
    before = victim.verify()
    tell(here, keys[:3], bounced=False)
    tell(here, keys[3:6])
    let_them_be_told(here, victim)
    assert victim.verify() == before
    tell(here, keys[6:])
    here.clock.until(lambda: victim.verify() != before, minutes=10)
    assert victim.verify()["bounce_prob"] > before["bounce_prob"]


@pytest.mark.parametrize("change", ["pool = 0", "revoked = 1"])
def test_who_leaves_the_pool_takes_its_outcomes_along(here: Scene, change: str) -> None:
    """Outcomes of a key that leaves, or is revoked, teach nobody from the next round on; who leaves learns no more."""
    victim, *three = members(here, 4)
    before = victim.verify()
    tell(here, three)
    here.clock.until(lambda: victim.verify() != before, minutes=10)
    with closing(open_server_file(here.server.db)) as db:
        db.execute(
            f"UPDATE keys SET {change} WHERE id = (SELECT min(id) FROM keys WHERE id IN (SELECT key_id FROM jobs))"
        )
    here.clock.until(lambda: victim.verify() == before, minutes=10)


def test_who_is_erased_takes_its_outcomes_along(tmp_path: Path) -> None:
    """Of three that agree one is erased: with the next start nobody hears of it, and two others with a new one do."""
    clock = HandClock()
    with scene(tmp_path, clock, **EVERY_HOUR) as one:
        secret = one.server.key(pool=True)
        victim = Asking(one.server.url, secret)
        before, three = victim.verify(), members(one, 3)
        tell(one, three)
        clock.until(lambda: victim.verify() != before, minutes=10)
        after, gone = victim.verify(), HTTP.get(f"{three[0].url}/me", headers=three[0].headers).json()["key_id"]
    keys("erase", gone, "--db", tmp_path / "db.sqlite", "--yes")
    with scene(tmp_path, clock, **EVERY_HOUR) as one:
        victim = Asking(one.server.url, secret)
        assert victim.verify() == before
        tell(one, members(one, 1))
        clock.until(lambda: victim.verify() == after, minutes=10)


def test_who_leaves_learns_no_more(here: Scene) -> None:
    """A key that leaves the pool is answered from its own outcomes within seconds, one that joins from the pool's."""
    victim = here.key(pool=True)
    before = victim.verify()
    tell(here, members(here, 3))
    here.clock.until(lambda: victim.verify() != before, minutes=10)
    after = victim.verify()
    for pool, expected in ((0, before), (1, after)):
        with closing(open_server_file(here.server.db)) as db:
            db.execute("UPDATE keys SET pool = ?", (pool,))
        here.clock.until(lambda expected=expected: victim.verify() == expected, seconds=1)  # type: ignore[misc]


def test_a_restart_changes_no_answer(tmp_path: Path) -> None:
    """What the pool agrees on is known again with the first request after a start."""
    clock = HandClock()
    with scene(tmp_path, clock, **EVERY_HOUR) as one:
        secret = one.server.key(pool=True)
        victim = Asking(one.server.url, secret)
        before = victim.verify()
        tell(one, members(one, 3))
        clock.until(lambda: victim.verify() != before, minutes=10)
        after = all_answers(victim)
    with scene(tmp_path, clock, **EVERY_HOUR) as one:
        assert all_answers(Asking(one.server.url, secret)) == after


def test_how_many_must_agree_is_a_setting(tmp_path: Path) -> None:
    """With `pool_keys=2` two keys teach a third."""
    with scene(tmp_path, pool_keys=2, **EVERY_HOUR) as one:
        victim = one.key(pool=True)
        before = victim.verify()
        tell(one, members(one, 2))
        one.clock.until(lambda: victim.verify() != before, minutes=10)


def test_a_damaged_store_of_one_key_silences_that_key_alone(here: Scene, caplog: pytest.LogCaptureFixture) -> None:
    """Where one member's outcomes cannot be read the others are heard all the same, and the log says whose they are."""
    victim, *four = members(here, 5)
    before = victim.verify()
    tell(here, four)
    damaged = next(here.learning.glob("*/labels/*.parquet"))
    damaged.write_bytes(b"damaged")
    here.clock.until(lambda: victim.verify() != before, minutes=10)
    assert f"the outcomes of key {damaged.parent.parent.name} teach nobody" in caplog.text


def promote_strange(models: ModelStore, labels: int = 5_000) -> Scorecard:
    """Let a scorecard answer by which every letter comes back; it says that it was learned from so many letters."""
    builtin = Scorecard.load()
    learned = Learned(builtin.version, datetime.now(UTC), labels, labels // 2, 99.0, 0.0)
    base = msgspec.structs.replace(builtin.base, points=-10)
    card = msgspec.structs.replace(builtin, version="strange", base=base, learned=learned)
    models.promote(card, {"labels": labels})
    return card


def as_former_pool(learning: Path) -> None:
    """Bring a server's folder to the form of earlier releases: all keys in one store, none of whose files says paid."""
    (learning / "pool").mkdir(mode=0o700)
    pool = LabelStore(learning / "pool" / "labels")
    for path in list(learning.glob("*/labels/*.parquet")):
        rows, about = pool.read(path)
        pool.put(rows, msgspec.structs.replace(about, paid=False))
        path.unlink()


Former = tuple[Path, HandClock, list[Asking]]


@pytest.fixture(scope="module")
def former_folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float, list[str]]:
    """A server's folder with a former pool of three keys that paid, one that did not, and one whose job is gone."""
    folder, clock = tmp_path_factory.mktemp("former"), HandClock()
    with scene(folder, clock, **EVERY_HOUR) as one:
        secrets = [one.server.key(pool=True) for _ in range(5)]
        keys = [Asking(one.server.url, secret) for secret in secrets]
        tell(one, keys[:3])
        tell(one, keys[3:4], 1, paid="false")
        tell(one, keys[4:], 1)
    with closing(open_server_file(folder / "db.sqlite")) as db:
        db.execute("DELETE FROM jobs WHERE number = 5")
    as_former_pool(folder / "db.sqlite.files" / "learning")
    return folder, clock.seconds, secrets


@pytest.fixture
def former(former_folder: tuple[Path, float, list[str]], tmp_path: Path) -> Former:
    """A copy of that folder, the time, and keys that have no server yet."""
    folder, now, secrets = former_folder
    shutil.copytree(folder, tmp_path / "copy")
    return tmp_path / "copy", HandClock(now), [Asking("", secret) for secret in secrets]


def held(learning: Path) -> dict[str, tuple[int, bool]]:
    """Rows of each mailing's file below a folder, and whether it says paid."""
    found = {}
    for path in learning.glob("*/labels/*.parquet"):
        rows, about = LabelStore(path.parent).read(path)
        assert path.stem not in found
        found[path.stem] = rows.height, about.paid
    return found


def test_a_former_pool_is_brought_to_its_keys(former: Former) -> None:
    """Each outcome goes to the key that told it and counts there at once; only those of paid jobs teach others."""
    folder, clock, keys = former
    learning = folder / "db.sqlite.files" / "learning"
    jobs = dict(rows_of(folder / "db.sqlite", "SELECT id, paid FROM jobs"))
    [gone] = held(learning).keys() - jobs.keys()
    secret = make_key(folder / "db.sqlite", pool=True)  # before the start: whom the pool tells is known from there on
    with scene(folder, clock, **EVERY_HOUR) as one:
        fresh = Asking(one.server.url, secret)
        keys = [Asking(one.server.url, key.secret) for key in keys]
        assert held(learning) == {gone: (1, False)} | {job: (1, bool(paid)) for job, paid in jobs.items()}
        assert (learning / "former-pool" / "labels" / f"{gone}.parquet").exists()
        assert not (learning / "pool" / "labels").exists()
        assert keys[3].verify(1)["bounce_prob"] > fresh.verify(1)["bounce_prob"] == keys[4].verify(1)["bounce_prob"]
        assert fresh.verify()["bounce_prob"] == keys[0].verify()["bounce_prob"] > fresh.verify(1)["bounce_prob"]
    for path in learning.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path


def test_a_scorecard_of_a_former_pool_answers_no_more(former: Former) -> None:
    """It was learned from whatever anybody told: the built-in one answers again, and the other is kept."""
    folder, clock, keys = former
    models = ModelStore(folder / "db.sqlite.files" / "learning" / "pool" / "models")
    promote_strange(models)
    with scene(folder, clock, **EVERY_HOUR) as one:
        answer = Asking(one.server.url, keys[0].secret).verify(2)
        assert answer == one.key().verify(2)
    assert models.champion_version() == "builtin"
    assert models.versions() == ["strange"]


@pytest.mark.parametrize(("owner", "name"), [(LabelStore, "put"), (Path, "replace"), (Path, "rmdir")])
@pytest.mark.parametrize("after", [False, True])
def test_a_kill_while_a_former_pool_is_brought_over_loses_nothing(
    former: Former,
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    name: str,
    after: bool,
) -> None:
    """Cut off before or after any step, the next start completes it: every outcome is there once."""
    folder, clock, keys = former
    learning = folder / "db.sqlite.files" / "learning"
    before = {job: rows for job, (rows, _) in held(learning).items()}
    original, calls = getattr(owner, name), [0]

    def cut_off(*given: Any, **more: Any) -> Any:
        calls[0] += 1
        if calls[0] > 1:
            calls[0] = 0
            if after:
                original(*given, **more)
            raise KeyboardInterrupt
        return original(*given, **more)

    monkeypatch.setattr(owner, name, cut_off)
    for _ in range(2):
        with closing(open_server_file(folder / "db.sqlite")) as db, suppress(KeyboardInterrupt):
            former_pool.distribute_former_pool(folder / "db.sqlite.files", db)
    monkeypatch.undo()
    with scene(folder, clock, **EVERY_HOUR) as one:
        assert {job: rows for job, (rows, _) in held(learning).items()} == before
        assert Asking(one.server.url, keys[0].secret).verify()["bounce_prob"] > one.key().verify()["bounce_prob"]
