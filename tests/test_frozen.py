"""What users rely on, frozen: outputs of each format and engine, transcripts of commands, stored schemas, public names.

Each golden is a text in ``tests/frozen/``. ``FREEZE=1 pytest -n 0 -m frozen`` writes them anew; a commit that changes
one does so on purpose and says why. Newer libraries may change a byte, too, so this is a stage of ``.ci/run`` and not
of the default suite. The commands with their options are frozen in ``docs/cli.md``, the schema of a job file in
``docs/bansong-job.schema.json``.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import re
import shlex
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, date, datetime, tzinfo
from getpass import getuser
from pathlib import Path
from typing import Any, Final, Self
from zipfile import ZipFile

import pyarrow.parquet as pq
import pytest

import bansong as bs
from bansong.base import schema
from bansong.base.messages import Lang, gettext, use_language
from bansong.base.schema import SEOUL
from bansong.jobs.state import RUN_FILE
from bansong.purchase.ledger_file import LEDGER_FILE
from bansong.reference.reviews import CHOICE_FILE
from bansong.reference.status_store import STATUS_FILE
from bansong.server.routes import document
from bansong.server.store import SERVER_FILE
from bansong.testing import FakeService
from bansong.watch.store import WATCH_FILE
from conftest import ROOT, SAMPLE
from customers import QUICK
from test_errors import problems

pytestmark = pytest.mark.frozen
Run = Callable[..., subprocess.CompletedProcess[str]]

FROZEN: Final = ROOT / "tests" / "frozen"
INPUTS: Final = sorted((FROZEN / "inputs").glob("list.*"))
COMMANDS: Final = FROZEN / "inputs" / "commands"
OUTPUTS: Final = ("csv", "xlsx", "json", "jsonl", "parquet")
LOCAL: Final[dict[str, Any]] = {
    "registry": SAMPLE / "registry.parquet",
    "gazetteer": SAMPLE / "gazetteer.parquet",
    "today": date(2026, 11, 20),
    "labels": False,
}
SHOWN: Final = re.compile(r"xl/(worksheets/[^/]+|sharedStrings|tables/[^/]+|workbook)\.xml$|content\.xml$")
MASKS: Final = (
    (r"\d{8}T\d{6}-[0-9a-f]{6}", "RUN"),
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(\+00:00|\+09:00|Z)?", "TIME"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d(:\d\d(\.\d+)?)?", "TIME"),
    (r"\b\d+\.\d+( s\b|초)", r"N\1"),
    (r"\b(127\.0\.0\.1|localhost):\d+", r"\1:PORT"),
    (r"bv_[\w-]{43}", "SECRET"),
    (r"\b[0-9a-f]{64}\b", "SHA256"),
    (r"(?m)((?:key |키 |create  |^))[0-9a-f]{8}(?=  |:)", r"\1KEY"),
    (r'("(?:started|finished|ended|seconds|rate)": )[\d.]+', r"\1N"),
    (r"[\d.]+/s|초당 [\d.]+건", "RATE"),
    (r"used in \d{4}-\d\d|\d{4}-\d\d 사용", "used in MONTH"),
    (r"\b[0-9a-f]{16}\b", "ID"),
)


class Noon(datetime):
    """What tells the day in Korea: always the same one."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Self:
        return cls(2026, 11, 20, 12, tzinfo=tz)


@pytest.fixture(autouse=True)
def _same_day(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "datetime", Noon)


def masked(text: str, folder: Path, state: Path) -> str:
    """The text without what differs from run to run: places, times, ids."""
    for path, name in ((state, "STATE"), (folder, "FOLDER"), (ROOT, "ROOT")):
        text = text.replace(str(path), name)
    text = text.replace(getuser(), "USER")
    for pattern, mask in MASKS:
        text = re.sub(pattern, mask, text)
    for zone in (SEOUL, UTC):
        text = text.replace(f"{datetime.now(zone):%Y-%m-%d}", "TODAY")
    return text.replace(bs.__version__, "VERSION")


def freeze(name: str, text: str) -> None:
    """Compare a text with its golden, or write it with ``FREEZE=1``."""
    golden = FROZEN / name
    if os.environ.get("FREEZE") == "1":
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_text(text, encoding="utf-8", newline="\n")
    assert text == golden.read_text(encoding="utf-8")


