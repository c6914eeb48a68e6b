"""The registry of statuses: reading its file, and finding numbers in it."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import date
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from threading import Lock
from typing import Any, Final

import polars as pl

from bansong.base import business_number
from bansong.base.business_number import first_code
from bansong.base.errors import Problem, RegistryError
from bansong.base.messages import Phrase
from bansong.engine.text import day_expr, is_blank, is_masked, parse_json_object

_SEARCHES_PER_KEY: Final = 8  # a search takes eight times as long as making a slot
_MIN_KEYS: Final = 64  # searching among fewer keys is faster than using slots
_SLOTS_PER_KEY: Final = 8  # one key in sixteen then shares its slot and must be searched for
_MAX_SLOTS: Final = 2**25  # 134 MB; of ten million businesses, one in eight must be searched for
_NOWHERE: Final = pl.Series([None], dtype=pl.UInt32)


def values_at(column: pl.Series, places: pl.Series) -> pl.Series:
    """Return the values of a column at ``places`` (UInt32); null for null places and those beyond the end."""
    last = places.max()
    if last is None or last < len(column):  # type: ignore[operator]  # an integer
        return column[places]  # fifty times as fast as gather, which runs a query
    return column.gather(places, null_on_oob=True)


class KeyIndex:
    """Finds the positions of keys in a sorted column; thread-safe.

    A key's remainder is the index of its slot, which has the position of the last key with that remainder (32 bytes a
    key). Other keys are found by binary search; so are all keys until a thread has made the slots.
    """

    def __init__(self, keys: pl.Series) -> None:
        """Index ``keys``: UInt64, sorted and distinct."""
        self._keys = keys
        self._size = min(_SLOTS_PER_KEY * len(keys), _MAX_SLOTS) + 1
        self._slots: pl.Series | None = None
        self._making = Lock()
        self._asked = 0

    def find(self, keys: pl.Series) -> pl.Series:
        """Return the position of each key (UInt32); null for null and unknown keys."""
        self._asked += len(keys)
        enough = len(self._keys) > _MIN_KEYS and self._asked >= len(self._keys) // _SEARCHES_PER_KEY
        if self._slots is None and enough and self._making.acquire(blocking=False):
            nowhere = pl.repeat(None, self._size, dtype=pl.UInt32, eager=True)
            places = pl.int_range(len(self._keys), dtype=pl.UInt32, eager=True)
            self._slots = nowhere.scatter(self._slot_of(self._keys), places)
        if self._slots is None:
            return self._search(keys)
        places = self._slots[self._slot_of(keys)]
        elsewhere = self._keys[places] != keys  # null for nulls
        if elsewhere.any():
            elsewhere = elsewhere.fill_null(False)
            places = places.scatter(elsewhere.arg_true(), self._search(keys.filter(elsewhere)))
        return places

    def _search(self, keys: pl.Series) -> pl.Series:
        places = self._keys.search_sorted(keys)
        there = values_at(self._keys, places) == keys
        return places.zip_with(there.fill_null(False) if there.null_count() else there, _NOWHERE)

    def _slot_of(self, keys: pl.Series) -> pl.Series:
        return (keys % self._size).cast(pl.UInt32)


REGISTRY_MISSING: Final = Problem("registry.registry_missing", "{path}: there is no such registry file; {remedy}")
NOT_REGISTRY: Final = Problem("registry.not_registry", "{path}: is a Parquet file but not a registry; {remedy}")
FORMAT_NOT_SUPPORTED: Final = Problem(
    "registry.format_not_supported", "{path}: is a registry of another format ({about}); {remedy}"
)
VERSION_MISSING: Final = Problem(
    "registry.version_missing", "{path}: is a registry without its version or number of rows; {remedy}"
)
NOT_PARQUET: Final = Problem("registry.not_parquet", "{path}: is not a registry (not even a Parquet file); {remedy}")
REGISTRY_DAMAGED: Final = Problem(
    "registry.registry_damaged", "{path}: the registry is damaged, build it again: {reason}"
)
REGISTRY_REPLACED: Final = Problem(
    "registry.registry_replaced",
    "{path}: was replaced by version {about} while version {version} was in use; run it again",
)
NUMBERS_NOT_SORTED: Final = Problem(
    "registry.numbers_not_sorted", "{path}: the registry is damaged, build it again: its numbers are in no order"
)

STATUSES: Final = ("active", "suspended", "closed", "unregistered")
STATUS_DTYPE: Final = pl.Enum(STATUSES)
SCHEMA: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "b_no": pl.UInt64,
    "biz_status": STATUS_DTYPE,
    "since": pl.Date,  # first day of being closed or suspended
    "opened": pl.Date,
    "as_of": pl.Date,  # day of the status
}
TAXATIONS: Final = ("general", "simplified", "exempt")
MORE: Final[dict[str, pl.DataType | type[pl.DataType]]] = {  # columns that a registry has only if not empty
    "taxation": pl.Enum(TAXATIONS),
    "merged": pl.Boolean,  # closed by merging into unit taxation (사업자단위과세 전환)
    "name": pl.String,
}
# columns of fetched statuses: those of a registry, without names
STATUS_SCHEMA: Final = SCHEMA | {name: dtype for name, dtype in MORE.items() if name != "name"}

METADATA_KEY: Final = "bizverify.registry"
FORMAT: Final = 2
_FORMATS: Final = (1, FORMAT)  # format 1 has no columns MORE

ATTACHED: Final = ("biz_status", "since", "opened", "as_of")  # columns that every registry adds to rows
# columns of MORE → their names in rows, which may have a column `name`
ATTACHED_MORE: Final = {"taxation": "taxation", "merged": "merged", "name": "registry_name"}


@dataclass(frozen=True, slots=True)
class Registry:
    """An open registry file; thread-safe.

    ``version``: its name in reports and manifests. ``more``: the columns of :data:`ATTACHED_MORE` that it has. A column
    is read when first needed, and then kept in memory.
    """

    path: Path
    version: str
    rows: int
    more: tuple[str, ...] = ()
    _held: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def open(cls, path: str | Path) -> Registry:
        """Open a registry built by ``bansong data build-registry``; raise :class:`RegistryError`."""
        path = Path(path)
        remedy = Phrase("build one with: bansong data build-registry SRC…")
        if not path.is_file():
            from bansong.tables.streams import refuse_url

            refuse_url(path, RegistryError)
            raise RegistryError(REGISTRY_MISSING, path=path, remedy=remedy)
        try:
            with path.open("rb") as file:  # an open file, since polars takes brackets in a name for a glob
                text = pl.read_parquet_metadata(file).get(METADATA_KEY)
                file.seek(0)
                schema = pl.read_parquet_schema(file)
        except (pl.exceptions.PolarsError, OSError) as error:
            raise RegistryError(NOT_PARQUET, path=path, remedy=remedy) from error
        if text is None:
            raise RegistryError(NOT_REGISTRY, path=path, remedy=remedy)
        about = parse_json_object(text)
        more = [name for name in MORE if name in schema]
        if about.get("format") not in _FORMATS or dict(schema) != SCHEMA | {name: MORE[name] for name in more}:
            raise RegistryError(FORMAT_NOT_SUPPORTED, path=path, about=about.get("format"), remedy=remedy)
        if not isinstance(about.get("version"), str) or not isinstance(about.get("rows"), int):
            raise RegistryError(VERSION_MISSING, path=path, remedy=remedy)
        return cls(path, about["version"], about["rows"], tuple(ATTACHED_MORE[name] for name in more))

    @property
    def newest(self) -> date | None:
        """The date of the newest status, read from the version; ``None`` if unknown."""
        try:
            return date.fromisoformat(self.version[:10])
        except ValueError:
            return None

    def check(self) -> None:
        """Read the whole file; raise :class:`RegistryError` if it is damaged."""
        try:
            pl.scan_parquet(self.path, glob=False).select(pl.all().hash().sum()).collect(engine="streaming")
        except (pl.exceptions.PolarsError, OSError) as error:
            reason = str(error).splitlines()[0]
            raise RegistryError(REGISTRY_DAMAGED, path=self.path, reason=reason) from error

    def __reduce__(self) -> tuple[object, ...]:  # not __getstate__: before Python 3.11.4 the dataclass replaces it
        return Registry, (self.path, self.version, self.rows, self.more)  # another process reads the columns again

    def attach(self, frame: pl.LazyFrame, key: str, *, names: bool = True) -> pl.LazyFrame:
        """Add the columns :data:`ATTACHED` and :attr:`more` by the number in ``key`` (UInt64); null if unknown."""
        dtypes = attached_dtypes(self.more, names=names)
        found = pl.col(key).map_batches(partial(self.find, dtypes), return_dtype=pl.Struct(dtypes), is_elementwise=True)
        return frame.with_columns(found.alias("bv:registry")).unnest("bv:registry")

    def find(self, columns: Collection[str], numbers: pl.Series) -> pl.Series:
        """Return a struct of the columns for each number; its fields are null for unknown numbers."""
        places = self._column("b_no").find(numbers)
        return gather(places, {name: self._column(name) for name in columns})

    def _column(self, name: str) -> Any:
        if name not in self._held:  # if several threads read it, the last result is kept
            try:
                with self.path.open("rb") as file:  # opened once, since it may be replaced meanwhile
                    about = parse_json_object(pl.read_parquet_metadata(file).get(METADATA_KEY, ""))
                    file.seek(0)
                    column = pl.read_parquet(file, columns=[name.removeprefix("registry_")]).to_series().rechunk()
            except (pl.exceptions.PolarsError, OSError, RuntimeError):
                self.check()
                raise
            if about.get("version") != self.version or len(column) != self.rows:  # the file was replaced by another
                raise RegistryError(REGISTRY_REPLACED, path=self.path, about=about.get("version"), version=self.version)
            if name == "b_no" and not column.is_sorted():
                raise RegistryError(NUMBERS_NOT_SORTED, path=self.path)
            self._held[name] = KeyIndex(column) if name == "b_no" else column
        return self._held[name]


def attached_dtypes(more: Collection[str], *, names: bool) -> dict[str, pl.DataType | type[pl.DataType]]:
    """Return names and dtypes of the columns that a registry adds to rows.

    ``more``: its optional columns. ``names``: whether to include the registered name.
    """
    found = {ours: MORE[theirs] for theirs, ours in ATTACHED_MORE.items() if ours in more}
    if not names:
        found.pop("registry_name", None)
    return {name: SCHEMA[name] for name in ATTACHED} | found


def gather(places: pl.Series, columns: Mapping[str, pl.Series]) -> pl.Series:
    """Return a struct of the columns' values at ``places``."""
    return pl.DataFrame([column[places].alias(name) for name, column in columns.items()]).to_struct("found")


