"""Statuses of the tax authority laid over those of a registry: the newer one of each number counts."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, Final

import polars as pl

from bansong import business_number
from bansong.engine.key_index import KeyIndex
from bansong.engine.registry import ATTACHED, ATTACHED_MORE, MORE, SCHEMA, Registry, gather, snapshot
from bansong.engine.risk.reason_texts import BY_NTS
from bansong.errors import Problem, UsageError
from bansong.forking import refuse_after_fork
from bansong.translation import Option

STATUS_COLUMN_MISSING: Final = Problem(
    "statuses.status_column_missing",
    "{parameter}: the frame has no column {missing!r}, only {names}; give one as bansong.fetch_status returns it",
)
STATUS_FRAME_UNUSABLE: Final = Problem(
    "statuses.status_frame_unusable", "{parameter}: {reason}; give a frame as bansong.fetch_status returns it"
)
STATUS_SOURCE_UNUSABLE: Final = Problem(
    "statuses.status_source_unusable",
    "{parameter} is a {name__}; give a polars DataFrame as bansong.fetch_status returns it, a "
    "registry, or the path of one",
)

_NEEDED: Final = ("b_no", "biz_status", "as_of")
_OURS: Final = "nts:"  # prefix of the overlay's columns beside the registry's
_EARLIEST: Final = pl.lit(date.min)  # for an unknown day


class StatusOverlay:
    """Statuses of the tax authority beside a registry; one object for all threads.

    ``statuses``: a frame with ``b_no`` (integer or text), ``biz_status``, ``as_of`` and optionally the other columns of
    a registry; or a registry, or its path. ``aged_before``: earlier statuses show their age in the reasons. ``more``:
    columns of :data:`ATTACHED_MORE` that it has.

    Raises :class:`bansong.errors.UsageError` for an unsuitable frame, :class:`~bansong.errors.RegistryError`.
    """

    def __init__(self, statuses: pl.DataFrame | Registry | str | Path, *, aged_before: date | None = None) -> None:
        refuse_after_fork()
        self.aged_before = aged_before
        self._statuses: Registry | _StatusFrame
        if isinstance(statuses, pl.DataFrame):
            self._statuses = _StatusFrame(_read_frame(statuses))
        elif isinstance(statuses, str | Path | Registry):
            self._statuses = statuses if isinstance(statuses, Registry) else Registry.open(statuses)
        else:
            raise UsageError(STATUS_SOURCE_UNUSABLE, parameter=Option("status"), name__=type(statuses).__name__)
        self.more = self._statuses.more

    @property
    def path(self) -> Path | None:
        """The file of its registry, if it has one."""
        return self._statuses.path if isinstance(self._statuses, Registry) else None

    @property
    def version(self) -> str | None:
        """The version of its registry, or the newest day of its statuses, if any."""
        return self._statuses.version

    @property
    def rows(self) -> int:
        """Number of business numbers."""
        return self._statuses.rows

    @classmethod
    def exchangeable(cls, *, aged_before: date | None = None) -> StatusOverlay:
        """Return an overlay for a repeated query: :meth:`exchange` sets the statuses of each run."""
        overlay = cls(pl.DataFrame(schema=SCHEMA), aged_before=aged_before)
        overlay.more = tuple(ours for theirs, ours in ATTACHED_MORE.items() if theirs != "name")
        return overlay

    def exchange(self, statuses: pl.DataFrame) -> None:
        """Use these statuses in the next run: a registry's columns but ``name``, sorted by distinct numbers."""
        self._statuses = _StatusFrame(statuses)

    def check(self) -> None:
        """Read its file, if any; raise :class:`RegistryError` if that is damaged."""
        if isinstance(self._statuses, Registry):
            self._statuses.check()

    def attach(self, frame: pl.LazyFrame, key: str, registry: Registry | None, *, names: bool = True) -> pl.LazyFrame:
        """Do what :meth:`Registry.attach` does, and add the columns of :data:`BY_NTS` (Boolean).

        For a number in both the newer ``as_of`` counts, on a tie the overlay's; missing values (opening, taxation,
        merging, name, and the day of closure if both are closed) are taken from the other.
        """
        of_registry = registry.more if registry is not None else ()
        more = [name for name in ATTACHED_MORE.values() if name in {*self.more, *of_registry}]
        if not names and "registry_name" in more:
            more.remove("registry_name")
        theirs = {ours: theirs for theirs, ours in ATTACHED_MORE.items()}
        dtypes: dict[str, Any] = {name: SCHEMA[name] for name in ATTACHED} | {name: MORE[theirs[name]] for name in more}
        found = pl.col(key).map_batches(
            partial(self._find, registry, dtypes),
            return_dtype=pl.Struct(dtypes | dict.fromkeys(BY_NTS.values(), pl.Boolean)),
            is_elementwise=True,
        )
        return frame.with_columns(found.alias("bv:status")).unnest("bv:status")

    def _find(self, registry: Registry | None, dtypes: Mapping[str, Any], numbers: pl.Series) -> pl.Series:
        ours = _find_all(self._statuses, dtypes, numbers)
        theirs = _find_all(registry, dtypes, numbers)
        return _merge(pl.concat([ours.rename(lambda name: f"{_OURS}{name}"), theirs], how="horizontal"))


