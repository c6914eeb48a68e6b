"""The files for contributors and their forge: workflows are safe and complete, and name stages that CI has."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import yaml

from conftest import ROOT

RUN = (ROOT / ".ci" / "run").read_text(encoding="utf-8")


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
    assert stated <= set(matrix["python"])
    assert {(one["os"].split("-")[0], one["python"]) for one in matrix["include"]} == {
        ("windows", lowest),
        ("macos", lowest),
    }


def test_contributors_and_workflows_name_the_stages_of_ci() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = page.split("## One stage of CI")[1].split("## ")[0]
    commands = [one for line in re.findall(r"^\| .* \| `(.*?)`", table, flags=re.M) for one in line.split(" && ")]
    assert len(commands) == 12
    assert [one for one in commands if not one.startswith(".ci/") and one not in RUN] == []
    assert all((ROOT / one.split()[0]).is_file() for one in commands if one.startswith(".ci/"))
    assert len(re.findall(r"^\.ci/lowest tests/", RUN, flags=re.M)) == 1  # the workflow takes this line
    checks = {step.get("run") for step in jobs()["checks"]["steps"]}
    assert set(commands[:5]) <= checks


def test_the_forms_ask_and_the_hooks_are_of_this_environment() -> None:
    for form in ("bug", "feature"):
        asked = [one for one in yaml_of(f".github/ISSUE_TEMPLATE/{form}.yml")["body"] if one["type"] != "markdown"]
        assert len({one["id"] for one in asked}) == len({one["attributes"]["label"] for one in asked}) == len(asked)
    assert "bansong doctor --json" in (ROOT / ".github/ISSUE_TEMPLATE/bug.yml").read_text(encoding="utf-8")
    (local,) = yaml_of(".pre-commit-config.yaml")["repos"]
    assert local["repo"] == "local"
    assert {hook["language"] for hook in local["hooks"]} == {"system"}
