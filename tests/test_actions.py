"""What the reader is told to do: `send` only where a status was checked and is fresh; the report says which were."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import msgspec
import polars as pl
import pytest

import bansong as bs
from bansong.base.schema import Alert
from bansong.engine.risk.reasons import parse_reasons
from bansong.engine.risk.scorecard import Learned, Scorecard
from bansong.errors import ModelError
from bansong.history.scorecards import ModelStore
from bansong.testing import FakeService, Fault, Status, serve
from conftest import SAMPLE, write

AS_OF = date(2026, 10, 31)
ADDRESS = "서울특별시 종로구 종로 1"
Run = Callable[..., subprocess.CompletedProcess[str]]
KEY = "bv_live_0123456789abcdef"


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("registry")
    rows = [
        "1248100998,계속사업자,",
        "2208162517,폐업자,2026-09-30",
        "1018109147,휴업자,",
        "1078614075,폐업자,2020-01-01",
    ]
    source = write(folder / "statuses.csv", "b_no,상태,폐업일\n" + "\n".join(rows) + "\n")
    bs.build_registry([source], folder / "registry.parquet", as_of=AS_OF)
    return folder / "registry.parquet"


def ask(b_no: str, registry: Path | None, days: int = 10, **record: str | None) -> bs.Verification:
    record = {"name": "가나다", "address": ADDRESS} | record
    return bs.verify(b_no, registry=registry, today=AS_OF + timedelta(days=days), **record)


# ── a status that nobody checked ─────────────────────────────────────────────────────────────────────────────────


def test_without_a_registry_no_row_of_the_sample_is_sent(tmp_path: Path) -> None:
    """Nobody has checked the statuses, so the best action is `confirm`, and the first reason says why."""
    report = bs.enrich(SAMPLE / "customers.csv", tmp_path / "out.parquet")
    found = pl.read_parquet(tmp_path / "out.parquet")
    assert report.exit_code == 0
    assert "send" not in set(found["action"])
    confirmed = found.filter(pl.col("action") == "confirm", pl.col("grade").is_in(["A", "B"]))
    assert confirmed.height > 200
    assert confirmed["reasons"].list.first().str.starts_with("[status +0] status not checked").all()


@pytest.mark.parametrize("lang", ["en", "ko"])
def test_a_number_that_is_in_no_source_is_confirmed_first(registry: Path, lang: bs.model.Lang) -> None:
    """A number that the registry does not know was not checked either; the points stay, the action is `confirm`."""
    one = bs.verify("6038129936", "가나다", ADDRESS, registry=registry, lang=lang)
    assert (one.biz_status, one.grade, one.action) == ("unknown", "A", "confirm")
    assert one.reasons[0].startswith("[status +0]")
    assert one.reasons[-1].startswith("[base -50]")


def test_the_report_begins_with_the_statuses_and_what_mends_them(run: Run, tmp_path: Path) -> None:
    """The first line names the count and the command; so does the report object, and `--json`."""
    done = run("enrich", SAMPLE / "customers.csv", "-o", tmp_path / "out.csv", "--progress", "none")
    first = done.stderr.splitlines()[0]
    assert re.match(r"ATTENTION: 0 of 280 statuses checked, .*--status nts and a free key", first)
    assert re.search(r"`bansong data build-registry .*--registry", first)
    assert "statuses checked" not in "".join(done.stderr.splitlines()[1:])
    report = bs.enrich(SAMPLE / "customers.csv", tmp_path / "out.csv")
    assert str(report).startswith("statuses        0 of 280 statuses checked")
    assert report.as_dict()["statuses"] == {
        "rows": 280,
        "checked": 0,
        "stale": 0,
        "stale_after": 90,
        "registry": None,
        "bought": False,
        "nts": None,
        "sends": 0,
    }
    assert isinstance(report.warnings[0], Alert)


def test_with_a_registry_the_first_line_says_how_many_were_checked(tmp_path: Path) -> None:
    """Numbers that are not in it are counted; there is nothing to be alarmed about."""
    day = date(2026, 11, 20)
    report = bs.enrich(SAMPLE / "customers.csv", tmp_path / "out.csv", registry=SAMPLE / "registry.parquet", today=day)
    assert re.match(r"249 of 280 statuses checked \(registry 2026-.*\); 31 numbers not in", report.lines()[0][1])
    assert not [one for one in report.warnings if isinstance(one, Alert) and "gazetteer" not in one]


def test_a_plan_says_that_no_status_will_be_checked() -> None:
    """Before a run nothing is counted yet, but the missing registry is said, with its remedy."""
    report = bs.plan(SAMPLE / "customers.csv")
    assert report.statuses is None
    assert any(re.search(r"no row will say `send`.*build-registry", one) for one in report.warnings)


def test_a_frame_that_nobody_checked_is_a_python_warning() -> None:
    """In a notebook there is no report: the sentence is a warning, once a call."""
    frame = pl.DataFrame({"사업자번호": ["1248100998", "2208162517"], "상호": ["가", "나"], "주소": [ADDRESS, ADDRESS]})
    with pytest.warns(UserWarning, match="0 of 2 statuses checked") as caught:
        bs.verify_frame(frame)
    assert len(caught) == 1


def test_without_an_address_nothing_claims_that_a_status_was_verified(tmp_path: Path) -> None:
    """The note on the missing address speaks of the risk alone."""
    report = bs.enrich(write(tmp_path / "n.csv", "사업자번호\n1248100998\n"), tmp_path / "o.csv")
    assert not any("is verified" in warning for warning in report.warnings)
    assert any("no bounce risk is given" in warning for warning in report.warnings)


# ── a status has an age ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_status_says_its_source_and_its_day(registry: Path) -> None:
    """The day on which it was known stands behind the source, of whatever status."""
    assert "[status -3] business active (registry, 2026-10-31)" in ask("1248100998", registry).reasons
    assert "[status +30] business suspended (registry, 2026-10-31)" in ask("1018109147", registry).reasons


@pytest.mark.parametrize(("days", "points", "action"), [(90, -3, "send"), (91, 0, "confirm"), (400, 0, "confirm")])
def test_an_active_status_is_a_ground_for_sending_for_90_days(
    registry: Path, days: int, points: int, action: str
) -> None:
    """After `stale_after` days it earns no negative points and no `send`, and the first reason says so."""
    one = ask("1248100998", registry, days)
    assert (one.biz_status, one.action) == ("active", action)
    status = next(reason for reason in one.reasons if reason.startswith("[status"))
    assert status.startswith(f"[status {points:+d}]")
    assert action == "send" or one.reasons[0] == status


def test_another_status_that_is_too_old_is_no_ground_for_sending(registry: Path) -> None:
    """A suspended business with a good history may be sent a letter, but not when its status is a year old."""
    card = Scorecard.load()
    status = card.features["status"] | {
        "suspended": msgspec.structs.replace(card.features["status"]["suspended"], points=1)
    }
    mild = msgspec.structs.replace(card, version="mild", features=card.features | {"status": status})
    actions = [
        bs.verify(
            "1018109147", "가나다", ADDRESS, registry=registry, model=mild, today=AS_OF + timedelta(days=days)
        ).action
        for days in (10, 365)
    ]
    assert actions == ["send", "confirm"]


def test_the_report_says_that_the_statuses_are_too_old(registry: Path, tmp_path: Path) -> None:
    """A registry of last year is told at the top, with the way to a newer one."""
    source = write(tmp_path / "s.csv", f"사업자번호,상호,주소\n1248100998,가,{ADDRESS}\n1018109147,나,{ADDRESS}\n")
    report = bs.enrich(source, tmp_path / "o.csv", registry=registry, today=date(2027, 6, 1))
    assert (report.statuses.checked, report.statuses.stale) == (2, 2)
    assert re.search(r"2 of them more than 90 days ago.*newer lists", report.warnings[0])


def test_a_scorecard_may_set_another_number_of_days(registry: Path, tmp_path: Path) -> None:
    """`stale_after` stands in the scorecard's file; what is no number of days is refused by name."""
    card = msgspec.structs.replace(Scorecard.load(), version="week", stale_after=7)
    own = write(tmp_path / "week.toml", card.to_toml())
    assert (
        bs.verify("1248100998", "가", ADDRESS, registry=registry, model=own, today=date(2026, 11, 7)).action == "send"
    )
    assert (
        bs.verify("1248100998", "가", ADDRESS, registry=registry, model=own, today=date(2026, 11, 8)).action
        == "confirm"
    )
    bad = write(tmp_path / "bad.toml", card.to_toml().replace("stale_after = 7", "stale_after = 0"))
    with pytest.raises(ModelError, match="stale_after = 0 does not fit"):
        Scorecard.load(bad)


