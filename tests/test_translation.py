"""Every text a person reads is said in the language that was chosen."""

from __future__ import annotations

import sys
import threading

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from bizverify.cli import app
from bizverify.translation import (
    current_language,
    gettext,
    match_language,
    ngettext,
    set_language,
    use_language,
)
from conftest import ROOT
from korean import english_sentences

sys.path.insert(0, str(ROOT / "docs"))


def test_the_catalogue_is_complete_and_current() -> None:
    """Every message has its Korean with the same fields, no English is unmarked, the compiled file is current."""
    import translations

    assert translations.faults() == []


@pytest.mark.parametrize(
    ("environment", "lang"),
    [
        ({"BIZVERIFY_LANG": "ko"}, "ko"),
        ({"BIZVERIFY_LANG": "en", "LC_ALL": "ko_KR.UTF-8"}, "en"),
        ({"LC_ALL": "ko_KR.UTF-8"}, "ko"),
        ({"LC_MESSAGES": "ko_KR.UTF-8", "LANG": "C"}, "ko"),
        ({"LANG": "ko_KR.EUC-KR"}, "ko"),
        ({"LANG": "C.UTF-8"}, "en"),
        ({"LANG": "de_DE.UTF-8"}, "en"),
    ],
)
def test_the_environment_chooses(environment: dict[str, str], lang: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """BIZVERIFY_LANG goes before the locale; a locale that is not spoken here means English."""
    for name in ("BIZVERIFY_LANG", "LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert current_language() == lang


@pytest.mark.parametrize(
    ("tags", "lang"),
    [
        ("ko-KR,ko;q=0.9,en-US;q=0.8", "ko"),
        ("en;q=0.5, ko;q=0.7", "ko"),
        ("de, en;q=0.3, ko;q=0.2", "en"),
        ("ko;q=0, en", "en"),
        ("de", None),
        ("", None),
        ("ko;q=abc", None),
    ],
)
def test_accept_language(tags: str, lang: str | None) -> None:
    """The first language of the list that is spoken here is taken, by weight, and none where none is spoken."""
    assert match_language(tags) == lang


@given(st.text())
def test_accept_language_is_never_an_error(tags: str) -> None:
    """Whatever a client sends, a language or none comes of it."""
    assert match_language(tags) in (None, "en", "ko")


def test_a_block_speaks_its_own_language(monkeypatch: pytest.MonkeyPatch) -> None:
    """A language within a block is of this thread alone, and the one before is spoken after it."""
    set_language("en")
    heard: list[str] = []
    with use_language("ko"):
        assert current_language() == "ko"
        listener = threading.Thread(target=lambda: heard.append(current_language()))
        listener.start()
        listener.join()
    assert (current_language(), heard) == ("en", ["en"])


def test_fields_are_filled_in_and_braces_stay() -> None:
    """A message without fields keeps its braces; counts have their plural."""
    assert gettext("{}") == "{}"
    assert gettext("") == ""
    assert gettext("{name!r} is here", name="a") == "'a' is here"
    assert [ngettext("{count:,} row", "{count:,} rows", count) for count in (1, 2000)] == ["1 row", "2,000 rows"]


def test_help_and_usage_errors_speak_korean() -> None:
    """``--lang ko`` anywhere makes help and click's own errors Korean, and the next command is English again."""
    run = CliRunner().invoke
    assert "사용법:" in run(app, ["enrich", "--help", "--lang", "ko"]).output
    wrong = run(app, ["--lang=ko", "enrich", "--nothing"])
    assert "옵션은 없습니다" in wrong.output
    assert wrong.exit_code == 2
    assert "Usage:" in run(app, ["enrich", "--help"]).output
    assert "one of 'en', 'ko'" in run(app, ["enrich", "--lang", "de", "x.csv"]).output


def test_the_help_of_every_command_is_korean_and_fits_a_terminal() -> None:
    """No sentence is left in English, also of docstrings, and no line is wider than 80 letters of Latin width."""
    import check

    for name, _ in check.commands(app, ""):
        shown = CliRunner().invoke(app, [*name.split(), "--help", "--lang", "ko"]).output
        assert english_sentences(shown.partition("\n")[2]) == [], name
        assert [line for line in shown.splitlines() if cell_len(line) > 82] == []
