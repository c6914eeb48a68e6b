"""A script for CI, in an environment with ``bansong[spark]`` alone: it brings all that Spark needs to answer."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["PYSPARK_PYTHON"] = sys.executable

from pyspark.sql import SparkSession

from bansong.base.schema import ADDED_COLUMNS
from bansong.distributed import spark

SAMPLE = Path(__file__).parent.parent / "sample_data"

session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
session.sparkContext.setLogLevel("ERROR")
customers = session.read.csv(str(SAMPLE / "customers.csv"), header=True)
enriched = spark.enrich(customers, registry=SAMPLE / "registry.parquet", labels=False)
rows = enriched.collect()
assert len(rows) == customers.count()
assert enriched.columns == [*customers.columns, *ADDED_COLUMNS]
assert all(row["row_status"] for row in rows)
print(f"{len(rows)} rows answered by Spark with the extra alone")  # noqa: T201
session.stop()
