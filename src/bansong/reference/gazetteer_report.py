"""The report of building a gazetteer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Final

from bansong.reference.source_files import format_counts
from bansong.report_display import Shown
from bansong.translation import gettext, gettext_of, ngettext

_MAX_FILES_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class GazetteerReport(Shown):
    """Counts of rows read, refused (by problem, first ``examples``) and kept."""

    output: str
    version: str
    sources: tuple[dict[str, object], ...]
    passed_over: tuple[str, ...]
    read: dict[str, int]
    refused: dict[str, int]
    examples: tuple[str, ...]
    duplicates: int
    changes: dict[str, int]
    abolished: int
    notes: tuple[str, ...]
    buildings: int
    lots: int
    additional_lots: int
    roads: int
    dongs: int
    administrative: int
    districts: int
    provinces: dict[str, int]

    def as_dict(self) -> dict[str, object]:
        """Return the report as plain values for JSON."""
        return asdict(self)

    def _describe(self) -> Iterator[tuple[str, str]]:
        read = gettext("{counts} from {files} file(s)", counts=format_counts(self.read), files=len(self.sources))
        yield gettext("rows read"), read
        buildings = gettext_of(self, "{buildings:,} on {roads:,} roads in {districts:,} district(s)")
        yield gettext("buildings"), buildings
        yield gettext("provinces"), format_counts(self.provinces)
        yield gettext("lots"), gettext_of(self, "{lots:,}, {additional_lots:,} of them additional")
        yield gettext("dongs"), gettext_of(self, "{legal:,} legal, {administrative:,} administrative", legal=self.dongs)
        if any(self.changes.values()):
            yield gettext("changes"), format_counts(self.changes)
            yield gettext("abolished"), gettext_of(self, "{abolished:,} addresses that are known to be gone")
        yield from self._left_lines()
        yield from ((gettext("note"), note) for note in self.notes)
        yield gettext("version"), self.version
        yield gettext("output"), self.output

    def _left_lines(self) -> Iterator[tuple[str, str]]:
        if self.duplicates:
            repeated = ngettext(
                "{count:,} row of the same management number",
                "{count:,} rows of the same management number",
                self.duplicates,
            )
            yield gettext("repeated"), repeated
        if self.refused:
            lacking = {gettext("no {what}", what=gettext(what)): count for what, count in self.refused.items()}
            yield gettext("refused"), format_counts(lacking)
            yield from (("", example) for example in self.examples)
            if more := sum(self.refused.values()) - len(self.examples):
                yield "", gettext("and {more:,} more", more=more)
        if self.passed_over:
            named, more = ", ".join(self.passed_over[:_MAX_FILES_NAMED]), len(self.passed_over) - _MAX_FILES_NAMED
            others = gettext(" and {count:,} more", count=more) if more > 0 else ""
            yield gettext("passed over"), f"{named}{others}"
