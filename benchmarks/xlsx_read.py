"""Reads a workbook of 100,000 rows × 8 columns, guard and all, beside bare fastexcel: wall and CPU. Prints ratios.

python benchmarks/xlsx_read.py [ROWS]
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measure import once

GOAL = 1.4
RUNS = 7
MAKE = """
import sys, xlsxwriter
out, rows, kind = sys.argv[1], int(sys.argv[2]), sys.argv[3]
with xlsxwriter.Workbook(out, {"constant_memory": kind == "inline"}) as book:
    sheet = book.add_worksheet("고객")
    sheet.write_row(0, 0, ["코드", "사업자번호", "상호", "대표자", "주소", "우편번호", "금액", "날짜"])
    for i in range(1, rows + 1):
        place = [f"경기도 수원시 영통구 삼성로 {i}", f"{i % 99999:05}"]
        sheet.write_row(i, 0, [f"C{i:06}", f"{10**9 + i * 7919}", f"상호{i}", "김철수", *place, i * 10, i])
"""
BARE = """
import sys, fastexcel
fastexcel.read_excel(sys.argv[1]).load_sheet(0, header_row=0, schema_sample_rows=None).to_polars()
"""
OURS = """
import sys, pathlib
from bansong.tables.detect import open_table
with open_table(pathlib.Path(sys.argv[1])) as table:
    table.frame.select(table.ids).collect()
"""
TYPED = OURS.replace(".select(table.ids)", "")  # as for JSON and Parquet: which cells among texts are numbers or dates


def seconds(code: str) -> tuple[float, float]:
    """Return the wall and CPU seconds of running code."""
    wall, cpu = time.perf_counter(), time.process_time()
    exec(compile(code, "code", "exec"), {})
    return time.perf_counter() - wall, time.process_time() - cpu


def main(rows: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("inline", "shared"):
            path = Path(folder, f"{kind}.xlsx")
            subprocess.run([sys.executable, "-c", MAKE, str(path), str(rows), kind], check=True)
            sys.argv[1:] = [str(path)]
            taken: dict[str, list[tuple[float, float]]] = {BARE: [], OURS: [], TYPED: []}
            for run in range(RUNS + 1):
                for code, times in taken.items():
                    took = seconds(code)
                    if run:
                        times.append(took)
            (bare, bare_cpu), (ours, cpu), (typed, typed_cpu) = (
                map(statistics.median, zip(*times, strict=True)) for times in taken.values()
            )
            peaks = [once([sys.executable, "-c", code, str(path)]).peak for code in (BARE, OURS)]
            print(
                f"{rows:,} rows, {kind} strings: bare fastexcel {bare:.2f} s, CPU {bare_cpu:.2f} s, "
                f"peak {peaks[0]:,.0f} MB; ours {ours:.2f} s, CPU {cpu:.2f} s, peak {peaks[1]:,.0f} MB; "
                f"ratio {ours / bare:.2f}, CPU {cpu / bare_cpu:.2f} (goal {GOAL}); "
                f"with the types of cells among texts {typed / bare:.2f}, CPU {typed_cpu / bare_cpu:.2f}"
            )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
