"""The ledger: nothing bought is lost, nothing is bought twice, and a file that cannot be trusted is refused."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path
from typing import Any

import anyio
import polars as pl
import pytest

from bansong.base import sqlite
from bansong.base.files import mount_table, network_file_system
from bansong.base.schema import ANSWER_COLUMNS, Answer
from bansong.errors import LedgerError, UsageError
from bansong.purchase.changes import (
    NO_ANSWER,
    JobFetched,
    JobKnown,
    LookupAnswered,
    LookupAsked,
    LookupDoubted,
    LookupRefused,
    LookupUnreadable,
    UploadDoubted,
    UploadGated,
    UploadPrepared,
    UploadSent,
)
from bansong.purchase.ledger import Journal, Ledger, LedgerRun
from bansong.purchase.ledger_file import LEDGER_FILE

ORIGIN = "https://service.test"
NUMBER = "1248100998"
DAY = 86_400.0
ANSWER = Answer(
    "active",
    0.1,
    "A",
    "send",
    "16677",
    "경기 수원시 영통구 삼성로 129",
    ("[base] +18 a | b (model)", "[상태] -3 정상 (nts)"),
)


def key(place: int) -> bytes:
    return blake2b(str(place).encode(), digest_size=16).digest()


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(tmp_path: Path, clock: Clock) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "ledger.sqlite", clock=clock) as ledger:
        ledger.begin(LedgerRun("run", "verify", ORIGIN, "customers.csv", clock.now))
        yield ledger


def known(ledger: Ledger, *places: int) -> dict[int, dict[str, Any]]:
    frames = ledger.entries(pl.Series([key(place) for place in places], dtype=pl.Binary))
    return {places[row.pop("place")]: row for frame in frames for row in frame.iter_rows(named=True)}


def states(ledger: Ledger, *places: int) -> list[str | None]:
    found = known(ledger, *places)
    return [found[place]["state"] if place in found else None for place in places]


def buy(ledger: Ledger, *places: int, answer: Answer = ANSWER) -> None:
    for place in places:
        ledger.settle([LookupAsked(key(place), NUMBER, "run"), LookupAnswered(key(place), answer)])


def upload(ledger: Ledger, id: str, *places: int, until: type = JobKnown) -> None:
    """An upload that has come as far as ``until``."""
    steps = [
        UploadPrepared(id, "run", [(key(place), f"{place:010d}") for place in places], None, True, ORIGIN),
        UploadGated(id),
        UploadSent(id),
        JobKnown(id, f"job-{id}", len(places)),
    ]
    for step in steps:
        ledger.settle([step])
        if isinstance(step, until):
            return


# opening


def test_the_ledger_is_found_by_argument_then_environment_then_state_directory(
    tmp_path: Path, state_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BANSONG_STATE_DIR", str(state_directory / "deep" / "bansong"))
    for created in (True, False):
        with Ledger.open() as ledger:
            assert (ledger.path, ledger.created) == (state_directory / "deep" / "bansong" / "ledger.sqlite", created)
    monkeypatch.setenv("BANSONG_LEDGER", str(tmp_path / "environment.sqlite"))
    with Ledger.open() as ledger:
        assert ledger.path == tmp_path / "environment.sqlite"
    with Ledger.open(tmp_path / "given.sqlite") as ledger:
        assert ledger.path == tmp_path / "given.sqlite"


def test_only_the_user_can_read_the_ledger_its_log_its_lock_and_its_folder(
    state_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = state_directory / "bansong"
    monkeypatch.setenv("BANSONG_STATE_DIR", str(folder))
    before = os.umask(0)
    try:
        with Ledger.open() as ledger:
            ledger.begin(LedgerRun("run", "verify", ORIGIN, "a.csv", 1.0))
            modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()}
    finally:
        os.umask(before)
    assert modes == dict.fromkeys(("ledger.sqlite", "ledger.sqlite-wal", "ledger.sqlite.lock"), 0o600)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_commit_is_durable_and_the_file_is_ours_alone(tmp_path: Path) -> None:
    for _ in range(2):
        with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
            pragmas = ("journal_mode", "locking_mode", "synchronous")
            found = [ledger._connection.execute(f"PRAGMA {name}").fetchone()[0] for name in pragmas]
            assert found == ["wal", "exclusive", 2]
            assert not ledger.path.with_name("ledger.sqlite-shm").exists()
    ledger.close()
    with pytest.raises(LedgerError) as caught:
        ledger.runs()
    assert caught.value.code == "ledger.ledger_closed"


def foreign(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE theirs (a)")


def cut_short(path: Path) -> None:
    Ledger.open(path).close()
    os.truncate(path, path.stat().st_size - 1)


def damaged_with_a_log(path: Path) -> None:
    with Ledger.open(path) as ledger:
        ledger.begin(LedgerRun("run", "verify", ORIGIN, "a.csv", 1.0))
        for first in range(0, 1000, 100):
            rows = [(key(place), NUMBER) for place in range(first, first + 100)]
            ledger.settle([UploadPrepared(f"u{first}", "run", rows, None, None, ORIGIN)])
    content = bytearray(path.read_bytes())
    content[8 * 4096 :] = os.urandom(len(content) - 8 * 4096)
    path.write_bytes(content)
    path.with_name(f"{path.name}-wal").write_bytes(b"")


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "a folder": (lambda path: path.mkdir(), "storage.not_a_file"),
    "an empty file": (lambda path: path.touch(), "storage.database_empty"),
    "a short file": (lambda path: path.write_bytes(b"SQLite format 3\0"), "storage.not_a_database"),
    "a table of customers": (lambda path: path.write_text("b_no,name\n" * 100), "storage.not_a_database"),
    "a database of another application": (foreign, "storage.foreign_database"),
    "a ledger that is cut short": (cut_short, "storage.database_cut_short"),
    "a ledger whose pages are overwritten": (damaged_with_a_log, ""),
    "a log whose ledger is gone": (lambda path: Path(f"{path}-wal").touch(), "storage.database_missing"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_trusted_is_refused_in_one_line_and_left_as_it_is(case: str, tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    make, code = REFUSED[case]
    make(path)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(LedgerError) as caught:
        Ledger.open(path)
    said = str(caught.value)
    assert (caught.value.code, str(path) in said, ";" in said, "\n" in said) == (code, True, True, False)
    assert (path.read_bytes() if path.is_file() else None) == before
    path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
    path.with_name(f"{path.name}-wal").unlink(missing_ok=True)
    Ledger.open(path).close()  # a refusal keeps no lock


def test_a_folder_that_does_not_exist_is_not_made_for_a_ledger_that_was_named(tmp_path: Path) -> None:
    with pytest.raises(LedgerError) as caught:
        Ledger.open(tmp_path / "mistyped" / "ledger.sqlite")
    assert (caught.value.code, (tmp_path / "mistyped").exists()) == ("storage.folder_missing", False)


def test_the_second_ledger_on_a_file_is_refused_also_in_one_process_and_through_links(tmp_path: Path) -> None:
    path, link, hard = (tmp_path / f"{name}.sqlite" for name in ("ledger", "link", "hard"))
    link.symlink_to(path)
    with Ledger.open(path):
        hard.hardlink_to(path)
        for name in (path, link, hard):
            with pytest.raises(LedgerError, match="in use by another run"):
                Ledger.open(name)
    Ledger.open(link).close()


MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:40 / /home rw,relatime shared:1 - nfs4 server:/home rw
31 30 0:41 / /home/local\\040disk rw - xfs /dev/vdb rw
32 22 0:42 / /mnt/share rw - cifs //server/share rw
33 22 0:43 / /mnt/far rw - fuse.sshfs host: rw
34 22 0:44 / /mnt/over rw - nfs server:/x rw
35 34 254:1 / /mnt/over rw - ext4 /dev/vdc rw
damaged line
"""


