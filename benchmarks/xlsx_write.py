"""What writing workbooks costs: the user's own one against openpyxl, a new one against xlsxwriter. Prints ratios.

Usage: python benchmarks/xlsx_write.py [ROWS]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measure import Figures, Usage, bansong, once

RUNS = 3
HEADERS = ("코드", "사업자번호", "상호", "대표자", "주소", "우편번호", "금액", "날짜")
ANSWERS = (
    "active",
    0.05,
    "A",
    "send",
    "06236",
    "서울특별시 강남구 테헤란로 1",
    "[base -30] base (x) | [a 3] b (c)",
    "verified",
    None,
)


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    with tempfile.TemporaryDirectory(prefix="bansong-") as folder:
        book, table = Path(folder, "in.xlsx"), Path(folder, "in.parquet")
        once([sys.executable, __file__, "--make", str(book), str(table), str(rows)])
        figures = {
            "own workbook: openpyxl": ("--openpyxl", book),
            "own workbook: spliced": ("--ours", book),
            "own workbook: not proved": ("--unproved", book),
            "new workbook: xlsxwriter": ("--xlsxwriter", table),
            "new workbook: ours": ("--ours", table),
        }
        found = {name: Figures(name) for name in figures}
        for _ in range(RUNS):
            for name, (how, source) in figures.items():
                found[name].runs.append(timed([sys.executable, __file__, how, str(source), f"{folder}/out.xlsx"]))
        whole = Figures("bansong enrich, the process")
        for _ in range(RUNS):
            whole.runs.append(once(bansong("enrich", book, "-o", f"{folder}/out.xlsx")))
    print(f"{rows:,} rows of {len(HEADERS)} columns, 9 added; reading and writing, without imports")
    for figure in [*found.values(), whole]:
        print(figure)
    own, proved, unproved, new, ours = found.values()
    wall, cpu = proved.median - unproved.median, proved.cpu - unproved.cpu
    print(
        f"proof of the own workbook: {proved.median / unproved.median:.2f}x the time of one without (+{wall:.2f} s, "
        f"goal: 1 s), {proved.cpu / unproved.cpu:.2f}x its CPU (+{cpu:.2f} s)"
    )
    print(f"own workbook, the whole run: {times(own, whole)} as fast as openpyxl (goal: 20x)")
    print(f"own workbook, reading and writing: {times(own, proved)} as fast as openpyxl")
    print(f"new workbook: {times(new, ours)} as fast as xlsxwriter (goal: 5x)")


def times(slow: Figures, fast: Figures) -> str:
    return f"{slow.median / fast.median:.1f}x (CPU {slow.cpu / fast.cpu:.1f}x)"


def timed(command: list[str]) -> Usage:
    """Run one of the ways below; return the seconds that it says it took, and what its process took."""
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, stdout=said)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if status:
            sys.exit(f"{' '.join(command)} failed")
        said.seek(0)
        return Usage(float(said.read()), usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def make(book: str, table: str, rows: str) -> None:
    import polars as pl

    number = pl.int_range(1, int(rows) + 1, eager=True)
    text = number.cast(pl.String)
    frame = pl.DataFrame(
        {
            "코드": "C" + text.str.zfill(6),
            "사업자번호": (number * 7_919_317 % 9_000_000_000 + 1_000_000_000).cast(pl.String),
            "상호": "상호" + text,
            "대표자": (number % 3).replace_strict({0: "김철수", 1: "박영희", 2: "최민수"}),
            "주소": "경기도 수원시 영통구 삼성로 " + text,
            "우편번호": (number % 63_000).cast(pl.String).str.zfill(5),
            "금액": number * 10,
            "날짜": number % 100 + 45_000,
        }
    )
    frame.write_parquet(table)
    frame.write_excel(book)


def by_openpyxl(source: str, target: str) -> None:
    import openpyxl

    from bansong.base.schema import ADDED_COLUMNS

    started = time.perf_counter()
    book = openpyxl.load_workbook(source)
    sheet = book.active
    for column, (name, value) in enumerate(zip(ADDED_COLUMNS, ANSWERS, strict=True), sheet.max_column + 1):
        sheet.cell(1, column, name)
        for row in range(2, sheet.max_row + 1):
            sheet.cell(row, column, value)
    book.save(target)
    _say(started)


def by_xlsxwriter(source: str, target: str) -> None:
    import polars as pl
    import xlsxwriter

    from bansong.base.schema import ADDED_COLUMNS

    started = time.perf_counter()
    rows = pl.read_parquet(source).rows()
    with xlsxwriter.Workbook(target) as book:
        sheet = book.add_worksheet()
        sheet.write_row(0, 0, [*HEADERS, *ADDED_COLUMNS])
        for place, row in enumerate(rows, 1):
            sheet.write_row(place, 0, [*row, *ANSWERS])
    _say(started)


def by_us(source: str, target: str) -> None:
    import polars as pl

    from bansong.base.schema import ADDED_COLUMNS
    from bansong.tables.detect import FORMATS, open_table, write_table
    from bansong.tables.table import Enriched

    started = time.perf_counter()
    with open_table(Path(source)) as table:
        values = [
            pl.lit(value, dtype=pl.Float64 if name == "bounce_prob" else pl.String).alias(name)
            for name, value in zip(ADDED_COLUMNS, ANSWERS, strict=True)
        ]
        frame = table.frame.with_columns(values)
        layout = (*zip(table.ids, table.headers, strict=True), *((name, name) for name in ADDED_COLUMNS))
        tally = frame.select(
            rows=pl.col(table.ids[0]).len()
        )  # without a column, polars asks for the types of the cells
        write_table(Enriched(table, frame, layout, tally), Path(target), FORMATS["xlsx"])
    _say(started)


def unproved(source: str, target: str) -> None:
    from bansong.tables.excel import splice as extend

    extend._prove_bytes = lambda *_: None
    extend.FinishedSheet.prove_cells = lambda *_: 0
    by_us(source, target)


def _say(started: float) -> None:
    print(f"{time.perf_counter() - started:.3f}")


if __name__ == "__main__":
    parts = {
        "--make": make,
        "--openpyxl": by_openpyxl,
        "--xlsxwriter": by_xlsxwriter,
        "--ours": by_us,
        "--unproved": unproved,
    }
    if sys.argv[1:] and sys.argv[1] in parts:
        parts[sys.argv[1]](*sys.argv[2:])
    else:
        main()
