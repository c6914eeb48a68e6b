"""Each label reaches the job of its row once, whatever the network, the service or the process does."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from threading import Thread
from typing import Any

import polars as pl
import pytest

import bansong as bs
from bansong.base.cancel import CancelToken
from bansong.base.options import ServiceOptions, service_options
from bansong.errors import AuthenticationError, ColumnError, StoppedError, UsageError
from bansong.labels.sender import SendReport
from bansong.purchase.ledger import Ledger
from bansong.run.columns import LABEL_DTYPES
from bansong.testing import DIALECTS, HTML, Delay, Dialect, FakeService, Fault, Lookup, Reset, Status, serve
from bansong.testing.fake_service import FakeJob
from conftest import NINE, write
from crashing import Calls
from customers import KEY, customers, numbers
from labelling import send_labels, write_labelled
from serving import wait_until

ROWS, REPEATS = 30, 5
Send = Callable[..., SendReport]


def bought(url: str, folder: Path, **options: Any) -> Path:
    """Enrich a file by uploads of at most 12 lookups; some customers stand in it twice."""
    source = customers(folder / "in.csv", ROWS, REPEATS)
    how: dict[str, Any] = {"engine": "batch", "chunk": 12, "poll": 0.01} | options
    bs.enrich(source, base_url=url, api_key=bs.ApiKey(KEY), rate=1e5, **how)
    return folder / "in.enriched.csv"


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FakeService, str, Path, dict[str, FakeJob]]]:
    """A service, its URL, the folder of a file that was bought there, and the three jobs."""
    folder, service = tmp_path_factory.mktemp("bought"), FakeService(KEY)
    with serve(service) as url:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("BANSONG_STATE_DIR", str(folder / "state"))
            bought(url, folder)
        yield service, url, folder, dict(service.jobs)


@pytest.fixture
def service(scene: Any) -> FakeService:
    service: FakeService = scene[0]
    service.labels.clear()
    service.faults.clear()
    service.jobs = dict(scene[3])
    return service


@pytest.fixture
def url(scene: Any) -> str:
    return str(scene[1])


@pytest.fixture
def mailed(scene: Any, tmp_path: Path, state_directory: Path) -> Path:
    """A copy of the file that was bought, and of its ledger."""
    shutil.copytree(scene[2] / "state", state_directory, dirs_exist_ok=True)
    return Path(shutil.copy2(scene[2] / "in.enriched.csv", tmp_path))


@pytest.fixture
def send(service: FakeService, url: str, mailed: Path) -> Send:
    def call(labels: pl.DataFrame, *, key: str = KEY, concurrency: int = 4, **options: Any) -> SendReport:
        return send_labels(labels, mailed, terms=terms(url, key, concurrency), **options)

    return call


def terms(url: str, key: str = KEY, concurrency: int = 4) -> ServiceOptions:
    options: Any = {"base_url": url, "api_key": bs.ApiKey(key), "rate": 1e5, "concurrency": concurrency, "timeout": 3}
    return service_options("batch", options)


def labels(*rows: tuple[int, bool | None, str | None]) -> pl.DataFrame:
    return pl.DataFrame([(*row, None) for row in rows], schema=LABEL_DTYPES, orient="row")


def all_bounced(count: int = ROWS) -> pl.DataFrame:
    return labels(*((row, row % 3 == 0, "이사불명" if row % 3 == 0 else None) for row in range(count)))


def recorded(service: FakeService) -> Counter[tuple[Lookup, bool, str]]:
    """What the service was told, by the lookup that its job has in that row."""
    base = service.dialect.row_base
    return Counter(
        (service.jobs[label.job_id].rows[label.row_id - base], label.bounced, label.reason) for label in service.labels
    )


def expected(rows: pl.DataFrame) -> Counter[tuple[Lookup, bool, str]]:
    """What it should be told: each label about the lookup of its row in the file."""
    digits = numbers(ROWS)
    return Counter(
        (Lookup(digits[row % ROWS], f"상사 {row % ROWS}", f"서울시 중구 세종대로 {row % ROWS}"), bounced, reason or "")
        for row, bounced, reason, _ in rows.iter_rows()
    )


NUMBERINGS = {"lines": Dialect(row_key="line", row_base=2, order="risk"), "terse": DIALECTS["terse"]}


@pytest.mark.parametrize("name", NUMBERINGS)
def test_each_label_reaches_the_row_it_is_about_and_only_once(name: str, tmp_path: Path) -> None:
    """Where results do not say how rows are numbered, nothing is sent, unless the user says it (G30)."""
    service = FakeService(KEY, dialect=NUMBERINGS[name])
    numbered = service.dialect.row_key is not None
    told = all_bounced(ROWS if numbered else 12)  # of the first job, after which such a run stops
    with serve(service) as url:
        mailed = bought(url, tmp_path)
        sent = send_labels(told, mailed, terms=terms(url))
        if not numbered:
            assert (sent.sent, sent.unnumbered, sent.exit_code) == (0, told.height, 3)
            with pytest.raises(UsageError, match="from 0, 1 or 2"):
                send_labels(told, mailed, terms=terms(url), first_row=7)
            sent = send_labels(told, mailed, terms=terms(url), first_row=service.dialect.row_base)
        again = send_labels(told, mailed, terms=terms(url))
    assert recorded(service) == expected(told)
    assert (sent.sent, again.sent, again.done, again.exit_code) == (told.height, 0, told.height, 0)


def test_rows_of_one_lookup_are_one_label_and_contradictions_are_not_sent(service: FakeService, send: Send) -> None:
    """A customer who is in the file twice is one row of the job; where one row says bounced and one not, neither is."""
    given = labels((0, True, "이사"), (ROWS, True, None), (1, True, None), (ROWS + 1, False, None), (5, None, None))
    sent = send(given)
    assert recorded(service) == expected(labels((0, True, "이사")))
    assert (sent.labels, sent.job_rows, sent.sent) == (4, 2, 1)
    assert sent.contradictory == ((1, ROWS + 1),)
    assert f"rows of one lookup say both: 1 and {ROWS + 1}" in "\n".join(sent.lines())


def test_a_changed_label_is_sent_once_more(service: FakeService, send: Send, mailed: Path, url: str) -> None:
    """A letter that comes back late: the service takes the latest, the ledger has both, and again nothing is sent."""
    late = labels((3, True, "수취인불명"))
    assert [send(given).sent for given in (labels((3, False, None)), late, late)] == [1, 1, 0]
    assert [label.bounced for label in service.labels] == [False, True]
    write_labelled(mailed, mailed, late)
    assert send(late).done == 1, "the labelled file is the same file"


def test_what_was_not_bought_in_an_upload_has_no_job(service: FakeService, url: str, tmp_path: Path) -> None:
    """Without a ledger there is nothing at all, and none is made. Flags of a purchase need not be said again."""
    mailed = bought(url, tmp_path, engine="verify")
    sent = send_labels(all_bounced(), mailed, terms=terms(url))
    assert (sent.labels, sent.without_job, sent.exit_code, service.labels) == (ROWS, ROWS, 0, [])
    empty = tmp_path / "none.sqlite"
    none = service_options("batch", {"base_url": url, "ledger": empty})
    assert send_labels(all_bounced(), mailed, terms=none).without_job == ROWS
    assert not empty.exists()
    mailed = bought(url, tmp_path, offline=True, paid=False)
    assert send_labels(all_bounced(7), mailed, terms=terms(url)).sent == 7
    assert recorded(service) == expected(all_bounced(7))


def test_a_row_bought_twice_is_labelled_in_the_job_before_its_mailing(
    service: FakeService, url: str, tmp_path: Path
) -> None:
    """A later purchase says nothing of the letter; without a date the newest job is meant."""
    mailed = bought(url, tmp_path)
    first = set(service.jobs)
    with Ledger.open() as ledger:  # as if the first were bought three days ago
        ledger._connection.execute("UPDATE uploads SET created = created - 3 * 86400")
    bought(url, tmp_path, max_age=0)
    day = datetime.now(UTC).date()
    send_labels(labels((0, True, None)), mailed, terms=terms(url), mailed=day - timedelta(days=2))
    assert service.labels[-1].job_id in first
    send_labels(labels((0, True, None)), mailed, terms=terms(url))
    assert service.labels[-1].job_id not in first
    send_labels(labels((1, True, None)), mailed, terms=terms(url), mailed=date(2020, 1, 1))
    assert service.labels[-1].job_id in first, "bought after the mailing: the oldest is nearest to it"


def test_lost_replies_and_failures_are_doubts_that_are_sent_again_by_decision_only(
    service: FakeService, send: Send
) -> None:
    """A 500, a lost reply, a page in place of an answer: listed, exit 3, not repeated; --resend repeats just those."""
    service.faults.add(
        Fault("label", Reset("after"), at=3), Fault("label", Status(500, paid=True), at=9), Fault("label", HTML, at=20)
    )
    sent = send(all_bounced(), concurrency=1)
    assert (sent.sent, sent.doubts, len(sent.held), sent.exit_code) == (ROWS - 3, 3, 3, 3)
    assert "doubt: " in "\n".join(sent.lines())
    held = json.loads(json.dumps(sent.as_dict()))["held"][0]
    assert held["state"] == "doubt"
    assert set(held) == {"place", "job_id", "b_no", "bounced", "reason", "state", "since", "note"}
    again = send(all_bounced())
    assert (again.sent, len(again.held), len(service.labels)) == (0, 3, ROWS)
    resent = send(all_bounced(), resend=True)
    assert (resent.sent, resent.exit_code, len(service.labels)) == (3, 0, ROWS + 3)
    assert set(recorded(service)) == set(expected(all_bounced()))
    with Ledger.open() as ledger:
        decisions = ledger._connection.execute("SELECT decision, kind, sum(rows) FROM decisions").fetchall()
    assert decisions == [("resend", "label", 3)]


def test_a_limit_pauses_and_the_same_command_goes_on(service: FakeService, send: Send) -> None:
    """A 429 is not a doubt: what it hit is sent by the next command; a short wait is waited for."""
    service.faults.add(Fault("label", Status(429), at=20))
    sent = send(all_bounced(), concurrency=1)
    assert (sent.sent, sent.left, sent.exit_code) == (19, ROWS - 19, 5)
    service.faults.clear()
    service.faults.add(Fault("label", Status(429, retry_after=0), at=2))
    assert send(all_bounced(), concurrency=1).sent == ROWS - 19
    assert recorded(service) == expected(all_bounced())


def test_what_certainly_did_not_go_is_sent_again(service: FakeService, send: Send) -> None:
    """No connection, no doubt: the labels wait for the next command."""

    async def unsent(*_: object, **__: object) -> None:
        raise bs.errors.NotSentError("no connection")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bs.Client, "label", unsent)
        patch.setattr("bansong.client.dispatcher._MAX_RETRIES", 1)
        sent = send(all_bounced(9))
    assert (sent.sent, sent.left, sent.doubts, sent.exit_code) == (0, 9, 0, 5)
    assert send(all_bounced(9)).sent == 9
    assert recorded(service) == expected(all_bounced(9))


def test_a_label_that_is_refused_is_held_and_the_others_go(service: FakeService, send: Send) -> None:
    service.faults.add(Fault("label", Status(422, body=b'{"error": "reason too long"}'), at=5))
    sent = send(all_bounced(), concurrency=1)
    assert (sent.sent, sent.refused, sent.exit_code) == (ROWS - 1, 1, 3)
    assert "reason too long" in "\n".join(sent.lines())
    assert [send(all_bounced()).sent, send(all_bounced(), resend=True).sent] == [0, 1]


def test_a_job_that_is_gone_ends_and_the_others_go_on(service: FakeService, send: Send) -> None:
    """404: no further label of that job is sent, now or later."""
    gone = max(service.jobs, key=lambda job: len(service.jobs[job].rows))
    rows = len(service.jobs.pop(gone).rows)
    asked = service.requests["label"]
    sent = send(all_bounced(), concurrency=1)
    assert (sent.sent, sent.refused, sent.exit_code) == (ROWS - rows, rows, 3)
    assert service.requests["label"] - asked == ROWS - rows + 1
    assert send(all_bounced()).sent == 0


def test_a_wrong_key_ends_the_run_and_is_nowhere_to_be_seen(
    service: FakeService, send: Send, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is held for it: the same command with the right key sends all."""
    caplog.set_level(logging.DEBUG)
    with pytest.raises(AuthenticationError) as error:
        send(all_bounced(), key="bv_live_wrong_0123456789")
    assert "bv_live_wrong" not in caplog.text + str(error.value) + repr(error.value.__dict__)
    assert send(all_bounced()).sent == ROWS
    assert KEY not in caplog.text
    assert recorded(service) == expected(all_bounced())


