"""Indexes and prepared queries for batches of rows, and names that differ by one typing error."""

# `column[places]` and `&` take a microsecond; `column.gather(places)`, `fill_null` and the like are queries of fifty
# microseconds each, however few the rows.

from __future__ import annotations

import operator
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from functools import cache, partial, reduce, wraps
from typing import Any, Final, Generic, Literal, TypeVar

import polars as pl
from polars.io.plugins import register_io_source

from bansong.engine.registry import values_at

ROW: Final = "row"  # number of a row within its batch, in every frame of candidates
T = TypeVar("T")
_FEW: Final = "_few"


class TextIndex:
    """Finds positions of texts by a cast to an Enum, the fastest lookup, which also works in streaming queries."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._dtype = pl.Enum(list(texts)).to_dtype_expr()  # prepared for many casts: preparing one takes milliseconds

    def find(self, text: pl.Expr) -> pl.Expr:
        """Return the position of a text (UInt32), null for an unknown one."""
        return text.cast(self._dtype, strict=False).to_physical().cast(pl.UInt32)

    def holds(self, text: pl.Expr) -> pl.Expr:
        return text.cast(self._dtype, strict=False).is_not_null()


class TextTable(TextIndex):
    """Columns of values, looked up by text."""

    def __init__(self, texts: Iterable[str], **columns: pl.Series) -> None:
        super().__init__(texts)
        self._columns = columns

    def look_up(self, text: pl.Expr, column: str) -> pl.Expr:
        return pl.lit(self._columns[column]).gather(self.find(text))


def text_key(*parts: str | pl.Expr) -> pl.Expr:
    """Hash texts or numbers to one UInt64; null if one is null. Never store it: polars may change its hash."""
    if all(isinstance(part, str) for part in parts):
        return _key_of_columns(*parts)
    return _key_of([pl.col(part) if isinstance(part, str) else part for part in parts])


@cache
def _key_of_columns(*names: str) -> pl.Expr:
    return _key_of([pl.col(name) for name in names])


def _key_of(columns: list[pl.Expr]) -> pl.Expr:
    hashes = (column.hash(seed) for seed, column in enumerate(columns))
    return pl.when(*(column.is_not_null() for column in columns)).then(reduce(operator.xor, hashes))


def drop_repeats(rows: pl.DataFrame) -> pl.DataFrame:
    """Leave out the rows that equal the row before them: far cheaper than ``unique``."""
    return rows.filter(pl.any_horizontal(pl.all().ne_missing(pl.all().shift())))


class built_once(Generic[T]):
    """A cached property for several threads, without a lock, which could deadlock with polars' threads."""

    def __init__(self, build: Callable[[Any], T]) -> None:
        self._build = build
        self.__doc__ = build.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, found: Any, owner: type) -> T:
        if found is None:  # asked of the class, as by ABC
            return self  # type: ignore[return-value]
        kept = vars(found)
        if self._name not in kept:
            kept.setdefault(self._name, self._build(found))
        built: T = kept[self._name]
        return built


