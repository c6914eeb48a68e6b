"""The registry: a local snapshot of businesses and their status, one Parquet file sorted by number.

Columns: ``b_no`` UInt64, ``biz_status`` Enum (active, suspended, closed, unregistered), ``since`` Date (closed or
suspended since; null when not known), ``opened`` Date (nullable), ``as_of`` Date (how fresh the row is).
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import polars as pl

from bizverify import number
from bizverify.errors import RegistryError

STATUSES: Final = ("active", "suspended", "closed", "unregistered")
STATUS_DTYPE: Final = pl.Enum(STATUSES)
SCHEMA: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "b_no": pl.UInt64,
    "biz_status": STATUS_DTYPE,
    "since": pl.Date,
    "opened": pl.Date,
    "as_of": pl.Date,
}
METADATA_KEY: Final = "bizverify.registry"
FORMAT: Final = 1

_DATE_DIGITS: Final = r"^([0-9]{4})[^0-9]*([0-9]{1,2})[^0-9]+([0-9]{1,2})(?:[^0-9].*)?$"


@dataclass(frozen=True, slots=True)
class Registry:
    """An opened registry file. ``version`` names the snapshot in reports and manifests."""

    path: Path
    version: str
    rows: int

    @classmethod
    def open(cls, path: str | Path) -> Registry:
        """Open a registry built by ``bizverify data build-registry``; raise :class:`RegistryError`."""
        path = Path(path)
        remedy = "build one with: bizverify data build-registry SRC… -o OUT.parquet"
        if not path.is_file():
            raise RegistryError(f"{path}: there is no such registry file; {remedy}")
        try:
            text = pl.read_parquet_metadata(path).get(METADATA_KEY)
            schema = pl.read_parquet_schema(path)
        except (pl.exceptions.PolarsError, OSError) as error:
            raise RegistryError(f"{path}: is not a registry (not even a Parquet file); {remedy}") from error
        if text is None:
            raise RegistryError(f"{path}: is a Parquet file but not a registry; {remedy}")
        about = _metadata(text)
        if about.get("format") != FORMAT or dict(schema) != SCHEMA:
            raise RegistryError(f"{path}: is a registry of another format ({about.get('format')}); {remedy}")
        if not isinstance(about.get("version"), str) or not isinstance(about.get("rows"), int):
            raise RegistryError(f"{path}: is a registry without its version or number of rows; {remedy}")
        return cls(path, about["version"], about["rows"])

    def check(self) -> None:
        """Read the whole file; raise :class:`RegistryError` where it is damaged."""
        try:
            pl.scan_parquet(self.path, glob=False).select(pl.all().hash().sum()).collect(engine="streaming")
        except (pl.exceptions.PolarsError, OSError) as error:
            reason = str(error).splitlines()[0]
            raise RegistryError(f"{self.path}: the registry is damaged, build it again: {reason}") from error

    def attach(self, frame: pl.LazyFrame, key: str) -> pl.LazyFrame:
        """Add ``biz_status``, ``since`` and ``opened`` to each row by its UInt64 number ``key``, nulls where absent.

        Order and number of rows stay. This is the seam for a faster index: nothing else knows how numbers are found.
        """
        known = pl.scan_parquet(self.path, glob=False).select(
            pl.col("b_no").alias(key), "biz_status", "since", "opened"
        )
        return frame.join(known, on=key, how="left", maintain_order="left")


def _metadata(text: str) -> dict[str, Any]:
    """What a registry says about itself; empty if that is no JSON object."""
    try:
        about = json.loads(text)
    except ValueError:
        return {}
    return about if isinstance(about, dict) else {}


def without_registry(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Add the columns of :meth:`Registry.attach`, all null."""
    return frame.with_columns(pl.lit(None, SCHEMA[name]).alias(name) for name in ("biz_status", "since", "opened"))


def observations(
    frame: pl.LazyFrame,
    *,
    b_no: str,
    status: str,
    since: str | None,
    opened: str | None,
    as_of: str | pl.Expr,
) -> pl.LazyFrame:
    """Read rows of a source as observations: the registry's columns, ``problem`` and ``word``.

    ``problem`` says why a row cannot be used (a code of :data:`bizverify.number.PROBLEMS`, ``unknown_status``
    or ``no_status``), null for usable rows; ``word`` is the source's status. Dates are read from ``2024-01-31``,
    ``2024.1.31``, ``20240131`` and date columns; anything else is null.
    """
    word = pl.col(status).cast(pl.String).str.strip_chars()
    meaning = meaning_expr(word)
    found = number.problem_expr(pl.col(b_no))
    return frame.select(
        number.key_expr(number.compact_expr(pl.col(b_no))).alias("b_no"),
        pl.when(meaning.is_in(STATUSES)).then(meaning).cast(STATUS_DTYPE).alias("biz_status"),
        _date(since).alias("since"),
        _date(opened).alias("opened"),
        (as_of if isinstance(as_of, pl.Expr) else _date(as_of)).alias("as_of"),
        pl.when(found.is_not_null())
        .then(found)
        .when(word.is_null() | (word == "") | (meaning == "unknown"))
        .then(pl.lit("no_status"))
        .when(meaning.is_null())
        .then(pl.lit("unknown_status"))
        .alias("problem"),
        word.alias("word"),
    )


def snapshot(usable: pl.LazyFrame) -> pl.LazyFrame:
    """One row a number: the newest ``as_of`` wins, among equals the later row; sorted by number."""
    newest = usable.with_row_index("place").sort("b_no", pl.col("as_of").fill_null(pl.date(1, 1, 1)), "place")
    return newest.unique("b_no", keep="last", maintain_order=True).select(list(SCHEMA))


def meaning_expr(word: pl.Expr) -> pl.Expr:
    """What a word for a status means, in Korean or English, as written in ``status_words.toml`` (String, else null)."""
    plain = word.str.to_lowercase().str.replace_all(r"\s", "")
    meaning = pl.lit(None, pl.String)
    for status, words in _status_words().items():
        meaning = pl.when(plain.is_in(words)).then(pl.lit(status)).otherwise(meaning)
    return meaning


@cache
def _status_words() -> dict[str, list[str]]:
    text = files("bizverify.engine").joinpath("status_words.toml").read_text(encoding="utf-8")
    vocabulary: dict[str, list[str]] = tomllib.loads(text)
    return {status: [word.lower().replace(" ", "") for word in words] for status, words in vocabulary.items()}


def _date(column: str | None) -> pl.Expr:
    if column is None:
        return pl.lit(None, pl.Date)
    text = pl.col(column).cast(pl.String).str.strip_chars()
    packed = text.str.replace(r"\.0$", "")
    dashed = text.str.replace(_DATE_DIGITS, "$1-$2-$3")
    return pl.coalesce(packed.str.to_date("%Y%m%d", strict=False), dashed.str.to_date("%Y-%m-%d", strict=False))
