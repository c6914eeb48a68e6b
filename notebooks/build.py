"""Write each notebook in English and Korean from its one source, with outputs: ``python notebooks/build.py [NAME…]``.

A source is a Python file in jupytext's percent format, which editors open as a notebook. A cell of text has a language,
``# %% [markdown] lang="ko"``; code is of both, and differs in ``LANG = "en"`` alone.
"""

from __future__ import annotations

import base64
import os
import re
import shutil
import sys
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

HERE: Final = Path(__file__).resolve().parent
NAMES: Final = sorted(path.stem for path in (HERE / "sources").glob("*.py"))
LANGS: Final = ("en", "ko")
_CELL: Final = re.compile(r'^# %%(?: (\[markdown\]))?(?: lang="(\w+)")?(?: tags=\["([\w-]+)"\])?\n', re.M)

# All processes of a notebook have the clock of a day after the sample's last return, so that answers stay as they are.
_CLOCK: Final = """
from datetime import datetime
from zoneinfo import ZoneInfo

import time_machine

time_machine.travel(datetime(2026, 11, 20, 9, tzinfo=ZoneInfo("Asia/Seoul")), tick=True).start()
"""

# What differs all the same from run to run: places, ids, how long it took.
_MASKS: Final = (
    (r"(?:/[\w.-]+)+/tmp/tmp\w{8}\b", "out"),
    (r"\b(2026-11-20[T ]09):\d\d(:\d\d)?", lambda found: f"{found[1]}:00{':00' if found[2] else ''}"),
    (r"\b20261120T\d{6}-[0-9a-f]{6}", "20261120T000000-…"),
    (r"\d[\d,.]*( s\b|초\b)", r"…\1"),
    (r"(초당 )\d[\d,.]*|\d[\d,.]*(/s\b)", r"\1…\2"),
    (r"127\.0\.0\.1:\d+", "127.0.0.1:…"),
    (r"\b[0-9a-f]{16}\b", "0123456789abcdef"),
)


def target(name: str, lang: str) -> Path:
    """Return the path of a notebook."""
    return HERE / (f"{name}.ipynb" if lang == "en" else f"{name}.{lang}.ipynb")


def read_source(name: str, lang: str) -> NotebookNode:
    """Return the notebook of a language without outputs."""
    source = (HERE / "sources" / f"{name}.py").read_text(encoding="utf-8").replace('LANG = "en"', f'LANG = "{lang}"')
    cells: list[NotebookNode] = []
    for text, of, tag, body in zip(*[iter(_CELL.split(source)[1:])] * 4, strict=True):
        if of in (None, lang):
            make = nbformat.v4.new_markdown_cell if text else nbformat.v4.new_code_cell
            shown = re.sub("^# ?" if text else "^# (?=!)", "", body, flags=re.M).strip()
            cells.append(make(shown, id=f"{name[:2]}-{len(cells):02}", metadata={"tags": [tag]} if tag else {}))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel, "language_info": {"name": "python"}})


def build(name: str, lang: str) -> NotebookNode:
    """Return the notebook of a language as it is stored: executed in a folder of its own."""
    import time_machine  # noqa: F401 - else the processes would start without their clock, and say so nowhere

    book = read_source(name, lang)
    with TemporaryDirectory() as folder:
        home = Path(folder).resolve()
        shutil.copytree(HERE.parent / "sample_data", home / "sample_data")
        for made in ("clock", "notebooks", "tmp"):
            (home / made).mkdir()
        (home / "clock" / "sitecustomize.py").write_text(_CLOCK, encoding="utf-8")
        own = {name: value for name, value in os.environ.items() if not name.startswith("BANSONG_")}
        own["PYTHONPATH"] = os.pathsep.join([str(home / "clock"), *filter(None, [own.get("PYTHONPATH")])])
        own |= {"TMPDIR": str(home / "tmp"), "BANSONG_STATE_DIR": str(home / "state")}
        place = {"metadata": {"path": str(home / "notebooks")}}
        client = NotebookClient(book, timeout=120, record_timing=False, coalesce_streams=True, resources=place)
        client.execute(env=own)
    for cell in book.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if _store(output)]
    book.metadata = read_source(name, lang).metadata  # without versions of this machine
    return book


def _store(output: NotebookNode) -> bool:
    if output.output_type == "stream":
        output.text = _mask(output.text)
        return True
    if len(output.data) > 1:
        del output.data["text/plain"]  # for displays without HTML and pictures
    for kind, value in output.data.items():
        output.data[kind] = _pack(value) if kind == "image/png" else _mask(value)
    return any(output.data.values())


def _mask(text: str) -> str:
    for pattern, mask in _MASKS:
        text = re.sub(pattern, mask, text)
    return text


def _pack(picture: str) -> str:
    from PIL import Image

    made = BytesIO()  # in 128 colours, a ninth of the size
    Image.open(BytesIO(base64.b64decode(picture))).convert("RGB").quantize(128).save(made, "PNG", optimize=True)
    return base64.b64encode(made.getvalue()).decode()


if __name__ == "__main__":
    for name in sys.argv[1:] or NAMES:
        for lang in LANGS:
            nbformat.write(build(name, lang), target(name, lang))