class Index:
    """Values by sorted keys, which may repeat. A join would build its hash table anew for each batch."""

    def __init__(self, keys: pl.Series, values: pl.Series | None = None) -> None:
        """``keys``: UInt64, sorted. ``values``: as long as ``keys``, by default the keys' positions."""
        self._keys = keys
        self._values = values
        self._repeats = bool((keys.head(-1) == keys.slice(1)).any())
        self._search = pl.lit(keys).search_sorted(pl.col("_key")).alias("_place")

    @classmethod
    def of(cls, frame: pl.DataFrame, key: pl.Expr, value: str) -> Index:
        """Build an index from an unsorted frame; null keys and repeated pairs are left out."""
        pairs = frame.select(key.alias("key"), pl.col(value).alias("value")).drop_nulls("key").sort("key", "value")
        pairs = drop_repeats(pairs)
        return cls(pairs["key"], pairs["value"])

    def find(self, rows: pl.DataFrame, key: pl.Expr, value: str, keep: Sequence[str] = ()) -> pl.DataFrame:
        """Return a line (``row``, the columns ``keep``, and ``value``) for each value of each row's key."""
        if rows.is_empty():
            return self._find_nothing(rows, value, keep)
        query = rows.lazy().select(ROW, *keep, key.cast(pl.UInt64).alias("_key")).with_columns(self._search)
        asked = _collect_unoptimised(query)
        there = values_at(self._keys, asked["_place"]) == asked["_key"]  # null for a key that is
        if not there.any():
            return self._find_nothing(rows, value, keep)
        found = asked if there.all(ignore_nulls=False) else asked.filter(there)
        return self._find_repeated(found, value, keep) if self._repeats else self._select_values(found, value, keep)

    def _find_repeated(self, found: pl.DataFrame, value: str, keep: Sequence[str]) -> pl.DataFrame:
        # most keys have one value, and these are not expanded
        several = values_at(self._keys, found["_place"] + 1) == found["_key"]
        if not several.any():
            return self._select_values(found, value, keep)
        several = several.fill_null(False)
        expanded = self._expand_ranges(found.filter(several).lazy(), "_key", value, keep)
        return pl.concat([self._select_values(found.filter(~several), value, keep), expanded])

    def between(
        self, rows: pl.DataFrame, first: pl.Expr, last: pl.Expr, value: str, keep: Sequence[str] = ()
    ) -> pl.DataFrame:
        """Do what :meth:`find` does, for all keys from ``first`` to ``last``."""
        if rows.is_empty():
            return self._find_nothing(rows, value, keep)
        bounds = first.cast(pl.UInt64).alias("_first"), last.cast(pl.UInt64).alias("_last")
        asked = rows.lazy().select(ROW, *keep, *bounds).drop_nulls(["_first", "_last"])
        place = pl.lit(self._keys).search_sorted(pl.col("_first"))
        return self._expand_ranges(asked.with_columns(_place=place), "_last", value, keep)

    def holds(self, keys: pl.Series) -> pl.Series:
        if keys.is_empty():
            return pl.Series("held", dtype=pl.Boolean)
        held = values_at(self._keys, self._keys.search_sorted(keys)) == keys
        return (held.fill_null(False) if held.null_count() else held).alias("held")

    def holding(self, key: pl.Expr) -> pl.Expr:
        """Whether the index has a key (UInt64, not null), as an expression."""
        return (pl.lit(self._keys).gather(pl.lit(self._keys).search_sorted(key), null_on_oob=True) == key).fill_null(
            False
        )

    def _find_nothing(self, rows: pl.DataFrame, value: str, keep: Sequence[str]) -> pl.DataFrame:
        dtype = pl.UInt32 if self._values is None else self._values.dtype
        return rows[[ROW, *keep]].clear().hstack([pl.Series(value, dtype=dtype)])

    def _expand_ranges(self, asked: pl.LazyFrame, last: str, value: str, keep: Sequence[str]) -> pl.DataFrame:
        end = pl.lit(self._keys).search_sorted(pl.col(last), side="right")
        found = _collect_unoptimised(asked.with_columns(_end=end).filter(pl.col("_place") < pl.col("_end")))
        if not found.is_empty():
            places = pl.int_ranges("_place", "_end", dtype=pl.UInt32)
            found = found.select(ROW, *keep, _place=places).explode("_place")
        return self._select_values(found, value, keep)

    def _select_values(self, found: pl.DataFrame, value: str, keep: Sequence[str]) -> pl.DataFrame:
        places = found["_place"]
        values = places if self._values is None else self._values[places]
        return found[[ROW, *keep]].hstack([values.alias(value)])


_UNOPTIMISED: Final = pl.QueryOptFlags.none()


def _collect_unoptimised(query: pl.LazyFrame) -> pl.DataFrame:
    # looking for optimisations costs more than the few steps of these queries
    return query.collect(engine="in-memory", optimizations=_UNOPTIMISED)


ROWS_AT_ONCE: Final = 100_000  # of small batches: with a gazetteer a batch has a price whatever its rows
BYTES_AT_ONCE: Final = 64 << 20


def gather_rows(frame: pl.LazyFrame, least: int = ROWS_AT_ONCE) -> pl.LazyFrame:
    """Join small batches of ``frame`` to at least ``least`` rows or :data:`BYTES_AT_ONCE` bytes each.

    A query of its own collects ``frame`` while another reads the result, so that both run at the same time.
    """
    return register_io_source(partial(_gather_batches, frame, least), schema=frame.collect_schema(), is_pure=True)


def _gather_batches(
    frame: pl.LazyFrame, least: int, columns: list[str] | None, predicate: pl.Expr | None, rows: int | None, *_: Any
) -> Iterator[pl.DataFrame]:
    frame = frame if predicate is None else frame.filter(predicate)
    frame = frame if rows is None else frame.head(rows)
    held: list[pl.DataFrame] = []
    for batch in (frame if columns is None else frame.select(columns)).collect_batches(maintain_order=True):
        held.append(batch)
        full = sum(one.height for one in held) >= least
        if full or sum(one.estimated_size() for one in held) >= BYTES_AT_ONCE:
            yield pl.concat(held, rechunk=True)
            held = []
    if held:
        yield pl.concat(held, rechunk=True)


