"""Settings and installed data: what is remembered is used by commands alone, never over an option; it is no secret."""

from __future__ import annotations

import csv
import json
import stat
import subprocess
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

import bansong as bs
from bansong.testing import FakeNts, serve
from conftest import SAMPLE, write

Run = Callable[..., subprocess.CompletedProcess[str]]
KEY = "Ab+cd/efgh0123456789=="
LIST = "사업자번호,상호,주소\n124-81-00998,삼성전자,경기 수원시 영통구 삼성로 129\n"
JOB = "[[inputs]]\npath = 'in.csv'\n[output]\npath = 'out.csv'\n"


@pytest.fixture
def nts(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNts]:
    fake = FakeNts(KEY, default="active")
    with serve(fake) as address:
        monkeypatch.setenv("BANSONG_NTS_URL", address)
        yield fake


@pytest.fixture
def config(state_directory: Path) -> Path:
    state_directory.mkdir(parents=True, exist_ok=True)
    return state_directory / "config.toml"


def shown(run: Run, *arguments: object) -> dict[str, tuple[Any, str]]:
    done = run("config", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    return {one["setting"]: (one["value"], one["from"]) for one in json.loads(done.stdout)["settings"]}


def headers(path: Path) -> list[str]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        return next(csv.reader(file))


def test_each_value_is_shown_with_its_source_and_the_first_source_counts(
    run: Run, tmp_path: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BANSONG_LANG", raising=False)
    for name in ("a", "b", "c"):
        write(tmp_path / f"{name}.parquet", "")
    key_file = write(tmp_path / "nts.key", KEY)
    assert shown(run)["output.headers"] == (None, "default")
    sets = {"headers": "ko", "extra_columns": "duplicate_of,match_level", "letter-cost": "500", "lang": "ko"}
    sets["letters.columns"] = "고객코드,담당자"
    for key, value in (sets | {"registry": "a.parquet", "nts-key-file": "nts.key"}).items():
        assert run("config", "set", key, value).returncode == 0
    now = shown(run)
    assert now["lang"] == now["output.headers"] == ("ko", "config.toml")
    assert now["extra_columns"] == (["duplicate_of", "match_level"], "config.toml")
    assert now["letters.cost"] == (500.0, "config.toml")
    assert now["letters.columns"] == (["고객코드", "담당자"], "config.toml")
    assert now["reference.registry"] == (str(tmp_path / "a.parquet"), "config.toml")
    assert now["status.key_file"] == (str(key_file), "config.toml")
    job = write(tmp_path / "job.toml", f"{JOB}[reference]\nregistry = 'b.parquet'\n")
    in_job = shown(run, "--job", job)
    assert in_job["reference.registry"] == ("b.parquet", "job file")
    assert (in_job["output.headers"], in_job["status.key_file"][1]) == ((None, "default"), "config.toml")
    assert shown(run, "--job", job, "--registry", "c.parquet")["reference.registry"] == ("c.parquet", "option")
    assert shown(run, "--no-registry", "--lang", "en")["reference.registry"] == ("none", "option")
    monkeypatch.setenv("BANSONG_NTS_KEY", "secret-of-the-environment")
    assert shown(run)["status.key_file"] == ("BANSONG_NTS_KEY", "environment")
    assert run("config", "unset", "output.headers").returncode == 0
    assert shown(run)["output.headers"] == (None, "default")
    assert stat.S_IMODE(config.stat().st_mode) == 0o600


def test_commands_use_what_is_remembered_and_options_precede_it(run: Run, tmp_path: Path, config: Path) -> None:
    """Headers that a format cannot have do not refuse the run; Python code and a server read nothing."""
    write(tmp_path / "in.csv", LIST)
    write(config, f"[output]\nheaders = 'ko'\n[reference]\nregistry = '{SAMPLE / 'registry.parquet'}'\n")
    for arguments, name in (((), "조치"), (("--headers", "en"), "action")):
        assert run("enrich", "in.csv", "-o", "out.csv", *arguments).returncode == 0
        assert name in headers(tmp_path / "out.csv")
    assert run("enrich", "in.csv", "-o", "out.parquet").returncode == 0
    assert run("enrich", "in.csv", "-o", "out.parquet", "--headers", "ko").returncode == 2
    statuses = [
        json.loads(run("verify", "1248100998", "--json", *more).stdout)["biz_status"]
        for more in ((), ("--no-registry",))
    ]
    assert statuses == ["active", "unknown"]
    assert bs.verify("1248100998").biz_status == "unknown"
    assert "registry.parquet" not in run("serve", "--db", "server.sqlite", "--check", "--port", "0").stdout


def test_lines_of_comments_stay(run: Run, config: Path) -> None:
    write(config, "[letters] # prices of 2026\n# agreed with\u2028the mail house\ncost = 500\n")
    for _ in range(2):
        assert run("config", "set", "lang", "ko").returncode == 0
    assert config.read_text("utf-8") == '# agreed with\u2028the mail house\nletters.cost = 500\nlang = "ko"\n'


def test_remembered_letter_columns_apply_where_the_list_has_them(run: Run, tmp_path: Path, config: Path) -> None:
    write(tmp_path / "in.csv", LIST.replace("주소", "주소,담당자").replace("129", "129,김"))
    write(config, "[letters]\ncolumns = ['고객코드', '담당자']\n")
    done = run("enrich", "in.csv", "-o", "out.csv", "--letters", "letters.csv", "--json")
    assert done.returncode == 0, done.stderr
    assert [
        ("고객코드" in one, "담당자" in one) for one in json.loads(done.stdout)["warnings"] if "letters.col" in one
    ] == [(True, False)]
    assert "담당자" in headers(tmp_path / "letters.csv")
    done = run("letters", "out.csv", "-o", "later.csv")
    assert (done.returncode, "고객코드" in done.stdout + done.stderr) == (0, True)
    assert "담당자" in headers(tmp_path / "later.csv")
    for command in (("enrich", "in.csv", "-o", "o.csv", "--letters", "l.csv"), ("letters", "out.csv", "-o", "l.csv")):
        assert run(*command, "--letter-columns", "고객코드").returncode == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lang = 'ko'\nheaders = 'ko\n", "line 2"),
        ("# mine\n[output]\nheaders = 'kr'\n", "line 3: output.headers"),
        ("\nhedaers = 'ko'\n", "line 2: there is no setting 'hedaers' (is headers meant?)"),
        ("nts_key = 'the-key-itself'\n", "line 1: there is no setting 'nts_key' (is nts_key_file meant?)"),
        ("letter_cost = []\n", "line 1: letters.cost"),
        (f"[status]\nkey_file = '{KEY}'\n", "line 2: status.key_file"),
    ],
)
def test_a_damaged_file_is_named_with_its_line_and_config_and_help_still_work(
    run: Run, tmp_path: Path, config: Path, text: str, said: str
) -> None:
    write(tmp_path / "in.csv", LIST)
    write(config, text)
    done = run("enrich", "in.csv", "-o", "out.csv")
    assert (done.returncode, said in done.stderr, str(config) in done.stderr) == (2, True, True)
    about = run("config")
    assert (about.returncode, said in about.stderr, "output.headers" in about.stdout) == (0, True, True)
    assert not any(key in done.stderr + about.stderr + about.stdout for key in ("the-key-itself", KEY))
    assert run("enrich", "--help").returncode == 0
    assert not (tmp_path / "out.csv").exists()


