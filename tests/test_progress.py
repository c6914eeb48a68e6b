"""How far a run is: shown where somebody looks on, and nowhere else."""

from __future__ import annotations

import os
import subprocess
import sys

import polars as pl
import pytest

import bansong as bs
from bansong.base.display import terminal_bar
from bansong.base.messages import Lang, use_language
from conftest import SAMPLE

SETUP = f"""
import warnings; warnings.simplefilter("ignore")
import polars as pl
import bansong as bs
from bansong.base import display
frame = pl.concat([pl.read_csv({str(SAMPLE / "customers.csv")!r}, infer_schema=False)] * 200)
seen, shown = [], display.NotebookBar._show
display.NotebookBar._show = lambda bar, html, text: (seen.append(text), shown(bar, html, text))
display._FIRST_UPDATE_S = display._UPDATE_INTERVAL_S = 0.0
"""
SHOWN = """
bs.verify_frame(frame);
assert len(seen) > 1 and "60,000 rows" in seen[-2] and seen[-1] == "", seen
"""
UNSHOWN = """
del seen[:]
bs.verify_frame(frame, progress=False);
bs.verify_frame(frame, progress=lambda done, total: None);
display._FIRST_UPDATE_S = 600.0
bs.verify_frame(frame);
assert not seen
"""


@pytest.mark.process
def test_in_a_notebook_a_bar_is_one_output_that_is_empty_in_the_end() -> None:
    nbformat = pytest.importorskip("nbformat", reason='notebooks: pip install "bansong[dev]"')
    nbclient = pytest.importorskip("nbclient", reason='notebooks: pip install "bansong[dev]"')
    cells = [nbformat.v4.new_code_cell(source) for source in (SETUP, SHOWN, UNSHOWN)]
    nbclient.NotebookClient(nbformat.v4.new_notebook(cells=cells), timeout=120).execute()
    assert [output["output_type"] for output in cells[1].outputs] == ["display_data"], cells[1].outputs
    assert cells[1].outputs[0]["data"] == {"text/html": "", "text/plain": ""}
    assert cells[0].outputs == cells[2].outputs == []


SCRIPT = f"""
import polars as pl, bansong as bs
bs.verify_frame(pl.concat([pl.read_csv({str(SAMPLE / "customers.csv")!r}, infer_schema=False)] * 20))
"""


@pytest.mark.process
def test_a_script_shows_a_bar_on_a_terminal_alone() -> None:
    pty = pytest.importorskip("pty", reason="a terminal of the operating system's")
    here, there = pty.openpty()
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT]
    subprocess.run(
        command, stdout=subprocess.PIPE, stderr=there, env={**os.environ, "TERM": "xterm", "NO_COLOR": "1"}, check=True
    )
    os.close(there)
    said = b""
    while chunk := _read(here):
        said += chunk
    os.close(here)
    assert "6000/6000 rows" in said.decode()
    piped = subprocess.run(command, capture_output=True, check=True)
    assert (piped.stdout, piped.stderr) == (b"", b"")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux says so when the other side is closed
        return b""


def test_a_function_is_called_with_rows_done_and_all() -> None:
    calls: list[tuple[int, int]] = []
    frame = pl.read_csv(SAMPLE / "customers.csv", infer_schema=False)
    with pytest.warns(UserWarning, match="statuses checked"):
        bs.verify_frame(frame, progress=lambda done, total: calls.append((done, total)))
    assert calls[-1] == (300, 300)
    assert [done for done, _ in calls] == sorted({done for done, _ in calls})


@pytest.mark.parametrize(
    ("lang", "row", "piece", "one"), [("ko", "행", "건", "개"), ("en", " rows", " lookups", " numbers")]
)
def test_a_count_on_a_terminal_has_the_word_of_a_count(lang: Lang, row: str, piece: str, one: str) -> None:
    found = []
    for unit in ("rows", "lookups", "numbers", "MB"):
        with use_language(lang), terminal_bar(unit, "verifying") as bar:
            bar(40, 300)
            (task,) = bar._progress.tasks
            found.append(task.fields["figures"])
    assert found == [f" 40/300{word}" for word in (row, piece, one, " MB")]
