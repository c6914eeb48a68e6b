"""The doctor: what is missing, old or broken is found, each with its remedy; keys are never shown."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import date
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer
from threading import Thread

import pytest

from bansong.base.schema import seoul_day
from bansong.purchase.ledger import Ledger
from bansong.reference.nts import NtsKey
from bansong.reference.status_store import DayUsage, StatusStore, account_of
from bansong.testing import NTS_FAULTS, FakeNts, FakeService, Fault, Reset, Status, serve
from bansong.upkeep.doctor import EXTRAS, DoctorOptions, diagnose
from conftest import write
from customers import KEY, customers

Run = Callable[..., subprocess.CompletedProcess[str]]
NTS_KEY = "Ab+cd/efgh0123456789=="


@pytest.fixture
def service() -> FakeService:
    return FakeService(KEY, quota=1000)


@pytest.fixture
def nts(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNts]:
    fake = FakeNts(NTS_KEY)
    with serve(fake) as address:
        monkeypatch.setenv("BANSONG_NTS_URL", address)
        monkeypatch.setenv("BANSONG_NTS_KEY", NTS_KEY)
        yield fake


def look(run: Run, *arguments: object, code: int = 0) -> tuple[dict[str, list[str]], dict[str, str]]:
    """The levels of what `doctor` finds, and what is said with its remedy, by what it is about."""
    done = run("doctor", "--json", *arguments)
    assert done.returncode == code, done.stdout + done.stderr
    levels, said = defaultdict[str, list[str]](list), defaultdict[str, str](str)
    for one in json.loads(done.stdout)["findings"]:
        levels[one["what"]].append(one["level"])
        said[one["what"]] += f"{one['said']} ({one['remedy']})\n"
    return levels, said


def test_a_new_user_is_told_what_to_set_up_and_nothing_is_broken(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EXTRAS, "learn", (("no_such_module",), "to learn"))
    levels, said = look(run)
    for what in ("registry", "gazetteer", "API key", "tax authority's key"):
        assert (levels[what] in (["note"], ["warning"]), "(None)" in said[what]) == (True, False)
    assert levels["python"] == levels["polars"] == levels["SQLite"] == ["ok"]
    assert {"service", "tax authority"}.isdisjoint(levels)
    assert (levels["extra learn"], "pip install 'bansong[learn]'" in said["extra learn"]) == (["note"], True)
    people = run("doctor")
    assert (people.returncode, "registry: `bansong setup`" in people.stdout) == (0, True)


def test_services_are_asked_with_their_key_unless_offline(
    service: FakeService, url: str, nts: FakeNts, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    levels, _ = look(run, "--offline")
    assert levels["service"] == levels["tax authority"] == ["note"]
    assert levels["API key"] == levels["tax authority's key"] == ["ok"]
    assert (service.requests.total(), nts.calls) == (0, 0)
    levels, said = look(run)
    assert levels["service"] == levels["tax authority"] == ["ok"]
    assert ("1,000 lookups left" in said["service"], service.paid_total, nts.numbers) == (True, 0, 1)
    nts.faults.add(Fault("status", Status(503)))  # runs go on with what is stored
    monkeypatch.setenv("BANSONG_API_KEY", "bv_live_wrong_0123456789")
    levels, _ = look(run, code=2)
    assert (levels["tax authority"], levels["service"]) == (["warning"], ["error"])
    monkeypatch.delenv("BANSONG_BASE_URL")
    assert look(run)[0]["service"] == ["warning"]


def test_a_key_pasted_as_address_is_shown_nowhere(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write(tmp_path / "in.csv", "사업자번호,상호\n1248100998,a\n")
    monkeypatch.setenv("BANSONG_API_KEY", KEY)
    commands = [("doctor",), ("doctor", "--json"), ("config", "--json"), ("me", "--json"), ("watch", "list")]
    commands.append(("enrich", "in.csv", "-o", "out.csv", "--engine", "batch"))
    for given in ((), ("--base-url", KEY)):
        monkeypatch.setenv("BANSONG_BASE_URL", "https://a.example" if given else KEY)
        for command in commands:
            done = run(*command, *(() if command[0] == "config" else given))
            assert KEY not in done.stdout + done.stderr, command
            assert done.returncode == (0 if command[0] == "config" else 2), (command, done.stderr)
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]


def test_an_answer_ends_the_pause_after_the_day_s_limit(nts: FakeNts, run: Run) -> None:
    key, day = account_of(NtsKey(NTS_KEY)), seoul_day()
    with StatusStore() as store:
        store.write(usage={(key, day): DayUsage(exhausted=True)})
        nts.faults.add(Fault("status", NTS_FAULTS["day_limit"]))
        assert look(run)[0]["tax authority"] == ["warning"]
        assert (nts.calls, store.usage(key, day).exhausted) == (1, True)
        nts.faults.clear()
        assert look(run)[0]["tax authority"] == ["ok"]
        assert not store.usage(key, day).exhausted


def test_reference_data_is_opened_and_its_age_told(run: Run, tmp_path: Path) -> None:
    write(tmp_path / "s.csv", "사업자번호,상태\n1248100998,계속사업자\n")
    found = {}
    for day in ("2024-01-01", date.today().isoformat()):
        assert run("data", "build-registry", "s.csv", "-o", "r.parquet", "--as-of", day).returncode == 0
        levels, said = look(run, "--registry", "r.parquet")
        found[day] = (levels["registry"], day in said["registry"], "refresh-registry" in said["registry"])
    assert [*found.values()] == [(["warning"], True, True), (["ok"], True, False)]
    levels, said = look(run, "--registry", "s.csv", "--gazetteer", "r.parquet", code=2)
    assert levels["registry"] == levels["gazetteer"] == ["error"]
    assert "build-registry" in said["registry"]


@pytest.mark.usefixtures("url")
def test_unsettled_lookups_are_told_and_a_ledger_in_use_left(service: FakeService, run: Run, tmp_path: Path) -> None:
    customers(tmp_path / "in.csv", 4)
    service.faults.add(Fault("verify", Reset("after"), at=2))
    assert run("enrich", "in.csv", "--engine", "verify").returncode == 3
    levels, said = look(run, "--offline")
    assert (levels["ledger"], "bansong resolve" in said["ledger"]) == (["ok", "warning"], True)
    with Ledger.open() as ledger:
        levels, said = look(run, "--offline")
        assert (levels["ledger"], "in use" in said["ledger"]) == (["ok"], True)
    ledger.path.write_bytes(b"no ledger" * 100)
    assert look(run, "--offline", code=2)[0]["ledger"] == ["error"]


@pytest.mark.skipif(sys.platform == "win32", reason="modes are of other systems")
def test_a_state_directory_that_others_can_read_or_nobody_can_use_is_told(
    run: Run, state_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for mode, found in ((0o755, ["ok", "warning"]), (0o700, ["ok"])):
        state_directory.chmod(mode)
        assert look(run)[0]["state directory"] == found
    monkeypatch.setenv("BANSONG_STATE_DIR", str(write(tmp_path / "file", "") / "below"))
    assert look(run, code=2)[0]["state directory"] == ["error"]
    monkeypatch.setenv("BANSONG_STATE_DIR", str(tmp_path / ("a" * 300)))
    levels, said = look(run, "--offline", code=2)
    assert (levels["scorecard"], levels["registry"]) == (["error"], ["note"])  # other checks go on
    assert "File name too long" in said["scorecard"]


def test_keys_are_never_shown(
    service: FakeService, url: str, nts: FakeNts, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = [run("doctor"), run("doctor", "--json")]
    for wrong in ("bv_live_wrong_0123456789", "no key\nat all"):
        monkeypatch.setenv("BANSONG_API_KEY", wrong)
        monkeypatch.setenv("BANSONG_NTS_KEY", wrong)
        done.append(run("doctor", env={"BANSONG_LOG": "debug"}))
        assert done[-1].returncode == 2
    for one in done:
        for secret in (KEY, NTS_KEY, "bv_live_wrong", "no key"):
            assert secret not in one.stdout + one.stderr


def test_a_defect_is_a_finding_without_the_words_of_others(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: object) -> None:
        raise RuntimeError(NTS_KEY)

    monkeypatch.setenv("BANSONG_NTS_KEY", NTS_KEY)
    monkeypatch.setattr("bansong.reference.nts.NtsClient.__aenter__", fail)
    diagnosis = diagnose(DoctorOptions())
    assert diagnosis.exit_code == 2
    assert NTS_KEY not in str(diagnosis)
    assert [one.level for one in diagnosis.findings if one.what.startswith("tax authority")] == ["ok", "error"]


def test_replies_that_never_end_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 999\r\n\r\n"

    class Drip(BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):
                self.request.recv(4096)
                self.request.sendall(head)
                while self.request.send(b" "):
                    time.sleep(0.05)

    with ThreadingTCPServer(("127.0.0.1", 0), Drip) as listener:
        listener.daemon_threads, listener.block_on_close = True, False
        Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        url = f"http://127.0.0.1:{listener.server_address[1]}"
        for name, value in {"BASE_URL": url, "API_KEY": KEY, "NTS_URL": url, "NTS_KEY": NTS_KEY}.items():
            monkeypatch.setenv(f"BANSONG_{name}", value)
        found = diagnose(DoctorOptions(timeout=0.3)).findings
        listener.shutdown()
    levels = {one.what: one.level for one in found if "no whole answer within 0.45 s" in one.said}
    assert levels == {"service": "error", "tax authority": "warning"}
