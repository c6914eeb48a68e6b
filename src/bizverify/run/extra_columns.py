"""The columns that are added behind the nine on request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from bizverify.engine.local import DISTRICT_CODE, MATCH_LEVEL
from bizverify.errors import UsageError
from bizverify.run.duplicates import FIRST
from bizverify.schema import EXTRA_COLUMNS
from bizverify.translation import gettext

_SOURCES: Final = {"match_level": MATCH_LEVEL, "district_code": DISTRICT_CODE}


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


def with_extra_columns(answers: pl.LazyFrame, names: Sequence[str]) -> pl.LazyFrame:
    """Add the columns ``names`` to answered rows; for ``duplicate_of`` they have :data:`FIRST`.

    ``duplicate_of`` counts from 1. What the engine did not find out is null.
    """
    there = answers.collect_schema().names()
    columns = {
        name: pl.col(source) if source in there else pl.lit(None, pl.String) for name, source in _SOURCES.items()
    }
    columns["duplicate_of"] = (pl.col(FIRST) + 1) if FIRST in there else pl.lit(None, pl.UInt32)
    return answers.with_columns(columns[name].alias(name) for name in names)


def unknown_extra_columns(names: Sequence[str], *, gazetteer: bool) -> tuple[str, ...]:
    """Return a warning about those of ``names`` that stay empty without a gazetteer that is looked up."""
    empty = [name for name in names if name in _SOURCES]
    if gazetteer or not empty:
        return ()
    return (gettext("{names}: empty, since no address is looked up; give `gazetteer=`", names=", ".join(empty)),)
