"""Alerts and notes are data: whoever reads a report reads them in their language, with their names of options."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path

import pytest

import bansong as bs
from bansong.base.messages import Listed, Option, Phrase, use_audience, use_language
from bansong.base.schema import Alert
from bansong.cli.options import COMMAND_LINE
from bansong.engine.local import REGISTRY_MISSING
from bansong.engine.registry import REGISTRY_MISSING as NO_SUCH_REGISTRY
from bansong.errors import Notice, RegistryError
from bansong.run.accounting import GAZETTEER_MISSING
from bansong.run.report import Report

ROWS = Phrase("{count:,} row", "{count:,} rows", count=2000)
CHOICE = Listed([ROWS, Phrase("none"), Option("registry")], " or ")


@pytest.fixture(params=["a plan", "a run"])
def report(request: pytest.FixtureRequest, tmp_path: Path) -> Report:
    """A report that was made in English, for callers of the library."""
    path = tmp_path / "list.csv"
    path.write_text("사업자번호,상호,주소\n124-81-00998,삼성전자,경기 수원시 영통구 삼성로 129\n", encoding="utf-8")
    with use_language("en"):
        made = bs.plan(path) if request.param == "a plan" else bs.enrich(path, tmp_path / "out.csv")
    assert isinstance(made, Report)
    return made


def test_a_report_made_in_english_is_read_in_korean(report: Report) -> None:
    """As text, as JSON and in a notebook."""
    with use_language("ko"):
        told = " ".join(map(str, report.warnings))
        assert "주소 자료" in told
        assert "국세청" in told
        assert "no gazetteer" not in told + str(report) + report._repr_html_() + json.dumps(report.as_dict())
        assert report.as_dict()["warnings"] == [str(one) for one in report.warnings]


def test_an_alert_names_the_options_of_its_reader(report: Report) -> None:
    told = " ".join(map(str, report.warnings))
    assert "`registry='registry.parquet'`" in told
    with use_audience(COMMAND_LINE):
        told = " ".join(map(str, report.warnings))
        assert "--registry registry.parquet" in told
        assert "registry=" not in told


def test_an_alert_has_a_code_and_fields_and_is_text(report: Report) -> None:
    """What held for texts holds for it."""
    alert = next(one for one in report.warnings if isinstance(one, Notice) and one.code == GAZETTEER_MISSING.code)
    assert isinstance(alert, Alert)
    assert alert.fields == {"gazetteer": Option("gazetteer", "gazetteer.parquet")}
    assert "no gazetteer was given" in alert
    assert f"{alert}" == str(alert) == alert


@pytest.mark.parametrize("one", [ROWS, CHOICE, Notice(REGISTRY_MISSING, missing=ROWS, remedy=CHOICE)], ids=type)
def test_a_phrase_crosses_processes(one: Phrase) -> None:
    for crossed in (pickle.loads(pickle.dumps(one)), copy.deepcopy(one)):
        assert (type(crossed), crossed, crossed.__dict__) == (type(one), one, one.__dict__)
        with use_language("ko"), use_audience(COMMAND_LINE):
            assert str(crossed) == str(one) != crossed


def test_pieces_of_an_error_are_read_as_the_error_is() -> None:
    error = RegistryError(NO_SUCH_REGISTRY, path="r.parquet", remedy=CHOICE)
    assert str(error).endswith("2,000 rows or none or `registry=`")
    with use_language("ko"), use_audience(COMMAND_LINE):
        assert str(error).endswith(f"{ROWS} 또는 없음 또는 --registry")
