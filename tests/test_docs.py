"""The documentation and the sample are true: commands run, pages agree with the code, the notebook executes."""

from __future__ import annotations

import doctest
import re
import runpy
import subprocess
import sys
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
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
    blocks = [block for block in python_blocks("docs/client.md") if "def test_" not in block]
    assert len(blocks) == 11
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
    assert (service.paid_total, service.paid_again) == (6, 0)


@pytest.mark.parametrize("library", ["respx", "pytest_httpx"])
def test_the_examples_of_tests_run(library: str, request: pytest.FixtureRequest) -> None:
    pytest.importorskip(library)
    (block,) = (block for block in python_blocks("docs/client.md") if f" {library}" in block)
    names: dict[str, Any] = {"bs": bs}
    exec(compile(block, "client.md", "exec"), names)
    fixtures = [request.getfixturevalue("httpx_mock")] if library == "pytest_httpx" else []
    names[f"test_with_{library}"](*fixtures)


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


NOTEBOOKS = [(path.stem, lang) for path in sorted((ROOT / "notebooks/sources").glob("*.py")) for lang in ("en", "ko")]


@pytest.fixture(scope="module")
def notebooks() -> SimpleNamespace:
    return SimpleNamespace(**runpy.run_path(str(ROOT / "notebooks" / "build.py")))


def shown(book: Any) -> list[Any]:
    """The texts that each cell shows; of a picture, that there is one."""
    outputs = [[dict(output) for output in cell.get("outputs", [])] for cell in book.cells]
    for output in chain(*outputs):
        if "image/png" in output.get("data", {}):
            output |= {"data": "a picture", "metadata": {}}
    return outputs


@pytest.mark.parametrize(("name", "lang"), NOTEBOOKS)
@pytest.mark.timeout(120)
@pytest.mark.process
def test_a_notebook_stores_what_it_shows_when_it_is_executed(name: str, lang: str, notebooks: SimpleNamespace) -> None:
    """Else: ``python notebooks/build.py`` writes them again, and the difference is to be read."""
    for module in ("time_machine", "PIL"):
        pytest.importorskip(module, reason='their clock and pictures: pip install "bansong[dev]"')
    import nbformat

    stored = nbformat.read(notebooks.target(name, lang), as_version=4)
    assert shown(notebooks.build(name, lang)) == shown(stored)


def test_the_notebooks_are_their_sources_and_tell_nothing_of_a_machine(notebooks: SimpleNamespace) -> None:
    """In two languages with the same code; with outputs and pictures that are small; and links that lead somewhere."""
    folder = ROOT / "notebooks"
    assert sorted(folder.glob("*.ipynb")) == sorted(notebooks.target(*one) for one in NOTEBOOKS)
    code: dict[str, list[list[str]]] = {"en": [], "ko": []}
    for name, lang in NOTEBOOKS:
        path = notebooks.target(name, lang)
        book, text = json_of(path), path.read_text(encoding="utf-8")
        source = notebooks.read_source(name, lang)
        cells = [(one["id"], one["cell_type"], "".join(one["source"]), one["metadata"]) for one in book["cells"]]
        assert cells == [(one.id, one.cell_type, one.source, one.metadata) for one in source.cells], path
        assert book["metadata"] == source.metadata
        assert re.findall(r"(?:/tmp|/home|/root|/Users|/work)/|\b127\.0\.0\.1:\d|stderr|<svg|<script", text) == [], path
        executed = [cell for cell in book["cells"] if cell["cell_type"] == "code" and not cell["metadata"]]
        assert [cell["execution_count"] for cell in executed] == list(range(1, len(executed) + 1))
        outputs = chain.from_iterable(cell["outputs"] for cell in executed)
        pictures = [output["data"]["image/png"] for output in outputs if "image/png" in output.get("data", {})]
        drawn = sum("chart" in cell["source"][-1] or "waterfall" in cell["source"][-1] for cell in executed)
        assert len(pictures) == drawn
        assert all(1_000 < len("".join(picture)) * 3 / 4 <= 150_000 for picture in pictures), path
        links = re.findall(r"\]\(([^)#:]+)\)", "\n".join(one[2] for one in cells if one[1] == "markdown"))
        assert [link for link in links if not (folder / link).exists()] == [], path
        code[lang].append([one[2].replace(f'LANG = "{lang}"', "LANG") for one in cells if one[1] == "code"])
    assert code["en"] == code["ko"]
    assert sum(path.stat().st_size for path in folder.glob("*.ipynb")) <= 2_500_000


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