def without_registry(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Add the columns of :data:`ATTACHED` as nulls."""
    return frame.with_columns(pl.lit(None, SCHEMA[name]).alias(name) for name in ATTACHED)


def observations(
    frame: pl.LazyFrame,
    *,
    b_no: str,
    status: str,
    since: str | None,
    opened: str | None,
    as_of: str | pl.Expr,
    taxation: str | None = None,
    merged: str | None = None,
    name: str | None = None,
) -> pl.LazyFrame:
    """Parse a status list into a registry's columns, ``problem`` (code), ``word`` (the status), and ``strange``."""
    # `strange`: an unknown word for taxation or merging, which is ignored. If the tax authority's status is blank, its
    # taxation may say that the number is not registered.
    status_word, words = _word_expr(status), {"taxation": _word_expr(taxation), "merged": _word_expr(merged)}
    if taxation is not None:
        unregistered = meaning_expr(words["taxation"]) == "unregistered"
        frame = frame.with_columns((unregistered & (status_word.fill_null("") == "")).alias("o:unregistered"))
        status_word = pl.when("o:unregistered").then(words["taxation"]).otherwise(status_word)
    frame = frame.with_columns(status_word.alias("o:word"))  # a column, since several expressions use it
    frame = frame.with_columns(meaning_expr(pl.col("o:word")).alias("o:meaning"))
    word, meaning, said = pl.col("o:word"), pl.col("o:meaning"), _word_expr(name)
    found = business_number.problem_expr(pl.col(b_no))
    meanings = {what: _look_up_meaning(given, _meanings("taxation_words.toml", what)) for what, given in words.items()}
    strange = [pl.when(meanings[what].is_null() & (given != "")).then(given) for what, given in words.items()]
    taxed, was_merged = meanings["taxation"], meanings["merged"]
    blank = word.is_null() | (word == "") | (meaning == "unknown")
    return frame.select(
        business_number.key_expr(pl.col(b_no)).alias("b_no"),
        pl.when(meaning.is_in(STATUSES)).then(meaning).cast(STATUS_DTYPE).alias("biz_status"),
        _day_expr(since).alias("since"),
        _day_expr(opened).alias("opened"),
        (as_of if isinstance(as_of, pl.Expr) else _day_expr(as_of)).alias("as_of"),
        pl.when(taxed.is_in(TAXATIONS)).then(taxed).cast(MORE["taxation"]).alias("taxation"),
        pl.when(was_merged != "unknown").then(was_merged == "yes").alias("merged"),
        pl.when(~is_blank(said) & ~is_masked(said)).then(said).alias("name"),
        pl.coalesce(found, first_code({"no_status": blank, "unknown_status": meaning.is_null()})).alias("problem"),
        word.alias("word"),
        pl.coalesce(strange).alias("strange"),
    )


def snapshot(usable: pl.LazyFrame, more: Collection[str] = tuple(MORE)) -> pl.LazyFrame:
    """Return the row with the newest ``as_of`` (on a tie, the later row) of each number, sorted by number."""
    # taxation and name come from the newest row that has them; `merged` comes with the status
    newest = usable.with_row_index("place").sort("b_no", pl.col("as_of").fill_null(pl.date(1, 1, 1)), "place")
    found = newest.unique("b_no", keep="last", maintain_order=True).drop("taxation", "name")
    for name in {"taxation", "name"}.intersection(more):
        newest_said = newest.filter(pl.col(name).is_not_null()).unique("b_no", keep="last", maintain_order=True)
        found = found.join(newest_said.select("b_no", name), on="b_no", how="left", maintain_order="left")
    return found.select(*SCHEMA, *(name for name in MORE if name in more))


def meaning_expr(word: pl.Expr) -> pl.Expr:
    """Return the code of a Korean or English status word (``status_words.toml``); null if unknown."""
    return _look_up_meaning(word, _meanings("status_words.toml"))


def _look_up_meaning(word: pl.Expr, meanings: dict[str, str]) -> pl.Expr:
    compact = word.str.to_lowercase().str.replace_all(r"\s", "")
    # by batches, since polars does not stream `Expr.replace_strict`
    look_up = partial(pl.Series.replace_strict, old=meanings, default=None, return_dtype=pl.String)
    return compact.map_batches(look_up, return_dtype=pl.String, is_elementwise=True)


@cache
def _meanings(file: str, table: str | None = None) -> dict[str, str]:
    content: dict[str, Any] = tomllib.loads(files("bansong.engine").joinpath(file).read_text(encoding="utf-8"))
    vocabulary: dict[str, list[str]] = content if table is None else content[table]
    return {word.lower().replace(" ", ""): meaning for meaning, words in vocabulary.items() for word in words}


def _word_expr(column: str | None) -> pl.Expr:
    return pl.lit(None, pl.String) if column is None else pl.col(column).cast(pl.String).str.strip_chars()


def _day_expr(column: str | None) -> pl.Expr:
    return pl.lit(None, pl.Date) if column is None else day_expr(pl.col(column))


KEY: Final = "key"


class Memo:
    """A thread-safe cache of rows by :data:`KEY` (UInt64), which makes missing rows when they are looked up."""

    def __init__(self, most: int) -> None:
        """Make an empty cache; with more than ``most`` rows, only the newest are kept."""
        self._most = most
        self._known: _KnownRows | None = None

    def look_up(self, keys: pl.Series, make: Callable[[pl.Series], pl.DataFrame | None]) -> pl.DataFrame | None:
        """Return each key's row. ``make`` makes rows for a mask of new keys; if it returns ``None``, so does this."""
        known = self._known
        lines = known.index.find(keys) if known else _NOWHERE.new_from_index(0, len(keys))
        if known is None or lines.null_count():
            made = make(lines.is_null())
            if made is None:
                return None
            known = _KnownRows(made if known is None else pl.concat([known.rows, made]))
            self._known = known if known.rows.height <= self._most else _KnownRows(made)
            lines = known.index.find(keys)
        return known.values[lines]


class _KnownRows:
    def __init__(self, rows: pl.DataFrame) -> None:
        self.rows = rows.sort(KEY)
        self.values = self.rows.drop(KEY)
        self.index = KeyIndex(self.rows[KEY])
