"""What an error looks like: one sentence in a notebook, Python's traceback everywhere else."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

CELLS = {
    "expected": "import bansong as bs\nbs.enrich('customers_that_are_not_there.csv')",
    "defect": "from bansong.errors import AccountingError\nraise AccountingError('3 rows in, 2 out')",
    "another": "1 / 0",
}


@pytest.fixture(scope="module")
def shown() -> dict[str, Any]:
    """The output of each cell, run one after the other in one notebook."""
    cells = [nbformat.v4.new_code_cell(source) for source in CELLS.values()]
    book = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(book, kernel_name="python3", allow_errors=True, timeout=120).execute()
    return {name: cell.outputs[-1] for name, cell in zip(CELLS, book.cells, strict=True)}


@pytest.mark.process
def test_in_a_notebook_an_expected_error_is_its_sentence(shown: dict[str, Any]) -> None:
    """What is wrong and what to do stands alone, not below 50 lines of bansong's own code."""
    output = shown["expected"]
    assert (output.output_type, output.ename) == ("error", "InputError")
    (line,) = output.traceback
    assert line.startswith("InputError: customers_that_are_not_there.csv: ")
    assert "\n" not in line


def test_in_a_notebook_a_defect_keeps_its_traceback(shown: dict[str, Any]) -> None:
    """Who reports a defect of bansong has something to send; errors of others look as they always do."""
    defect = "\n".join(shown["defect"].traceback)
    assert "Traceback (most recent call last)" in defect
    assert defect.endswith("3 rows in, 2 out")
    assert len(shown["another"].traceback) > 1


def test_outside_of_notebooks_the_traceback_is_python_s() -> None:
    """A script that does not catch an error shows where it came from."""
    done = subprocess.run([sys.executable, "-c", CELLS["expected"]], capture_output=True, text=True, check=False)
    assert "Traceback (most recent call last)" in done.stderr
    assert "bansong.errors.InputError: customers_that_are_not_there.csv: " in done.stderr
