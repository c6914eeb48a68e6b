"""`bansong model`: what answers, where it differs, what was decided, and the way back."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from bansong.engine.risk.scorecard import Scorecard
from bansong.history.scorecards import ModelStore
from test_models import BUILT_IN, learned, without

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def store(state_directory: Path) -> ModelStore:
    """A store in which v2 answers, after v1."""
    store = ModelStore(state_directory / "models")
    store.promote(learned("v1"), {"why": "e-value 25.5 ≥ 20", "e_value": 25.5, "labels": 1600, "bounced": 80})
    store.note("refused", {"why": "e-value 3.1 < 20", "e_value": 3.1, "labels": 1700, "bounced": 81})
    store.promote(without(learned("v2", "v1", -7), "history"), {})
    return store


def test_show_tells_of_the_champion_with_the_built_in_points_beside(run: Run, store: ModelStore) -> None:
    """Where it comes from, what it could not learn, and every level; what differs is marked."""
    done = run("model", "show")
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.split() for line in done.stdout.splitlines() if line]
    assert lines[0] == ["scorecard", "v2", "(the", "champion)"]
    assert "2026-11-22 from 1,600 labels, 80 of them bounced; it replaced v1 with an e-value of 25.5" in done.stdout
    assert "history.moved, history.absent, history.delivered: newer than the scorecard" in done.stdout
    rows = {line[0]: line[1:3] for line in lines if "." in line[0]}
    assert (rows["status.active"], rows["history.moved"]) == (["-7", "-3*"], ["+38", "+38"])
    assert len(rows) == sum(map(len, BUILT_IN.features.values()))
    found = json.loads(run("model", "show", "--json").stdout)
    active = {"level": "status.active", "points": -7, "beside": -3, "source": "registry", "text": "business active"}
    assert active in found["levels"]
    assert (found["version"], found["builtin"], found["release"]) == ("v2", BUILT_IN.version, BUILT_IN.version)


def test_show_prints_a_file_that_can_be_given_to_model(run: Run, store: ModelStore, tmp_path: Path) -> None:
    """What --toml prints loads as the same scorecard; so a version can be taken elsewhere."""
    done = run("model", "show", "v1", "--toml")
    (tmp_path / "mine.toml").write_text(done.stdout, encoding="utf-8")
    assert Scorecard.load(tmp_path / "mine.toml") == learned("v1")
    assert "scorecard       v1, mine.toml" in run("model", "show", "mine.toml").stdout
    assert run("verify", "1248100998", "--model", "mine.toml").returncode == 0


def test_diff_is_of_the_champion_from_the_built_in_one(run: Run, store: ModelStore) -> None:
    """Only what differs, with by how much; any two can be named."""
    done = run("model", "diff")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].split() == ["status.active", "points", "-3", "-7", "-4"]
    assert run("model", "diff", "v1").stdout.splitlines()[-1].split()[2:] == ["-5", "-7", "-2"]
    assert "say the same" in run("model", "diff", "v1", "v1").stdout
    found = json.loads(run("model", "diff", "v2", "builtin", "--json").stdout)
    assert found["differences"] == [{"what": "status.active points", "a": -7, "b": -3}]
    assert (found["a"], found["b"]) == ("v2", f"builtin {BUILT_IN.version}")


def test_history_is_a_table_of_what_was_decided(run: Run, store: ModelStore) -> None:
    """When, what, which version, on which evidence, why; and who answers."""
    done = run("model", "history")
    head, first, refused, second, champion, journal = done.stdout.splitlines()
    assert head.split() == ["when", "what", "version", "labels", "bounced", "e-value", "why"]
    assert first.split()[2:] == ["promoted", "v1", "1,600", "80", "25.5", "e-value", "25.5", "≥", "20"]
    assert refused.split()[2:] == ["refused", "1,700", "81", "3.1", "e-value", "3.1", "<", "20"]
    assert second.split()[2:] == ["promoted", "v2", "in", "place", "of", "v1"]
    assert champion.split() == ["champion", "v2"]
    assert journal.split() == ["journal", str(store.path)]
    found = json.loads(run("model", "history", "--json").stdout)
    assert found["champion"] == "v2"
    assert [event["kind"] for event in found["events"]] == ["promoted", "refused", "promoted"]
    assert found["events"][0]["e_value"] == 25.5


def test_rollback_goes_back_one_or_to_what_is_named(run: Run, store: ModelStore) -> None:
    assert run("model", "rollback").stdout == "v1 answers now, in place of v2\n"
    found = json.loads(run("model", "rollback", "builtin", "--json").stdout)
    assert found == {"champion": "builtin", "model": BUILT_IN.version, "replaced": "v1"}
    again = run("model", "rollback")
    assert (again.returncode, "there is nothing to go back to" in again.stderr) == (2, True)
    assert run("model", "rollback", "v2").returncode == 0
    assert store.champion_version() == "v2"


def test_a_damaged_champion_is_told_of_and_can_be_left(run: Run, store: ModelStore) -> None:
    (store.folder / "v2.toml").write_text("nonsense", encoding="utf-8")
    for command in (["verify", "1248100998"], ["model", "show"]):
        done = run(*command)
        assert (done.returncode, done.stdout) == (2, "")
        assert "v2.toml: the scorecard v2 cannot be used" in done.stderr
        assert "`bansong model rollback`" in done.stderr
    for command in (["model", "history"], ["model", "rollback"], ["verify", "1248100998"]):
        assert run(*command).returncode == 0


def test_what_is_not_there_exits_2_and_says_what_is(run: Run, store: ModelStore) -> None:
    for arguments, message in (
        (["show", "v9"], "v9: is neither a scorecard file nor a version that is stored; stored versions: v1, v2"),
        (["show", "no/such.toml"], "no/such.toml: there is no such scorecard file"),
        (["show", "--toml", "--json"], "give one of --toml and --json"),
        (["rollback", "v2"], "v2: is the scorecard that answers already"),
    ):
        done = run("model", *arguments)
        assert (done.returncode, done.stdout, message in done.stderr) == (2, "", True)
    assert len(store.history()) == 3


def test_the_history_says_in_words_what_was_set_aside_and_audited(run: Run, store: ModelStore) -> None:
    store.note("quarantined", {"mailing": "m7", "letters": 1_200, "why": ["one class only", "too many"]})
    store.note("released", {"mailings": {"m7": [1_200, 90]}, "checked": 300, "wrong": 2})
    text = run("model", "history").stdout
    assert all(said in text for said in ("1,200", "mailing m7: one class only; too many"))
    assert "2 of 300 audited labels wrong, mailing m7" in text