def test_a_stopped_run_settles_what_is_under_way(service: FakeService, send: Send) -> None:
    """The brake, as Ctrl-C does: what was sent is waited for, and the same command sends the rest."""
    service.faults.add(Fault("label", Delay(0.2, after_paying=True)))
    cancel = CancelToken()
    Thread(target=lambda: (wait_until(lambda: service.labels), cancel.cancel()), daemon=True).start()
    with pytest.raises(StoppedError, match="sent in this run"):
        send(all_bounced(), cancel=cancel)
    service.faults.clear()
    before = len(service.labels)
    assert 0 < before < ROWS
    assert send(all_bounced()).sent == ROWS - before
    assert recorded(service) == expected(all_bounced())


def test_an_older_ledger_asks_the_job_how_it_numbers_its_rows(service: FakeService, send: Send) -> None:
    """What earlier releases fetched has no base on record; the job is looked at once, for free, and it is kept."""
    with Ledger.open() as ledger:
        ledger._connection.execute("UPDATE uploads SET base = NULL")
    paid, looks = service.paid_total, service.requests["job"]
    send(all_bounced(20))
    assert service.requests["job"] == looks + len({label.job_id for label in service.labels})
    send(all_bounced())
    assert recorded(service) == expected(all_bounced())
    assert (service.paid_total, service.requests["job"]) == (paid, looks + len(service.jobs))


