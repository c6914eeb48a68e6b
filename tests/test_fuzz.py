"""Nothing that a file contains may end in anything but a table or a clean error."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openpyxl
import polars as pl
import pytest
import xlsxwriter

from bansong.tables.detect import open_table
from conftest import spreadsheet

FUZZING = Path(__file__).with_name("fuzzing.py")
SHORT = 30
LONG = 6_000
PEAK_MB = 1_000


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small valid files of every format that is read, made by the programs that people use."""
    folder = tmp_path_factory.mktemp("seeds")
    rows = [["124-81-00998", "가나 상사", "서울 중구 1", 1.5], ["2208162517", '다,"라"', "부산\n해운대구 2", None]] * 3
    headers = ["사업자등록번호", "상호", "주소", "금액"]
    frame = pl.DataFrame(rows, schema=headers, orient="row")
    text = frame.write_csv()
    for name, data in {
        "utf8.csv": text.encode(),
        "bom.csv": text.replace("\n", "\r\n").encode("utf-8-sig"),
        "cp949.csv": ("고객 명단,,,\n\n" + text).encode("cp949"),
        "utf16.tsv": text.replace(",", "\t").encode("utf-16"),
        "lines.ndjson": frame.write_ndjson().encode(),
        "array.json": frame.write_json().encode(),
        "wrapped.json": b'{"meta":{"n":6},"data":{"items":' + frame.write_json().encode() + b'},"end":[1.10]}',
    }.items():
        (folder / name).write_bytes(data)
    frame.write_parquet(folder / "frame.parquet")
    frame.write_excel(folder / "polars.xlsx")
    book = openpyxl.Workbook()
    for row in [["고객 명단"], [], headers, *rows, ["합계", None, None, 9]]:
        book.active.append(row)
    book.active.merge_cells("A1:D1")
    book.save(folder / "openpyxl.xlsx")
    with xlsxwriter.Workbook(folder / "writer.xlsx") as new:
        sheet = new.add_worksheet("표")
        for place, row in enumerate([headers, *rows]):
            sheet.write_row(place, 0, row)
        sheet.write_formula("F2", "=1+1", None, 2)
        sheet.write_comment("A2", "note")
    spreadsheet(folder / "hand.ods", [[str(cell) for cell in row] for row in [headers, *rows]])
    return folder


def fuzzed(seeds: Path, first: int, last: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(FUZZING), str(seeds), str(first), str(last)],
        env=os.environ | {"POLARS_MAX_THREADS": "2"},
        capture_output=True,
        text=True,
        timeout=3_000,
        check=False,
    )


def test_the_seeds_themselves_are_read(seeds: Path) -> None:
    """A seed that is refused as it is would be mutated in vain."""
    for path in seeds.iterdir():
        if path.is_file():
            with open_table(path) as table:
                assert table.count() >= 6, path.name


@pytest.mark.parametrize("cases", [SHORT, pytest.param(LONG, marks=pytest.mark.fuzz)])
def test_mutated_files_end_in_tables_or_clean_errors(seeds: Path, cases: int) -> None:
    """In a bounded process, within a gigabyte, no case longer than twenty seconds."""
    half = cases // 2
    with ThreadPoolExecutor(2) as pool:
        runs = list(pool.map(lambda first: fuzzed(seeds, first, first + half), (0, half)))
    for run in runs:
        tail = "\n".join(run.stdout.splitlines()[-30:])
        assert run.returncode == 0, f"the last case printed is the one\n{tail}\n{run.stderr[-3000:]}"
        assert int(tail.partition("peak ")[2].partition(" MB")[0]) <= PEAK_MB
