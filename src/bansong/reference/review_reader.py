"""Read choices from a review, and store them."""

from __future__ import annotations

import getpass
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Final

import polars as pl

from bansong import business_number
from bansong.cloud.remote_path import as_path
from bansong.engine.address_choices import CHOICE_SCHEMA
from bansong.engine.letter_history import address_key
from bansong.engine.text_values import day_given
from bansong.errors import InputError, Problem, UsageError
from bansong.forking import refuse_after_fork
from bansong.reference.choice_store import ChoiceStore
from bansong.report_display import Shown
from bansong.run.review_list import CANDIDATES, headers
from bansong.schema import LANGS, seoul_day
from bansong.tables import open_table
from bansong.translation import gettext, gettext_of, ngettext, use_language

NOT_A_REVIEW: Final = Problem(
    "reviews.not_a_review", "{path}: is no review; give a workbook that `bansong enrich --review` wrote"
)
REVIEWER_NAME_INVALID: Final = Problem(
    "reviews.reviewer_name_invalid",
    "`by=`: {by!r} cannot stand in a reason; give a name of at most {most} characters without | ( )",
)

_CANDIDATES: Final = tuple(f"candidate{place}" for place in range(1, CANDIDATES + 1))
_NEEDED: Final = ("row", "b_no", "address", "choice", *_CANDIDATES)
_CHOSEN: Final = r"^(.+) \[([0-9]{5})\]$"
_SHOWN: Final = 5
_MAX_NAME_CHARACTERS: Final = 60


@dataclass(frozen=True, slots=True)
class ReviewReport(Shown):
    """Addresses of a review by choice: new, changed, same as before, and without one.

    ``by``: who chose; ``store``: where choices are kept.
    """

    path: str
    store: str
    by: str
    new: int
    changed: int
    known: int
    open: int

    def as_dict(self) -> dict[str, object]:
        """Return the report as plain values for JSON."""
        return asdict(self)

    def lines(self) -> list[tuple[str, str]]:
        """Return the report as (what, how much) for people."""
        counts = gettext_of(self, "new {new:,} · changed {changed:,} · as before {known:,} · without a choice {open:,}")
        return [(gettext("choices"), counts), (gettext("chosen by"), self.by), (gettext("kept in"), self.store)]


def apply_review(
    path: str | Path, *, by: str | None = None, store: str | Path | None = None, today: date | str | None = None
) -> ReviewReport:
    """Store the choices of a review that ``enrich(review=…)`` wrote, for the next runs.

    ``by``: who chose, by default the user of this machine; it stands in the reasons. ``store``: by default
    ``BANSONG_CHOICES``, else ``choices.sqlite`` in the state directory. A later choice for the same business and
    address wins. Raises :class:`InputError` for a file that is no review or a choice that is no candidate (nothing is
    stored then), :class:`UsageError`, :class:`bansong.errors.StoreError`.
    """
    refuse_after_fork()
    source, who = as_path(path), _name(by)
    with open_table(source) as table:
        columns = _columns_of(table.headers, source)
        cells = {name: pl.col(table.ids[place]).cast(pl.String).alias(name) for name, place in columns.items()}
        lines = table.frame.select(**cells).with_row_index("line", offset=table.first_row).collect()
    chosen = lines.filter(pl.col("choice").str.strip_chars() != "")
    choices = _read_choices(chosen, source).with_columns(
        pl.lit(who).alias("by"), pl.lit(day_given("today", today) or seoul_day()).alias("chosen_on")
    )
    kept = ChoiceStore(store)
    before = kept.read() if kept.path.exists() else pl.DataFrame(schema=CHOICE_SCHEMA)
    counts = _compare(choices, before)
    if not choices.is_empty():
        kept.put(choices)
    return ReviewReport(str(source), str(kept.path), who, open=lines.height - chosen.height, **counts)


def _name(by: str | None) -> str:
    given = " ".join((getpass.getuser() if by is None else by).split())
    if not given or len(given) > _MAX_NAME_CHARACTERS or any(mark in given for mark in "|()"):
        raise UsageError(REVIEWER_NAME_INVALID, by=by, most=_MAX_NAME_CHARACTERS)
    return given


def _columns_of(found: tuple[str, ...], path: Path) -> Mapping[str, int]:
    for lang in LANGS:
        with use_language(lang):
            titles = headers()
        places = {name: found.index(title) for name, title in titles.items() if title in found}
        if all(name in places for name in _NEEDED):
            return places
    raise InputError(NOT_A_REVIEW, path=path)


def _read_choices(chosen: pl.DataFrame, path: Path) -> pl.DataFrame:
    choice, offered = pl.col("choice").str.strip_chars(), pl.concat_list(_CANDIDATES)
    by_place = offered.list.get(choice.str.extract("^([1-9])$").cast(pl.Int64) - 1, null_on_oob=True)
    text = pl.coalesce(by_place, pl.when(offered.list.contains(choice)).then(choice))
    lines = chosen.with_columns(
        text.str.extract(_CHOSEN, 1).alias("chosen"),
        text.str.extract(_CHOSEN, 2).alias("code"),
        business_number.key_expr(pl.col("b_no")).alias("number"),
        address_key(pl.col("address")).alias("address_key"),
    )
    wrong = lines.filter(pl.any_horizontal(pl.col("chosen", "number", "address_key").is_null()))
    if not wrong.is_empty():
        listed = ", ".join(
            gettext("row {row}: {choice!r}", row=row, choice=what)
            for row, what in wrong.select("line", "choice").head(_SHOWN).rows()
        )
        message = ngettext(
            "{path}: {count:,} choice is none of the candidates in its line ({listed}); correct it, nothing was "
            "remembered",
            "{path}: {count:,} choices are none of the candidates in their lines ({listed}); correct them, nothing was "
            "remembered",
            wrong.height,
            path=path,
            listed=listed,
        )
        raise InputError(message)
    found = lines.select(
        pl.col("number").alias("b_no"),
        "address_key",
        pl.col("chosen").alias("address"),
        pl.col("code").alias("zipcode"),
    )
    return found.unique(["b_no", "address_key"], keep="last", maintain_order=True)


def _compare(choices: pl.DataFrame, before: pl.DataFrame) -> dict[str, int]:
    keys = ["b_no", "address_key"]
    both = choices.join(before, on=keys, how="left", suffix="_before")
    same = (pl.col("address") == pl.col("address_before")).fill_null(False)
    new = pl.col("address_before").is_null()
    return both.select(new.sum().alias("new"), (~new & ~same).sum().alias("changed"), same.sum().alias("known")).row(
        0, named=True
    )
