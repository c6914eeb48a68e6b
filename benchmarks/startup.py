"""How long a person waits for small things: ``bansong --help``, one lookup, the sample's 300 rows, start to end.

    python benchmarks/startup.py [--runs 7] [--gazetteer NATION.parquet]

The baseline is a Python that only imports polars. Goals in CPU: at most 2.5 times that for the 300 rows as CSV, 2 times
for one business; 0.3 s for the help, 1 s for a lookup in the nation's gazetteer (what ``bansong data build-gazetteer``
makes of what ``benchmarks/nationwide.py`` wrote).
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from measure import alternate, bansong, print_ratios

SAMPLE = Path(__file__).parent.parent / "sample_data"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--gazetteer", type=Path)
    given = parser.parse_args()
    one = ["verify", "1248100998", "--name", "삼성전자", "--address"]
    found, repaired = [*one, "세종특별자치시 조치원읍 새내로 123"], [*one, "경기 수원시 영통구 삼상로 129, 삼성빌딩"]
    lookups = {
        "found": [*found, "--gazetteer", given.gazetteer],
        "not there": [*repaired, "--gazetteer", given.gazetteer],
    }
    with tempfile.TemporaryDirectory() as folder:
        os.environ["BANSONG_STATE_DIR"] = folder
        registry = SAMPLE / "registry.parquet"
        figures = alternate(
            {
                "python -c 'import polars'": [sys.executable, "-c", "import polars"],
                "python -c pass": [sys.executable, "-c", "pass"],
                "bansong --help": bansong("--help"),
                "bansong verify": bansong(*found),
                **{
                    f"bansong verify --gazetteer, {what}": bansong(*arguments)
                    for what, arguments in lookups.items()
                    if given.gazetteer
                },
                **{
                    f"bansong enrich {name}": bansong(
                        "enrich", SAMPLE / name, "--registry", registry, "-o", Path(folder, name)
                    )
                    for name in ("customers.csv", "customers.json", "customers.xlsx")
                },
            },
            given.runs,
        )
    print_ratios(figures)


if __name__ == "__main__":
    main()
