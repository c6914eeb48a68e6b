"""The store of scorecards and `bansong model`: what answers is what the journal says, or an error says why not."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import polars as pl
import pytest

import bansong as bs
from bansong.engine.risk.scorecard import Learned, Scorecard
from bansong.errors import ModelError
from bansong.history.scorecards import BUILTIN, ModelStore, differences, resolve_model

BUILT_IN = Scorecard.load()


def learned(version: str, parent: str = BUILT_IN.version, active: int = -5) -> Scorecard:
    """A scorecard that differs from the built-in one in one level."""
    level = msgspec.structs.replace(BUILT_IN.features["status"]["active"], points=active)
    features = BUILT_IN.features | {"status": BUILT_IN.features["status"] | {"active": level}}
    origin = Learned(parent, datetime(2026, 11, 22, tzinfo=UTC), 1600, 80, 25.5, 0.01)
    return msgspec.structs.replace(BUILT_IN, version=version, features=features, learned=origin)


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "models")


@pytest.fixture
def two(store: ModelStore) -> ModelStore:
    """A store in which v1 was replaced by v2."""
    store.promote(learned("v1"), {"why": "better", "e_value": 25.5, "labels": 1600, "bounced": 80})
    store.promote(learned("v2", "v1", -7), {"why": "better still"})
    return store


def test_without_a_promotion_the_built_in_scorecard_answers_and_nothing_is_made(store: ModelStore) -> None:
    assert store.champion() is BUILT_IN
    assert (store.versions(), store.history(), store.champion_version()) == ([], [], BUILTIN)
    assert not store.folder.exists()


def test_what_was_promoted_last_answers(two: ModelStore) -> None:
    assert two.champion() == learned("v2", "v1", -7)
    assert two.load("v1") == learned("v1")
    assert two.versions() == ["v1", "v2"]
    first, second = two.history()
    assert (first.kind, first.version, first.data["labels"]) == ("promoted", "v1", 1600)
    assert [event.data["replaced"] for event in (first, second)] == [BUILT_IN.version, "v1"]
    assert first.at.tzinfo is not None
    assert stat.S_IMODE(two.folder.stat().st_mode) == 0o700
    for name in ("journal.jsonl", "v1.toml"):
        assert stat.S_IMODE((two.folder / name).stat().st_mode) == 0o600


def test_a_version_is_never_written_again_nor_one_learned_from_a_former_champion_promoted(two: ModelStore) -> None:
    """What a version means must not change: runs are recorded with it."""
    before = (two.folder / "v1.toml").read_bytes()
    for version in ("v1", "V1", BUILT_IN.version):
        with pytest.raises(ModelError, match="exists already, and is never changed"):
            two.promote(learned(version, "v2"), {})
    with pytest.raises(ModelError, match="v3 was learned to replace v1, but v2 answers by now"):
        two.promote(learned("v3", "v1"), {})
    assert (two.folder / "v1.toml").read_bytes() == before
    assert two.versions() == ["v1", "v2"]


def test_a_version_that_is_no_file_name_is_refused(store: ModelStore) -> None:
    for version in ("", "builtin", "../v3", "a/b", ".v", "v 1", "v" * 101, "v\n", "NUL", "com1.2"):
        with pytest.raises(ModelError) as caught:
            store.promote(learned(version), {})
        assert caught.value.code == "models.version_invalid"
    assert not store.folder.exists()


def test_going_back_follows_the_line_of_succession(two: ModelStore) -> None:
    """Twice back from v2 is the built-in one, and not v2 again; forward again by name; learning goes on from there."""
    steps = [(None, "v1", "v2"), (None, BUILTIN, "v1"), ("v2", "v2", BUILTIN), (None, BUILTIN, "v2")]
    for to, then, before in steps:
        two.rollback(to)
        event = two.history()[-1]
        assert (event.kind, event.version, event.data["replaced"]) == ("rolled_back", then, before)
        assert two.champion_version() == then
        if then == BUILTIN:
            with pytest.raises(ModelError, match=r"nothing to go back to.*stored versions: v1, v2"):
                two.rollback()
    two.rollback("v1")
    two.promote(learned("v3", "v1"), {})
    assert two.champion_version() == "v3"
    assert two.rollback().version == "v1"


def test_going_back_to_what_is_not_there_or_answers_already_changes_nothing(two: ModelStore) -> None:
    for to in ("v2", "v9"):
        with pytest.raises(ModelError, match="stored versions: v1, v2; builtin is the one of this release"):
            two.rollback(to)
    assert len(two.history()) == 2


def test_a_damaged_champion_is_an_error_that_names_the_way_out(two: ModelStore) -> None:
    """Never does another scorecard answer in silence; going back is possible, but not to a damaged one."""
    path = two.folder / "v2.toml"
    whole, journal = path.read_bytes(), two.path.read_bytes()
    for damaged in (None, b"", whole[:200], whole.replace(b"points = -7", b"points = -70"), b"\xff\xfe\x00"):
        two.path.write_bytes(journal)
        path.unlink() if damaged is None else path.write_bytes(damaged)
        with pytest.raises(ModelError, match=r"v2\.toml: the scorecard v2 cannot be used: .*bansong model rollback"):
            two.champion()
        assert two.load("v1").version == "v1"
        assert two.rollback().version == two.champion().version == "v1"
        with pytest.raises(ModelError, match=r"v2\.toml"):
            two.rollback("v2")
        assert two.champion_version() == "v1"


def test_a_line_that_a_crash_cut_off_is_ignored_and_repaired(two: ModelStore) -> None:
    """For every cut of the last line: the promotion did not happen, or did; the next event is whole again."""
    content = two.path.read_bytes()
    start = content[:-1].rindex(b"\n") + 1
    for cut in range(start, len(content)):
        two.path.write_bytes(content[:cut])
        whole = cut == len(content) - 1  # nothing is missing but the line's end
        assert two.champion_version() == ("v2" if whole else "v1")
        two.note("refused", {"why": "no evidence"})
        assert [event.kind for event in two.history()] == ["promoted", *(["promoted"] if whole else []), "refused"]
        assert two.path.read_bytes().endswith(b"}\n")
    two.path.write_bytes(content + b"\0" * 300)
    assert two.champion_version() == "v2", "some file systems leave zeros behind after a power cut"


def test_a_scorecard_whose_promotion_was_cut_off_can_be_promoted_again(two: ModelStore) -> None:
    """The file was written, the event was not: the version is free, since it never answered."""
    two.path.write_bytes(two.path.read_bytes()[:-20])
    assert two.champion_version() == "v1"
    two.promote(learned("v2", "v1", -9), {})
    assert two.champion() == learned("v2", "v1", -9)


def test_a_damaged_line_amid_the_journal_is_an_error(two: ModelStore) -> None:
    """It might be the one that names the champion; the built-in one can still be asked for."""
    lines = two.path.read_bytes().splitlines(keepends=True)
    two.path.write_bytes(b"{}\n" + b"".join(lines))
    for ask in (two.champion, two.versions, two.rollback, lambda: two.note("refused", {})):
        with pytest.raises(ModelError, match=r"line 1 is damaged.*`model='builtin'`"):
            ask()
    assert resolve_model(BUILTIN, two) is BUILT_IN


def test_a_lost_journal_is_an_error_until_somebody_decides(two: ModelStore) -> None:
    """Scorecards without a journal: nobody knows which one answered."""
    two.path.unlink()
    for ask in (two.champion, lambda: two.promote(learned("v3"), {}), two.rollback, lambda: two.rollback("v1")):
        with pytest.raises(ModelError, match=r"the journal is missing.*rollback builtin"):
            ask()
    assert two.rollback(BUILTIN) is BUILT_IN
    assert two.champion() is BUILT_IN


def test_notes_and_kinds_that_are_not_known_pass_through(two: ModelStore) -> None:
    """A journal of a later release can be read; notes never change who answers."""
    two.note("refused", {"version": "v3", "e_value": 3.2, "day": datetime(2026, 11, 22).date(), "at": "never"})
    line = {"at": "2027-01-01T00:00:00+00:00", "kind": "blessed", "version": None, "by": "한"}
    with two.path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    refused, blessed = two.history()[2:]
    assert (refused.kind, refused.version, refused.data) == ("refused", "v3", {"e_value": 3.2, "day": "2026-11-22"})
    assert refused.at > datetime(2026, 1, 1, tzinfo=UTC)
    assert (blessed.as_dict(), two.champion_version()) == (line, "v2")


WRITER = """
import sys
from pathlib import Path
from bansong.history.scorecards import ModelStore
for count in range(25):
    ModelStore(Path(sys.argv[1])).note("refused", {"by": sys.argv[2], "count": count, "pad": "x" * 5000})
