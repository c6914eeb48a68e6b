"""The columns that are added behind the nine on request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from bansong.engine.address import Gazetteer, building_code
from bansong.engine.local import DISTRICT_CODE, MATCH_LEVEL, PLACE
from bansong.errors import UsageError
from bansong.run.duplicates import FIRST
from bansong.schema import EXTRA_COLUMNS
from bansong.translation import Phrase, gettext, gettext_noop

_SOURCES: Final = {"match_level": MATCH_LEVEL, "district_code": DISTRICT_CODE}
_BUILDING_CODE: Final = "building_code"
_NO_CODES: Final = gettext_noop(
    "building_code: empty, since {path} holds no numbers of buildings; build the gazetteer again from rnaddrkor_*.txt"
)


def checked_extra_columns(asked: Sequence[str]) -> tuple[str, ...]:
    """Return the names that are asked for in the order of the contract; raise :class:`UsageError` for unknown ones."""
    given = [part.strip() for one in ([asked] if isinstance(asked, str) else asked) for part in one.split(",")]
    if unknown := [name for name in given if name not in EXTRA_COLUMNS]:
        message = gettext(
            "`extra_columns=`: there is no column {name!r}; there are {known}",
            name=unknown[0],
            known=", ".join(EXTRA_COLUMNS),
        )
        raise UsageError(message)
    return tuple(name for name in EXTRA_COLUMNS if name in given)


def with_extra_columns(answers: pl.LazyFrame, names: Sequence[str], gazetteer: Gazetteer | None) -> pl.LazyFrame:
    """Add the columns ``names`` to answered rows; for ``duplicate_of`` they have :data:`FIRST`.

    ``duplicate_of`` counts from 1. What the engine did not find out is null. ``gazetteer``: the one of the answers.
    """
    there = answers.collect_schema().names()
    columns = {
        name: pl.col(source) if source in there else pl.lit(None, pl.String) for name, source in _SOURCES.items()
    }
    columns[_BUILDING_CODE] = (
        building_code(gazetteer, pl.col(PLACE)) if gazetteer is not None and PLACE in there else pl.lit(None, pl.String)
    )
    columns["duplicate_of"] = (pl.col(FIRST) + 1) if FIRST in there else pl.lit(None, pl.UInt32)
    return answers.with_columns(columns[name].alias(name) for name in names)


def unknown_extra_columns(names: Sequence[str], gazetteer: Gazetteer | None) -> tuple[str, ...]:
    """Return a warning about those of ``names`` that stay empty; ``gazetteer``: the one that is looked up, if any."""
    empty = [name for name in names if name in (*_SOURCES, _BUILDING_CODE)]
    if gazetteer is not None:
        lacks_codes = _BUILDING_CODE in empty and not gazetteer.has_building_codes
        return (Phrase(_NO_CODES, path=gazetteer.path),) if lacks_codes else ()
    if not empty:
        return ()
    return (Phrase("{names}: empty, since no address is looked up; give `gazetteer=`", names=", ".join(empty)),)