# ── a closed business ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("address", [None, "", "서울특별시 강남구 역삼로 *** *층"])
@pytest.mark.parametrize("b_no", ["2208162517", "1078614075"])
def test_a_closed_business_without_an_address_is_not_one_to_repair(
    registry: Path, b_no: str, address: str | None
) -> None:
    """A better address would not open it again."""
    assert ask(b_no, registry, address=address).action == "do_not_send"


@pytest.mark.parametrize("address", ["서울특별시 종로구", "서울특별시 종로구 없는길 1"])
def test_a_closed_business_is_held_whatever_its_address(registry: Path, address: str) -> None:
    """Where the address weighs most the action is still not to repair it."""
    card = Scorecard.load()
    levels = {
        name: msgspec.structs.replace(level, points=min(level.points, 2))
        for name, level in card.features["status"].items()
    }
    mild = msgspec.structs.replace(card, version="mild", features=card.features | {"status": levels})
    one = bs.verify("2208162517", "가", address, registry=registry, model=mild, today=AS_OF)
    assert one.action in ("hold", "do_not_send")


def test_with_the_number_alone_a_closed_business_gets_no_action(registry: Path) -> None:
    """Risk was not asked about: the status and its reason are all."""
    one = bs.verify("2208162517", registry=registry, today=AS_OF)
    assert (one.biz_status, one.action) == ("closed", None)


