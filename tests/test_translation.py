"""Every text a person reads is data, said in the language that was chosen and with the options of its reader."""

from __future__ import annotations

import copy
import errno
import json
import os
import pickle
import re
import sys
import threading
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from rich.cells import cell_len

import bansong as bs
from bansong.base.messages import (
    Listed,
    Option,
    Phrase,
    count_letters,
    count_rows,
    current_language,
    describe_library_error,
    describe_os_error,
    gettext,
    gettext_of,
    match_language,
    ngettext,
    set_language,
    use_audience,
    use_language,
)
from bansong.base.schema import Alert
from bansong.cli.app import app
from bansong.cli.options import COMMAND_LINE
from bansong.engine.local import REGISTRY_MISSING
from bansong.errors import Notice
from bansong.run.accounting import GAZETTEER_MISSING
from conftest import ROOT
from korean import english_sentences

sys.path.insert(0, str(ROOT / "docs"))


def test_a_block_speaks_its_own_language(monkeypatch: pytest.MonkeyPatch) -> None:
    set_language("en")
    heard: list[str] = []
    with use_language("ko"):
        assert current_language() == "ko"
        listener = threading.Thread(target=lambda: heard.append(current_language()))
        listener.start()
        listener.join()
    assert (current_language(), heard) == ("en", ["en"])


def test_fields_are_filled_in_and_braces_stay() -> None:
    assert gettext("{}") == "{}"
    assert gettext("") == ""
    assert gettext("{name!r} is here", name="a") == "'a' is here"
    assert [ngettext("{count:,} row", "{count:,} rows", count) for count in (1, 2000)] == ["1 row", "2,000 rows"]
    assert [count_rows(2000), count_letters(1)] == ["2,000 rows", "1 letter"]
    owner = SimpleNamespace(done=7, total=1200)  # of which attributes are fields that are not given
    assert gettext_of(owner, "{done} of {total:,}, {note}", note="late") == "7 of 1,200, late"


def test_the_help_of_every_command_is_korean_and_fits_a_terminal() -> None:
    import check

    for name, _ in check.commands(app, ""):
        shown = CliRunner().invoke(app, [*name.split(), "--help", "--lang", "ko"]).output
        assert english_sentences(shown.partition("\n")[2]) == [], name
        assert [line for line in shown.splitlines() if cell_len(line) > 82] == []


@pytest.mark.parametrize(
    ("environment", "lang"),
    [
        ({"BANSONG_LANG": "en", "LC_ALL": "ko_KR.UTF-8"}, "en"),
        ({"LC_ALL": "ko_KR.UTF-8", "LANG": "C"}, "ko"),
        ({"LANG": "ko_KR.EUC-KR"}, "ko"),
        ({"LANG": "de_DE.UTF-8"}, "en"),
    ],
)
def test_the_environment_chooses(environment: dict[str, str], lang: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BANSONG_LANG", "LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert current_language() == lang


ACCEPTED = {
    "ko-KR,ko;q=0.9,en-US;q=0.8": "ko",
    "en;q=0.5, ko;q=0.7": "ko",
    "de, en;q=0.3, ko;q=0.2": "en",
    "ko;q=0, en": "en",
    "de": None,
    "": None,
    "ko;q=abc": None,
}


def test_accept_language_is_read_by_weight() -> None:
    assert {tags: match_language(tags) for tags in ACCEPTED} == ACCEPTED


LIBRARIES = {
    "Expected `str`, got `int`": "텍스트 값이 필요한데 정수 값이 있습니다",
    "Expected `int | null`, got `str` - at `$.budget`": "`$.budget`: 정수 | null 값이 필요한데 텍스트 값이 있습니다",
    "Object contains unknown field `x`": "알 수 없는 `x` 항목이 있습니다",
    "Invalid value (at line 3, column 5)": "값을 읽을 수 없습니다(3번째 줄 5번째 글자)",
    "Invalid value (at end of document)": "값을 읽을 수 없습니다(파일 끝)",
    "database disk image is malformed": "데이터베이스 파일이 손상됨",
    "something that nobody knows": "something that nobody knows",
}
"""What msgspec, the TOML parser and SQLite say, and its Korean."""
MISTAKES = (
    *("[[inputs]\n", "[inputs\n", "[run]\n[run]\n", 'path = "a" sheet = "b"', 'a = ["x"\n', "a = { b = 1 c = 2 }"),
    *("a = { b = 1, b = 2 }", 'a = "x\n', "a = 'x", r'path = "C:\in"', r'path = "C:\Users"', "path = in.csv"),
    "a = 1\na = 2",
)
"""Usual mistakes in TOML."""


def test_what_libraries_and_the_system_say_is_translated() -> None:
    assert [describe_library_error(said) for said in LIBRARIES] == [*LIBRARIES]
    with use_language("ko"):
        assert {said: describe_library_error(said) for said in LIBRARIES} == LIBRARIES
        for text in MISTAKES:
            with pytest.raises(tomllib.TOMLDecodeError) as error:
                tomllib.loads(text)
            said = describe_library_error(error.value)
            assert not re.search("[A-Za-z]{2,}", re.sub(r"\[run\]", "", said)), said
        for number in (errno.EACCES, errno.ENOSPC, errno.ENOENT, errno.EISDIR, errno.EADDRINUSE):
            assert not re.search("[a-z]", describe_os_error(OSError(number, os.strerror(number), "/somewhere")))
        assert describe_os_error(OSError("[Errno 111] Connection refused")) == "연결이 거부됨"
    assert describe_os_error(OSError(errno.EACCES, "Permission denied")) == "Permission denied"


ROWS = Phrase("{count:,} row", "{count:,} rows", count=2000)
CHOICE = Listed([ROWS, Phrase("none"), Option("registry")], " or ")


def test_a_report_made_in_english_is_read_in_korean_and_its_alerts_are_data(tmp_path: Path) -> None:
    path = tmp_path / "list.csv"
    path.write_text("사업자번호,상호,주소\n124-81-00998,삼성전자,경기 수원시 영통구 삼성로 129\n", encoding="utf-8")
    with use_language("en"):
        report = bs.enrich(path, tmp_path / "out.csv")
    with use_language("ko"):
        told = " ".join(map(str, report.warnings))
        assert "주소 자료" in told
        assert "국세청" in told
        assert "no gazetteer" not in told + str(report) + report._repr_html_() + json.dumps(report.as_dict())
        assert report.as_dict()["warnings"] == [str(one) for one in report.warnings]
    alert = next(one for one in report.warnings if isinstance(one, Notice) and one.code == GAZETTEER_MISSING.code)
    assert isinstance(alert, Alert)
    assert alert.fields == {"gazetteer": Option("gazetteer", "gazetteer.parquet")}
    assert "no gazetteer is used" in alert
    assert f"{alert}" == str(alert) == alert
    assert any("`registry='registry.parquet'`" in one for one in report.warnings)
    with use_audience(COMMAND_LINE):
        told = " ".join(map(str, report.warnings))
    assert ("--registry registry.parquet" in told, "registry=" in told) == (True, False)


@pytest.mark.parametrize("one", [ROWS, CHOICE, Notice(REGISTRY_MISSING, missing=ROWS, remedy=CHOICE)], ids=type)
def test_a_phrase_crosses_processes(one: Phrase) -> None:
    for crossed in (pickle.loads(pickle.dumps(one)), copy.deepcopy(one)):
        assert (type(crossed), crossed, crossed.__dict__) == (type(one), one, one.__dict__)
        with use_language("ko"), use_audience(COMMAND_LINE):
            assert str(crossed) == str(one) != crossed