FOLDERS = {
    **dict.fromkeys(("/var/lib", "/home/local disk/user", "/mnt/shared", "/mnt/over")),
    **{"/home/user": "nfs4", "/home/local": "nfs4", "/mnt/share": "cifs", "/mnt/far/away": "fuse.sshfs"},
}


def test_a_ledger_on_a_network_file_system_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert network_file_system(tmp_path.resolve(), mount_table()) is None
    monkeypatch.setattr(sqlite, "mount_table", lambda: MOUNTS)
    for folder, kind in FOLDERS.items():
        assert network_file_system(Path(folder), MOUNTS) == kind
        for do in (LEDGER_FILE.open, LEDGER_FILE.make, lambda path: LEDGER_FILE.lock(path, "")) if kind else ():
            with pytest.raises(LedgerError) as caught:
                do(Path(folder) / "ledger.sqlite")
            assert (caught.value.code, caught.value.fields["kind"]) == ("storage.network_file_system", kind)


# lookups


def test_an_answer_is_kept_as_it_was_received(ledger: Ledger, clock: Clock) -> None:
    answers = [
        ANSWER,
        Answer(),
        Answer("\0", 1e-300, '"', "'; DROP TABLE lookups; --", "", "줄\n바꿈", ("", '"', "\\", "\0", "😀")),
        Answer("새로운 말", 0.1 + 0.2, reasons=("한글",)),
    ]
    for place, answer in enumerate(answers):
        buy(ledger, place, answer=answer)
        about = {"state": "done", "note": None, "run_id": "run", "upload": None, "job_id": None}
        fields = {name: getattr(answer, name) for name in ANSWER_COLUMNS} | {"reasons": " | ".join(answer.reasons)}
        assert known(ledger, place)[place] == about | {"answered_at": clock.now} | fields
    buy(ledger, 9, answer=Answer("a\ud800b", reasons=("\udfff", "\ud83d\ude00")))  # which no file can hold
    found = ledger.find(NUMBER)
    assert [entry.answer for entry in found] == [*answers, Answer("a�b", reasons=("�", "😀"))]
    assert {(entry.file, entry.state) for entry in found} == {("customers.csv", "done")}


