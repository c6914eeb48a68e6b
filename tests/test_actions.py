"""What the reader is told to do: `send` only where a status was checked and is fresh; the report says which were."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest

import bansong as bs
from bansong.base.schema import Alert
from bansong.engine.risk.scorecard import Learned, Level, Scorecard
from bansong.history.scorecards import ModelStore
from bansong.testing import FakeService, Fault, Status, serve
from conftest import NINE, SAMPLE, write
from customers import KEY

AS_OF = date(2026, 10, 31)
ADDRESS = "서울특별시 종로구 종로 1"
Run = Callable[..., subprocess.CompletedProcess[str]]
ACTIVE, SUSPENDED, CLOSED, CLOSED_LONG_AGO, UNKNOWN = NUMBERS = (
    *("1248100998", "1018109147", "2208162517", "1078614075", "6038129936"),
)


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("registry")
    rows = (
        f"{ACTIVE},계속사업자,\n{CLOSED},폐업자,2026-09-30\n{SUSPENDED},휴업자,\n{CLOSED_LONG_AGO},폐업자,2020-01-01\n"
    )
    source = write(folder / "statuses.csv", f"b_no,상태,폐업일\n{rows}")
    bs.build_registry([source], folder / "registry.parquet", as_of=AS_OF)
    return folder / "registry.parquet"


def ask(b_no: str, registry: Path | None, days: int = 10, **options: Any) -> bs.Verification:
    options = {"name": "가나다", "address": ADDRESS} | options
    return bs.verify(b_no, registry=registry, today=AS_OF + timedelta(days=days), **options)


def listed(folder: Path, *numbers: str) -> Path:
    rows = "".join(f"{n},상사 {i},{ADDRESS}\n" for i, n in enumerate(numbers))
    return write(folder / "list.csv", f"사업자번호,상호,주소\n{rows}")


def mild(features: dict[str, dict[str, Level]]) -> Scorecard:
    card = Scorecard.load()
    return msgspec.structs.replace(card, version="mild", features=card.features | features)


def test_without_a_registry_nothing_is_sent_and_the_report_begins_with_it(tmp_path: Path) -> None:
    report = bs.enrich(SAMPLE / "customers.csv", tmp_path / "out.parquet")
    found = pl.read_parquet(tmp_path / "out.parquet")
    assert report.exit_code == 0
    assert "send" not in set(found["action"])
    confirmed = found.filter(pl.col("action") == "confirm", pl.col("grade").is_in(["A", "B"]))
    assert confirmed.height > 200
    assert confirmed["reasons"].list.first().str.starts_with("[status +0] status not checked").all()
    assert str(report).startswith("statuses        0 of 280 statuses checked")
    counts = {"rows": 280, "checked": 0, "stale": 0, "stale_after": 90, "registry": None}
    assert report.as_dict()["statuses"] == counts | {"bought": False, "nts": None, "sends": 0}
    assert isinstance(report.warnings[0], Alert)


def test_a_plan_says_what_keeps_its_rows_from_being_sent(registry: Path, tmp_path: Path) -> None:
    source = listed(tmp_path, ACTIVE)
    none, old = bs.plan(source), bs.plan(source, registry=registry, today=date(2027, 9, 1))
    assert none.statuses is None
    for plan, said in ((none, r"no row will say `send`.*build-registry"), (old, r"of 2026-10-31, more than 90 days")):
        assert any(re.search(said, one) for one in plan.warnings if isinstance(one, Alert))


def test_a_frame_that_nobody_checked_is_a_python_warning() -> None:
    frame = pl.DataFrame({"사업자번호": ["1248100998", "2208162517"], "상호": ["가", "나"], "주소": [ADDRESS, ADDRESS]})
    with pytest.warns(UserWarning, match="0 of 2 statuses checked") as caught:
        bs.verify_frame(frame)
    assert len(caught) == 1


def test_an_active_status_is_a_ground_for_sending_for_90_days(registry: Path) -> None:
    """Then it earns no points and no `send`, and is the first reason; a number in no source was never checked."""
    for days, points, action in ((90, -3, "send"), (91, 0, "confirm"), (400, 0, "confirm")):
        one = ask(ACTIVE, registry, days)
        status = next(reason for reason in one.reasons if reason.startswith("[status"))
        assert (one.biz_status, one.action, status.partition("]")[0]) == ("active", action, f"[status {points:+d}")
        assert action == "send" or one.reasons[0] == status
    for number, said in ((ACTIVE, "[status -3] business active"), (SUSPENDED, "[status +30] business suspended")):
        assert f"{said} (registry, 2026-10-31)" in ask(number, registry).reasons
    for lang in ("en", "ko"):
        one = ask(UNKNOWN, registry, lang=lang)
        assert (one.biz_status, one.grade, one.action) == ("unknown", "A", "confirm")
        assert (one.reasons[0][:11], one.reasons[-1][:10]) == ("[status +0]", "[base -50]")


def test_another_status_that_is_too_old_is_no_ground_and_a_card_may_set_the_days(registry: Path) -> None:
    status = Scorecard.load().features["status"]
    card = mild({"status": status | {"suspended": msgspec.structs.replace(status["suspended"], points=1)}})
    assert [ask(SUSPENDED, registry, days, model=card).action for days in (10, 365)] == ["send", "confirm"]
    week = msgspec.structs.replace(Scorecard.load(), version="week", stale_after=7)
    assert [ask(ACTIVE, registry, days, model=week).action for days in (7, 8)] == ["send", "confirm"]


def test_the_report_says_how_many_statuses_were_checked_and_are_too_old(registry: Path, tmp_path: Path) -> None:
    """A hybrid run says it of the local answers that stand: the service's are new."""
    source = listed(tmp_path, *NUMBERS)
    fresh = bs.enrich(source, tmp_path / "out.csv", registry=registry, today=AS_OF)
    assert re.match(r"4 of 5 statuses checked \(registry 2026-.*\); 1 number not in", fresh.lines()[0][1])
    assert not [one for one in fresh.warnings if isinstance(one, Alert) and "gazetteer" not in one]
    old: dict[str, Any] = {"registry": registry, "today": date(2027, 9, 1)}
    local = bs.enrich(listed(tmp_path, ACTIVE, SUSPENDED), tmp_path / "o.csv", **old)
    hybrid = asked(
        FakeService(KEY), listed(tmp_path, ACTIVE, SUSPENDED, UNKNOWN), engine="hybrid", band=(0.9, 0.95), **old
    )
    for report, checked in ((local, 2), (hybrid, 3)):
        assert (report.statuses.checked, report.statuses.stale) == (checked, 2)
        assert re.search(r"2 of them more than 90 days ago.*newer lists", report.warnings[0])


