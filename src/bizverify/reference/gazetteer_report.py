"""What the building of a gazetteer read, refused and kept."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from bizverify.reference.source_files import format_counts
from bizverify.report_display import Shown
from bizverify.translation import gettext, ngettext


@dataclass(frozen=True, slots=True)
class GazetteerReport(Shown):
    """Counts of rows read, refused and kept. ``refused``: rows by what is wrong, ``examples`` names the first."""

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
        """The report as plain values for JSON."""
        return asdict(self)

    def lines(self) -> list[tuple[str, str]]:
        """The report as (what, how much) for people."""
        found = [
            (
                gettext("rows read"),
                gettext("{counts} from {files} file(s)", counts=format_counts(self.read), files=len(self.sources)),
            ),
            (
                gettext("buildings"),
                gettext(
                    "{buildings:,} on {roads:,} roads in {districts:,} district(s)",
                    buildings=self.buildings,
                    roads=self.roads,
                    districts=self.districts,
                ),
            ),
            (gettext("provinces"), format_counts(self.provinces)),
            (
                gettext("lots"),
                gettext(
                    "{lots:,}, {additional_lots:,} of them additional",
                    lots=self.lots,
                    additional_lots=self.additional_lots,
                ),
            ),
            (
                gettext("dongs"),
                gettext(
                    "{legal:,} legal, {administrative:,} administrative",
                    legal=self.dongs,
                    administrative=self.administrative,
                ),
            ),
        ]
        if any(self.changes.values()):
            found.append((gettext("changes"), format_counts(self.changes)))
            found.append(
                (
                    gettext("abolished"),
                    gettext("{abolished:,} addresses that are known to be gone", abolished=self.abolished),
                )
            )
        if self.duplicates:
            found.append(
                (
                    gettext("repeated"),
                    ngettext(
                        "{count:,} row of the same management number",
                        "{count:,} rows of the same management number",
                        self.duplicates,
                    ),
                )
            )
        if self.refused:
            found.append(
                (
                    gettext("refused"),
                    format_counts(
                        {gettext("no {what}", what=gettext(what)): count for what, count in self.refused.items()}
                    ),
                )
            )
            found += [("", example) for example in self.examples]
            more = sum(self.refused.values()) - len(self.examples)
            found += [("", gettext("and {more:,} more", more=more))] if more else []
        if self.passed_over:
            others = (
                gettext(" and {count:,} more", count=len(self.passed_over) - 5) if len(self.passed_over) > 5 else ""
            )
            found.append((gettext("passed over"), f"{', '.join(self.passed_over[:5])}{others}"))
        found += [(gettext("note"), note) for note in self.notes]
        return [*found, (gettext("version"), self.version), (gettext("output"), self.output)]