@pytest.mark.parametrize(
    "change",
    [
        UploadPrepared("u", "run", [], None, None, ORIGIN),
        UploadPrepared("u", "run", [(key(1), NUMBER), (key(1), NUMBER)], None, None, ORIGIN),
        UploadPrepared("u", "never begun", [(key(1), NUMBER)], None, None, ORIGIN),
        LookupAsked(key(1), NUMBER, "never begun"),
        UploadGated("u"),
    ],
)
def test_a_change_that_does_not_fit_is_refused_with_its_whole_transaction(ledger: Ledger, change: Any) -> None:
    with pytest.raises(LedgerError) as caught:
        ledger.settle([LookupAsked(key(2), NUMBER, "run"), change])
    assert caught.value.code in ("ledger.record_inconsistent", "ledger.run_not_begun")
    assert states(ledger, 1, 2) == [None, None]


def test_of_an_unreadable_answer_64_kib_are_kept(ledger: Ledger) -> None:
    ledger.settle([LookupAsked(key(1), NUMBER, "run"), LookupUnreadable(key(1), b"x" * 100_000, "no JSON")])
    assert ledger._connection.execute("SELECT length(raw) FROM lookups").fetchone() == (65_536,)
    assert ledger.doubts() == []
    assert [(entry.state, entry.note) for entry in ledger.unusable()] == [("unreadable", "no JSON")]


def test_entries_are_found_by_place_in_frames_of_bounded_size(ledger: Ledger) -> None:
    rows = [(key(place), NUMBER) for place in range(51_000)]
    ledger.settle([UploadPrepared("u", "run", rows, None, None, ORIGIN)])
    keys = pl.Series(
        [None, key(-1), *(key(place) for place in reversed(range(51_000))), key(7), b"short"], dtype=pl.Binary
    )
    frames = list(ledger.entries(keys))
    assert max(map(len, frames)) <= 50_000
    assert sorted(pl.concat(frames)["place"].to_list()) == list(range(2, 51_003))
    assert frames[0].schema["place"] == pl.UInt32
    assert list(ledger.entries(pl.Series([key(-1)], dtype=pl.Binary))) == []
    assert list(ledger.entries(pl.Series([], dtype=pl.Binary))) == []


# uploads


def test_a_fetched_upload_gives_its_rows_their_answers_by_place(ledger: Ledger, clock: Clock) -> None:
    upload(ledger, "u", 1, 2, 3)
    assert ledger.rows_of("u") == [(key(place), f"{place:010d}") for place in (1, 2, 3)]
    job = {"id": "u", "run_id": "run", "state": "known", "job_id": "job-u", "total": 3, "rows": 3, "created": clock.now}
    (one,) = ledger.open_uploads(ORIGIN)
    assert asdict(one).items() >= (job | {"offline": None, "paid": True}).items()
    assert ledger.open_uploads("https://other.test") == []
    clock.now += 60
    ledger.settle([JobFetched("u", {0: ANSWER}, {1: "the echoed number is another"}, "one row less")])
    found = known(ledger, 1, 2, 3)
    assert [found[place]["state"] for place in (1, 2, 3)] == ["done", "missing", "missing"]
    assert [found[place]["note"] for place in (1, 2, 3)] == [None, "the echoed number is another", NO_ANSWER]
    assert (found[1]["upload"], found[1]["job_id"], found[1]["answered_at"]) == ("u", "job-u", clock.now)
    assert ledger.open_uploads(ORIGIN) == []