def test_a_closed_business_is_never_one_to_repair(registry: Path) -> None:
    for b_no in (CLOSED, CLOSED_LONG_AGO):
        for address in (None, "", "서울특별시 강남구 역삼로 *** *층"):
            assert ask(b_no, registry, address=address).action == "do_not_send"
        alone = bs.verify(b_no, registry=registry, today=AS_OF)
        assert (alone.biz_status, alone.action) == ("closed", None)


def test_a_closed_business_is_held_where_its_address_weighs_most(registry: Path) -> None:
    levels = Scorecard.load().features["status"].items()
    low = {name: msgspec.structs.replace(level, points=min(level.points, 2)) for name, level in levels}
    for address in ("서울특별시 종로구", "서울특별시 종로구 없는길 1"):
        one = ask(CLOSED, registry, 0, address=address, model=mild({"status": low}))
        assert one.action in ("hold", "do_not_send")


def test_a_scorecard_learned_by_an_earlier_release_keeps_the_rules(registry: Path) -> None:
    """Its file has neither the age of a status nor the days after which one is stale."""
    card = Scorecard.load()
    features = {name: dict(levels) for name, levels in card.features.items() if name != "status_age"}
    del features["status"]["active_stale"]
    learned = Learned(card.version, datetime(2026, 11, 1, tzinfo=UTC), 1600, 52, 24.5, 0.004)
    earlier = msgspec.structs.replace(card, version="2026.11.3+1", features=features, learned=learned)
    text = earlier.to_toml().replace("stale_after = 90\n", "")
    ModelStore().promote(msgspec.convert(msgspec.toml.decode(text), Scorecard), {})
    assert [ask(number, registry, days).action for number, days in ((UNKNOWN, 10), (ACTIVE, 90), (ACTIVE, 91))] == [
        *("confirm", "send", "confirm"),
    ]
    assert ask(CLOSED, registry, address=None).action == "do_not_send"