def content(path: Path) -> str:
    """A file as a text: a workbook's sheets and a digest of each other part, a Parquet file's schema and rows."""
    data = path.read_bytes()
    if data.startswith(b"PK"):
        with ZipFile(path) as archive:
            parts = {one: archive.read(one) for one in sorted(archive.namelist()) if "docProps" not in one}
        shown = {one: part.decode().replace("><", ">⏎\n<") for one, part in parts.items() if SHOWN.search(one)}
        digests = {one: hashlib.sha256(part).hexdigest() for one, part in parts.items()}
        return "".join(f"── {one}\n{shown.get(one, digest)}\n" for one, digest in digests.items())
    if data.startswith(b"PAR1"):
        table = pq.read_table(path)
        rows = (json.dumps(row, ensure_ascii=False, default=str) for row in table.to_pylist())
        return "\n".join([str(table.schema), *rows, ""])
    try:
        return f"utf-8\n{data.decode()}".replace("\r\n", "␍\n")
    except UnicodeDecodeError:
        return f"cp949\n{data.decode('cp949')}".replace("\r\n", "␍\n")


@pytest.mark.parametrize("extension", OUTPUTS)
@pytest.mark.parametrize("path", INPUTS, ids=lambda path: path.suffix[1:])
def test_outputs_of_each_format(path: Path, extension: str, tmp_path: Path) -> None:
    """Each format of input in each format of output; an output of the same format is a copy, nine columns wider."""
    given, out = Path(shutil.copy(path, tmp_path)), tmp_path / f"out.{extension}"
    bs.enrich(given, out, **LOCAL)
    freeze(f"outputs/{path.suffix[1:]}_to_{extension}.txt", content(out))


@pytest.mark.parametrize("name", ["list.tsv", "list.ods", "list.xls", "list.html"])
def test_outputs_by_default(name: str, tmp_path: Path) -> None:
    """Where the output is not named, its name, format and encoding follow the input."""
    given = Path(shutil.copy(FROZEN / "inputs" / name, tmp_path))
    out = Path(str(bs.enrich(given, **LOCAL).output))
    text = content(out) if out.suffix != ".xlsx" else ""  # the same as with the name given
    freeze(f"outputs/{given.suffix[1:]}_by_default.txt", f"{out.name}\n{text}")


@pytest.mark.parametrize("engine", ["verify", "batch", "hybrid"])
@pytest.mark.parametrize("name", ["list.csv", "list.xlsx"])
def test_outputs_of_each_engine(name: str, engine: Any, service: FakeService, url: str, tmp_path: Path) -> None:
    given = Path(shutil.copy(FROZEN / "inputs" / name, tmp_path))
    out = tmp_path / f"out{given.suffix}"
    bs.enrich(given, out, engine=engine, **(LOCAL if engine == "hybrid" else {}), **QUICK)
    freeze(f"outputs/{engine}_{given.suffix[1:]}.txt", content(out))


SIDE: Final[dict[str, dict[str, Any]]] = {
    "korean": {"headers": "ko", "lang": "ko"},
    "prefix": {"prefix": "bs_"},
    "selected": {"select": ["사업자등록번호"]},
    "in_place": {"in_place": True},
    "letters": {"letters": "letters.csv", "review": "review.xlsx", "split": "action", "report": "page.html"},
}


