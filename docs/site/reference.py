"""The generated pages of the documentation site: what the code says of itself, in Markdown, never typed twice."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import is_dataclass
from datetime import date
from itertools import groupby, starmap
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
import check
from check import as_markdown

import bansong as bs
from bansong.base.errors import BansongError, Problem
from bansong.base.messages import gettext, use_language
from bansong.base.option import specs_of
from bansong.run.options import OPTION_KINDS

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "src" / "bansong"

WORDS = {
    "ko": {
        "Error codes": "오류 코드",
        "Options": "옵션",
        "Job file": "작업 파일",
        "default": "기본값",
        "exit code": "종료 코드",
        "option": "옵션",
        "job file": "작업 파일",
        "variable": "환경 변수",
        "an alert, no error": "오류가 아니라 알림",
    }
}
PROBLEMS_LEAD = {
    "en": "Every error carries a stable code ({py:attr}`~bansong.BansongError.code`). Its message says what was looked at, what is wrong, and, "
    "after the semicolon, what to do. The code stays the same; the sentence may change. Fields stand in braces.",
    "ko": "모든 오류에는 바뀌지 않는 코드가 있습니다. 메시지는 무엇을 보았고, 무엇이 잘못되었고, 어떻게 하면 되는지 알려 줍니다. "
    "문장은 바뀔 수 있지만 코드는 그대로입니다. 중괄호 안은 실제 값이 들어가는 자리입니다.",
}
OPTIONS_LEAD = {
    "en": "One declaration gives an option its keyword in Python, its flag, and its key in a [job file](job-file.md) and "
    "in `config.toml` (`bansong config`).",
    "ko": "옵션마다 명령의 플래그, Python 인자, [작업 파일](job-file.md)과 `config.toml`(`bansong config`)의 항목이 같은 "
    "선언에서 나옵니다.",
}


def pages(lang: str) -> dict[str, str]:
    """Return the generated pages by their place in the site."""
    with use_language(lang):
        found = {
            "reference/errors": _page("Error codes", lang, PROBLEMS_LEAD[lang], _problem_entries(lang)),
            "reference/options": _page("Options", lang, OPTIONS_LEAD[lang], _option_entries(lang)),
            "reference/job-file": _job_file(lang),
        }
    if lang == "en":
        return found | _python_pages() | {"reference/json": _reports(), "reference/http": _operations()}
    return found | {"cli": check.reference(lang)}


def _page(title: str, lang: str, lead: str, entries: Iterator[str]) -> str:
    return "\n\n".join([f"# {_say(title, lang)}", lead, *entries, ""])


def _say(word: str, lang: str) -> str:
    return WORDS.get(lang, {}).get(word, word)


# error codes


def problems() -> dict[str, tuple[Problem, str]]:
    """Return every problem by its code, with the name of the class that is raised with it."""
    found: dict[str, tuple[Problem, str]] = {}
    raised: dict[str, str] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        if name.endswith(("__main__", "distributed.spark")):  # pyspark is in no extra of ours but its own
            continue
        module = importlib.import_module(name)
        own = {key: value for key, value in vars(module).items() if isinstance(value, Problem)}
        found |= {one.code: (one, "") for one in own.values()}
        for call in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(call, ast.Call) and _class_of(call):
                named = {one.id for given in call.args[:2] for one in ast.walk(given) if isinstance(one, ast.Name)}
                raised |= {own[key].code: _class_of(call) for key in named & own.keys()}
    return {code: (problem, raised.get(code, "")) for code, (problem, _) in sorted(found.items())}


def _class_of(call: ast.Call) -> str:
    name = getattr(call.func, "id", getattr(call.func, "attr", ""))
    kind = getattr(bs.errors, name, None)
    return name if isinstance(kind, type) and issubclass(kind, BansongError | bs.errors.Notice) else ""


def _problem_entries(lang: str) -> Iterator[str]:
    for area, entries in groupby(problems().items(), lambda one: one[0].partition(".")[0]):
        yield f"## `{area}`"
        for code, (problem, name) in entries:
            text = as_markdown(gettext(problem.text))
            kind = getattr(bs.errors, name, None)
            said = [_said_class(name, lang)] if name else []
            if isinstance(kind, type) and issubclass(kind, BansongError):
                said.append(f"{_say('exit code', lang)} {kind.exit_code}")
            elif name == "Notice":
                said = [_say("an alert, no error", lang)]
            yield f"```{{problem}} {code}\n{text}\n\n{', '.join(said)}\n```"


def _said_class(name: str, lang: str) -> str:
    return f"{{py:class}}`bansong.errors.{name}`" if lang == "en" else f"`{name}`"


# options


def _option_entries(lang: str) -> Iterator[str]:
    for kind in OPTION_KINDS:
        yield f"## `{kind.__name__}`"
        for spec in specs_of(kind):
            flags = " / ".join(f"`{one}`" for one in (spec.flag, spec.off) if one)
            places = {
                "Python": f"`{spec.parameter}=`",
                "option": flags,
                "job file": f"`[{spec.table}] {spec.key}`" if spec.key else "",
                "config.toml": f"`{spec.setting}`" if spec.configurable else "",
                "variable": ", ".join(f"`{one}`" for one in spec.variables),
                "default": "" if spec.default is None else f"`{spec.default!r}`",
            }
            said = " · ".join(f"{_say(what, lang)} {where}" for what, where in places.items() if where)
            helps = [as_markdown(gettext(text)) for text in (spec.help, spec.off_help) if text]
            yield "\n".join(
                [f"`{spec.name}`", f": {' '.join([*helps, '']) or said}", *([f"  {said}"] if helps else [])]
            )


def _job_file(lang: str) -> str:
    template = (PACKAGE / "jobs" / ("job_template.toml" if lang == "en" else "job_template.ko.toml")).read_text("utf-8")
    schema = "[JSON Schema](../bansong-job.schema.json)"
    return (
        f"# {_say('Job file', lang)}\n\n`bansong run --init JOB.toml` · {schema}\n\n```toml\n{template.strip()}\n```\n"
    )


# Python

GROUPS: dict[str, tuple[str, str]] = {
    "Verify files, frames, single businesses": (
        "python",
        "enrich aenrich plan verify verify_frame letters Report FilesReport LettersReport Verification EnrichKeywords "
        "VerifyKeywords FrameKeywords CancelToken set_language",
    ),
    "Local data and statuses": (
        "python-data",
        "build_registry build_gazetteer fetch_status afetch_status apply_review Registry Gazetteer StatusOverlay NtsKey "
        "ReviewReport",
    ),
    "Engines, labels and learning": (
        "python-engines",
        "Engine EngineKind LocalEngine ServiceEngine HybridEngine label LabelReport calibrate Scorecard",
    ),
    "Jobs and erasing": ("python-jobs", "run_job JobReport forget ErasureReport"),
    "Classes of options": (
        "python-options",
        "ReadOptions WriteOptions StatusOptions ServiceOptions ServiceKeywords ApiKey",
    ),
    "Clients of the hosted service": ("python-client", "BlockingClient Client client"),
    "Watch lists": ("python-watch", "watch"),
    "Business numbers": ("python-number", "number"),
    "Errors": ("python-errors", "BansongError GazetteerError errors"),
    "Fakes for tests": ("python-testing", "testing testing.messages.FakeRequest testing.messages.FakeReply"),
    "Types of results and engines": (
        "python-types",
        "run.accounting.LookupPlan run.accounting.RowCounts run.accounting.StatusCounts run.accounting.NtsCounts run.report.Versions "
        "run.report.LetterHistory run.side_files.WrittenSides run.side_files.LetterCounts run.decisions.Decisions run.changes.CHANGE_SCHEMA "
        "base.schema.Choice base.schema.JoinedColumn base.schema.Alert base.schema.Answer base.options.ReadKeywords base.cancel.StopRequest "
        "base.key.SecretKey reference.statuses.RunStatuses reference.fetch.StatusFetch reference.registry.RegistryReport "
        "reference.gazetteer.GazetteerReport engine.protocol.Records engine.protocol.RunContext engine.protocol.Answers "
        "engine.protocol.Purchase engine.protocol.QuotaStatus engine.protocol.Agreement engine.local.Known "
        "engine.overlays.HISTORY_SCHEMA engine.overlays.CHOICE_SCHEMA engine.overlays.CHOICE engine.risk.scorecard.Level "
        "engine.risk.scorecard.Actions engine.risk.scorecard.Learned engine.risk.reasons.StatusOrigin "
        "engine.risk.reasons.BY_NTS purchase.lookups.Standing labels.options.LabelKeywords learning.calibrate.Calibrated "
        "learning.fit.Saving client.dispatcher.Halt jobs.report.InputOutcome upkeep.forget.StoreHoldings watch.api.ServiceTerms watch.syncing.SyncPlan "
        "watch.syncing.Done watch.syncing.Businesses watch.store.Change",
    ),
}
TYPES_LEAD = "What the public functions take and give besides the public names. Do not import them: their modules may change.\n\n"
MODULES = ("client", "watch", "number", "errors", "testing")


def public_names(module: str) -> list[str]:
    """Return the public names of a module of ``bansong``."""
    found = importlib.import_module(f"bansong.{module}")
    if hasattr(found, "__all__"):
        return [*found.__all__]
    home = {"number": "bansong.base.business_number", "errors": "bansong.errors"}.get(module, f"bansong.{module}")
    own = {name: thing for name, thing in vars(found).items() if not name.startswith("_")}
    homes = (home, "bansong.base.errors") if module == "errors" else home
    defined = [name for name, thing in own.items() if callable(thing) and str(thing.__module__).startswith(homes)]
    return [*defined, *(["PROBLEMS", "KINDS"] if module == "number" else [])]


def _python_pages() -> dict[str, str]:
    found, seen = {}, set[int]()
    for title, (page, names) in GROUPS.items():
        listed = [
            full for name in names.split() for full in (_members(name) if name in MODULES else [f"bansong.{name}"])
        ]
        modules = [importlib.import_module(f"bansong.{name}") for name in names.split() if name in MODULES]
        entries = [inspect.getdoc(module) or "" for module in modules]
        for full in listed:
            if id(_thing(full)) not in seen:
                entries.append(_python_entry(full))
            seen.add(id(_thing(full)))
        body = "\n\n".join(entries)
        lead = TYPES_LEAD if page == "python-types" else ""
        found[f"reference/{page}"] = f"# {title}\n\n{lead}```{{eval-rst}}\n.. currentmodule:: bansong\n\n{body}\n```\n"
    return found


def _members(module: str) -> list[str]:
    return [f"bansong.{module}.{name}" for name in public_names(module)]


def _thing(full: str) -> Any:
    module, _, name = full.rpartition(".")
    return getattr(importlib.import_module(module), name)


def _python_entry(full: str) -> str:
    thing, name = _thing(full), full.rpartition(".")[2]
    if isinstance(thing, type):
        hidden = "()" if is_dataclass(thing) and name.endswith(("Report", "Verification", "History")) else ""
        return f".. autoclass:: {full}{hidden}\n   :members:\n   :undoc-members:"
    if callable(thing) and hasattr(thing, "__code__"):
        return f".. autofunction:: {full}"
    lines = [f"{key}: {value}" for key, value in thing.items()] if isinstance(thing, Mapping) else [repr(thing)]
    return "\n".join([f".. py:data:: {full}\n", "   ::\n", *(f"      {line}" for line in lines)])


# JSON


def _reports() -> str:
    lead = (
        "# The JSON of reports\n\nWith `--json`, a command prints the `as_dict()` of its report. These reports were made for "
        "this page, from the sample, the fake service and temporary files. Keys stay; new ones may come.\n"
    )
    return "\n".join([lead, *starmap(_report, sample_reports())])


def _report(command: str, kind: Any, report: dict[str, Any]) -> str:
    public = kind.__name__ if kind.__name__ in bs.__all__ else f"{kind.__module__}.{kind.__name__}"
    notes = {name: str(kind.__dataclass_fields__[name].type) for name in kind.__dataclass_fields__}
    rows = "\n".join(f"| `{path}` | {type_} | {example} |" for path, type_, example in _rows(report, notes))
    shown = f"{{py:class}}`{public}`" if "." not in public or "watch" in public else f"`{kind.__name__}`"
    return f"## {command}\n\n{shown}\n\n| key | type | for example |\n| --- | --- | --- |\n{rows}\n"


JSON_TYPES = {bool: "true or false", int: "number", float: "number", str: "text", type(None): "null"}
ANNOTATED = {
    "str": "text",
    "int": "number",
    "float": "number",
    "datetime": "text",
    "date": "text",
    "bool": "true or false",
}


def _rows(value: Mapping[str, Any], notes: Mapping[str, str], before: str = "") -> Iterator[tuple[str, str, str]]:
    for key, one in value.items():
        note = notes.get(key, "")
        or_null = " or null" if note.endswith("| None") and one is not None else ""
        items = one if isinstance(one, list | tuple) else [*one.values()] if isinstance(one, Mapping) else []
        inner = items[0] if items and all(isinstance(item, Mapping) for item in items) else None
        kind, below, example = "list" if isinstance(one, list | tuple) else "object", "", ""
        if inner is not None:  # a list of objects, or objects by name: the first stands for all
            below, inside = ("[]" if kind == "list" else ".*"), inner
        elif isinstance(one, Mapping) and not all(isinstance(item, int) for item in items):
            inside = one
        elif isinstance(one, Mapping):
            kind, inside, example = "object of numbers", {}, ", ".join(f"`{name}`" for name in one)
        else:
            named = ANNOTATED.get(note.removesuffix(" | None"), "object") if note and one is None else ""
            kind = (
                kind
                if isinstance(one, list | tuple)
                else f"{named} or null"
                if named
                else JSON_TYPES.get(type(one), "text")
            )
            inside, example = {}, _example(one)
        yield f"{before}{key}", f"{kind}{or_null}", example
        yield from _rows(inside, {}, f"{before}{key}{below}.")


def _example(value: Any) -> str:
    value = round(value, 3) if isinstance(value, float) else [*value][:2] if isinstance(value, list | tuple) else value
    text = json.dumps(value, ensure_ascii=False, default=str).strip('"')
    text = text if len(text) <= 60 else f"{text[:57]}…"
    return f"`{text.replace('|', '¦').replace('`', '´')}`" if text else ""


def sample_reports() -> Iterator[tuple[str, type, dict[str, Any]]]:
    """Make one report of each kind, as a user would: the command that prints it, its class, and its JSON."""
    from bansong.testing import FakeService, serve

    before, folder = dict(os.environ), Path.cwd()
    with TemporaryDirectory() as made, ExitStack() as stack:
        stack.callback(os.chdir, folder)
        stack.callback(_restore, before)
        os.chdir(made)
        shutil.copytree(ROOT / "sample_data", "sample", ignore=shutil.ignore_patterns("__pycache__"))
        url = stack.enter_context(serve(FakeService("test-key", quota=10_000)))
        os.environ |= {"BANSONG_STATE_DIR": str(Path(made, "state")), "BANSONG_API_KEY": "test-key"}
        for command, make in SAMPLES.items():
            report = make(url)
            text = json.dumps(report.as_dict(), ensure_ascii=False, default=str)
            yield command, type(report), json.loads(text.replace(f"{made}{os.sep}", ""))


def _restore(before: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(before)


LOCAL: dict[str, Any] = {"registry": "sample/registry.parquet", "gazetteer": "sample/gazetteer.parquet"}
LIST = "사업자등록번호,상호,주소\n1248100998,삼성전자,경기 수원시 영통구 삼성로 129\n"


def _job(_: str) -> Any:
    Path("list.csv").write_text(LIST, encoding="utf-8")
    Path("nightly.toml").write_text('[[inputs]]\npath = "list.csv"\n\n[output]\npath = "out.csv"\n', encoding="utf-8")
    return bs.run_job("nightly.toml")


def _label(_: str) -> Any:
    outcomes = "사업자등록번호,반송여부,반송사유\n1248100998,Y,이사\n"
    Path("outcomes.csv").write_text(outcomes, encoding="utf-8")
    return bs.label("outcomes.csv", file="out.csv", mailed=date(2026, 10, 5), returns_requested=True)


SAMPLES: dict[str, Callable[[str], Any]] = {
    "`bansong enrich`, one input": lambda url: bs.enrich(
        "sample/customers.csv", "bought.csv", engine="hybrid", base_url=url, budget=20, letters="letters.csv", **LOCAL
    ),
    "`bansong enrich`, several inputs": lambda url: bs.enrich(
        ["sample/customers.csv", "sample/customers.json"], "many", **LOCAL
    ),
    "`bansong letters`": lambda url: bs.letters("bought.csv", "again.csv"),
    "`bansong run`": _job,
    "`bansong label`": _label,
    "`bansong watch sync`": lambda url: bs.watch.sync("sample/customers.csv", local=True, apply=True),
    "`bansong watch check`": lambda url: bs.watch.check(**LOCAL),
    "`bansong data build-registry`": lambda url: bs.build_registry(["sample/registry_source.csv"], "made.parquet"),
    "`bansong forget`": lambda url: bs.forget("124-81-00998"),
}


# HTTP


def _operations() -> str:
    from bansong.server.routes import document

    described = document()
    parts = [
        "# The HTTP interface\n",
        described["info"]["description"].replace("<", "&lt;") + "\n",
        "`bansong serve` gives the whole OpenAPI document at `/openapi.json`.\n",
    ]
    for path, methods in described["paths"].items():
        for method, one in methods.items():
            answers = "".join(
                f"\n- {status}: {answer['description']}"
                for status, answer in one["responses"].items()
                if "$ref" not in answer
            )
            refusals = ", ".join(status for status, answer in one["responses"].items() if "$ref" in answer)
            answers += f"\n- refused with {refusals}" if refusals else ""
            parts.append(f"## `{method.upper()} {path}`\n\n{one['summary']}\n\n{answers}\n")
    return "\n".join(parts)
