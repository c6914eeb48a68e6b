"""Quarantine: doubted labels are kept apart, until an audit of a sample of them releases them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import polars as pl

from bansong.errors import LabelError, Problem
from bansong.labels.label_store import LabelStore
from bansong.labels.outcomes import came_back
from bansong.learning.significance import interval
from bansong.tables import open_table, publish_file, reading
from bansong.translation import gettext

QUARANTINE_EMPTY: Final = Problem(
    "learning.quarantine_empty", "no labels are quarantined, so there is nothing to audit"
)
LETTER_NOT_QUARANTINED: Final = Problem(
    "learning.letter_not_quarantined", "{name}: line {line}: row {value} is no quarantined letter; draw a new sample"
)
AUDIT_INCOMPLETE: Final = Problem(
    "learning.audit_incomplete",
    "{name}: {height:,} of the letters were checked, {size:,} are needed, each once; write returned "
    "or delivered into the column 'checked'",
)
AUDIT_COLUMN_MISSING: Final = Problem(
    "learning.audit_column_missing",
    "{name}: there is no column {missing!r}; give the file of the audit sample, filled in",
)

FALSE_BOUNCES: Final = 0.05
"""Highest share of wrong labels in an audit that is accepted as usual."""
MANY_ASIDE: Final = 0.2
"""Share of quarantined letters above which the other labels are not trusted either."""


def distrust(set_aside: int, letters: int) -> tuple[str, ...]:
    """Return why the remaining labels are not trusted, if many letters are in quarantine."""
    if set_aside <= MANY_ASIDE * letters:
        return ()
    return (
        gettext(
            "{set_aside:,} of {letters:,} letters are in quarantine, so the others are not trusted either",
            set_aside=set_aside,
            letters=letters,
        ),
    )


SIZE: Final = 300
"""Letters of a sample: enough to tell a share of wrong labels under 5 % from one above."""
_KEY: Final = ("mailing", "row_id")
_CHECKED: Final = "checked"
_COLUMNS: Final = ("mailing", "file", "row_id", "mailed", "bounced", "reason_code", _CHECKED)
_ONE_SIDED: Final = 0.9
"""Two-sided confidence whose upper limit holds with 95 %."""


@dataclass(frozen=True, slots=True)
class Audit:
    """The result of an audit: ``wrong`` of ``checked`` labels, at most a share of ``most`` with 95 % confidence."""

    mailings: Mapping[str, tuple[int, int]]
    """Audited mailings with their letters and returns: a release is for exactly these labels."""
    checked: int
    wrong: int
    most: float

    @property
    def releases(self) -> bool:
        """Whether so few labels are wrong that they may be learned from."""
        return self.most <= FALSE_BOUNCES

    def as_dict(self) -> dict[str, object]:
        """Return the audit as plain values."""
        return asdict(self) | {"releases": self.releases}


def draw_sample(store: LabelStore, mailings: Collection[str], path: Path, size: int) -> int:
    """Write random letters of quarantined mailings to a CSV file with an empty column ``checked``; return how many.

    The same labels give the same sample. Raises :class:`LabelError` if nothing is quarantined,
    :class:`bansong.errors.OutputError`.
    """
    if not mailings:
        raise LabelError(QUARANTINE_EMPTY)
    rows = _quarantined_labels(store, mailings).with_columns(pl.lit(None, pl.String).alias(_CHECKED))
    sample = rows.sample(min(size, rows.height), seed=rows.height, shuffle=True).sort(_KEY)
    with publish_file(path) as temporary:
        sample.select(_COLUMNS).write_csv(temporary)
    return sample.height


def evaluate_audit(store: LabelStore, mailings: Collection[str], path: Path, size: int = SIZE) -> Audit:
    """Compare a filled-in sample with the labels; raise :class:`LabelError` if it is incomplete or foreign."""
    labels = _quarantined_labels(store, mailings)
    with open_table(path, options={}) as table, reading(table):
        places = dict(zip(table.headers, table.ids, strict=True))
        if missing := [name for name in (*_KEY, _CHECKED) if name not in places]:
            raise LabelError(AUDIT_COLUMN_MISSING, name=table.name, missing=missing[0])
        rows = table.frame.select(pl.col(places[name]).cast(pl.String).alias(name) for name in (*_KEY, _CHECKED))
        given = rows.with_row_index("line", 2).collect()
    given = given.with_columns(
        pl.col("row_id").cast(pl.UInt32, strict=False), really=came_back(pl.col(_CHECKED), "returned")
    )
    found = given.join(labels, on=list(_KEY), how="left", maintain_order="left")
    for line, value in found.filter(pl.col("bounced").is_null()).select("line", "row_id").head(1).iter_rows():
        raise LabelError(LETTER_NOT_QUARANTINED, name=table.name, line=line, value=value)
    blank = found.filter(pl.col("really").is_null())
    if blank.height or (found.height < min(size, labels.height)) or found.select(_KEY).is_duplicated().any():
        raise LabelError(
            AUDIT_INCOMPLETE, name=table.name, height=found.height - blank.height, size=min(size, labels.height)
        )
    wrong = int((found["really"] != found["bounced"]).sum())
    counts = labels.group_by("mailing").agg(pl.len(), pl.col("bounced").sum()).sort("mailing")
    of_mailing = {mailing: (letters, bounced) for mailing, letters, bounced in counts.iter_rows()}
    return Audit(of_mailing, found.height, wrong, interval(wrong, found.height, _ONE_SIDED)[1])


def _quarantined_labels(store: LabelStore, mailings: Collection[str]) -> pl.DataFrame:
    files = {mailing.id: mailing.about.file for mailing in store.mailings()}
    evidence = store.evidence(mailings, unread=True)
    known = evidence.filter(pl.col("bounced").is_not_null(), ~pl.col("unread")).sort(_KEY).collect()
    return known.with_columns(
        pl.col("mailing").replace_strict(files, default=None, return_dtype=pl.String).alias("file")
    )
