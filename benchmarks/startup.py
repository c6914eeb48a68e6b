"""How long a person waits for small things: ``bizverify --help`` and the sample's 300 rows, start to end.

    python benchmarks/startup.py [--runs 7]

Goals: 0.3 s and 1.5 s. Baselines: a bare Python, and a Python that only imports polars.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from measure import alternate, bizverify

SAMPLE = Path(__file__).parent.parent / "sample_data"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as folder:
        os.environ["BIZVERIFY_STATE_DIR"] = folder
        registry = SAMPLE / "registry.parquet"
        figures = alternate(
            {
                "python -c pass": [sys.executable, "-c", "pass"],
                "python -c 'import polars'": [sys.executable, "-c", "import polars"],
                "bizverify --help": bizverify("--help"),
                **{
                    f"bizverify enrich {name}": bizverify(
                        "enrich", SAMPLE / name, "--registry", registry, "-o", Path(folder, name)
                    )
                    for name in ("customers.csv", "customers.json", "customers.xlsx")
                },
            },
            runs,
        )
    bare, *others = figures.values()
    print(bare)
    for figure in others:
        print(f"{figure}  = {figure.median / bare.median:.1f}x")


if __name__ == "__main__":
    main()