class _StatusFrame:
    def __init__(self, frame: pl.DataFrame) -> None:
        # a registry's columns but `name`, sorted by `b_no`, each number once; the frame alone is pickled
        self._frame = frame
        self._index = KeyIndex(frame["b_no"])
        self.rows = frame.height
        newest = frame["as_of"].max()
        self.version = newest.isoformat() if isinstance(newest, date) else None
        self.more = tuple(
            ours for theirs, ours in ATTACHED_MORE.items() if theirs in frame and frame[theirs].null_count() < self.rows
        )

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._frame,)

    def find(self, columns: Collection[str], numbers: pl.Series) -> pl.Series:
        theirs = {ours: theirs for theirs, ours in ATTACHED_MORE.items()}
        return gather(self._index.find(numbers), {name: self._frame[theirs.get(name, name)] for name in columns})


def _find_all(source: Registry | _StatusFrame | None, dtypes: Mapping[str, Any], numbers: pl.Series) -> pl.DataFrame:
    # null for columns that the source does not have
    names = [] if source is None else [name for name in dtypes if name in (*ATTACHED, *source.more)]
    found = pl.DataFrame() if source is None else source.find(names, numbers).struct.unnest()
    nothing = [pl.Series(name, [None], dtype).new_from_index(0, len(numbers)) for name, dtype in dtypes.items()]
    return pl.DataFrame([found[one.name] if one.name in names else one for one in nothing])


def _merge(frame: pl.DataFrame) -> pl.Series:
    # ours with the prefix _OURS beside the registry's
    theirs = {name: pl.col(name) for name in frame.columns if not name.startswith(_OURS)}
    ours = {name: pl.col(f"{_OURS}{name}") for name in theirs}
    later = ours["as_of"].fill_null(_EARLIEST) >= theirs["as_of"].fill_null(_EARLIEST)
    newer = ours["biz_status"].is_not_null() & (theirs["biz_status"].is_null() | later)
    frame = frame.with_columns(newer.alias("newer"))
    by_nts = pl.col("newer")
    first = {name: pl.when(by_nts).then(ours[name]).otherwise(theirs[name]) for name in theirs}
    second = {name: pl.when(by_nts).then(theirs[name]).otherwise(ours[name]) for name in theirs}
    alike = by_nts & (ours["biz_status"] == theirs["biz_status"])
    found = {name: pl.coalesce(first[name], second[name]) for name in theirs}
    found |= {name: first[name] for name in ("biz_status", "as_of")}
    found["since"] = pl.coalesce(first["since"], pl.when(alike).then(theirs["since"]))
    found[BY_NTS["status"]] = by_nts
    found[BY_NTS["taxation"]] = pl.lit(False)
    if "taxation" in ours:
        found[BY_NTS["taxation"]] = ours["taxation"].is_not_null() & (by_nts | theirs["taxation"].is_null())
    return frame.select(pl.struct([value.alias(name) for name, value in found.items()])).to_series()


def _read_frame(frame: pl.DataFrame) -> pl.DataFrame:
    if missing := [name for name in _NEEDED if name not in frame.columns]:
        raise UsageError(
            STATUS_COLUMN_MISSING, parameter=Option("status"), missing=missing[0], names=", ".join(frame.columns)
        )
    dtypes = SCHEMA | MORE
    number = frame["b_no"]
    if not number.dtype.is_integer():
        number = frame.select(business_number.key_expr(pl.col("b_no").cast(pl.String))).to_series()
    try:
        columns = [
            (frame[name].cast(dtype) if name in frame.columns else pl.lit(None, dtype)).alias(name)
            for name, dtype in dtypes.items()
            if name != "b_no"
        ]
        frame = frame.select(number.cast(pl.UInt64).alias("b_no"), *columns)
    except pl.exceptions.PolarsError as error:
        raise UsageError(
            STATUS_FRAME_UNUSABLE, parameter=Option("status"), reason=str(error).splitlines()[0]
        ) from error
    usable = frame.filter(pl.col("b_no").is_not_null(), pl.col("biz_status").is_not_null())
    b_no = pl.col("b_no")
    if usable.select((b_no > b_no.shift(1)).all()).item():  # as from a store: spares the memory of sorting
        return usable.rechunk()
    return snapshot(usable.lazy()).collect().rechunk()