def test_a_job_is_known_whatever_the_service_says_beside_it(ledger: Ledger) -> None:
    upload(ledger, "u", 1, until=UploadSent)
    ledger.settle([JobKnown("u", "job\ud800", 10**30)])
    assert [(one.job_id, one.total) for one in ledger.open_uploads(ORIGIN)] == [("job\ufffd", None)]


def test_a_run_has_its_counts_and_its_end(ledger: Ledger, clock: Clock) -> None:
    buy(ledger, 1)
    upload(ledger, "u", 4, 5, 6)
    ledger.settle([JobKnown("u", "job-u", 3), JobFetched("u", {0: ANSWER, 2: ANSWER}, {}, None)])
    ledger.end("run", "done")
    with pytest.raises(LedgerError, match="against its rules"):
        ledger.begin(LedgerRun("run", "verify", ORIGIN, "b.csv", 1.0))
    (run,) = ledger.runs()
    assert (run.run_id, run.engine, run.origin, run.file) == ("run", "verify", ORIGIN, "customers.csv")
    assert (run.started, run.ended, run.outcome, run.paid, run.answered) == (clock.now, clock.now, "done", 4, 3)


def test_the_services_limit_is_forgotten_after_a_month(ledger: Ledger, clock: Clock) -> None:
    assert ledger.limit(ORIGIN) is None
    ledger.remember_limit(ORIGIN, 5000)
    ledger.remember_limit(ORIGIN, 2500)
    assert ledger.limit(ORIGIN) == 2500
    assert ledger.limit("https://other.test") is None
    clock.now += 30 * DAY + 1
    assert ledger.limit(ORIGIN) is None


# people


def test_doubts_are_listed_with_what_is_needed_to_settle_them(ledger: Ledger, clock: Clock) -> None:
    ledger.settle([LookupAsked(key(1), NUMBER, "run"), LookupDoubted(key(1), "502 Bad Gateway")])
    upload(ledger, "u", 2, 3, until=UploadSent)
    ledger.settle([UploadDoubted("u", "the connection broke")])
    lookup, whole = ledger.doubts()
    assert (lookup.id, lookup.kind, lookup.b_no, lookup.rows) == (key(1).hex()[:16], "lookup", NUMBER, 1)
    assert (whole.id, whole.kind, whole.b_no, whole.rows) == ("u", "upload", None, 2)
    assert (whole.since, whole.run_id, whole.file) == (clock.now, "run", "customers.csv")
    assert whole.note == "the connection broke"
    assert states(ledger, 2, 3) == ["doubt", "doubt"]
    assert known(ledger, 2)[2]["note"] == "the connection broke"


def test_decisions_are_written_down_and_minds_can_be_changed(ledger: Ledger) -> None:
    for place in (1, 2):
        ledger.settle([LookupAsked(key(place), NUMBER, "run"), LookupDoubted(key(place), "502")])
    upload(ledger, "u", 3, 4)
    ledger.settle([JobFetched("u", {0: ANSWER}, {}, None)])
    assert ledger.accept([key(1).hex()[:16], "u"]) == 2
    assert ledger.resend([key(2).hex()]) == 1
    assert states(ledger, 1, 2, 3, 4) == ["lost", None, "done", "lost"]
    assert (ledger.doubts(), ledger.unusable()) == ([], [])
    assert ledger.resend(["u", key(1).hex()[:10]]) == 2
    assert states(ledger, 1, 2, 3, 4) == [None, None, "done", None]
    decided = ledger._connection.execute("SELECT decision, kind, rows FROM decisions ORDER BY number").fetchall()
    once, again = [("accept", "lookup", 1), ("accept", "upload", 1)], [("resend", "upload", 1), ("resend", "lookup", 1)]
    assert decided == [*once, ("resend", "lookup", 1), *again]