# ── scorecards and reasons of earlier releases ───────────────────────────────────────────────────────────────────


def earlier_card(version: str) -> Scorecard:
    """A scorecard as a release before this one has learned it: without the levels that came since."""
    card = Scorecard.load()
    features = {name: dict(levels) for name, levels in card.features.items() if name != "status_age"}
    del features["status"]["active_stale"]
    learned = Learned(card.version, datetime(2026, 11, 1, tzinfo=UTC), 1600, 52, 24.5, 0.004)
    return msgspec.structs.replace(card, version=version, features=features, learned=learned)


def test_a_scorecard_learned_by_an_earlier_release_keeps_the_rules(registry: Path) -> None:
    """What decides on `send` is no matter of the file: a champion without the new levels obeys as well."""
    text = earlier_card("2026.11.3+1").to_toml().replace("stale_after = 90\n", "")
    assert "stale_after" not in text
    assert "active_stale" not in text
    store = ModelStore()
    store.promote(msgspec.convert(msgspec.toml.decode(text), Scorecard), {})
    assert bs.verify("6038129936", "가", ADDRESS, registry=registry, today=AS_OF).action == "confirm"
    assert ask("1248100998", registry, days=91).action == "confirm"
    assert ask("1248100998", registry, days=90).action == "send"
    assert ask("2208162517", registry, address=None).action == "do_not_send"


def test_reasons_of_the_release_before_are_still_read() -> None:
    """They begin with the base, and their statuses have no day."""
    text = (
        "[status +66] closed more than 12 months ago (2024-05-21) (registry) | [base -50] where an ordinary business "
        "letter starts (model) | [kind -3] a company by its number (number)"
    )
    korean = "[base -50] 일반 사업자 우편의 출발점 (model) | [status -3] 계속사업자 (registry)"
    read = parse_reasons(pl.LazyFrame({"reasons": [text, korean]}), "reasons").collect()
    assert read["score"].to_list() == [13, -53]
    assert read["level:status"].to_list() == ["closed_over_12_months", "active"]
    assert read["unread"].to_list() == [False, False]


# ── most rows are of no use ──────────────────────────────────────────────────────────────────────────────────────


def test_a_list_that_is_mostly_invalid_is_said_at_the_top_with_its_likely_cause(run: Run, tmp_path: Path) -> None:
    """A column that a spreadsheet rounded: the file is written all the same, and the exit code is 3."""
    rows = "\n".join(f"1.248E+09,상사 {i},{ADDRESS}" for i in range(6))
    source = write(tmp_path / "s.csv", f"사업자번호,상호,주소\n{rows}\n1248100998,가,{ADDRESS}\n")
    done = run("enrich", source, "--progress", "none")
    assert done.returncode == 3
    assert re.match(r"ATTENTION: 6 of 7 rows invalid, .*scientific.*'사업자번호'.* as text", done.stderr)
    assert (tmp_path / "s.enriched.csv").exists()


def test_half_of_the_rows_invalid_is_still_a_list(tmp_path: Path) -> None:
    """More than half is alarming; exactly half is not."""
    source = write(tmp_path / "s.csv", f"사업자번호,상호,주소\n1.2E+09,나,{ADDRESS}\n1248100998,가,{ADDRESS}\n")
    report = bs.enrich(source, tmp_path / "o.csv", registry=SAMPLE / "registry.parquet")
    assert report.exit_code == 0
    assert not any("rows invalid" in warning for warning in report.warnings)


def test_rows_that_mostly_fail_in_one_way_are_said_at_the_top(tmp_path: Path) -> None:
    """The note that most of them bear is the likely cause."""
    service = FakeService(KEY, quota=1_000)
    service.faults.add(Fault("verify", Status(400)))
    rows = "\n".join(f"{n},상사,{ADDRESS}" for n in ("1248100998", "2208162517", "1018109147"))
    source = write(tmp_path / "s.csv", f"사업자번호,상호,주소\n{rows}\n")
    with serve(service) as url:
        report = bs.enrich(source, tmp_path / "o.csv", engine="verify", base_url=url, api_key=bs.ApiKey(KEY))
    assert report.counts["failed"] == 3
    assert report.exit_code == 3
    assert re.match(r"3 of 3 rows failed, most of them so: the service refused it", report.warnings[0])
    assert isinstance(report.warnings[0], Alert)