class PreparedStep:
    """A step whose query is built once, since building costs more than running it on few rows of the same columns."""

    def __init__(self, step: Callable[[pl.LazyFrame], pl.LazyFrame]) -> None:
        self._step = step
        self._idle: list[_ExchangeableQuery] = []

    def run(self, frame: pl.DataFrame) -> pl.DataFrame:
        try:
            query = self._idle.pop()  # atomic: no lock, which polars' threads would wait for
        except IndexError:
            query = _ExchangeableQuery(self._step, frame.schema)
        try:
            return query.run(frame)
        finally:
            self._idle.append(query)


class _ExchangeableQuery:
    def __init__(self, step: Callable[[pl.LazyFrame], pl.LazyFrame], schema: pl.Schema) -> None:
        self._rows, self._columns = pl.DataFrame(schema=schema), list(schema)
        # no io source: the streaming engine reads it, and its threads begin other batches meanwhile, nested
        pushed = dict.fromkeys(("predicate_pushdown", "projection_pushdown", "slice_pushdown"), False)
        self._query = step(self._rows.lazy().map_batches(self._select_rows, schema=schema, **pushed))
        self._query.collect_schema()  # polars keeps the plan made for this

    def run(self, rows: pl.DataFrame) -> pl.DataFrame:
        self._rows = rows
        try:
            if rows.height <= _MOST_UNOPTIMISED:
                return _collect_unoptimised(self._query)
            return self._query.collect(engine="in-memory")
        finally:
            self._rows = rows.clear()

    def _select_rows(self, _: pl.DataFrame) -> pl.DataFrame:
        return self._rows if self._rows.columns == self._columns else self._rows.select(self._columns)


_MOST_UNOPTIMISED: Final = 4_096  # rows; larger batches gain from optimisation


def for_few(
    frame: pl.LazyFrame,
    few: pl.Expr,
    step: Callable[[pl.LazyFrame], pl.LazyFrame],
    needs: tuple[str, ...],
    adds: Mapping[str, type[pl.DataType]],
) -> pl.LazyFrame:
    """Add the columns ``adds``, which ``step`` computes from ``needs``, in rows where ``few`` is true; else null."""
    # `step` must keep rows and order, and look at one row at a time
    return frame.with_columns(_compute_few(few, step, needs, adds)).unnest(_FEW)


def fill_few(
    frame: pl.LazyFrame,
    few: pl.Expr,
    step: Callable[[pl.LazyFrame], pl.LazyFrame],
    needs: tuple[str, ...],
    fills: Mapping[str, type[pl.DataType]],
) -> pl.LazyFrame:
    """Do what :func:`for_few` does, for existing columns: values of ``step`` that are not null replace theirs."""
    made = frame.with_columns(_compute_few(few, step, needs, fills))
    return made.with_columns(pl.coalesce(pl.col(_FEW).struct[name], name).alias(name) for name in fills).drop(_FEW)


def _compute_few(
    few: pl.Expr,
    step: Callable[[pl.LazyFrame], pl.LazyFrame],
    needs: tuple[str, ...],
    adds: Mapping[str, type[pl.DataType]],
) -> pl.Expr:
    prepared = PreparedStep(lambda rows: step(rows).select(pl.struct(*adds)))
    rows, dtype = pl.struct(*needs, few.alias(_FEW)), pl.Struct(adds)
    batch = partial(_compute_batch, prepared, pl.Series([None], dtype=dtype), list(needs))
    return rows.map_batches(batch, return_dtype=dtype, is_elementwise=True).alias(_FEW)


def _compute_batch(prepared: PreparedStep, nothing: pl.Series, needs: list[str], rows: pl.Series) -> pl.Series:
    needed = rows.struct.unnest()
    few = needed[_FEW]
    if not few.any():
        return nothing.new_from_index(0, len(rows))
    if few.all(ignore_nulls=False):
        return prepared.run(needed[needs]).to_series()
    few = few.fill_null(False)
    return scatter(prepared.run(needed[needs].filter(few)).to_series(), few)