def test_an_id_that_is_unknown_ambiguous_or_settled_is_refused_and_nothing_is_settled(ledger: Ledger) -> None:
    ledger.settle([LookupAsked(key(1), NUMBER, "run"), LookupDoubted(key(1), "502")])
    for place, name in enumerate(("up-1", "up-2"), 2):
        upload(ledger, name, place, until=UploadSent)
        ledger.settle([UploadDoubted(name, "502")])
    first = key(1).hex()[:16]
    for other, code in (("nonsense", "unknown"), ("", "unknown"), ("up-", "ambiguous"), (first, "settled")):
        with pytest.raises(UsageError) as caught:
            ledger.accept([first, other])
        assert caught.value.code in (f"ledger.id_{code}", f"ledger.already_{code}")
    assert len(ledger.doubts()) == 3
    ledger.attach("up-1", "job")
    for id, job, code in (
        (first, "j", "lookup_has_no_job"),
        ("up-2", " ", "job_id_empty"),
        ("up-2", "job", "job_taken"),
        ("up-3", "j", "id_unknown"),
    ):
        with pytest.raises(UsageError) as caught:
            ledger.attach(id, job)
        assert caught.value.code == f"ledger.{code}"


def test_lookups_that_begin_alike_are_shown_by_their_whole_key(ledger: Ledger) -> None:
    twins = [b"12345678" + bytes([place] * 8) for place in (1, 2)]
    for twin in twins:
        ledger.settle([LookupAsked(twin, NUMBER, "run"), LookupDoubted(twin, "502")])
    assert [doubt.id for doubt in ledger.doubts()] == [twin.hex() for twin in twins]
    assert ledger.accept([doubt.id for doubt in ledger.doubts()]) == 2


def test_purging_takes_what_is_old_and_leaves_doubts_and_open_uploads(ledger: Ledger, clock: Clock) -> None:
    buy(ledger, 1)
    ledger.settle([LookupAsked(key(2), NUMBER, "run"), LookupDoubted(key(2), "502")])
    ledger.settle([LookupAsked(key(3), NUMBER, "run"), LookupRefused(key(3), "422")])
    ledger.settle([LookupAsked(key(4), NUMBER, "run"), LookupUnreadable(key(4), b"", "")])
    upload(ledger, "open", 5)
    upload(ledger, "done", 6, 7)
    ledger.settle([JobFetched("done", {0: ANSWER}, {}, None)])
    ledger.end("run", "done")
    ledger.begin(LedgerRun("empty", "verify", ORIGIN, "b.csv", clock.now))
    ledger.end("empty", "paused")
    clock.now += 100 * DAY
    ledger.begin(LedgerRun("now", "verify", ORIGIN, "c.csv", clock.now))
    ledger.settle([LookupAsked(key(8), NUMBER, "now"), LookupAnswered(key(8), ANSWER)])
    purged = ledger.purge(100.5)
    assert (purged.lookups, purged.uploads, purged.runs) == (0, 0, 0)
    purged = ledger.purge(90)
    assert (purged.lookups, purged.uploads, purged.runs) == (5, 1, 1)
    assert states(ledger, *range(1, 9)) == [None, "doubt", None, None, "uploaded", None, None, "done"]
    assert ledger.rows_of("done") == []
    assert len(ledger.rows_of("open")) == 1
    assert [run.run_id for run in ledger.runs()] == ["run", "now"]
    with pytest.raises(UsageError, match="negative"):
        ledger.purge(-1)


def test_a_purged_ledger_gives_its_room_back(ledger: Ledger, clock: Clock) -> None:
    upload(ledger, "u", *range(5_000))
    ledger.settle([JobFetched("u", dict.fromkeys(range(5_000), ANSWER), {}, None)])
    ledger._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    full = ledger.path.stat().st_size
    clock.now += DAY
    assert ledger.purge(0.5).lookups == 5_000
    assert ledger.path.stat().st_size < full / 10


def test_neither_names_nor_addresses_are_in_the_file_but_what_the_answers_hold(ledger: Ledger) -> None:
    name, address = "홍길동상회", "세종특별자치시 한누리대로 2130"
    digest = blake2b(f"{NUMBER}\x1f{name}\x1f{address}".encode(), digest_size=16).digest()
    ledger.settle([LookupAsked(digest, NUMBER, "run"), LookupAnswered(digest, ANSWER)])
    ledger.close()
    content = ledger.path.read_bytes()
    assert NUMBER.encode() in content
    assert not any(word.encode() in content for word in (*name.split(), *address.split()))


# what the disk does