# ── no way around the day of a status ────────────────────────────────────────────────────────────────────────────


def listed(folder: Path, *numbers: str) -> Path:
    rows = "".join(f"{n},상사 {i},{ADDRESS}\n" for i, n in enumerate(numbers))
    return write(folder / "list.csv", f"사업자번호,상호,주소\n{rows}")


@pytest.mark.parametrize("extension", ["csv", "json"])
def test_an_enriched_file_does_not_make_old_statuses_new(registry: Path, tmp_path: Path, extension: str) -> None:
    """A registry that is built from it has the day that stands in its reasons, and not the day of the file."""
    bs.enrich(listed(tmp_path, "1248100998"), tmp_path / f"old.{extension}", registry=registry, today=date(2027, 9, 1))
    report = bs.build_registry([tmp_path / f"old.{extension}"], tmp_path / "again.parquet")
    assert (report.newest, report.undated) == (AS_OF, 0)
    assert ask("1248100998", tmp_path / "again.parquet", days=300).action == "confirm"


def test_a_status_whose_day_nobody_tells_is_no_ground_for_sending(tmp_path: Path) -> None:
    """Reasons of an earlier release have no day: such statuses are counted, and `as_of` tells the day where known."""
    nine = f"active,0.02,A,send,,,{'[status -3] business active (registry)'},verified,"
    names = "biz_status,bounce_prob,grade,action,fixed_zipcode,fixed_address,reasons,row_status,row_note"
    source = write(tmp_path / "e.csv", f"사업자번호,상호,{names}\n1248100998,가,{nine}\n")
    report = bs.build_registry([source], tmp_path / "r.parquet")
    assert (report.newest, report.undated) == (None, 1)
    assert "as_of" in str(report)
    assert ask("1248100998", tmp_path / "r.parquet").action == "confirm"
    bs.build_registry([source], tmp_path / "r.parquet", as_of=AS_OF)
    assert ask("1248100998", tmp_path / "r.parquet").action == "send"


def test_a_day_to_come_is_no_day_of_a_status(tmp_path: Path) -> None:
    """A slip of the year in a list must not make its statuses good for decades."""
    source = write(tmp_path / "s.csv", "b_no,상태,기준일자\n1248100998,계속사업자,2062-01-01\n")
    report = bs.build_registry([source], tmp_path / "r.parquet")
    assert (report.newest, report.undated) == (None, 1)
    assert ask("1248100998", tmp_path / "r.parquet").action == "confirm"


def test_a_plan_says_that_the_registry_is_too_old(registry: Path, tmp_path: Path) -> None:
    """Before the run, too: the newest status tells that no row will be sent."""
    report = bs.plan(listed(tmp_path, "1248100998"), registry=registry, today=date(2027, 9, 1))
    alert = next(one for one in report.warnings if re.search("newest status is of 2026-10-31, more than 90 days", one))
    assert isinstance(alert, Alert)


def test_a_hybrid_run_says_which_statuses_are_too_old(registry: Path, tmp_path: Path) -> None:
    """Of the local answers that stand; where the service has answered, its answer is new."""
    service = FakeService(KEY, quota=1_000)
    source = listed(tmp_path, "1248100998", "1018109147", "6038129936")
    options = {"registry": registry, "today": date(2027, 9, 1), "api_key": bs.ApiKey(KEY)}
    with serve(service) as url:
        report = bs.enrich(source, tmp_path / "o.csv", engine="hybrid", base_url=url, band=(0.9, 0.95), **options)
    assert (report.statuses.rows, report.statuses.checked, report.statuses.stale) == (3, 3, 2)
    assert "2 of them more than 90 days ago" in report.warnings[0]


def test_what_the_service_lets_go_without_a_checked_status_is_said(tmp_path: Path) -> None:
    """What was bought is stored as received; that it says `send` of a closed business is an alert with its count."""
    service = FakeService(KEY, quota=1_000)
    service.verdict = lambda *_: bought("폐업자", "send")  # type: ignore[method-assign]
    source = listed(tmp_path, "1248100998", "1018109147")
    with serve(service) as url:
        report = bs.enrich(source, tmp_path / "o.csv", engine="verify", base_url=url, api_key=bs.ApiKey(KEY))
    assert report.counts["verified"] == 2
    assert report.warnings[0].startswith("2 rows with the action `send` of the service")


def bought(status: str, action: str) -> dict[str, object]:
    return {
        "biz_status": status,
        "bounce_prob": 0.02,
        "grade": "A",
        "action": action,
        "fixed_zipcode": None,
        "fixed_address": None,
        "reasons": ["[base -50] a letter (model)"],
    }
