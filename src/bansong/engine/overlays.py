"""Facts that a run adds to the local engine: statuses, earlier letters, addresses chosen by people."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, Final

import polars as pl

from bansong.base import business_number
from bansong.base.after_fork import refuse_after_fork
from bansong.base.business_number import first_code
from bansong.base.errors import Problem, UsageError
from bansong.base.messages import Lang, Option
from bansong.engine.address.attach import attach
from bansong.engine.address.gazetteer import Gazetteer
from bansong.engine.registry import ATTACHED_MORE, MORE, SCHEMA, KeyIndex, Registry, attached_dtypes, gather, snapshot
from bansong.engine.risk.reasons import BY_NTS
from bansong.engine.text import is_blank, is_masked

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
_OURS: Final = "nts:"  # prefix of the overlay's columns, beside those of the registry
_EARLIEST: Final = pl.lit(date.min)  # stands for an unknown day


class StatusOverlay:
    """Statuses of the tax authority, used beside a registry; thread-safe.

    ``statuses``: a frame with ``b_no`` (integer or text), ``biz_status``, ``as_of`` and optionally the other columns of
    a registry; or a registry, or its path. ``aged_before``: reasons give the age of statuses from before this date. The
    attribute ``more`` lists the columns of :data:`ATTACHED_MORE` that it has.

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

    def __repr__(self) -> str:
        return f"StatusOverlay(version={self.version!r}, rows={self.rows})"

    @property
    def path(self) -> Path | None:
        """The file of the registry, if the statuses come from one."""
        return self._statuses.path if isinstance(self._statuses, Registry) else None

    @property
    def version(self) -> str | None:
        """The version of the registry, else the date of the newest status; ``None`` without statuses."""
        return self._statuses.version

    @property
    def rows(self) -> int:
        """Number of businesses with a status."""
        return self._statuses.rows

    @classmethod
    def exchangeable(cls, *, aged_before: date | None = None) -> StatusOverlay:
        """Return an empty overlay for a query that runs many times; :meth:`exchange` sets the statuses of a run."""
        overlay = cls(pl.DataFrame(schema=SCHEMA), aged_before=aged_before)
        overlay.more = tuple(ours for theirs, ours in ATTACHED_MORE.items() if theirs != "name")
        return overlay

    def exchange(self, statuses: pl.DataFrame) -> None:
        """Replace the statuses by a frame with a registry's columns, except ``name``, and sorted, distinct numbers."""
        self._statuses = _StatusFrame(statuses)

    def check(self) -> None:
        """Read the whole file, if any; raise :class:`RegistryError` if it is damaged."""
        if isinstance(self._statuses, Registry):
            self._statuses.check()

    def attach(self, frame: pl.LazyFrame, key: str, registry: Registry | None, *, names: bool = True) -> pl.LazyFrame:
        """Add the columns of :meth:`Registry.attach`, from the newer of overlay and registry, and :data:`BY_NTS`."""
        # on a tie the overlay counts; missing values (of `since` only if both say closed) come from the other
        more = self.more if registry is None else {*self.more, *registry.more}
        dtypes = attached_dtypes(more, names=names)
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
        # `frame`: a registry's columns but `name`, with sorted, distinct numbers; only the frame is pickled
        self._frame = frame = frame.rename(ATTACHED_MORE, strict=False)
        self._index = KeyIndex(frame["b_no"])
        self.rows = frame.height
        newest = frame["as_of"].max()
        self.version = newest.isoformat() if isinstance(newest, date) else None
        self.more = tuple(
            name for name in ATTACHED_MORE.values() if name in frame and frame[name].null_count() < self.rows
        )

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._frame,)

    def find(self, columns: Collection[str], numbers: pl.Series) -> pl.Series:
        return gather(self._index.find(numbers), {name: self._frame[name] for name in columns})


def _find_all(source: Registry | _StatusFrame | None, dtypes: Mapping[str, Any], numbers: pl.Series) -> pl.DataFrame:
    # columns that the source lacks are null
    nothing = [pl.Series(name, [None], dtype).new_from_index(0, len(numbers)) for name, dtype in dtypes.items()]
    if source is None:
        return pl.DataFrame(nothing)
    found = source.find([name for name in dtypes if name in SCHEMA or name in source.more], numbers).struct.unnest()
    return pl.DataFrame([found.get_column(one.name, default=one) for one in nothing])


