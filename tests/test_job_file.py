"""The job file: its template, its schema, and what is said of one that is not right."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import pytest

from bansong.base.messages import Lang, use_language
from bansong.errors import UsageError
from bansong.jobs.job_file import InputPart, JobFile, job_template, json_schema, load_job_file
from conftest import write
from korean import english_sentences

Run = Callable[..., subprocess.CompletedProcess[str]]
SCHEMA: Final = Path(__file__).parent.parent / "docs" / "bansong-job.schema.json"
INPUT: Final = '[[inputs]]\npath = "a"\n'


@pytest.mark.parametrize("lang", ["en", "ko"])
def test_the_template_is_a_job_file_and_names_every_field(lang: Lang, tmp_path: Path) -> None:
    with use_language(lang):
        template = job_template()
    job = load_job_file(write(tmp_path / "job.toml", template))
    assert (job.inputs[0].path, job.lang) == ("customers.csv", "ko")
    comments = "\n".join(line.partition("#")[2] for line in template.splitlines())
    assert lang == "en" or english_sentences(comments) == []
    tables = tomllib.loads("\n".join(re.sub(r"^# (\w+ = )", r"\1", line) for line in template.splitlines()))
    tables["inputs"] = tables["inputs"][0]
    named = {name: {*(part if isinstance(part, dict) else ())} for name, part in tables.items()}
    fields = {field.name: field.type for field in msgspec.structs.fields(JobFile)} | {"inputs": InputPart}
    assert named == {name: {*getattr(part, "__struct_fields__", ())} for name, part in fields.items()}


@pytest.mark.parametrize("lang", ["en", "ko"])
def test_the_schema_is_one_and_says_what_each_field_means(lang: Lang) -> None:
    with use_language(lang):
        schema, template = json_schema(), job_template()
    validator = pytest.importorskip("jsonschema").Draft202012Validator
    validator.check_schema(schema)
    assert [*validator(schema).iter_errors(tomllib.loads(template))] == []
    assert len([*validator(schema).iter_errors({"inputs": [{"path": "a", "sheets": "b"}], "outputs": {}})]) == 2
    for name, part in schema["$defs"].items():
        for field, about in part["properties"].items():
            assert "description" in about or "$ref" in about.get("items", about) or name == "ColumnsPart", (name, field)


SECRET: Final = "https://hooks.slack.com/services/T0/s3cret"
WRONG: Final = [
    (f'{INPUT}\n[engine]\nnam = "local"\n', "line 5: engine.nam: there is no such field; is name meant?"),
    (f'{INPUT}[[inputs]]\nsheet = "b"\n', "line 3: inputs[1]: the field path is missing; add it"),
    (f'{INPUT}[output]\nmode = "rw"\n', 'line 4: output.mode: must be three digits in quotes, like "0600"'),
    (f'{INPUT}[run]\ndeadline = "soon"\n', "line 4: run.deadline: 'soon' is no duration"),
    (f'{INPUT}[engine]\nname = "cloud"\n', 'line 4: engine.name: must be one of "batch", "hybrid", "local"'),
    (f"{INPUT}[changes]\nkey = []\n", 'line 4: changes.key: must be a list of words in brackets: "address"'),
    (f'{INPUT}[notify]\nkinds = [\n "closed",\n "closd"]\n', 'line 6: notify.kinds[1]: must be one of "action_'),
    (f"{INPUT}[run]\nkeep_runs = 0\n", "line 4: run.keep_runs: must be a whole number, 1 or more"),
    (f"{INPUT}[engine]\nrate = 0\n", "line 4: engine.rate: must be a number above 0"),
    (f"{INPUT}has_header = 1\n", "line 3: inputs[0].has_header: must be true or false"),
    (f"{INPUT}sheet = 3\n", "line 3: inputs[0].sheet: must be a text in quotes or a list of texts in brackets"),
    (f'{INPUT}columns = {{ bno = "a" }}\n', "line 3: inputs[0].columns.bno: there is no such field; is b_no meant?"),
    (f'{INPUT}[output]\npath = "{{nam}}.csv"\n', "line 4: output.path: the pattern '{nam}.csv' has a field {nam}"),
    (f'{INPUT}[output]\nchanges = "{{name}}.csv"\n', "line 4: output.changes: the pattern '{name}.csv' has a field"),
    *(
        (f'{INPUT}[output]\nlatest = "{pattern}"\n', f"line 4: output.latest: the pattern '{pattern}'")
        for pattern in ("a.{date", "a.{date!x}.csv", "a.{0}.csv", "a.{}.csv", "a.{date.x}.csv")
    ),
    ('[inputs]\npath = "a"\n', "line 1: inputs: is a table of which there may be several: write [[inputs]]"),
    ("", "line 1: the file: the field inputs is missing; add it"),
    ("[[inputs]\n", "line 1: is not TOML"),
    (
        '[[inputs]]\npath = "C:\\lists\\a.csv"\n',
        "line 2: is not TOML: Unescaped '\\' in a string (at line 2, column 13); wr",
    ),
    (f'{INPUT}[notify]\nwebhook_env = "{SECRET}"\n', "line 4: notify.webhook_env: must be the name of an environment"),
    (f'{INPUT}[engine]\nkey_env = "{SECRET}"\n', "line 4: engine.key_env: must be the name of an environment"),
    (f'{INPUT}[engine]\napi_key = "{SECRET}"\n', "line 4: engine.api_key: there is no such field"),
]


def test_what_is_wrong_with_a_job_file_is_said_with_its_line_and_no_secret_is_shown(tmp_path: Path) -> None:
    found = []
    for text, said in WRONG:
        with pytest.raises(UsageError) as refused:
            load_job_file(write(tmp_path / "job.toml", text))
        shown = str(refused.value).removeprefix(f"{tmp_path / 'job.toml'}, ")
        if not shown.startswith(said) or "s3cret" in shown:
            found.append((text, shown))
    assert found == []


def test_init_writes_a_job_file_and_its_schema_once(tmp_path: Path, run: Run) -> None:
    assert run("run", "--init", "nightly.toml").returncode == 0
    written = json.loads((tmp_path / "bansong-job.schema.json").read_text("utf-8"))
    assert written == json.loads(SCHEMA.read_text("utf-8"))
    for content in ("mine", "[[inputs]\n"):
        (tmp_path / "nightly.toml").write_text(content)
        assert run("run", "--init", "nightly.toml").returncode == run("run", "nightly.toml").returncode == 2
        assert (tmp_path / "nightly.toml").read_text() == content
