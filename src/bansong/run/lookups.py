"""What is paid for: rows that say the same are one lookup, and a lookup has one key in every file and every year."""

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
"""Number, name and address as somebody says them."""

SHORT: Final = "lookup_hash"
KEY: Final = "key"
BESIDE: Final = ("zipcode", *CONTEXT_COLUMNS, CROWDED, SEVERAL)
"""What stands beside a record for the local engine alone: it is no part of a lookup, and is never sent."""
PRIORITY: Final = "priority"

_BETWEEN: Final = "\x1f"
_SPACES: Final = r"[\s\p{Cc}]+"
_UNSEEN: Final = r"\p{Cf}+"
"""What has no width: marks of byte order and direction, soft hyphens."""
_KEY_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Lookup:
    """One distinct record to be verified; ``key`` is what the ledger knows it by."""

    key: bytes
    b_no: str
    name: str | None
    address: str | None


def lookup_expr(rows: pl.LazyFrame, *, suspect: bool) -> pl.Expr:
    """The canonical text of each row of :func:`bansong.run.records.records` (String).

    Number, name and address, in Unicode's composed form, without what has no width, and with every run of white space
    or control characters one space; a name or address that says nothing counts as none. Null for rows that are none,
    and, unless ``suspect``, for numbers whose check digit is wrong.
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

    Columns: :data:`LOOKUP`, ``row_id`` of the first row, :data:`BESIDE` (the first row's, as far as the rows have them;
    ``zipcode`` as text), and
    :data:`PRIORITY` (Float64, the largest of its rows) where ``priority`` names a column.
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
    """The first seed under which no two of these lookups have the same :func:`short_expr`."""
    return next(seed for seed in count() if lookups.select(short_expr(seed)).to_series().n_unique() == lookups.height)


def short_expr(seed: int) -> pl.Expr:
    """A number (UInt64) for each :data:`LOOKUP`, null for none: a join by it takes a fraction of the text's memory."""
    return pl.when(pl.col(LOOKUP).is_not_null()).then(pl.col(LOOKUP).hash(seed)).alias(SHORT)


def with_keys(lookups: pl.DataFrame, scope: str) -> pl.DataFrame:
    """Add :data:`KEY` (Binary, 16 bytes) to lookups."""
    key = _hasher(scope)
    return lookups.with_columns(pl.Series(KEY, [key(text) for text in lookups[LOOKUP]], pl.Binary))


def keys_of(scope: str, records: Sequence[Record]) -> dict[Record, bytes]:
    """The keys of records, by their ten digits, name and address; one without ten digits has none."""
    frame = pl.DataFrame(list(records), schema=dict.fromkeys(("b_no", "name", "address"), pl.String), orient="row")
    digits, texts = (
        business_number.compact_expr(pl.col("b_no")).alias("b_no"),
        [_clean_text(pl.col(name)) for name in ("name", "address")],
    )
    found = frame.with_columns(digits, pl.concat_str(digits, *texts, separator=_BETWEEN).alias(LOOKUP))
    key = _hasher(scope)
    rows = found.drop_nulls("b_no").iter_rows()
    return {(b_no, name, address): key(text) for b_no, name, address, text in rows}


def scope_of(origin: str, offline: bool | None, paid: bool | None) -> str:
    """What a key holds beside the record: the service, and the flags that may change its answer."""
    return _BETWEEN.join((origin, f"offline={offline}", f"paid={paid}"))


def as_lookups(lookups: pl.DataFrame) -> Iterator[Lookup]:
    """Yield the lookups of a frame with :data:`LOOKUP` and :data:`KEY`, in its order."""
    for part in lookups.iter_slices(10_000):
        for key, (b_no, name, address) in zip(part[KEY], split(part).iter_rows(), strict=True):
            yield Lookup(key, b_no, name, address)


def split(lookups: pl.DataFrame) -> pl.DataFrame:
    """The columns ``b_no``, ``name``, ``address`` of lookups, null where there is none."""
    parts = lookups.select(
        pl.col(LOOKUP).str.split_exact(_BETWEEN, 2).struct.rename_fields(["b_no", "name", "address"])
    )
    return parts.unnest(LOOKUP).with_columns(
        pl.when(pl.col(name) != "").then(pl.col(name)).alias(name) for name in ("name", "address")
    )


def _clean_text(text: pl.Expr) -> pl.Expr:
    seen = text.cast(pl.String).str.replace_all(_UNSEEN, "")
    plain = seen.str.normalize("NFC").str.replace_all(_SPACES, " ").str.strip_chars()
    return pl.when(is_blank(plain)).then(pl.lit("")).otherwise(plain)


def _hasher(scope: str) -> Callable[[str], bytes]:
    """A hash that is the same in every version and year: polars' own may change, and then all would be paid again."""
    begun = blake2b(scope.encode(), digest_size=_KEY_BYTES)
    begun.update(b"\0")

    def key(text: str) -> bytes:
        hashed = begun.copy()
        hashed.update(text.encode())
        return hashed.digest()

    return key