def _merge(frame: pl.DataFrame) -> pl.Series:
    # the overlay's columns have the prefix _OURS
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
    return frame.select(pl.struct(value.alias(name) for name, value in found.items())).to_series()


def _read_frame(frame: pl.DataFrame) -> pl.DataFrame:
    parameter = Option("status")
    if missing := [name for name in _NEEDED if name not in frame.columns]:
        raise UsageError(STATUS_COLUMN_MISSING, parameter=parameter, missing=missing[0], names=", ".join(frame.columns))
    number = frame["b_no"]
    if not number.dtype.is_integer():
        number = frame.select(business_number.key_expr(pl.col("b_no").cast(pl.String))).to_series()
    try:
        columns = [
            (frame[name].cast(dtype) if name in frame.columns else pl.lit(None, dtype)).alias(name)
            for name, dtype in (SCHEMA | MORE).items()
            if name != "b_no"
        ]
        frame = frame.select(number.cast(pl.UInt64).alias("b_no"), *columns)
    except pl.exceptions.PolarsError as error:
        raise UsageError(STATUS_FRAME_UNUSABLE, parameter=parameter, reason=str(error).splitlines()[0]) from error
    usable = frame.drop_nulls(["b_no", "biz_status"])
    b_no = pl.col("b_no")
    if usable.select((b_no > b_no.shift(1)).all()).item():  # already sorted, as from a store
        return usable.rechunk()
    return snapshot(usable.lazy()).collect().rechunk()


HISTORY: Final = "history"  # column of `attach_history`: `moved`, `absent`, `delivered` or null

# a row is a letter with a known outcome (a word of HISTORY)
HISTORY_SCHEMA: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "b_no": pl.UInt64,
    "address_key": pl.String,
    "outcome": pl.String,
    "mailed": pl.Date,
}

TRUSTED_MONTHS: Final = 12  # an older delivery does not count: about a fifth of businesses move in a year
_OUTCOMES: Final = ("delivered", "absent", "moved")  # of letters mailed on one day, the last of these counts

_GAP: Final = r"[\s\p{P}\p{S}\p{Cc}\p{Cf}]+"
_DIGITS_APART: Final = rf"(\p{{N}}){_GAP}(\p{{N}})"
_APART: Final = "\ue000"  # marks a gap between digits until other gaps are removed; a private character
_STILL_APART: Final = rf"{_APART}\p{{N}}{_GAP}\p{{N}}"
_UNUSUAL: Final = "[^ -@\\[-~가-힣]"
_LETTER: Final = ("b_no", "address_key")
_NUMBER: Final = "letter:b_no"
_WRITTEN: Final = "letter:mailed_to"
_KEY: Final = "letter:address_key"


def address_key(address: pl.Expr) -> pl.Expr:
    """Reduce an address to letters and digits (String), so that its spellings agree; null if blank or masked."""
    # characters between two digits become one -, since 12-3 is not 123
    text = address.cast(pl.String)
    said = pl.when(~is_blank(text) & ~is_masked(text)).then(text)
    # steps are fields of structs, so that each is computed once, and costly ones only for the texts that need them
    key = pl.field("key")
    steps = pl.struct(said.alias("key"))
    for step in (
        _only(key.str.contains(_UNUSUAL), key.str.normalize("NFKC").str.to_lowercase()),
        key.str.replace_all(_DIGITS_APART, f"${{1}}{_APART}${{2}}"),
        # again, since a single digit between two gaps ends one match and cannot begin the next
        _only(key.str.contains(_STILL_APART), key.str.replace_all(_DIGITS_APART, f"${{1}}{_APART}${{2}}")),
        key.str.replace_all(_GAP, ""),
        _only(key.str.contains(_APART, literal=True), key.str.replace_all(_APART, "-", literal=True)),
    ):
        steps = steps.struct.with_fields(step.alias("key"))
    return steps.struct.with_fields(pl.when(key != "").then(key).alias("key")).struct.field("key")


def _only(needed: pl.Expr, changed: pl.Expr) -> pl.Expr:
    return pl.when(needed).then(changed).otherwise(pl.field("key"))


def attach_history(frame: pl.LazyFrame, history: pl.LazyFrame | None, today: date) -> pl.LazyFrame:
    """Add :data:`HISTORY` (String): the outcome of the newest letter to a row's number (``key``) and ``address``."""
    # a delivered letter counts for TRUSTED_MONTHS, a returned one until a newer letter
    if history is None:
        return frame.with_columns(pl.lit(None, pl.String).alias(HISTORY))
    return with_letters(frame, _newest_outcomes(history, today), "key")