def remember_last(find: Callable[[T, pl.DataFrame], pl.DataFrame]) -> Callable[[T, pl.DataFrame], pl.DataFrame]:
    """Cache the last result of ``find`` in each thread, since several readings of an address make the same call."""
    last = threading.local()

    @wraps(find)
    def find_or_recall(source: T, rows: pl.DataFrame) -> pl.DataFrame:
        asked = getattr(last, "asked", None)
        if asked is None or asked[0]() is not source or asked[1]() is not rows:
            last.found = find(source, rows)
            last.asked = weakref.ref(source), weakref.ref(rows)
        found: pl.DataFrame = last.found
        return found

    return find_or_recall


def lacks_any(rows: pl.DataFrame, *columns: str) -> bool:
    """Whether one of these columns is null in all rows, by counts of nulls, which are cheaper than a query."""
    return any(rows.get_column(name).null_count() == rows.height for name in columns)


def scatter(values: pl.Series, at: pl.Series) -> pl.Series:
    """Spread ``values``, in order, over the rows where ``at`` (Boolean) is true; the other rows are null."""
    lines = at.cum_sum().cast(pl.UInt32) - 1
    return values[lines.zip_with(at, pl.Series([None], dtype=pl.UInt32))]


def with_groups(frame: pl.LazyFrame, source: pl.Expr, pattern: str, *names: str) -> pl.LazyFrame:
    """Add the capture groups of ``pattern`` in ``source`` as columns ``names`` (String); null without a match."""
    # source and match become columns first: polars would compute them for every group
    found = pl.col("_found")
    return (
        frame.with_columns(_found=source)
        .with_columns(_found=found.str.extract_groups(pattern))
        .with_columns(found.struct[place].alias(name) for place, name in enumerate(names))
        .drop("_found")
    )


def where(condition: pl.Expr, text: pl.Expr) -> pl.Expr:
    """Return the text, stripped, where the condition holds, else null."""
    # stripping rewrites the column: polars' replacements work on texts under nulls too, at full cost
    return pl.when(condition).then(text).str.strip_chars(" ")


HOLE: Final = "?"  # stands for an unreadable syllable
_PLACE: Final = "_at"
_AT: Final = pl.col(_PLACE)
_COMPARED_LENGTHS: Final = (2, 16)
_MIN_LENGTH_WITH_GAP: Final = 3  # too little is left of 중구 without a syllable

_HANGUL: Final = "^[가-힣]$"
_LETTERS: Final = "가나다라마바사아자차카타파하"
_TELLING: Final = tuple(_LETTERS + "안동서남북천중윗웃아랫구신새상하앞뒤옆내외원본큰")
_BRANCH: Final = f"[0-9]번?[{_LETTERS}]"
_GREAT: Final = "대"
_MAX_PREFIX_CHARS: Final = 17
_NUMBERS: Final = "[0-9]+번?"
_ROAD_END: Final = "[로길]$"
_SHORT_STEM_CHARS: Final = 2
_FIRST_SYLLABLE: Final = 0xAC00
_JAMO_COUNTS: Final = (19, 21, 28)  # initials, medials and finals (or none) of Hangul syllables, in Unicode's order


class NameDifference(IntEnum):
    """How much two names of roads or dongs differ."""

    SLIP = 0  # a jamo, or a missing, doubled or misplaced syllable of a long name
    DOUBTFUL = 1  # a slip if other words of the row confirm it
    TWO_ROADS = 2  # names of different roads, as with another digit


def patterns(frame: pl.DataFrame, name: str, slip: Literal["hole", "gap"], *keep: str) -> pl.DataFrame:
    """Return a row for each Hangul syllable: the name with ``?`` in its place (hole) or without it (gap)."""
    pattern = _hole(name) if slip == "hole" else _gap(name)
    return _spell_out(frame.lazy(), name).select(*keep, pattern=pattern).collect(engine="in-memory")


def slips(frame: pl.DataFrame, name: str) -> pl.DataFrame:
    """Return for each syllable of a row's name (``row``, ``region``) keys of the name with a slip there.

    The syllable is replaced (``hole``), removed (``gap``), or swapped with the next (``swap``).
    """
    return _slips_of(name).run(frame[[ROW, "region", name]])


@cache
def _slips_of(name: str) -> PreparedStep:
    text = pl.col(name)
    swapped = pl.concat_str(text.str.head(_AT), text.str.slice(_AT + 1, 1), _syllable(name), text.str.slice(_AT + 2))
    spelled = {"hole": _hole(name), "gap": _gap(name), "swap": swapped}
    keys = {slip: text_key("region", pattern) for slip, pattern in spelled.items()}
    keys["swap"] = pl.when(text.str.slice(_AT + 1, 1).str.contains(_HANGUL)).then(keys["swap"])
    return PreparedStep(lambda rows: _spell_out(rows, name).select(ROW, "region", **keys))