def test_a_full_disk_is_said_and_nothing_is_half_done(ledger: Ledger) -> None:
    pages = ledger._connection.execute("PRAGMA page_count").fetchone()[0]
    ledger._connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(LedgerError, match="the disk is full, so nothing more was bought"):
        upload(ledger, "u", *range(5000))
    ledger._connection.execute("PRAGMA max_page_count = 1000000")
    assert known(ledger, *range(5000)) == {}
    upload(ledger, "u", *range(5000))


def test_damage_that_shows_later_is_a_ledger_error(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with Ledger.open(path) as ledger:
        ledger.begin(LedgerRun("run", "batch", ORIGIN, "a.csv", 1.0))
        upload(ledger, "u", *range(2000))
    content = bytearray(path.read_bytes())
    content[20 * 4096 :] = b"\xff" * (len(content) - 20 * 4096)
    path.write_bytes(content)
    with Ledger.open(path) as ledger, pytest.raises(LedgerError, match="is damaged"):
        known(ledger, *range(2000))


# the journal


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.anyio
async def test_what_waits_together_is_committed_together(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    commits: list[int] = []
    settle = ledger.settle
    monkeypatch.setattr(ledger, "settle", lambda changes: (commits.append(len(changes)), settle(changes)))
    async with Journal(ledger) as journal, anyio.create_task_group() as tasks:
        for place in range(100):
            tasks.start_soon(journal.settle, LookupAsked(key(place), NUMBER, "run"), LookupAnswered(key(place), ANSWER))
    assert states(ledger, *range(100)) == ["done"] * 100
    assert sum(commits) == 200
    assert len(commits) <= 3


@pytest.mark.anyio
async def test_an_error_reaches_only_the_one_who_caused_it(ledger: Ledger) -> None:
    buy(ledger, 5)
    failed: dict[int, str] = {}

    async def one(journal: Journal, place: int) -> None:
        answered = LookupAnswered(key(place), ANSWER)
        try:
            await journal.settle(answered if place in (3, 7) else LookupAsked(key(place), NUMBER, "run"))
        except LedgerError as error:
            failed[place] = str(error)

    async with Journal(ledger) as journal:
        async with anyio.create_task_group() as tasks:
            for place in range(10):
                tasks.start_soon(one, journal, place)
        await journal.settle(LookupAsked(key(10), NUMBER, "run"))
    assert failed.keys() == {3, 7}
    assert all(key(place).hex() in said for place, said in failed.items())
    assert states(ledger, *range(11)) == [None if place in (3, 7) else "asking" for place in range(11)]


@pytest.mark.anyio
async def test_where_no_thread_can_be_started_the_one_who_settles_hears_of_it(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def none_left(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    with anyio.fail_after(60):
        async with Journal(ledger) as journal:
            with monkeypatch.context() as machine:
                machine.setattr(anyio.to_thread, "run_sync", none_left)
                with pytest.raises(RuntimeError, match="thread"):
                    await journal.settle(LookupAsked(key(0), NUMBER, "run"))
            await journal.settle(LookupAsked(key(1), NUMBER, "run"))
    assert states(ledger, 0, 1) == [None, "asking"]


@pytest.mark.anyio
async def test_a_settle_that_is_cancelled_is_settled_all_the_same(ledger: Ledger) -> None:
    async with Journal(ledger) as journal:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await journal.settle(LookupAsked(key(100), NUMBER, "run"))
            assert states(ledger, 100) == ["asking"]
            await anyio.lowlevel.checkpoint()
        assert scope.cancelled_caught
    with anyio.CancelScope() as scope:  # also one all around the journal
        async with Journal(ledger) as journal, anyio.create_task_group() as tasks:
            for place in range(50):
                tasks.start_soon(journal.settle, LookupAsked(key(place), NUMBER, "run"))
            await journal.settle(LookupAsked(key(50), NUMBER, "run"))
            scope.cancel()
            await anyio.sleep_forever()
    assert states(ledger, *range(51)) == ["asking"] * 51


@pytest.mark.anyio
async def test_an_error_in_the_block_comes_out_as_itself(ledger: Ledger) -> None:
    journal = Journal(ledger)

    async def block() -> None:
        async with journal:
            await journal.settle(LookupAsked(key(1), NUMBER, "run"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await block()
    with pytest.raises(RuntimeError, match="inside its 'async with'"):
        await journal.settle(LookupAnswered(key(1), ANSWER))
    assert states(ledger, 1) == ["asking"]