"""


@pytest.mark.process
def test_processes_that_write_at_once_lose_nothing(store: ModelStore) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(store.folder), name]) for name in "abc"]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    found = [(event.data["by"], event.data["count"]) for event in store.history()]
    assert sorted(found) == [(name, count) for name in "abc" for count in range(25)]


# ── which scorecard is meant ─────────────────────────────────────────────────────────────────────────────────────


def test_a_model_is_a_file_a_version_or_builtin(
    two: ModelStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this order; a folder is no file; `./builtin` is one, `builtin` never is; nothing given is the champion."""
    assert resolve_model(None, two).version == "v2"
    assert resolve_model("v1", two).version == resolve_model(Path("v1"), two).version == "v1"
    assert resolve_model(BUILTIN, two) is resolve_model(BUILT_IN.version, two) is BUILT_IN
    assert resolve_model(card := learned("given"), two) is card
    monkeypatch.chdir(tmp_path)
    (tmp_path / "v2").mkdir()
    for name in ("v1", "builtin"):
        (tmp_path / name).write_text(learned("file").to_toml(), encoding="utf-8")
    found = [resolve_model(name, two).version for name in ("v1", "v2", "builtin", "./builtin", tmp_path / "v1")]
    assert found == ["file", "v2", BUILT_IN.version, "file", "file"]
    for hostile in ("x" * 5000, "a\0b"):
        with pytest.raises(ModelError, match="neither a scorecard file nor a version"):
            resolve_model(hostile, two)


