"""Verify the rows of a Spark DataFrame, with features computed over all rows (needs ``bansong[spark]``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, Unpack

from _bansong_start import map_partition, map_partition_keys
from bansong.base.messages import gettext
from bansong.base.options import check_keywords, shows_keywords
from bansong.base.schema import ADDED_COLUMNS
from bansong.distributed.batches import FOUND, TEXTS, BatchVerifier, describe_process, verify_batches
from bansong.engine.records import ALIKE, CROWD, KEYS
from bansong.run.enrich import AnyEngine, BatchKeywords
from bansong.run.options import OPTION_KINDS
from bansong.tables.nested import holders_of

try:
    from pyspark import SparkFiles, TaskContext
    from pyspark.sql import Column, DataFrame, Window, WindowSpec
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, DoubleType, LongType, StringType, StructField, StructType
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        gettext("bansong.distributed.spark needs pyspark: pip install 'bansong[spark]'")
    ) from error


SAMPLE_ROWS: Final = 1000

_WRITTEN_NUMBER: Final = "bv_written_number"
_WRITTEN_ADDRESS: Final = "bv_written_address"
_WRITTEN: Final = (_WRITTEN_NUMBER, _WRITTEN_ADDRESS)
_CROWDED, _SEVERAL = FOUND
_RANK: Final = "rank"
_DIFFERENT: Final = "different"
_OTHERS: Final = {"bounce_prob": DoubleType(), "reasons": ArrayType(StringType())}
_ADDED: Final = {name: StructField(name, _OTHERS.get(name, StringType())) for name in ADDED_COLUMNS}
_KEYS_SCHEMA: Final = StructType(
    [StructField(name, StringType() if name in TEXTS else LongType()) for name in (*KEYS, *_WRITTEN)]
)


@shows_keywords(BatchKeywords, OPTION_KINDS)
def enrich(
    df: DataFrame,
    *,
    engine: AnyEngine = "local",
    cross_row_features: bool = True,
    ship_files: bool = True,
    **options: Unpack[BatchKeywords],
) -> DataFrame:
    """Add the result columns to a DataFrame, computed when it is used; ``reasons`` is an array of strings.

    The first thousand rows, which are read at once, decide which columns hold number, name and address.
    ``cross_row_features``: first find crowded addresses and numbers with several addresses, by windows over all rows.
    ``ship_files``: Spark copies registry and gazetteer to its workers; else each worker has them at the same path.
    polars has ``spark.task.cpus`` threads in a worker. Other arguments and errors as for
    :func:`bansong.distributed.verify_batches`; errors on a worker name its partition.

    A DataFrame has no order: add a column with row numbers if the rows are to be put in order again.
    """
    check_keywords(enrich, options)
    session = df.sparkSession
    threads = int(session.conf.get("spark.task.cpus", "1"))
    verifier = verify_batches(df.limit(SAMPLE_ROWS).toArrow(), engine=engine, threads=threads, **options)
    if ship_files:
        for path in verifier.engine.files:
            session.sparkContext.addFile(path)
    verifier = verifier.at(find_file=find_shipped_file if ship_files else Path, place=describe_partition)
    schema = _output_schema(df, verifier)
    if cross_row_features and not verifier.found and (keys := verifier.for_keys()) is not None:
        df, verifier = _with_found(df, keys), replace(verifier, found=tuple(FOUND))
    return df.mapInArrow(partial(map_partition, verifier), schema)


def find_shipped_file(path: str) -> Path:
    """Return the path of this worker's copy of a file that Spark has shipped."""
    return Path(SparkFiles.get(Path(path).name))


def describe_partition() -> str:
    """Return partition, stage, attempt and process of this task, for messages."""
    task = TaskContext.get()
    if task is None:
        return describe_process()
    of_stage = gettext(
        "partition {partition} of stage {stage}, attempt {attempt}",
        partition=task.partitionId(),
        stage=task.stageId(),
        attempt=task.attemptNumber(),
    )
    return f"{of_stage}, {describe_process()}"


def _output_schema(df: DataFrame, verifier: BatchVerifier) -> StructType:
    users = [field for field in df.schema.fields if field.name not in verifier.found]
    of_column = _ADDED | {f"c{place}": field for place, field in enumerate(users)}
    fields = [
        StructField(header, of_column[column].dataType, of_column[column].nullable)
        for (column, _), header in zip(verifier.layout, verifier.headers, strict=True)
    ]
    return StructType(fields)


def _with_found(df: DataFrame, keys: BatchVerifier) -> DataFrame:
    """Add the Boolean columns of :data:`FOUND` by a join on hashed number and address; null without a match."""
    written = {
        _WRITTEN_NUMBER: _hash_written(holders_of(keys.reader.headers, keys.reader.chosen["b_no"])),
        _WRITTEN_ADDRESS: _hash_written(holders_of(keys.reader.headers, keys.reader.chosen["address"])),
    }
    narrow = df.select(*map(_column, keys.reader.headers), *(one.alias(name) for name, one in written.items()))
    marks = _find_marks(narrow.mapInArrow(partial(map_partition_keys, keys, _WRITTEN), _KEYS_SCHEMA))
    return df.withColumns(written).join(marks, on=list(_WRITTEN), how="left").drop(*_WRITTEN)


def _find_marks(keys: DataFrame) -> DataFrame:
    """Return hashed number and address, and both features, of the rows for which a feature is true."""
    # the same rules as bansong.engine.records.with_cross_row_features, as windows over all rows
    hashes = {name: F.when(F.col(name).isNotNull(), F.xxhash64(name)) for name in TEXTS}
    several = _differ("building") | _differ("lot")
    keys = keys.withColumns({**hashes, _SEVERAL: F.col("business").isNotNull() & several})
    keys = _with_count(keys, "number", "place")
    alike = F.col("place").isNotNull() & (F.col(_DIFFERENT) >= ALIKE)
    keys = _with_count(keys.withColumn("key", F.when(alike, F.col("key"))), "business", "key")
    keys = keys.withColumn(_CROWDED, F.col("key").isNotNull() & (F.col(_DIFFERENT) >= CROWD))
    return keys.where(F.col(_CROWDED) | F.col(_SEVERAL)).select(*_WRITTEN, _CROWDED, _SEVERAL).distinct()


def _window_of(name: str) -> WindowSpec:
    """Return a window of the rows with the same value. Nulls are spread over tasks, else one would get them all."""
    return Window.partitionBy(F.col(name).isNull(), F.coalesce(F.col(name), F.col(_WRITTEN_NUMBER)))


def _differ(name: str) -> Column:
    rows = _window_of("business")
    return F.coalesce(F.min(name).over(rows) < F.max(name).over(rows), F.lit(False))


def _with_count(keys: DataFrame, name: str, of: str) -> DataFrame:
    """Add :data:`_DIFFERENT`: the number of distinct values of ``name`` in the rows with the same ``of``."""
    rows, value = _window_of(of), F.col(name)
    ranked = keys.withColumn(_RANK, F.dense_rank().over(rows.orderBy(value.asc_nulls_last())))
    return ranked.withColumn(_DIFFERENT, F.max(F.when(value.isNotNull(), F.col(_RANK))).over(rows))


def _hash_written(headers: Sequence[str]) -> Column:
    """Hash columns as text. Several are hashed as JSON: Spark's hash skips nulls."""
    if len(headers) == 1:
        return F.xxhash64(_column(headers[0]))
    return F.xxhash64(F.to_json(F.struct(*map(_column, headers)), {"ignoreNullFields": "false"}))


def _column(name: str) -> Column:
    escaped = name.replace("`", "``")
    return F.col(f"`{escaped}`")
