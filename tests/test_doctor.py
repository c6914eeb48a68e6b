"""The doctor: what is missing, old or broken is found, each with its remedy; keys are never shown."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import date
from pathlib import Path
from threading import Thread
from typing import Any

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


def findings(run: Run, *arguments: object, code: int = 0) -> dict[str, list[dict[str, Any]]]:
    done = run("doctor", "--json", *arguments)
    assert done.returncode == code, done.stdout + done.stderr
    found: dict[str, list[dict[str, Any]]] = {}
    for finding in json.loads(done.stdout)["findings"]:
        found.setdefault(finding["what"], []).append(finding)
    return found


def levels(found: dict[str, list[dict[str, Any]]], what: str) -> list[str]:
    return [finding["level"] for finding in found[what]]


def test_an_answer_ends_the_pause_after_the_day_s_limit(service: FakeService, url: str, nts: FakeNts, run: Run) -> None:
    key, day = account_of(NtsKey(NTS_KEY)), seoul_day()
    with StatusStore() as store:
        store.write(usage={(key, day): DayUsage(exhausted=True)})
        nts.faults.add(Fault("status", NTS_FAULTS["day_limit"]))
        assert levels(findings(run), "tax authority") == ["warning"]
        assert (nts.calls, store.usage(key, day).exhausted) == (1, True)
        nts.faults.clear()
        assert levels(findings(run), "tax authority") == ["ok"]
        assert not store.usage(key, day).exhausted


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


def test_a_refused_key_breaks_a_run_and_an_outage_of_the_tax_authority_does_not(
    service: FakeService, url: str, nts: FakeNts, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    nts.faults.add(Fault("status", Status(503)))
    found = findings(run)
    assert levels(found, "tax authority") == ["warning"]
    assert "stored" in found["tax authority"][0]["remedy"]
    monkeypatch.setenv("BANSONG_API_KEY", "bv_live_wrong_0123456789")
    found = findings(run, code=2)
    assert levels(found, "service") == ["error"]
    monkeypatch.delenv("BANSONG_BASE_URL")
    assert levels(findings(run), "service") == ["warning"]


def test_reference_data_is_opened_and_its_age_told(run: Run, tmp_path: Path) -> None:
    write(tmp_path / "s.csv", "사업자번호,상태\n1248100998,계속사업자\n")
    for name, day in (("old", "2024-01-01"), ("new", date.today().isoformat())):
        assert run("data", "build-registry", "s.csv", "-o", f"{name}.parquet", "--as-of", day).returncode == 0
    old = findings(run, "--registry", "old.parquet")
    assert levels(old, "registry") == ["warning"]
    assert "2024-01-01" in old["registry"][0]["said"]
    assert "refresh-registry" in old["registry"][0]["remedy"]
    assert levels(findings(run, "--registry", "new.parquet"), "registry") == ["ok"]
    broken = findings(run, "--registry", "s.csv", "--gazetteer", "new.parquet", code=2)
    assert levels(broken, "registry") == levels(broken, "gazetteer") == ["error"]
    assert "build-registry" in broken["registry"][0]["said"]


def test_unsettled_lookups_are_told_and_a_ledger_in_use_is_left_alone(
    service: FakeService, url: str, run: Run, tmp_path: Path
) -> None:
    customers(tmp_path / "in.csv", 4)
    service.faults.add(Fault("verify", Reset("after"), at=2))
    assert run("enrich", "in.csv", "--engine", "verify").returncode == 3
    found = findings(run, "--offline")
    assert levels(found, "ledger") == ["ok", "warning"]
    assert "bansong resolve" in found["ledger"][1]["remedy"]
    with Ledger.open() as ledger:
        found = findings(run, "--offline")
        assert levels(found, "ledger") == ["ok"]
        assert "in use" in found["ledger"][0]["said"]
        path = ledger.path
    path.write_bytes(b"no ledger" * 100)
    assert levels(findings(run, "--offline", code=2), "ledger") == ["error"]


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
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        Thread(target=_drip, args=[listener], daemon=True).start()
        for name, value in {"BASE_URL": url, "API_KEY": KEY, "NTS_URL": url, "NTS_KEY": NTS_KEY}.items():
            monkeypatch.setenv(f"BANSONG_{name}", value)
        found = diagnose(DoctorOptions(timeout=0.3)).findings
        levels = {one.what: one.level for one in found if "no whole answer within 0.45 s" in one.said}
    assert levels == {"service": "error", "tax authority": "warning"}


def _drip(listener: socket.socket) -> None:
    with suppress(OSError):
        while True:
            Thread(target=_drip_into, args=[listener.accept()[0]], daemon=True).start()


def _drip_into(connection: socket.socket) -> None:
    with connection, suppress(OSError):
        connection.recv(4096)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 999\r\n\r\n")
        while True:
            connection.sendall(b" ")
            time.sleep(0.05)


def test_a_new_user_is_told_what_to_set_up_and_nothing_is_broken(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    found = findings(run)
    for what in ("registry", "gazetteer", "API key", "tax authority's key"):
        assert found[what][0]["remedy"]
        assert levels(found, what) in (["note"], ["warning"])
    assert levels(found, "python") == levels(found, "polars") == levels(found, "SQLite") == ["ok"]
    assert {"service", "tax authority"}.isdisjoint(found)
    monkeypatch.setitem(EXTRAS, "learn", (("no_such_module",), "to learn"))
    (learn,) = findings(run)["extra learn"]
    assert (learn["level"], "pip install 'bansong[learn]'" in learn["remedy"]) == ("note", True)
    people = run("doctor")
    assert (people.returncode, "registry: give --registry" in people.stdout) == (0, True)


def test_services_are_asked_with_their_key_unless_offline(
    service: FakeService, url: str, nts: FakeNts, run: Run
) -> None:
    offline = findings(run, "--offline")
    assert levels(offline, "service") == levels(offline, "tax authority") == ["note"]
    assert levels(offline, "API key") == levels(offline, "tax authority's key") == ["ok"]
    assert (service.requests.total(), nts.calls) == (0, 0)
    found = findings(run)
    assert levels(found, "service") == levels(found, "tax authority") == ["ok"]
    assert "1,000 lookups left" in found["service"][0]["said"]
    assert (service.paid_total, nts.calls, nts.numbers) == (0, 1, 1)


@pytest.mark.skipif(sys.platform == "win32", reason="modes are of other systems")
def test_a_state_directory_that_others_can_read_or_nobody_can_use_is_told(
    run: Run, state_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for mode, found in ((0o755, ["ok", "warning"]), (0o700, ["ok"])):
        state_directory.chmod(mode)
        assert levels(findings(run), "state directory") == found
    monkeypatch.setenv("BANSONG_STATE_DIR", str(write(tmp_path / "file", "") / "below"))
    assert levels(findings(run, code=2), "state directory") == ["error"]
    monkeypatch.setenv("BANSONG_STATE_DIR", str(tmp_path / ("a" * 300)))
    told = findings(run, "--offline", code=2)
    assert (levels(told, "scorecard"), levels(told, "registry")) == (["error"], ["note"])  # other checks go on
    assert "File name too long" in told["scorecard"][0]["said"]