def test_every_run_asks_the_champion_unless_told_otherwise(state_directory: Path, tmp_path: Path) -> None:
    """Frames, files and single businesses; `builtin` switches it off; the report names the version."""
    ModelStore().promote(learned("v1"), {})
    frame = pl.DataFrame({"b_no": ["1248100998"], "address": ["경기도 수원시 영통구 삼성로 129"]})
    frame.write_csv(tmp_path / "list.csv")
    used = [bs.enrich(tmp_path / "list.csv", model=model).versions.model for model in (None, "builtin")]
    assert used == ["v1", BUILT_IN.version]
    (state_directory / "models" / "v1.toml").unlink()
    for ask, given in ((bs.enrich, tmp_path / "list.csv"), (bs.verify_frame, frame), (bs.verify, "1248100998")):
        with pytest.raises(ModelError, match="the scorecard v1 cannot be used: No such file"):
            ask(given)


# ── a scorecard and the release ──────────────────────────────────────────────────────────────────────────────────


def without(card: Scorecard, feature: str, level: str | None = None) -> Scorecard:
    """The scorecard as an earlier release would have had it."""
    kept = {name: levels for name, levels in card.features.items() if name != feature or level is not None}
    if level is not None:
        kept[feature] = {name: value for name, value in card.features[feature].items() if name != level}
    return msgspec.structs.replace(card, features=kept)


def test_a_champion_of_an_earlier_release_goes_on_answering(store: ModelStore) -> None:
    """Levels that it never saw are the built-in ones, when it is read; what it learned and its file stay."""
    store.promote(without(without(learned("v1"), "history"), "status", "merged"), {})
    found = store.load_stored(None)
    assert found.added == ("status.merged", "history.moved", "history.absent", "history.delivered")
    assert found.release == BUILT_IN.version
    assert found.card.features["status"]["active"].points == -5
    assert found.card.features["history"] == BUILT_IN.features["history"]
    assert "history" not in (store.folder / "v1.toml").read_text(encoding="utf-8")
    scored = bs.LocalEngine(model=store.champion()).verify(pl.LazyFrame({"b_no": ["1248100998"], "address": ["a 1"]}))
    assert scored.collect()["bounce_prob"].null_count() == 0


def test_a_champion_with_a_feature_that_this_release_does_not_know_is_an_error(store: ModelStore) -> None:
    """After going back to an older release: points are not dropped in silence."""
    card = learned("v1")
    card.features["moon"] = {"full": card.features["status"]["active"]}
    store.promote(card, {})
    with pytest.raises(ModelError, match=r"v1 cannot be used: .*features\.moon.*rollback"):
        store.champion()


def test_differences_name_what_changed_and_nothing_else() -> None:
    base = msgspec.structs.replace(BUILT_IN.base, points=-48, ko="다른 말")
    actions = msgspec.structs.replace(BUILT_IN.actions, C="hold")
    changes = {"base": base, "actions": actions, "ceiling": 0.9, "grades": BUILT_IN.grades | {"A": -49}}
    changed = msgspec.structs.replace(BUILT_IN, **changes)
    assert differences(BUILT_IN, BUILT_IN) == []
    assert [(found.what, found.a, found.b) for found in differences(BUILT_IN, changed)] == [
        ("base points", -50, -48),
        ("ceiling", 0.93, 0.9),
        ("grade A up to", -50, -49),
        ("actions C", "confirm", "hold"),
        ("base ko", BUILT_IN.base.ko, "다른 말"),
    ]


# ── the command line ─────────────────────────────────────────────────────────────────────────────────────────────────


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def here(state_directory: Path) -> ModelStore:
    """A store in which v2 answers, after v1."""
    here = ModelStore(state_directory / "models")
    here.promote(learned("v1"), {"why": "e-value 25.5 ≥ 20", "e_value": 25.5, "labels": 1600, "bounced": 80})
    here.note("refused", {"why": "e-value 3.1 < 20", "e_value": 3.1, "labels": 1700, "bounced": 81})
    here.promote(without(learned("v2", "v1", -7), "history"), {})
    return here