@pytest.mark.parametrize("options", SIDE)
@pytest.mark.parametrize("name", ["list.csv", "list.xlsx"])
def test_ways_of_writing(name: str, options: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file of the folder afterwards."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(FROZEN / "inputs" / name, tmp_path)
    bs.enrich(name, **SIDE[options] | LOCAL)
    written = sorted(path for path in tmp_path.iterdir() if path.suffix in (".csv", ".xlsx") or path.name != name)
    texts = (f"══ {path.name}\n{content(path)}" for path in written if path.suffix != ".html")
    freeze(f"ways/{options}_{name.removeprefix('list.')}.txt", "".join(texts))


TRANSCRIPTS: Final[dict[str, tuple[str, ...]]] = {
    "files": (
        "plan list.csv",
        "plan list.csv --json",
        "enrich list.csv -o out.csv --registry ROOT/sample_data/registry.parquet",
        "enrich list.csv -o out.csv --registry ROOT/sample_data/registry.parquet --json",
        "enrich list.csv list.xlsx --gazetteer ROOT/sample_data/gazetteer.parquet",
        "enrich list.csv list.xlsx --json",
        "enrich list.csv -o out.csv --dry-run",
        "report out.csv -o page.html",
        "verify 124-81-00998 --name 가상전자 --address '경기도 수원시 영통구 삼성로 129'",
        "verify 124-81-00998 --json",
    ),
    "refusals": (
        "enrich",
        "enrich none.csv",
        "enrich list.csv --engine magic",
        "enrich list.csv --colunms b_no=x",
        "enrich list.csv --columns b_no=없는열",
        "enrich list.csv -o list.csv",
        "enrich list.csv -o out.docx",
        "enrich list.csv --headers ko -o out.json",
        "enrich list.xlsx --sheet 없는시트",
        "enrich empty.csv",
        "enrich text.csv",
        "enrich ragged.csv",
        "enrich list.csv --registry list.csv",
        "enrich list.csv --gazetteer none.parquet",
        "enrich list.csv --engine verify",
        "verify 123",
        "status 1248100998",
        "report none -o page.html",
        "run none.toml",
        "label list.csv",
        "resolve none --lost",
        "watch list",
        "keys list --db none.sqlite",
        "model show 99",
        "data apply-review list.xlsx",
    ),
    "bought": (
        "me",
        "plan list.csv --engine verify",
        "enrich list.csv -o out.csv --engine verify --budget 2",
        "enrich list.csv -o out.csv --engine verify",
        "enrich list.csv -o out.csv --engine verify --json",
        "enrich list.xlsx -o out.xlsx --engine batch",
        "enrich list.csv -o hybrid.csv --engine hybrid",
        "ledger",
        "ledger --json",
        "resolve",
        "enrich list.tsv -o out.tsv --engine verify --key-file wrong.key",
    ),
    "letters": (
        "enrich list.csv -o out.csv --registry ROOT/sample_data/registry.parquet --letters letters.csv",
        "label returns.csv --file out.csv --mailed 2026-11-20 --returns-requested",
        "label returns.csv --file out.csv --mailed 2026-11-20 --returns-requested --json",
        "enrich list.csv -o again.csv --with-outcomes",
        "calibrate",
        "model history",
        "forget 2208162517",
    ),
    "reference": (
        "data build-registry registry.csv -o registry.parquet",
        "data build-registry registry.csv -o registry.parquet --json",
        "data build-gazetteer rnaddrkor_sample.txt jibun_rnaddrkor_sample.txt -o g.parquet",
        "enrich list.csv -o out.csv --gazetteer g.parquet --review review.xlsx",
        "data apply-review review.xlsx",
    ),
    "watched": (
        "watch add 1248100998 --name 가상전자 --local",
        "watch sync list.csv --local",
        "watch list --local",
        "watch list --local --json",
        "watch check --local --registry ROOT/sample_data/registry.parquet",
        "watch history 1248100998 --local",
    ),
    "jobs": (
        "run job.toml",
        "run job.toml --json",
        "runs list job.toml",
        "runs list job.toml --json",
        "runs show job.toml last",
        "runs diff job.toml last-1 last -o changes.xlsx",
        "run broken.toml",
    ),
    "keys": (
        "keys create --db db.sqlite --plan business --note 김대리",
        "keys list --db db.sqlite",
    ),
}


@pytest.mark.parametrize("lang", ["en", "ko"])
@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_transcripts(
    name: str, lang: str, run: Run, tmp_path: Path, state_directory: Path, request: pytest.FixtureRequest
) -> None:
    """What each command prints, where, and its exit code."""
    if name == "bought":
        request.getfixturevalue("url")
    for path in (*INPUTS, *COMMANDS.iterdir(), *SAMPLE.glob("*.txt")):
        shutil.copy(path, tmp_path)
    said = []
    for line in TRANSCRIPTS[name]:
        done = run(*shlex.split(line.replace("ROOT", str(ROOT))), env={"BANSONG_LANG": lang})
        said += [f"$ bansong {line}\n", done.stdout, "".join(f"! {one}\n" for one in done.stderr.splitlines())]
        said.append(f"= {done.returncode}\n\n")
    freeze(f"transcripts/{name}.{lang}.txt", masked("".join(said), tmp_path, state_directory))


KINDS: Final = {
    "ledger": LEDGER_FILE,
    "statuses": STATUS_FILE,
    "watch": WATCH_FILE,
    "job": RUN_FILE,
    "choices": CHOICE_FILE,
    "server": SERVER_FILE,
}


@pytest.mark.parametrize("name", KINDS)
def test_tables_of_our_files(name: str, tmp_path: Path) -> None:
    KINDS[name].make(tmp_path / "file")
    with closing(sqlite3.connect(tmp_path / "file")) as db:
        facts = [f"{one} {db.execute(f'PRAGMA {one}').fetchone()[0]}" for one in ("application_id", "user_version")]
        made = [sql for (sql,) in db.execute("SELECT sql FROM sqlite_master WHERE sql NOT NULL ORDER BY type, name")]
    freeze(f"stored/{name}.sql", "\n".join([*facts, *made, ""]))


def test_what_parquet_files_of_ours_say_of_themselves(run: Run, tmp_path: Path, state_directory: Path) -> None:
    """Registry, gazetteer and the letters of a mailing: columns, types and metadata."""
    for path in (*INPUTS, *COMMANDS.iterdir()):
        shutil.copy(path, tmp_path)
    run("data", "build-registry", "registry.csv", "-o", "registry.parquet")
    run("enrich", "list.csv", "-o", "out.csv")
    run("label", "returns.csv", "--file", "out.csv", "--mailed", "2026-11-20", "--returns-requested")
    (letters,) = (state_directory / "labels").glob("*.parquet")
    said = []
    for path in (tmp_path / "registry.parquet", SAMPLE / "gazetteer.parquet", letters):
        columns = pq.read_schema(path)
        about = {
            key.decode(): value.decode() for key, value in (columns.metadata or {}).items() if key != b"ARROW:schema"
        }
        said += [f"── {path.name}", str(columns.remove_metadata()), json.dumps(about, ensure_ascii=False, indent=1)]
    freeze("stored/parquet.txt", masked("\n".join([*said, ""]), tmp_path, state_directory))


def test_manifests(run: Run, tmp_path: Path, state_directory: Path) -> None:
    """Of one input, and of several."""
    for path in INPUTS:
        shutil.copy(path, tmp_path)
    run("enrich", "list.csv", "--manifest", "one.json")
    run("enrich", "list.csv", "list.json", "--manifest", "several.json")
    for name in ("one", "several"):
        text = json.dumps(json.loads((tmp_path / f"{name}.json").read_text("utf-8")), ensure_ascii=False, indent=1)
        freeze(f"stored/manifest_{name}.json", masked(text, tmp_path, state_directory))


def test_the_service_s_document() -> None:
    """The paths of `bansong serve`, what they take and what they answer (OpenAPI)."""
    freeze(
        "openapi.json",
        json.dumps(document(), ensure_ascii=False, indent=1).replace(bs.__version__, "VERSION"),
    )


@pytest.mark.parametrize("lang", ["en", "ko"])
def test_sentences_of_errors(lang: Lang) -> None:
    """Each problem's code with its sentence, fields unfilled: one listed commit for each that changes."""
    with use_language(lang):
        said = [f"{code}: {gettext(one.text)}" for code, one in sorted(problems().items())]
    alerts = [one for one in said if one.startswith("alert.")]
    freeze(f"problems.{lang}.txt", "\n".join([*(one for one in said if one not in alerts), ""]))
    freeze(f"alerts.{lang}.txt", "\n".join([*alerts, ""]))


def test_public_names() -> None:
    """What ``import bansong`` gives: names, parameters, the members of classes."""
    said = []
    for name in sorted(bs.__all__):
        thing = getattr(bs, name)
        said.append(f"{name}{_signature(thing)}")
        if inspect.isclass(thing):
            members = sorted(one for one in dir(thing) if not one.startswith("_"))
            said += [f"    .{one}{_signature(getattr(thing, one))}" for one in members]
    freeze("public_names.txt", "\n".join([*said, ""]))


def _signature(thing: object) -> str:
    if not callable(thing):
        return ""
    try:
        return str(inspect.signature(thing))
    except ValueError:
        return "(…)"