MOMENTS = ((2, "before"), (7, "after"), (12, "before"))


@pytest.mark.crash
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no such signal here")
def test_no_label_is_sent_twice_when_the_process_is_killed(
    service: FakeService, url: str, mailed: Path, tmp_path: Path
) -> None:
    """Killed while requests come and after they were taken, twice or more: what was under way is in doubt, no more."""
    all_bounced().write_parquet(tmp_path / "labels.parquet")
    command = [sys.executable, "-c", _SENDER, str(tmp_path / "labels.parquet"), str(mailed), url]
    environment = os.environ | {"BANSONG_API_KEY": KEY, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    kills = doubts = 0
    for moment, place in MOMENTS:
        process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        service.faults.clear()
        service.faults.add(Fault("label", Calls(process.kill, place), at=moment))  # type: ignore[arg-type]
        _, told = process.communicate(timeout=60)
        assert process.returncode in (-signal.SIGKILL, 3), told
        kills += process.returncode == -signal.SIGKILL
        time.sleep(0.1)
        assert max(recorded(service).values(), default=1) == 1
        with Ledger.open() as ledger:
            assert ledger.recovered.labels <= 4
            doubts += ledger.recovered.labels
    service.faults.clear()
    sent = send_labels(all_bounced(), mailed, terms=terms(url))
    assert kills == len(MOMENTS)
    assert (sent.left, len(sent.held)) == (0, doubts)
    assert max(recorded(service).values()) == 1
    assert ROWS - doubts <= len(service.labels) <= ROWS
    assert send_labels(all_bounced(), mailed, terms=terms(url), resend=True).exit_code == 0
    assert set(recorded(service)) == set(expected(all_bounced()))


_SENDER = """
import sys
import polars as pl
from bansong.base.options import service_options
from labelling import send_labels

labels, file, url = sys.argv[1:]
terms = service_options("batch", {"base_url": url, "rate": 1e5, "concurrency": 4, "timeout": 3})
sys.exit(send_labels(pl.read_parquet(labels), file, terms=terms).exit_code)
"""


def test_outputs_are_written_where_labels_cannot_be_sent(tmp_path: Path) -> None:
    """A mailed file without numbers has no lookups to send labels for; what was recorded is joined and listed first."""
    rows = [f"이름,{','.join(NINE)}", *(f"{name},active,0.1,A,send,,,,verified," for name in "ab"), ""]
    mailed = write(tmp_path / "mailed.csv", "\n".join(rows))
    outcomes = write(tmp_path / "outcomes.csv", "row_id,bounced\n0,true\n1,false\n")
    outputs = {"output": tmp_path / "out.csv", "unmatched": tmp_path / "left.csv"}
    where: Any = {"send": True, "base_url": "http://127.0.0.1:9", "api_key": KEY, "book": tmp_path / "book"}
    with pytest.raises(ColumnError):
        bs.label(outcomes, file=mailed, mailed="2026-10-01", returns_requested=True, **outputs, **where)
    assert [path.exists() for path in outputs.values()] == [True, True]
    assert pl.read_csv(outputs["output"])["bounced"].to_list() == [True, False]
