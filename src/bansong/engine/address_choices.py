"""Addresses that a person chose in a review, replacing those of a business.

A choice is for one business and one spelling of its address: for another business the same words may mean another
place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import polars as pl

from bansong.business_number import first_code
from bansong.engine.address import Gazetteer, attach
from bansong.engine.letter_history import with_letters
from bansong.schema import Lang

CHOICE_SCHEMA: Final = {
    "b_no": pl.UInt64,
    "address_key": pl.String,
    "address": pl.String,
    "zipcode": pl.String,
    "by": pl.String,
    "chosen_on": pl.Date,
}
"""A choice: the business, its :func:`bansong.engine.letter_history.address_key`, the chosen official address and
postal code, by whom and when."""

CHOICE: Final = "bv:choice"
"""Fate of the choice for a row's address: ``used``, ``vanished``, null without one."""

CHOICE_COUNTS: Final = tuple((pl.col(CHOICE) == what).sum().alias(f"choice:{what}") for what in ("used", "vanished"))
"""Aggregations over rows of :meth:`bansong.engine.LocalEngine.answer` with choices."""

_CHOSEN: Final = ("address", "zipcode", "by", "chosen_on")
_REASON: Final[dict[Lang, str]] = {"en": "chosen in a review", "ko": "검토에서 선택한 주소"}


@dataclass(frozen=True, slots=True)
class AddressChoices:
    """Choices (:data:`CHOICE_SCHEMA`), and whether their building is in the gazetteer (``there``)."""

    frame: pl.DataFrame

    @classmethod
    def look_up(cls, choices: pl.DataFrame, gazetteer: Gazetteer) -> AddressChoices:
        """Look up the chosen buildings."""
        found = attach(choices.lazy().select("address", "zipcode"), gazetteer, "en").select("match_level").collect()
        return cls(choices.with_columns(there=(found["match_level"] == "exact").fill_null(False)))

    def replace(self, work: pl.LazyFrame) -> pl.LazyFrame:
        """Replace address and postal code of rows with a choice, and add :data:`CHOICE`.

        ``work`` has ``address``, ``zipcode`` (String) and the business number as UInt64 in ``key``.
        """
        named = self.frame.rename({name: f"choice:{name}" for name in (*_CHOSEN, "there")})
        joined = with_letters(work, named.lazy(), "key")
        used = pl.col("choice:there").fill_null(False)
        chosen = {name: pl.when(used).then(f"choice:{name}").otherwise(name) for name in ("address", "zipcode")}
        has_choice = pl.col("choice:address").is_not_null()
        fate = first_code({"used": used, "vanished": has_choice})
        found = joined.with_columns(fate.alias(CHOICE), **chosen)
        return found.drop("choice:there", "choice:address", "choice:zipcode")

    def tell(self, work: pl.LazyFrame, lang: Lang) -> pl.LazyFrame:
        """Write to ``changes`` who chose the address of a row, and when."""
        day = pl.col("choice:chosen_on").dt.to_string("%Y-%m-%d")
        text = pl.concat_str(pl.lit(_REASON[lang]), pl.lit(" (review, "), day, pl.lit(", "), "choice:by", pl.lit(")"))
        reason = pl.when(pl.col(CHOICE) == "used").then(text).otherwise("changes")
        return work.with_columns(reason.alias("changes")).drop("choice:by", "choice:chosen_on")
