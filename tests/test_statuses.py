"""Statuses alone, as users ask for them: a frame, a command, a registry; and runs that are killed or run at once."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from pathlib import Path

import polars as pl
import pytest

import bansong as bs
from bansong.base.schema import seoul_day
from bansong.engine.registry import MORE, SCHEMA
from bansong.errors import AuthenticationError, UsageError
from bansong.reference.status_store import StatusStore
from bansong.testing import Fault, Faults, serve
from bansong.testing.fake_nts import NTS_FAULTS, FakeNts, nts_row

Run = Callable[..., subprocess.CompletedProcess[str]]
SAMSUNG = "1248100998"
LIST = "상호,사업자등록번호\n가,124-81-00998\n나,220-81-62517\n다,12-3\n라,1248100998\n합계,2\n"


@pytest.fixture
def fake() -> FakeNts:
    closed = nts_row(SAMSUNG, "closed", since="20240131", merged=True)
    return FakeNts(default="active", statuses={SAMSUNG: closed, "2208162517": "unregistered"})


@pytest.fixture
def url(fake: FakeNts, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    with serve(fake) as url:
        monkeypatch.setenv("BANSONG_NTS_URL", url)
        monkeypatch.setenv("BANSONG_NTS_KEY", "test-key")
        monkeypatch.setenv("BANSONG_STATUS_STORE", str(tmp_path / "statuses.sqlite"))
        yield url


def test_each_given_number_has_its_row_in_its_place(fake: FakeNts, url: str) -> None:
    given = ["124-81-00998", None, "9001011234567", 2208162517, SAMSUNG, "101-81-28456"]
    frame = bs.fetch_status(given)
    day = seoul_day()
    assert frame.drop("note").rows() == [
        (SAMSUNG, "closed", date(2024, 1, 31), "general", True, day),
        (None, None, None, None, None, None),
        (None, None, None, None, None, None),
        ("2208162517", "unregistered", None, None, None, day),
        (SAMSUNG, "closed", date(2024, 1, 31), "general", True, day),
        ("1018128456", "active", None, "general", False, day),
    ]
    assert [note is not None for note in frame["note"]] == [False, True, True, False, False, False]
    assert set(fake.asks) == {SAMSUNG, "2208162517", "1018128456"}
    assert fake.calls == 1


@pytest.mark.anyio
async def test_numbers_may_be_a_list_a_series_or_a_frame(fake: FakeNts, url: str) -> None:
    frame = pl.DataFrame({"name": ["가", "나"], "사업자등록번호": ["124-81-00998", "220-81-62517"]})
    texts = [SAMSUNG, "2208162517"]
    for numbers in (pl.Series(texts), pl.Series(list(map(int, texts))), frame, frame.to_pandas(), iter(texts)):
        assert (await bs.afetch_status(numbers))["biz_status"].to_list() == ["closed", "unregistered"]
    assert fake.calls == 1


def test_what_cannot_be_asked_is_a_warning_and_a_note(fake: FakeNts, url: str) -> None:
    fake.faults = Faults(Fault("status", NTS_FAULTS["day_limit"]))
    with pytest.warns(UserWarning, match="00:00 in Seoul"):
        frame = bs.fetch_status([SAMSUNG])
    assert frame["biz_status"].to_list() == [None]
    assert "22" in frame["note"][0]
    fake.faults = Faults(Fault("status", NTS_FAULTS["bad_key"]))
    options = bs.StatusOptions(key=bs.NtsKey("another-key"))
    with pytest.raises(AuthenticationError) as raised:
        bs.fetch_status([SAMSUNG], options)
    assert "another-key" not in str(raised.value)


def test_what_is_no_list_of_numbers_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="give a list, a Series or a frame"):
        bs.fetch_status(3.5)
    with pytest.raises(UsageError, match="holds no business numbers; give texts or whole numbers"):
        bs.fetch_status(pl.Series([[SAMSUNG], []]))
    with pytest.raises(UsageError, match=r"is a dict; give a bansong\.StatusOptions"):
        bs.fetch_status([SAMSUNG], {"budget": 1})  # type: ignore[arg-type]


def test_the_command_shows_a_table_or_json(url: str, run: Run) -> None:
    done = run("status", "124-81-00998", "2208162517", "123")
    assert done.returncode == 2
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["b_no", "status", "since", "taxation", "as", "of", "note"]
    assert lines[1].startswith("124-81-00998  closed (merged)  2024-01-31  general")
    assert lines[2].startswith("220-81-62517  unregistered")
    assert lines[3].endswith("fewer than ten digits")
    found = json.loads(run("status", SAMSUNG, "--json").stdout)
    assert found["statuses"][0]["since"] == "2024-01-31"
    assert found["halt"] is None


def test_without_a_key_the_command_says_how_to_get_one(url: str, run: Run) -> None:
    missing = run("status", SAMSUNG, env={"BANSONG_NTS_KEY": ""})
    assert missing.returncode == 2
    assert "docs/data-sources.md" in missing.stderr
    assert "BANSONG_NTS_KEY_FILE" in missing.stderr
    refused = run("status", SAMSUNG, env={"BANSONG_NTS_KEY": "wrong-key"})
    assert refused.returncode == 4
    assert "wrong-key" not in refused.stdout + refused.stderr


def test_the_numbers_of_files_become_a_registry(fake: FakeNts, url: str, run: Run, tmp_path: Path) -> None:
    """Found as `enrich` finds them, asked once, and `--registry` takes what is written."""
    (tmp_path / "list.csv").write_text(LIST, encoding="utf-8")
    (tmp_path / "more.csv").write_text("b_no\n1018128456\n1248100998\n", encoding="utf-8")
    done = run("data", "fetch-status", "list.csv", "more.csv", "-o", "registry.parquet", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["businesses"], report["fetch"]["asked"], fake.calls) == (3, 3, 1)
    registry = bs.Registry.open(tmp_path / "registry.parquet")
    assert registry.newest == seoul_day()
    about = json.loads(pl.read_parquet_metadata(registry.path)["bizverify.registry"])
    assert about["sources"] == ["list.csv", "more.csv", "nts"]
    assert about["built"]
    answered = run("enrich", "list.csv", "--registry", "registry.parquet", "--status", "none")
    assert answered.returncode == 0
    assert pl.read_csv(tmp_path / "list.enriched.csv")["biz_status"][:2].to_list() == ["closed", "unregistered"]
    assert run("data", "fetch-status", "list.csv", "-o", "list.csv").returncode == 2
    again = run("data", "fetch-status", "list.csv", "-o", "again.parquet")
    assert (again.returncode, fake.calls) == (0, 1)


def test_no_registry_replaces_the_status_store_or_the_key_file(
    fake: FakeNts, url: str, run: Run, tmp_path: Path
) -> None:
    (tmp_path / "list.csv").write_text(LIST, encoding="utf-8")
    store, key = tmp_path / "store.parquet", tmp_path / "key.parquet"
    StatusStore(store).close()
    key.write_text("test-key")
    before = store.read_bytes()
    command = ("data", "fetch-status", "list.csv", "--status-store", str(store), "--nts-key-file", str(key), "-o")
    for output, what in ((store, "status store"), (key, "NTS key file")):
        refused = run(*command, output.name)
        assert (refused.returncode, f"is the {what} itself; give another output" in refused.stderr) == (2, True)
    assert (store.read_bytes(), key.read_text(), fake.calls) == (before, "test-key", 0)


def test_a_registry_is_refreshed_from_its_oldest_on(fake: FakeNts, url: str, run: Run, tmp_path: Path) -> None:
    """The oldest are asked as far as the budget goes; name and day of opening stay, and taxation where none is said."""
    day = seoul_day()
    rows = [
        (1018128456, "suspended", None, date(2001, 2, 3), day - timedelta(days=99), "simplified", "둘"),
        (1248100998, "active", None, date(1969, 1, 13), day - timedelta(days=100), "general", "하나"),
        (2208162517, "active", None, date(2010, 1, 1), day - timedelta(days=200), "exempt", "셋"),
        (3018128456, "active", None, None, day, "general", "넷"),
    ]
    schema = SCHEMA | {"taxation": MORE["taxation"], "name": MORE["name"]}
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    frame.select(pl.exclude("merged")).write_csv(tmp_path / "known.csv")
    columns = {name: name for name in ("b_no", "opened", "taxation", "name")} | {"status": "biz_status"}
    bs.build_registry([tmp_path / "known.csv"], tmp_path / "registry.parquet", columns=columns)
    before = bs.Registry.open(tmp_path / "registry.parquet").version
    done = run("data", "refresh-registry", "registry.parquet", "--budget", "2")
    assert done.returncode == 5, done.stderr
    assert fake.asks == Counter({SAMSUNG: 1, "2208162517": 1})
    found = pl.read_parquet(tmp_path / "registry.parquet")
    expected = [
        ("suspended", None, date(2001, 2, 3), day - timedelta(days=99), "simplified", None, "둘"),
        ("closed", date(2024, 1, 31), date(1969, 1, 13), day, "general", True, "하나"),
        ("unregistered", None, date(2010, 1, 1), day, "exempt", None, "셋"),
        ("active", None, None, day, "general", None, "넷"),
    ]
    assert found.drop("b_no").rows() == expected
    registry = bs.Registry.open(tmp_path / "registry.parquet")
    assert registry.version != before
    assert run("data", "refresh-registry", "registry.parquet", "--budget", "3").returncode == 0
    assert (fake.numbers, fake.asked_again) == (3, 0)


FETCH = """
import sys, warnings
import bansong as bs
url, store, first, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
options = bs.StatusOptions(key=bs.NtsKey("test-key"), base_url=url, store=store, rate=1e5, concurrency=8)
frame = bs.fetch_status(range(first, first + count), options)
assert frame["biz_status"].null_count() == 0
"""


def fetching(url: str, store: Path, first: int, count: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", FETCH, url, str(store), str(first), str(count)])


@pytest.mark.process
def test_runs_at_once_share_the_work(fake: FakeNts, url: str, tmp_path: Path) -> None:
    fake.latency = 0.1  # far longer than a busy machine takes to write down an answer
    store = tmp_path / "statuses.sqlite"
    runs = [fetching(url, store, 1_000_000_001, 10_000) for _ in range(2)]
    assert [run.wait() for run in runs] == [0, 0]
    with StatusStore(store) as opened:
        assert opened.read()["b_no"].to_list() == list(range(1_000_000_001, 1_000_010_001))
    assert fake.asked_again < 4_000


@pytest.mark.crash
@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
def test_a_run_that_is_killed_asks_nothing_again_that_was_stored(fake: FakeNts, url: str, tmp_path: Path) -> None:
    moments, chance = int(os.environ.get("CRASH_MOMENTS", "3")), random.Random(17)
    fake.latency, store = 0.02, tmp_path / "statuses.sqlite"
    kept: dict[str, int] = {}
    for _ in range(moments):
        runs = [fetching(url, store, 1_000_000_001, 20_000) for _ in range(2)]
        enough = fake.calls + chance.randint(5, 30)
        while fake.calls < enough and any(run.poll() is None for run in runs):
            time.sleep(0.002)
        for run in runs:
            run.send_signal(signal.SIGKILL)
            run.wait()
        while fake.in_flight:
            time.sleep(0.01)
        asks = fake.asks
        assert {number: asks[number] for number in kept} == kept
        with StatusStore(store) as opened:
            kept = {f"{number:010d}": asks[f"{number:010d}"] for number in opened.read()["b_no"].to_list()}
    assert fetching(url, store, 1_000_000_001, 20_000).wait() == 0
    asks = fake.asks
    assert {number: asks[number] for number in kept} == kept
    with StatusStore(store) as opened:
        assert opened.read()["b_no"].to_list() == list(range(1_000_000_001, 1_000_020_001))