def with_letters(frame: pl.LazyFrame, letters: pl.LazyFrame, number: str) -> pl.LazyFrame:
    """Left-join ``letters`` (distinct in ``b_no`` and ``address_key``) to rows by the column ``number`` and address."""
    # by the number first: most rows have no letters, and need no address key
    businesses = letters.select(pl.col("b_no").alias(_NUMBER)).unique().with_columns(pl.lit(True).alias(_WRITTEN))
    known = frame.join(businesses, left_on=number, right_on=_NUMBER, how="left", maintain_order="left")
    keyed = known.with_columns(address_key(pl.when(_WRITTEN).then("address")).alias(_KEY))
    joined = keyed.join(letters, left_on=[number, _KEY], right_on=_LETTER, how="left", maintain_order="left")
    return joined.drop(_WRITTEN, _KEY)


def _newest_outcomes(history: pl.LazyFrame, today: date) -> pl.LazyFrame:
    # deliveries that are too old are left out
    known = history.filter(pl.col("outcome").is_in(_OUTCOMES) & (pl.col("mailed") <= today)).drop_nulls(_LETTER)
    weight = pl.col("outcome").cast(pl.Enum(_OUTCOMES))
    newest = known.group_by(_LETTER).agg(
        pl.col("outcome").sort_by("mailed", weight).last().alias(HISTORY), pl.col("mailed").max()
    )
    recent = pl.col("mailed") > pl.lit(today).dt.offset_by(f"-{TRUSTED_MONTHS}mo")
    return newest.filter((pl.col(HISTORY) != "delivered") | recent).drop("mailed")


CHOICE_SCHEMA: Final = {
    "b_no": pl.UInt64,
    "address_key": pl.String,  # of the written address; the next two are of the chosen official one
    "address": pl.String,
    "zipcode": pl.String,
    "by": pl.String,
    "chosen_on": pl.Date,
}

CHOICE: Final = "bv:choice"  # whether a row's choice was `used` or has `vanished`; null without a choice
# aggregations over rows answered with choices
CHOICE_COUNTS: Final = tuple((pl.col(CHOICE) == what).sum().alias(f"choice:{what}") for what in ("used", "vanished"))

_CHOSEN: Final = ("address", "zipcode", "by", "chosen_on")
_REASON: Final[dict[Lang, str]] = {"en": "chosen in a review", "ko": "검토에서 선택한 주소"}


@dataclass(frozen=True, slots=True)
class AddressChoices:
    """Addresses chosen in a review (:data:`CHOICE_SCHEMA`), and ``there``: whether the gazetteer still has them."""

    frame: pl.DataFrame

    @classmethod
    def look_up(cls, choices: pl.DataFrame, gazetteer: Gazetteer) -> AddressChoices:
        found = attach(choices.lazy().select("address", "zipcode"), gazetteer, "en").select("match_level").collect()
        return cls(choices.with_columns(there=(found["match_level"] == "exact").fill_null(False)))

    def replace(self, work: pl.LazyFrame) -> pl.LazyFrame:
        """Replace address and postal code of rows by the chosen ones that still exist, and add :data:`CHOICE`."""
        named = self.frame.rename({name: f"choice:{name}" for name in (*_CHOSEN, "there")})
        joined = with_letters(work, named.lazy(), "key")
        used = pl.col("choice:there").fill_null(False)
        chosen = {name: pl.when(used).then(f"choice:{name}").otherwise(name) for name in ("address", "zipcode")}
        has_choice = pl.col("choice:address").is_not_null()
        fate = first_code({"used": used, "vanished": has_choice})
        found = joined.with_columns(fate.alias(CHOICE), **chosen)
        return found.drop("choice:there", "choice:address", "choice:zipcode")

    def tell(self, work: pl.LazyFrame, lang: Lang) -> pl.LazyFrame:
        """State the choice in the reasons of rows where it was used."""
        day = pl.col("choice:chosen_on").dt.to_string("%Y-%m-%d")
        text = pl.concat_str(pl.lit(_REASON[lang]), pl.lit(" (review, "), day, pl.lit(", "), "choice:by", pl.lit(")"))
        reason = pl.when(pl.col(CHOICE) == "used").then(text).otherwise("changes")
        return work.with_columns(reason.alias("changes")).drop("choice:by", "choice:chosen_on")