def test_a_list_that_is_mostly_invalid_is_said_at_the_top_with_its_likely_cause(run: Run, tmp_path: Path) -> None:
    """The file is written all the same, and the exit code is 3; exactly half is still a list."""
    source = listed(tmp_path, *["1.248E+09"] * 6, ACTIVE)
    done = run("enrich", source, "--progress", "none")
    assert (done.returncode, (tmp_path / "list.enriched.csv").exists()) == (3, True)
    assert re.match(r"ATTENTION: 6 of 7 rows invalid, .*scientific.*'사업자번호'.* as text", done.stderr)
    report = bs.enrich(listed(tmp_path, "1.2E+09", ACTIVE), tmp_path / "o.csv")
    assert report.exit_code == 0
    assert not any("rows invalid" in warning for warning in report.warnings)


def test_a_cause_is_named_only_if_most_of_the_invalid_rows_have_it(tmp_path: Path) -> None:
    report = bs.enrich(listed(tmp_path, "", "1.2E+09", "12481009", "02-345-6789", ACTIVE), tmp_path / "o.csv")
    said = "4 of 5 rows invalid, for several reasons, in the column '사업자번호': another column holds the numbers, or"
    assert report.warnings[0].startswith(said)
    assert f"\n⚠ {report.warnings[0]}" in str(report)


def asked(service: FakeService, source: Path, **options: Any) -> bs.Report:
    with serve(service) as url:
        return bs.enrich(source, source.with_name("o.csv"), base_url=url, api_key=bs.ApiKey(KEY), **options)


def test_rows_that_mostly_fail_in_one_way_are_said_at_the_top(tmp_path: Path) -> None:
    service = FakeService(KEY)
    service.faults.add(Fault("verify", Status(400)))
    report = asked(service, listed(tmp_path, ACTIVE, CLOSED, SUSPENDED), engine="verify")
    assert (report.counts["failed"], report.exit_code) == (3, 3)
    assert re.match(r"3 of 3 rows failed, most of them so: the service refused it", report.warnings[0])
    assert isinstance(report.warnings[0], Alert)


def test_an_enriched_file_does_not_make_old_statuses_new(registry: Path, tmp_path: Path) -> None:
    """A registry that is built from it has the day that stands in its reasons, and not the day of the file."""
    bs.enrich(listed(tmp_path, ACTIVE), tmp_path / "old.csv", registry=registry, today=date(2027, 9, 1))
    report = bs.build_registry([tmp_path / "old.csv"], tmp_path / "again.parquet")
    assert (report.newest, report.undated) == (AS_OF, 0)
    assert ask(ACTIVE, tmp_path / "again.parquet", days=300).action == "confirm"


def test_a_status_without_a_day_or_with_one_to_come_is_no_ground_for_sending(tmp_path: Path) -> None:
    """Reasons of an earlier release have no day; a slip of the year must not make statuses good for decades."""
    nine = "active,0.02,A,send,,,[status -3] business active (registry),verified,"
    undated = write(tmp_path / "e.csv", f"사업자번호,상호,{','.join(NINE)}\n{ACTIVE},가,{nine}\n")
    to_come = write(tmp_path / "s.csv", f"b_no,상태,기준일자\n{ACTIVE},계속사업자,2062-01-01\n")
    for source in (undated, to_come):
        report = bs.build_registry([source], tmp_path / "r.parquet")
        assert (report.newest, report.undated) == (None, 1)
        assert "as_of" in str(report)
        assert ask(ACTIVE, tmp_path / "r.parquet").action == "confirm"
    bs.build_registry([undated], tmp_path / "r.parquet", as_of=AS_OF)
    assert ask(ACTIVE, tmp_path / "r.parquet").action == "send"


def test_what_the_service_lets_go_without_a_checked_status_is_said(tmp_path: Path) -> None:
    """What was bought is stored as received; `send` of a closed business is an alert with its count."""
    service = FakeService(KEY)
    answer = {"biz_status": "폐업자", "bounce_prob": 0.02, "grade": "A", "action": "send", "reasons": []}
    service.verdict = lambda *_: answer | {"fixed_zipcode": None, "fixed_address": None}  # type: ignore[method-assign]
    report = asked(service, listed(tmp_path, ACTIVE, SUSPENDED), engine="verify")
    assert report.counts["verified"] == 2
    assert report.warnings[0].startswith("2 rows with the action `send` of the service")