def _hole(name: str) -> pl.Expr:
    return pl.concat_str(pl.col(name).str.head(_AT), pl.lit(HOLE), pl.col(name).str.slice(_AT + 1))


def _gap(name: str) -> pl.Expr:
    return pl.concat_str(pl.col(name).str.head(_AT), pl.col(name).str.slice(_AT + 1))


def _syllable(name: str) -> pl.Expr:
    return pl.col(name).str.slice(_AT, 1)


def _spell_out(rows: pl.LazyFrame, name: str) -> pl.LazyFrame:
    length = pl.col(name).str.len_chars()
    return (
        rows.filter(length.is_between(*_COMPARED_LENGTHS))
        .with_columns(pl.int_ranges(0, length, dtype=pl.UInt32).alias(_PLACE))
        .explode(_PLACE)
        .filter(_syllable(name).str.contains(_HANGUL))
    )


def variants(name: str) -> Iterator[str]:
    """Yield misspellings of a name: a wrong jamo, or a missing or doubled syllable (the last one only doubled)."""
    yield name + name[-1]
    for place, syllable in enumerate(name[:-1]):
        before, after = name[:place], name[place + 1 :]
        if not "가" <= syllable <= "힣":
            continue
        yield before + syllable + syllable + after
        if len(name) > _MIN_LENGTH_WITH_GAP:
            yield before + after
        for other in _change_jamo(syllable):
            yield before + other + after


@cache
def _change_jamo(syllable: str) -> tuple[str, ...]:
    _, medials, finals = _JAMO_COUNTS
    rest, final = divmod(ord(syllable) - _FIRST_SYLLABLE, finals)
    jamo = (*divmod(rest, medials), final)
    changed = (
        (*jamo[:at], other, *jamo[at + 1 :])
        for at, count in enumerate(_JAMO_COUNTS)
        for other in range(count)
        if other != jamo[at]
    )
    return tuple(chr(_FIRST_SYLLABLE + (one * medials + two) * finals + three) for one, two, three in changed)


def compare_names(names: pl.LazyFrame) -> pl.LazyFrame:
    """Compare ``written`` and ``official``: add ``difference`` (:class:`NameDifference`, null if equal) and ``short``.

    ``short``: whether one is a road's name with a stem of one or two syllables.
    """
    one, other, head = pl.col("written"), pl.col("official"), pl.col("head")
    names = names.with_columns(
        head=pl.sum_horizontal((one.str.head(count) == other.str.head(count)) for count in range(1, _MAX_PREFIX_CHARS))
    )
    longer = pl.when(one.str.len_chars() > other.str.len_chars()).then(one).otherwise(other)
    names = names.with_columns(
        short=(pl.min_horizontal(_stem_length(one), _stem_length(other)) <= _SHORT_STEM_CHARS)
        & one.str.contains(_ROAD_END),
        a=one.str.slice(head, 1),
        b=other.str.slice(head, 1),
        extra=longer.str.slice(head, 1),
    )
    same_length = one.str.len_chars() == other.str.len_chars()
    exchanged = same_length & (one.str.slice(head + 1) == other.str.slice(head + 1))
    telling = pl.col("a").is_in(_TELLING) & pl.col("b").is_in(_TELLING)
    two_roads = (_branch_letters(one) != _branch_letters(other)) | (same_length & telling)
    slip = exchanged & (_jamo_apart("a", "b") == 1)
    doubtful = exchanged | pl.col("short") | (~same_length & pl.col("extra").is_in([*_TELLING, _GREAT]))
    kind = (
        pl.when(two_roads)
        .then(NameDifference.TWO_ROADS)
        .when(~slip & doubtful)
        .then(NameDifference.DOUBTFUL)
        .otherwise(NameDifference.SLIP)
    )
    return names.with_columns(pl.when(one != other).then(kind).alias("difference"))


def _stem_length(name: pl.Expr) -> pl.Expr:
    return name.str.replace_all(_NUMBERS, "").str.replace(_ROAD_END, "").str.len_chars()


def _branch_letters(name: pl.Expr) -> pl.Expr:
    # 라 of 28라길
    return name.str.extract_all(_BRANCH).list.join("")


def _jamo_apart(one: str, other: str) -> pl.Expr:
    jamo = [pl.col(column).str.normalize("NFD") for column in (one, other)]
    places = ((0, 1), (1, 1), (2, None))
    return pl.sum_horizontal(jamo[0].str.slice(*place) != jamo[1].str.slice(*place) for place in places)
