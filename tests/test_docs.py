"""The documentation and the sample are true: commands run, pages agree with the code, the notebook executes."""

from __future__ import annotations

import doctest
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import openpyxl
import pytest

import bansong as bs
from bansong.testing import FakeService, serve
from conftest import NINE, ROOT, SAMPLE, json_of, write

sys.path.insert(0, str(ROOT / "docs"))
sys.path.insert(0, str(ROOT / "sample_data"))


def test_the_pages_agree_with_the_code() -> None:
    import check

    assert check.faults() == []


def test_the_page_about_privacy_names_every_store() -> None:
    from bansong.purchase.ledger_file import LEDGER_FILE
    from bansong.reference.reviews import CHOICE_FILE
    from bansong.reference.status_store import STATUS_FILE
    from bansong.watch.store import WATCH_FILE

    text = (ROOT / "docs" / "privacy.md").read_text(encoding="utf-8")
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    folders = re.findall(r'state_directory\(\) / "(\w+)"', code)
    assert {"app", "data", "jobs", "labels", "models", "runs", "written"} == set(folders)
    for kind in (CHOICE_FILE, LEDGER_FILE, STATUS_FILE, WATCH_FILE):
        assert f"`{kind.default}` (`{kind.variable}`)" in text
    assert [folder for folder in folders if f"`{folder}/`" not in text] == []


def test_the_examples_of_the_client_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = FakeService("test-key")
    (tmp_path / "lookups.csv").write_text("b_no,name,address\n1248100998,가,\n2208162517,나,\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BANSONG_API_KEY", "test-key")
    blocks = python_blocks("docs/client.md")
    assert len(blocks) == 10
    names: dict[str, Any] = {}
    with serve(service) as url:
        monkeypatch.setenv("BANSONG_BASE_URL", url)
        for block in blocks:
            exec(compile(block, "client.md", "exec"), names)
    assert names["status"].state == names["job_ended"].state == "done"
    assert len(names["grades"]) == 2
    assert names["raw"].status == 200
    assert (names["mocked"].request_id, names["mocked"].parse().grade) == ("r-1", "A")
    assert names["said"].startswith("`b_no=`: of type int; give the number as a str, like '124-81-00998': ")
    assert (service.paid_total, service.paid_again) == (5, 0)


def test_the_readme_names_all_nine_columns_and_two_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = text.split("## What you get")[1].split("## Use")[0]
    assert [name for name in re.findall(r"`([a-z_]+)`", table) if name in NINE][: len(NINE)] == list(NINE)
    assert len(re.findall(r"^python3 -m venv .*$", text, flags=re.M)) == 2


def test_the_examples_of_the_number_run() -> None:
    assert doctest.testmod(bs.number)[0] == 0 < doctest.testmod(bs.number)[1]


def python_blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), flags=re.S)


@pytest.fixture
def sample_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "sample_data").symlink_to(SAMPLE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


NOTEBOOKS = {
    "01_quickstart": ("발송 189", "시·도별 반송 위험", "확인이 필요한 이유"),
    "02_statuses_and_addresses": ("국세청 280", "typo_repaired", "자동 보정(다른 항목으로는"),
    "03_buying": ("(5, 50)", "in_doubt", "1건", "(262, 1)"),
    "04_labels_and_learning": ("신규 270", "교체: ", "+1"),
    "05_watch_and_changes": ("29곳이 이미 폐업", "다온늘봄물산", "새로 폐업 1곳, ", "빠진 거래처 2곳", "<svg"),
    "06_ten_million_rows_and_spark": ("200,000", "행/초", "표 3개"),
}
"""Words that each notebook shows when it is executed."""


@pytest.mark.parametrize("name", NOTEBOOKS)
@pytest.mark.timeout(60)
@pytest.mark.process
def test_the_notebooks_execute(name: str) -> None:
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
    NotebookClient(notebook, timeout=60, resources={"metadata": {"path": str(ROOT / "notebooks")}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert [words for words in NOTEBOOKS[name] if words not in str(outputs)] == []
    assert [output for output in outputs if output.get("name") == "stderr"] == []


def test_the_sample_is_what_its_script_makes(tmp_path: Path, monkeypatch: object) -> None:
    import make

    make.HERE = tmp_path
    make.main()
    for made in tmp_path.iterdir():
        if made.suffix == ".xlsx":
            cells = [
                [list(row) for row in openpyxl.load_workbook(path).active.values] for path in (made, SAMPLE / made.name)
            ]
            assert cells[0] == cells[1]
        else:
            assert made.read_bytes() == (SAMPLE / made.name).read_bytes(), made.name


@pytest.mark.process
def test_the_example_of_a_pool_runs_as_a_script(sample_folder: Path) -> None:
    (block,) = [block for block in python_blocks("docs/scaling.md") if "ProcessPoolExecutor" in block]
    write(sample_folder / "pool.py", block + "    print(sum(table.num_rows for table in tables))\n")
    done = subprocess.run([sys.executable, "pool.py"], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("300\n", 0), done.stderr


def test_the_notebooks_store_no_outputs_and_each_is_executed() -> None:
    found = {path.stem: json_of(path) for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert set(found) == set(NOTEBOOKS)
    cells = [(name, cell) for name, book in found.items() for cell in book["cells"] if cell["cell_type"] == "code"]
    assert [(name, cell["source"]) for name, cell in cells if cell["outputs"] or cell["execution_count"]] == []