def test_show_tells_of_the_champion_with_the_built_in_points_beside(run: Run, here: ModelStore) -> None:
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


def test_show_prints_a_file_that_can_be_given_to_model(run: Run, here: ModelStore, tmp_path: Path) -> None:
    """What --toml prints loads as the same scorecard; so a version can be taken elsewhere."""
    done = run("model", "show", "v1", "--toml")
    (tmp_path / "mine.toml").write_text(done.stdout, encoding="utf-8")
    assert Scorecard.load(tmp_path / "mine.toml") == learned("v1")
    assert "scorecard       v1, mine.toml" in run("model", "show", "mine.toml").stdout
    assert run("verify", "1248100998", "--model", "mine.toml").returncode == 0


def test_diff_is_of_the_champion_from_the_built_in_one(run: Run, here: ModelStore) -> None:
    """Only what differs, with by how much; any two can be named."""
    done = run("model", "diff")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].split() == ["status.active", "points", "-3", "-7", "-4"]
    assert run("model", "diff", "v1").stdout.splitlines()[-1].split()[2:] == ["-5", "-7", "-2"]
    assert "say the same" in run("model", "diff", "v1", "v1").stdout
    found = json.loads(run("model", "diff", "v2", "builtin", "--json").stdout)
    assert found["differences"] == [{"what": "status.active points", "a": -7, "b": -3}]
    assert (found["a"], found["b"]) == ("v2", f"builtin {BUILT_IN.version}")


def test_history_is_a_table_of_what_was_decided(run: Run, here: ModelStore) -> None:
    """When, what, which version, on which evidence, why; and who answers."""
    done = run("model", "history")
    head, first, refused, second, champion, journal = done.stdout.splitlines()
    assert head.split() == ["when", "what", "version", "labels", "bounced", "e-value", "why"]
    assert first.split()[2:] == ["promoted", "v1", "1,600", "80", "25.5", "e-value", "25.5", "≥", "20"]
    assert refused.split()[2:] == ["refused", "1,700", "81", "3.1", "e-value", "3.1", "<", "20"]
    assert second.split()[2:] == ["promoted", "v2", "in", "place", "of", "v1"]
    assert champion.split() == ["champion", "v2"]
    assert journal.split() == ["journal", str(here.path)]
    found = json.loads(run("model", "history", "--json").stdout)
    assert found["champion"] == "v2"
    assert [event["kind"] for event in found["events"]] == ["promoted", "refused", "promoted"]
    assert found["events"][0]["e_value"] == 25.5


def test_rollback_goes_back_one_or_to_what_is_named(run: Run, here: ModelStore) -> None:
    assert run("model", "rollback").stdout == "v1 answers now, in place of v2\n"
    found = json.loads(run("model", "rollback", "builtin", "--json").stdout)
    assert found == {"champion": "builtin", "model": BUILT_IN.version, "replaced": "v1"}
    again = run("model", "rollback")
    assert (again.returncode, "there is nothing to go back to" in again.stderr) == (2, True)
    assert run("model", "rollback", "v2").returncode == 0
    assert here.champion_version() == "v2"


def test_a_damaged_champion_is_told_of_and_can_be_left(run: Run, here: ModelStore) -> None:
    (here.folder / "v2.toml").write_text("nonsense", encoding="utf-8")
    for command in (["verify", "1248100998"], ["model", "show"]):
        done = run(*command)
        assert (done.returncode, done.stdout) == (2, "")
        assert "v2.toml: the scorecard v2 cannot be used" in done.stderr
        assert "`bansong model rollback`" in done.stderr
    for command in (["model", "history"], ["model", "rollback"], ["verify", "1248100998"]):
        assert run(*command).returncode == 0


def test_what_is_not_there_exits_2_and_says_what_is(run: Run, here: ModelStore) -> None:
    for arguments, message in (
        (["show", "v9"], "v9: is neither a scorecard file nor a version that is stored; stored versions: v1, v2"),
        (["show", "no/such.toml"], "no/such.toml: there is no such scorecard file"),
        (["show", "--toml", "--json"], "give one of --toml and --json"),
        (["rollback", "v2"], "v2: is the scorecard that answers already"),
    ):
        done = run("model", *arguments)
        assert (done.returncode, done.stdout, message in done.stderr) == (2, "", True)
    assert len(here.history()) == 3


def test_the_history_says_in_words_what_was_set_aside_and_audited(run: Run, here: ModelStore) -> None:
    here.note("quarantined", {"mailing": "m7", "letters": 1_200, "why": ["one class only", "too many"]})
    here.note("released", {"mailings": {"m7": [1_200, 90]}, "checked": 300, "wrong": 2})
    text = run("model", "history").stdout
    assert all(said in text for said in ("1,200", "mailing m7: one class only; too many"))
    assert "2 of 300 audited labels wrong, mailing m7" in text
