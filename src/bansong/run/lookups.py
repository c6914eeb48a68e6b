"""Distinct lookups of the rows, and the key by which a lookup is found again in every file and year."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import count
from typing import Final

import polars as pl

from bansong import business_number
from bansong.engine.local import ROW_PROBLEM
from bansong.engine.text_values import is_blank
from bansong.run.cross_row_features import CROWDED, SEVERAL
from bansong.run.records import DIGITS, RIGHT, ROW_ID
from bansong.schema import CONTEXT_COLUMNS

LOOKUP: Final = "lookup"
"""A row's canonical record as one text; null where nothing may be asked."""

Record = tuple[str | None, str | None, str | None]
"""Number, name and address."""

SHORT: Final = "lookup_hash"
KEY: Final = "key"
BESIDE: Final = ("zipcode", *CONTEXT_COLUMNS, CROWDED, SEVERAL)
"""Columns for the local engine alone: no part of a lookup, and never sent."""
PRIORITY: Final = "priority"

_BETWEEN: Final = "\x1f"
_SPACES: Final = r"[\s\p{Cc}]+"
_ZERO_WIDTH: Final = r"\p{Cf}+"  # byte order and direction marks, soft hyphens
_KEY_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Lookup:
    """One distinct record to be verified; ``key`` identifies it in the ledger."""

    key: bytes
    b_no: str
    name: str | None
    address: str | None


def lookup_expr(rows: pl.LazyFrame, *, suspect: bool) -> pl.Expr:
    """Return the canonical text of each row of :func:`bansong.run.records.records` (String).

    Number, name and address in Unicode's composed form, without zero-width characters, each run of white space or
    control characters as one space, blank names and addresses as "". Null for rows without a business number, and
    unless ``suspect`` for numbers with a wrong check digit.
    """
    names = rows.collect_schema().names()
    if DIGITS not in names:
        return pl.lit(None, pl.String)
    asked = pl.col(DIGITS).is_not_null() & pl.col(ROW_PROBLEM).is_null()
    if not suspect:
        asked &= pl.col(RIGHT)
    texts = [_clean_text(pl.col(name)) if name in names else pl.lit("") for name in ("name", "address")]
    return pl.when(asked).then(pl.concat_str(DIGITS, *texts, separator=_BETWEEN))


def lookups_of(rows: pl.LazyFrame, priority: str | None = None) -> pl.DataFrame:
    """Return the distinct lookups of rows that have :data:`LOOKUP`, in the order of their first row.

    Columns: :data:`LOOKUP`, ``row_id``, those of :data:`BESIDE` that the rows have (of the first row; ``zipcode`` as
    text), and :data:`PRIORITY` (Float64, the largest of its rows) where ``priority`` names a column.
    """
    names = rows.collect_schema().names()
    found = [pl.col(ROW_ID).min()]
    beside = {name: pl.col(name) for name in BESIDE if name in names}
    found += [(cell.cast(pl.String) if name == "zipcode" else cell).first() for name, cell in beside.items()]
    if priority is not None:
        amount = pl.col(priority).cast(pl.String).str.replace_all(r"[,\s]", "").cast(pl.Float64, strict=False)
        found.append(amount.fill_nan(None).max().alias(PRIORITY))
    grouped = rows.filter(pl.col(LOOKUP).is_not_null()).group_by(LOOKUP).agg(found)
    return grouped.sort(ROW_ID).collect(engine="streaming")


def telling_seed(lookups: pl.DataFrame) -> int:
    """Return the first seed under which :func:`short_expr` differs for all these lookups."""
    return next(seed for seed in count() if lookups.select(short_expr(seed)).to_series().n_unique() == lookups.height)


def short_expr(seed: int) -> pl.Expr:
    """Return a number (UInt64) for each :data:`LOOKUP`, null for null: joins by it need a fraction of the memory."""
    return pl.when(pl.col(LOOKUP).is_not_null()).then(pl.col(LOOKUP).hash(seed)).alias(SHORT)


def with_keys(lookups: pl.DataFrame, scope: str) -> pl.DataFrame:
    """Add :data:`KEY` (Binary) to lookups."""
    key = _hasher(scope)
    return lookups.with_columns(pl.Series(KEY, [key(text) for text in lookups[LOOKUP]], pl.Binary))


def keys_of(scope: str, records: Sequence[Record]) -> dict[Record, bytes]:
    """Return the keys of those records that have a business number."""
    frame = pl.DataFrame(list(records), schema=dict.fromkeys(("b_no", "name", "address"), pl.String), orient="row")
    digits = business_number.compact_expr(pl.col("b_no")).alias("b_no")
    texts = [_clean_text(pl.col(name)) for name in ("name", "address")]
    found = frame.with_columns(digits, pl.concat_str(digits, *texts, separator=_BETWEEN).alias(LOOKUP))
    key = _hasher(scope)
    rows = found.drop_nulls("b_no").iter_rows()
    return {(b_no, name, address): key(text) for b_no, name, address, text in rows}


def scope_of(origin: str, offline: bool | None, paid: bool | None) -> str:
    """Return what a key holds beside the record: the service, and the flags that may change its answer."""
    return _BETWEEN.join((origin, f"offline={offline}", f"paid={paid}"))


def as_lookups(lookups: pl.DataFrame) -> Iterator[Lookup]:
    """Yield the lookups of a frame with :data:`LOOKUP` and :data:`KEY` in its order."""
    for part in lookups.iter_slices(10_000):
        for key, (b_no, name, address) in zip(part[KEY], split(part).iter_rows(), strict=True):
            yield Lookup(key, b_no, name, address)


def split(lookups: pl.DataFrame) -> pl.DataFrame:
    """Return the columns ``b_no``, ``name``, ``address`` of lookups, null for blanks."""
    parts = lookups.select(
        pl.col(LOOKUP).str.split_exact(_BETWEEN, 2).struct.rename_fields(["b_no", "name", "address"])
    )
    return parts.unnest(LOOKUP).with_columns(
        pl.when(pl.col(name) != "").then(pl.col(name)).alias(name) for name in ("name", "address")
    )


def _clean_text(text: pl.Expr) -> pl.Expr:
    seen = text.cast(pl.String).str.replace_all(_ZERO_WIDTH, "")
    plain = seen.str.normalize("NFC").str.replace_all(_SPACES, " ").str.strip_chars()
    return pl.when(is_blank(plain)).then(pl.lit("")).otherwise(plain)


def _hasher(scope: str) -> Callable[[str], bytes]:
    # not polars' hash, which may change between releases: then all would be paid again
    begun = blake2b(scope.encode(), digest_size=_KEY_BYTES)
    begun.update(b"\0")

    def key(text: str) -> bytes:
        hashed = begun.copy()
        hashed.update(text.encode())
        return hashed.digest()

    return key
