"""Of how many rows of a run the status was checked, by whom, and how old that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import TYPE_CHECKING, Any

from bizverify.errors import parameter
from bizverify.run.accounting import RowCounts
from bizverify.run.alerts import CHECK_STATUSES, is_majority
from bizverify.schema import pluralize, seoul_day

if TYPE_CHECKING:
    from bizverify.run.engine import Engine


@dataclass(frozen=True, slots=True)
class NtsCounts:
    """What the tax authority's own statuses are to the rows of a run.

    ``rows`` have one, the oldest of the day ``oldest`` (ISO). ``aged`` rows have a status, of whatever source, that
    bears its age: it should have been asked again and was not, or it is not of today where not all could be asked; the
    oldest of these is ``age`` days old. ``halt``: why not all was asked that should have been, ``None`` if it was.
    """

    rows: int
    oldest: str | None
    aged: int
    age: int | None
    halt: str | None

    @property
    def caution(self) -> str:
        """How old statuses are that could not be asked again, and why; empty where there is nothing to say."""
        aged = f"; {pluralize(self.aged, 'status', 'statuses')} up to {pluralize(self.age or 0, 'day')} old"
        if self.halt is not None:
            return f"{aged if self.aged else ''}; not all could be asked of the tax authority: {self.halt}"
        return f"{aged}, because the tax authority gave no answer to these numbers" if self.aged else ""


@dataclass(frozen=True, slots=True)
class StatusCounts:
    """Of how many rows with a business number the status was checked.

    ``checked`` of ``rows`` have a status from a source; ``stale`` of these were checked more than ``stale_after`` days
    ago. ``registry`` is the version of the local engine's source, ``None`` where it had none; ``bought``: the service
    was asked, too; ``nts``: the tax authority's part, ``None`` where its statuses were not used.
    """

    rows: int
    checked: int
    stale: int
    stale_after: int
    registry: str | None
    bought: bool = False
    nts: NtsCounts | None = None

    @property
    def summary(self) -> str:
        """The counts in words, with what mends them."""
        text = f"{self.checked:,} of {self.rows:,} statuses checked{self._sources()}"
        caution = self.nts.caution if self.nts is not None else ""
        if not self.bought and not self.checked and self.nts is not None:
            return f"{text}, so no row says `send`{caution or '; the tax authority gave no answer: try again later'}"
        if not self.bought and not self.registry and self.nts is None:
            return f"{text}, so no row says `send`: {CHECK_STATUSES}"
        if not self.bought and not self.checked:
            return f"{text}, so no row says `send`: none of the numbers is in the registry; is it the right one?"
        if self.stale:
            ask_again = f": ask again with {parameter('max_status_age', self.stale_after)}"
            remedy = ask_again if self.nts is not None else ": build the registry again from newer lists"
            text += f", {self.stale:,} of them more than {self.stale_after} days ago, so not to be relied on"
            text += "" if caution else remedy
        missing = 0 if self.bought else self.rows - self.checked
        if missing:
            where = "without a status" if self.nts is not None else "not in the registry"
            text += f"; {pluralize(missing, 'number')} {where}"
        return text + caution

    def _sources(self) -> str:
        """Whose the statuses are, in parentheses."""
        if self.nts is None:
            return f" (registry {self.registry})" if self.registry else ""
        oldest = f", the oldest of {self.nts.oldest}" if self.nts.oldest else ""
        others = f"; {self.checked - self.nts.rows:,} by registry {self.registry}" if self.registry else ""
        return f" ({self.nts.rows:,} by nts{oldest}{others})"

    @property
    def is_alarming(self) -> bool:
        """Whether most rows have no fresh status, or not all was asked that should have been."""
        halted = self.nts is not None and self.nts.halt is not None
        return halted or is_majority(self.rows - self.checked + self.stale, self.rows)


def statuses_of(
    engine: Engine, counts: RowCounts, tallied: Mapping[str, Any], halt: str | None = None
) -> StatusCounts | None:
    """Return of how many rows of a run the status was checked; ``None`` where no row has a number.

    ``tallied``: with :meth:`bizverify.engine.LocalEngine.counts`; ``halt``: see :class:`NtsCounts`.
    """
    local, rows = engine.local, sum(counts.by_biz_status.values())
    if not rows:
        return None
    return StatusCounts(
        rows,
        rows - counts.by_biz_status.get("unknown", 0),
        int(tallied.get("status:stale") or 0),
        stale_after=local.model.stale_after,
        registry=local.registry.version if local.registry and engine.kind.answers_locally else None,
        bought=engine.kind.buys,
        nts=_nts_counts(tallied, local.today or seoul_day(), halt) if "status:nts" in tallied else None,
    )


def sum_statuses(counted: Sequence[StatusCounts]) -> StatusCounts | None:
    """Return the counts of several tables of a run as one; ``None`` where no row of any has a number."""
    if not counted:
        return None
    of_nts = [one.nts for one in counted if one.nts is not None]
    nts = None
    if of_nts:
        nts = NtsCounts(
            sum(one.rows for one in of_nts),
            min((one.oldest for one in of_nts if one.oldest), default=None),
            sum(one.aged for one in of_nts),
            max((one.age for one in of_nts if one.age is not None), default=None),
            of_nts[0].halt,
        )
    sums = {name: sum(getattr(one, name) for one in counted) for name in ("rows", "checked", "stale")}
    return replace(counted[0], nts=nts, **sums)


def _nts_counts(tallied: Mapping[str, Any], today: date, halt: str | None) -> NtsCounts:
    oldest, aged = tallied["status:nts_oldest"], tallied["status:aged_oldest"]
    return NtsCounts(
        int(tallied["status:nts"] or 0),
        oldest.isoformat() if oldest else None,
        int(tallied["status:aged"] or 0),
        max(0, (today - aged).days) if aged else None,
        halt,
    )
