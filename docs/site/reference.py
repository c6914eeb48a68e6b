"""The generated pages of the documentation site: what the code says of itself, in Markdown, never typed twice."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir
from dataclasses import is_dataclass
from datetime import date
from itertools import groupby, starmap
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import check
from check import ROOT, Lang, as_markdown

import bansong as bs
from bansong.base.errors import BansongError, Problem
from bansong.base.messages import gettext, use_language
from bansong.base.option import OptionSpec, specs_of
from bansong.run.options import OPTION_KINDS

PACKAGE = ROOT / "src" / "bansong"
HEADS = {
    "en": {
        "errors": "# Error codes\n\nEvery error has a stable code ({py:attr}`~bansong.BansongError.code`). Its message "
        "says what was looked at, what is wrong and what to do. The sentence may change, the code does not.",
        "options": "# Options\n\nOne declaration gives an option its keyword in Python, its flag, its key in a "
        "[job file](job-file.md) and in `config.toml` (`bansong config`), and its variable.",
        "job-file": "# Job file\n\n`bansong run --init JOB.toml` writes this one. Editors check it with the "
        "[JSON Schema](../bansong-job.schema.json).",
        "json": "# The JSON of reports\n\nWith `--json`, a command prints the `as_dict()` of its report. These reports "
        "were made for this page, with the sample and the fake service.",
        "python-types": "What the public functions take and return besides the public names. Do not import these: "
        "their modules may change.\n\n",
        "places": "Python, command, job file, config.toml, environment",
        "exit": "exit code {}",
        "default": "default {}",
        "alert": "an alert, no error",
    },
    "ko": {
        "errors": "# 오류 코드\n\n모든 오류에는 바뀌지 않는 코드가 있습니다. 메시지는 무엇을 보았고, 무엇이 "
        "잘못되었고, 어떻게 하면 되는지 알려 줍니다. 문장은 바뀔 수 있지만 코드는 그대로입니다.",
        "options": "# 옵션\n\n옵션마다 Python 인자, 명령의 옵션, [작업 파일](job-file.md)과 `config.toml`(`bansong "
        "config`)의 항목, 환경 변수가 있습니다.",
        "job-file": "# 작업 파일\n\n`bansong run --init JOB.toml`이 만드는 파일입니다. 편집기는 "
        "[JSON Schema](../bansong-job.schema.json)로 검사합니다.",
        "places": "Python, 명령, 작업 파일, config.toml, 환경 변수",
        "exit": "종료 코드 {}",
        "default": "기본값 {}",
        "alert": "오류가 아니라 알림입니다",
    },
}


def pages(lang: Lang) -> dict[str, str]:
    """Return the generated pages by their place in the site."""
    heads = HEADS[lang]
    template = (PACKAGE / "jobs" / ("job_template.ko.toml" if lang == "ko" else "job_template.toml")).read_text("utf-8")
    with use_language(lang):
        found = {
            "reference/errors": "\n\n".join([heads["errors"], *_problem_entries(lang)]),
            "reference/options": "\n\n".join([heads["options"], *_option_entries(heads)]),
            "reference/job-file": f"{heads['job-file']}\n\n```toml\n{template}```\n",
        }
    if lang == "ko":
        return found | {"cli": check.reference(lang)}
    reports = "\n\n".join([heads["json"], *starmap(_report, sample_reports())])
    return found | {"reference/json": reports} | dict(starmap(_python_page, GROUPS.items()))


# error codes


def problems() -> dict[str, tuple[Problem, str]]:
    """Return every problem by its code, with the name of the class that is raised with it."""
    found: dict[str, Problem] = {}
    raised: dict[str, str] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        if name.endswith(("__main__", "distributed.spark")):  # these cannot be imported everywhere
            continue
        own = {key: one for key, one in vars(importlib.import_module(name)).items() if isinstance(one, Problem)}
        found |= {one.code: one for one in own.values()}
        for call in ast.walk(ast.parse(path.read_bytes())):
            kind = getattr(call.func, "id", getattr(call.func, "attr", "")) if isinstance(call, ast.Call) else ""
            if kind.endswith("Error") or kind == "Notice":
                named = {one.id for given in call.args[:2] for one in ast.walk(given) if isinstance(one, ast.Name)}
                raised |= {own[key].code: kind for key in named & own.keys()}
    usual = {code: "Notice" if code.startswith("alert.") else "BansongError" for code in sorted(found)}
    return {code: (found[code], raised.get(code, kind)) for code, kind in usual.items()}


def _problem_entries(lang: Lang) -> Iterator[str]:
    for area, entries in groupby(problems().items(), lambda one: one[0].partition(".")[0]):
        yield f"## `{area}`"
        for code, (problem, name) in entries:
            message = problem.plural if lang == "en" and problem.plural else gettext(problem.text)
            text = as_markdown(re.sub(r"\{(\w+)[^{}]*\}", r"{\1}", message))
            kind = getattr(bs.errors, name)
            shown = f"{{py:class}}`bansong.errors.{name}`" if lang == "en" else f"`{name}`"
            is_error = issubclass(kind, BansongError)
            said = f"{shown}, {HEADS[lang]['exit'].format(kind.exit_code)}" if is_error else HEADS[lang]["alert"]
            yield f"```{{problem}} {code}\n{text}\n\n{said}\n```"


# options


def _option_entries(heads: Mapping[str, str]) -> Iterator[str]:
    for kind in OPTION_KINDS:
        yield f"## `{kind.__name__}`"
        for spec in specs_of(kind):
            helps = " ".join(as_markdown(gettext(text)) for text in (spec.help, spec.off_help) if text)
            yield f"`{spec.name}`\n: {helps or _places(spec, heads)}" + (
                f"\n\n  {_places(spec, heads)}" if helps else ""
            )


def _places(spec: OptionSpec, heads: Mapping[str, str]) -> str:
    flags = " / ".join(one for one in (spec.flag, spec.off) if one)
    key = f"[{spec.table}] {spec.key}" if spec.key else ""
    values = (f"{spec.parameter}=", flags, key, spec.setting if spec.configurable else "", " / ".join(spec.variables))
    said = [f"{what} `{where}`" for what, where in zip(heads["places"].split(", "), values, strict=True) if where]
    default = [] if spec.default is None else [heads["default"].format(f"`{spec.default!r}`")]
    return " · ".join(said + default)


# Python

GROUPS = {
    "python": (
        "Verify files, frames, single businesses",
        "enrich aenrich plan verify verify_frame letters Report FilesReport LettersReport Verification EnrichKeywords",
        "VerifyKeywords FrameKeywords CancelToken set_language",
    ),
    "python-data": (
        "Local data and statuses",
        "build_registry build_gazetteer fetch_status afetch_status apply_review Registry Gazetteer StatusOverlay",
        "NtsKey ReviewReport",
    ),
    "python-engines": (
        "Engines, labels and learning",
        "Engine EngineKind LocalEngine ServiceEngine HybridEngine label LabelReport calibrate Scorecard",
    ),
    "python-jobs": ("Jobs and erasing", "run_job JobReport forget ErasureReport"),
    "python-options": (
        "Classes of options",
        "ReadOptions WriteOptions StatusOptions ServiceOptions ServiceKeywords ApiKey",
    ),
    "python-client": ("Clients of the hosted service", "BlockingClient Client client"),
    "python-watch": ("Watch lists", "watch"),
    "python-number": ("Business numbers", "number number.PROBLEMS"),
    "python-errors": ("Errors", "BansongError GazetteerError errors"),
    "python-testing": ("Fakes for tests", "testing testing.messages.FakeRequest testing.messages.FakeReply"),
    "python-types": (
        "Types of results and engines",
        "run.accounting.LookupPlan run.accounting.RowCounts run.accounting.StatusCounts run.accounting.NtsCounts",
        "run.report.Versions run.report.LetterHistory run.side_files.WrittenSides run.side_files.LetterCounts",
        "run.decisions.Decisions run.changes.CHANGE_SCHEMA base.schema.Choice base.schema.JoinedColumn",
        "base.schema.Alert base.schema.Answer base.options.ReadKeywords base.cancel.StopRequest base.key.SecretKey",
        "reference.statuses.RunStatuses reference.fetch.StatusFetch reference.registry.RegistryReport",
        "reference.gazetteer.GazetteerReport engine.protocol.Records engine.protocol.RunContext",
        "engine.protocol.Answers engine.protocol.Purchase engine.protocol.QuotaStatus engine.protocol.Agreement",
        "engine.local.Known engine.overlays.HISTORY_SCHEMA engine.overlays.CHOICE_SCHEMA engine.overlays.CHOICE",
        "engine.risk.scorecard.Level engine.risk.scorecard.Actions engine.risk.scorecard.Learned",
        "engine.risk.reasons.StatusOrigin engine.risk.reasons.BY_NTS purchase.lookups.Standing",
        "labels.options.LabelKeywords learning.calibrate.Calibrated learning.fit.Saving client.dispatcher.Halt",
        "jobs.report.InputOutcome upkeep.forget.StoreHoldings watch.api.ServiceTerms watch.syncing.SyncPlan",
        "watch.syncing.Done watch.syncing.Businesses watch.store.Change",
    ),
}
"""The page of each public name, or of all names of a module: its title, its names."""
MODULES = ("client", "watch", "number", "errors", "testing")
ELSEWHERE = {"client.ApiKey", "client.BlockingClient", "client.Client", "errors.BansongError", "errors.GazetteerError"}
"""Names of a module that have an entry under ``bansong`` itself."""


def public_names(module: str) -> list[str]:
    """Return the public names of a module of ``bansong``."""
    found = importlib.import_module(f"bansong.{module}")
    homes = {"number": "bansong.base.business_number", "errors": ("bansong.errors", "bansong.base.errors")}
    home = homes.get(module, f"bansong.{module}")
    own = [
        one for one in vars(found) if callable(getattr(found, one)) and getattr(found, one).__module__.startswith(home)
    ]
    return [*getattr(found, "__all__", [one for one in own if not one.startswith("_")])]


def _python_page(page: str, group: tuple[str, ...]) -> tuple[str, str]:
    title, *lines = group
    entries = []
    for name in " ".join(lines).split():
        if name in MODULES:
            entries.append(inspect.getdoc(importlib.import_module(f"bansong.{name}")) or "")
            entries += [_python_entry(full) for one in public_names(name) if (full := f"{name}.{one}") not in ELSEWHERE]
        else:
            entries.append(_python_entry(name))
    body = "\n\n".join([".. currentmodule:: bansong", *entries])
    return f"reference/{page}", f"# {title}\n\n{HEADS['en'].get(page, '')}```{{eval-rst}}\n{body}\n```\n"


def _python_entry(name: str) -> str:
    module, _, own = f"bansong.{name}".rpartition(".")
    thing = getattr(importlib.import_module(module), own)
    if isinstance(thing, type):  # nobody makes a report by hand
        hidden = "()" if is_dataclass(thing) and own.endswith(("Report", "Verification", "History")) else ""
        return f".. autoclass:: bansong.{name}{hidden}\n   :members:\n   :undoc-members:"
    if inspect.isfunction(thing):
        return f".. autofunction:: bansong.{name}"
    values = [f"{key}: {one}" for key, one in thing.items()] if isinstance(thing, Mapping) else [repr(thing)]
    return "\n".join([f".. py:data:: {own}\n   :module: {module}\n\n   ::\n", *(f"      {value}" for value in values)])


# the JSON of reports


def sample_reports() -> Iterator[tuple[str, type, dict[str, Any]]]:
    """Make one report of each kind, as a user would: the command that prints it, its class, and its JSON."""
    from bansong.testing import FakeService, serve

    with TemporaryDirectory() as made, chdir(made), serve(FakeService("test-key", quota=10_000)) as url:
        shutil.copytree(ROOT / "sample_data", "sample", ignore=shutil.ignore_patterns("__pycache__"))
        Path("nightly.toml").write_text(JOB, encoding="utf-8")
        Path("outcomes.csv").write_text(OUTCOMES, encoding="utf-8")
        settings = {"BANSONG_STATE_DIR": f"{made}/state", "BANSONG_API_KEY": "test-key", "BANSONG_BASE_URL": url}
        with patch.dict(os.environ, settings):
            for command, make in SAMPLES.items():
                report = make()
                text = json.dumps(report.as_dict(), ensure_ascii=False, default=str)
                yield command, type(report), json.loads(text.replace(f"{made}/", ""))


LOCAL: dict[str, Any] = {"registry": "sample/registry.parquet", "gazetteer": "sample/gazetteer.parquet"}
JOB = '[[inputs]]\npath = "sample/customers.csv"\n\n[output]\npath = "out.csv"\n'
OUTCOMES = "사업자등록번호,반송여부,반송사유\n1248100998,Y,이사\n"
SAMPLES: dict[str, Callable[[], Any]] = {
    "enrich FILE --letters LIST": lambda: bs.enrich(
        "sample/customers.csv", "bought.csv", engine="hybrid", budget=20, letters="letters.csv", **LOCAL
    ),
    "enrich FILE FILE": lambda: bs.enrich(["sample/customers.csv", "sample/customers.json"], "many", **LOCAL),
    "letters": lambda: bs.letters("bought.csv", "again.csv"),
    "run": lambda: bs.run_job("nightly.toml"),
    "label": lambda: bs.label(
        "outcomes.csv", file="bought.csv", mailed=date(2026, 10, 5), returns_requested=True, send=False
    ),
    "watch sync --local": lambda: bs.watch.sync("sample/customers.csv", local=True, apply=True),
    "watch check --local": lambda: bs.watch.check(**LOCAL),
    "data build-registry": lambda: bs.build_registry(["sample/registry_source.csv"], "made.parquet"),
    "forget": lambda: bs.forget("124-81-00998"),
}


def _report(command: str, kind: Any, report: dict[str, Any]) -> str:
    types = {name: str(field.type) for name, field in kind.__dataclass_fields__.items()}
    rows = "\n".join(starmap("| `{}` | {} | {} |".format, _rows(report, types)))
    shown = f"## `bansong {command} --json`\n\nThe fields of {{py:class}}`~{kind.__module__}.{kind.__name__}`\n\n"
    return f"{shown}| key | type | for example |\n| --- | --- | --- |\n{rows}"


def _rows(report: dict[str, Any], types: Mapping[str, str], before: str = "") -> Iterator[tuple[str, str, str]]:
    """The keys of a report and of what is in it: the type of the field, if it is one, and what stands there."""
    for key, value in report.items():
        items = [*value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
        shown = json.dumps([*value][:2] if isinstance(value, list) else value, ensure_ascii=False)
        if isinstance(value, dict) and all(isinstance(item, int) for item in items):  # counts
            shown = ", ".join(value)
        elif items and all(isinstance(item, dict) for item in items):  # the first stands for all
            shown, report_within, below = "", items[0], "[]." if isinstance(value, list) else ".*."
        elif isinstance(value, dict):
            shown, report_within, below = "", value, "."
        code = shown.replace("|", "¦").replace("`", "´")
        type_ = types.get(key) or type(value).__name__
        yield (
            f"{before}{key}",
            f"`{type_}`".replace("|", "\\|"),
            f"`{code[:60]}{'…' * (len(code) > 60)}`" if code else "",
        )
        if not shown:
            yield from _rows(report_within, {}, f"{before}{key}{below}")