def test_a_wrong_setting_is_mended_beside_another_and_a_wrong_file_is_not_written(run: Run, config: Path) -> None:
    write(config, "hedaers = 'ko'\n[output]\nheaders = 'kr'\n")
    assert run("config", "set", "headers", "ko").returncode == 0
    assert run("config", "unset", "hedaers").returncode == 0
    assert (config.read_text(encoding="utf-8"), shown(run)["output.headers"][0]) == ('output.headers = "ko"\n', "ko")
    before = write(config, "broken = ").read_bytes()
    assert (run("config", "set", "headers", "en").returncode, config.read_bytes()) == (2, before)


def test_no_secret_is_taken_or_repeated(run: Run, config: Path) -> None:
    for key in ("nts_key", "api_key", "status.key", "engine.secret", "nts_key_file"):
        done = run("config", "set", key, "the-key-itself")
        assert (done.returncode, "the-key-itself" in done.stderr) == (2, False)
    assert not config.exists()


def answer(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    monkeypatch.setattr("sys.stdin", StringIO("".join(f"{line}\n" for line in lines)))
    monkeypatch.delenv("BANSONG_LANG", raising=False)


def test_setup_asks_line_by_line_until_key_and_zip_are_right(
    run: Run, tmp_path: Path, config: Path, nts: FakeNts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key is in its own file alone, and the next run asks with it, in Korean, without a variable or an option."""
    write(tmp_path / "in.csv", LIST)
    answer(monkeypatch, "ko", "wrong-key-000000", KEY, "gone.zip", f"& '{SAMPLE / 'rnaddrkor_sample.txt'}'")
    done = run("setup")
    assert (done.returncode, "bansong enrich" in done.stderr) == (0, True), done.stderr
    key_file = config.with_name("nts.key")
    assert (key_file.read_text(encoding="ascii"), stat.S_IMODE(key_file.stat().st_mode)) == (KEY, 0o600)
    assert KEY not in done.stdout + done.stderr + config.read_text(encoding="utf-8")
    assert run("enrich", "in.csv").returncode == 0
    with (tmp_path / "in.enriched.csv").open(encoding="utf-8-sig", newline="") as file:
        row = next(csv.DictReader(file))
    assert (row["휴·폐업 상태"], row["교정 우편번호"]) == ("영업 중", "16677")
    write(tmp_path / "job.toml", JOB)
    assert run("run", "job.toml").returncode == 0
    assert "biz_status" in headers(tmp_path / "out.csv")  # what a job writes does not depend on who runs it
    answer(monkeypatch, "", "", "")  # Enter keeps all
    before = config.read_bytes(), key_file.read_bytes()
    assert (run("setup").returncode, (config.read_bytes(), key_file.read_bytes())) == (0, before)


def test_setup_ends_politely_without_input(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, "en")
    done = run("setup")
    assert (done.returncode, "the input has ended" in done.stderr) == (0, True)
    assert shown(run)["output.headers"] == ("en", "config.toml")


@pytest.fixture
def installed(run: Run, state_directory: Path, tmp_path: Path) -> Path:
    """The folder of installed files, with a gazetteer and a registry."""
    write(tmp_path / "in.csv", LIST)
    for what, source in (("gazetteer", "rnaddrkor_sample.txt"), ("registry", "registry_source.csv")):
        done = run("data", f"build-{what}", SAMPLE / source)
        assert (done.returncode, f"--no-{what}" in done.stderr) == (0, True), done.stderr
    return state_directory / "data"


def versions(run: Run, *arguments: object) -> list[bool]:
    done = run("plan", "in.csv", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["versions"]
    return [found["registry"] is not None, found["gazetteer"] is not None]


def test_commands_use_what_is_installed_unless_told_otherwise(run: Run, installed: Path, tmp_path: Path) -> None:
    for name in ("gazetteer.parquet", "registry.parquet"):
        assert stat.S_IMODE((installed / name).stat().st_mode) == 0o600
    assert versions(run) == [True, True]
    assert versions(run, "--no-registry") == [False, True]
    assert versions(run, "--no-registry", "--no-gazetteer") == [False, False]
    assert run("enrich", "in.csv", "--no-registry", "--registry", "r.parquet").returncode == 2
    named = run("enrich", "in.csv", "-o", "out.csv", "--registry", SAMPLE / "registry.parquet", "--no-gazetteer")
    assert (named.returncode, "installed" in named.stderr) == (0, False)
    for command in (("enrich", "in.csv", "-o", "out.csv"), ("plan", "in.csv"), ("verify", "1248100998")):
        lines = [line for line in run(*command).stderr.splitlines() if line.startswith("installed")]
        assert (len(lines), "2026-11-01" in lines[0], "2026-10-31" in lines[0], "day" in lines[0]) == (1, *[True] * 3)
    assert str(installed / "gazetteer.parquet") in run("serve", "--db", "s.sqlite", "--check", "--port", "0").stdout
    assert str(installed / "registry.parquet") in run("doctor", "--offline").stdout
    assert bs.plan(tmp_path / "in.csv").versions.registry is None  # Python code names what it uses


def test_an_engine_that_buys_does_not_complain_about_what_is_installed(run: Run, installed: Path) -> None:
    assert installed.is_dir()
    done = run("plan", "in.csv", "--engine", "batch", "--base-url", "http://127.0.0.1:9", "--json")
    assert [one for one in json.loads(done.stdout)["warnings"] if "registry" in one] == []


def test_an_installed_file_is_replaced_only_by_a_whole_one(run: Run, installed: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in installed.iterdir()}
    write(tmp_path / "rnaddrkor_half.txt", "26110|101\n")
    assert run("data", "build-gazetteer", "rnaddrkor_half.txt").returncode == 2
    assert run("data", "build-registry", write(tmp_path / "s.csv", "a,b\n1,2\n")).returncode == 2
    assert {path: path.read_bytes() for path in installed.iterdir()} == before
    updated = run("data", "update", "--addresses", SAMPLE / "rnaddrkor_sample.txt", "--json")
    state: dict[str, Any] = json.loads(updated.stdout)["updates"][0]
    assert (state["state"], state["path"]) == ("current", str(installed / "gazetteer.parquet"))
    assert run("data", "update").returncode == 0  # without a key, the registry stays


def test_a_job_uses_what_is_installed_and_verifies_again_when_that_changes(
    run: Run, installed: Path, tmp_path: Path
) -> None:
    write(tmp_path / "job.toml", JOB)

    def outcome() -> tuple[str, bool]:
        done = run("run", "job.toml", "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["inputs"][0]["what"], ",active," in (tmp_path / "out.csv").read_text("utf-8-sig")

    assert [outcome(), outcome()] == [("verified", True), ("unchanged", True)]
    assert "2026-11-01" in run("run", "job.toml").stderr
    (installed / "registry.parquet").unlink()
    assert outcome() == ("verified", False)
    assert run("data", "build-registry", SAMPLE / "registry_source.csv").returncode == 0
    assert outcome() == ("verified", True)
    with (tmp_path / "job.toml").open("a") as file:
        file.write("[reference]\nregistry = 'none'\n")
    assert outcome() == ("verified", False)
