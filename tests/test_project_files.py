"""The files for contributors and their forge: workflows are safe and complete, and name stages that CI has."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import bansong as bs
from conftest import ROOT


def yaml_of(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def jobs() -> dict[str, dict[str, Any]]:
    files = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    return {name: job for file in files for name, job in yaml_of(file.relative_to(ROOT).as_posix())["jobs"].items()}


def test_actions_are_pinned_and_only_publishing_has_an_identity() -> None:
    uses = [step["uses"] for job in jobs().values() for step in job.get("steps", ()) if "uses" in step]
    assert [one for one in uses if not re.fullmatch(r"actions/[\w-]+@v\d+|pypa/[\w-]+@release/v\d+", one)] == []
    assert "secrets." not in "".join(file.read_text() for file in (ROOT / ".github" / "workflows").iterdir())
    given = {name: job["permissions"] for name, job in jobs().items() if "permissions" in job}
    assert given == {
        "publish": {"id-token": "write"},
        "pages": {"pages": "write", "id-token": "write"},
        "tests": {"contents": "read"},
        "site": {"contents": "read"},
    }
    assert yaml_of(".github/workflows/tests.yml")["permissions"] == {"contents": "read"}
    assert [yaml_of(f".github/workflows/{name}.yml")["permissions"] for name in ("release", "pages")] == [{}, {}]


def test_the_suite_runs_on_all_systems_and_pythons() -> None:
    matrix = jobs()["suite"]["strategy"]["matrix"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    stated = {one.rsplit(" ", 1)[1] for one in project["classifiers"] if re.search(r"Python :: 3\.\d+$", one)}
    lowest = project["requires-python"].removeprefix(">=")
    assert stated == set(matrix["python"])
    assert {(one["os"].split("-")[0], one["python"]) for one in matrix["include"]} == {
        ("windows", lowest),
        ("macos", lowest),
    }


@pytest.mark.skipif(os.name != "posix", reason="there is no bash for sure")
def test_contributors_and_workflows_name_the_stages_of_ci() -> None:
    """The page has each stage, in its order; a workflow has some of them, a pull request the quick ones."""
    listed = subprocess.run([".ci/run", "--list"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    stages = [line.split()[0] for line in listed.splitlines()]
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = page.split("## One stage of CI")[1].split("## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", table, flags=re.M)
    assert [name for row in rows for name in re.findall(r"`(\w+)`", row)] == stages
    commands = [step["run"] for job in jobs().values() for step in job.get("steps", ()) if "run" in step]
    given = [words.split("#")[0].split()[1:] for words in commands if words.startswith(".ci/run")]
    assert ["ruff", "mypy", "layers", "documentation"] in given
    assert {name for names in given for name in names} <= set(stages)
    assert [] in given  # all of them
    refused = subprocess.run([".ci/run", "ruff", "no-stage"], cwd=ROOT, capture_output=True, text=True)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "no-stage" in refused.stderr


@pytest.mark.skipif(os.name != "posix", reason="there is no bash for sure")
def test_a_release_is_refused_that_is_not_what_its_tag_says(tmp_path: Path) -> None:
    """Before anything is built: another version, a changelog without the day, links to another address."""
    for name in (".ci/package", "pyproject.toml", "CHANGELOG.md", "src/bansong/_version.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    forge = {"GITHUB_SERVER_URL": "https://forge.example", "GITHUB_REPOSITORY": "owner/bansong"}

    def refusal(tag: str) -> str:
        env = os.environ | forge | {"GITHUB_REF_TYPE": "tag", "GITHUB_REF_NAME": tag}
        done = subprocess.run([tmp_path / ".ci/package"], env=env, capture_output=True, text=True)
        assert (done.returncode, (tmp_path / "dist").exists()) == (1, False), done.stderr
        return done.stderr

    assert "another version" in refusal("v99.0.0")
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n## {bs.__version__} - unreleased\n", "utf-8")
    assert "no heading with the day" in refusal(f"v{bs.__version__}")
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n## {bs.__version__} - 2026-12-01\n", "utf-8")
    assert "set 'https://forge.example/owner/bansong'" in refusal(f"v{bs.__version__}")


def test_the_forms_ask_and_the_hooks_are_of_this_environment() -> None:
    for form in ("bug", "feature"):
        asked = [one for one in yaml_of(f".github/ISSUE_TEMPLATE/{form}.yml")["body"] if one["type"] != "markdown"]
        assert len({one["id"] for one in asked}) == len({one["attributes"]["label"] for one in asked}) == len(asked)
    assert "bansong doctor --json" in (ROOT / ".github/ISSUE_TEMPLATE/bug.yml").read_text(encoding="utf-8")
    (local,) = yaml_of(".pre-commit-config.yaml")["repos"]
    assert local["repo"] == "local"
    assert {hook["language"] for hook in local["hooks"]} == {"system"}
