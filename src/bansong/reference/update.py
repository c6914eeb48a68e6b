"""Brings reference data up to date as far as that can be done from here, and says for the rest what to download."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from bansong.engine.address.gazetteer import Gazetteer
from bansong.errors import GazetteerError, Problem
from bansong.options import StatusOptions
from bansong.progress.display import Progress
from bansong.reference.gazetteer_builder import build_gazetteer
from bansong.reference.registry_fetch import Watch, refresh_registry
from bansong.reference.source_files import SourceFile, find_sources
from bansong.translation import gettext, gettext_noop, ngettext

EARLIER_SOURCES_MISSING: Final = Problem(
    "data.earlier_sources_missing",
    "{path}: was built from {lost}, too, which are not among the files given, so their "
    "addresses would be lost; put them there, or build it with `bansong data "
    "build-gazetteer`",
)

_DOWNLOAD: Final = gettext_noop(
    "download this month's 도로명주소 한글 전체분 from https://business.juso.go.kr into that folder"
)
BY_HAND: Final = {
    gettext_noop("mail-order registry"): gettext_noop(
        "download 통신판매사업자 from https://www.ftc.go.kr, then `bansong data build-registry`"
    ),
    gettext_noop("all of them"): gettext_noop("step by step: docs/data-sources.md"),
}
"""What cannot be fetched from here, and how it is had."""


@dataclass(frozen=True, slots=True)
class DataUpdate:
    """What became of one file: ``refreshed``, or ``current`` because nothing newer is there; ``said`` describes it.

    ``remedy``: what to do for more, ``exit_code``: what a command ends with.
    """

    what: str
    path: str
    state: Literal["refreshed", "current"]
    said: str
    remedy: str | None = None
    exit_code: int = 0


def update_registry(path: Path, options: StatusOptions, *, watch: Watch | None = None) -> DataUpdate:
    """Ask the tax authority for the statuses of a registry that are the oldest; raises what it raises.

    ``exit_code`` is 4 where the key is refused, 5 where the same call goes on later, and ``remedy`` says why.
    """
    report = refresh_registry(path, options, watch=watch)
    said = ngettext(
        "{count:,} status of a newer day, {fetch}",
        "{count:,} statuses of a newer day, {fetch}",
        report.updated,
        fetch=report.fetch,
    )
    remedy = None if report.fetch.halt is None else gettext("{halt}; the same command goes on", halt=report.fetch.halt)
    state: Literal["refreshed", "current"] = "current" if report.output is None else "refreshed"
    return DataUpdate("registry", str(path), state, said, remedy, report.exit_code)


def update_gazetteer(path: Path, addresses: Sequence[Path], *, progress: Progress | None = None) -> DataUpdate:
    """Build the gazetteer at ``path`` anew if the address files are newer than those it was built from.

    It is built where there is none. Files of a month before are no reason. A set that lacks files of buildings that
    the gazetteer was built from is refused: provinces would be lost. The gazetteer there stays until the new one is
    whole. Raises what :func:`build_gazetteer` raises.
    """
    found, _ = find_sources(addresses, path)
    before = Gazetteer.open(path) if path.exists() else None
    if before is not None and not _is_newer(found, before):
        said = gettext(
            "built from these files or newer ones (addresses of {source_date})",
            source_date=before.source_date or gettext("a day that is not known"),
        )
        return DataUpdate("gazetteer", str(path), "current", said, gettext(_DOWNLOAD))
    if before is not None and (lost := _lost_files(found, before)):
        raise GazetteerError(EARLIER_SOURCES_MISSING, path=path, lost=", ".join(lost))
    report = build_gazetteer(addresses, path, progress=progress)
    return DataUpdate(
        "gazetteer",
        str(path),
        "refreshed",
        ngettext(
            "{count:,} building, {version}", "{count:,} buildings, {version}", report.buildings, version=report.version
        ),
    )


def _is_newer(found: Sequence[SourceFile], before: Gazetteer) -> bool:
    """Return whether files are of a later day than the gazetteer's; without days, others than its and changed since."""
    days = [one.named for one in found if one.named is not None]
    if days and before.source_date is not None and max(days) != before.source_date:
        return max(days) > before.source_date
    if {(one.short, one.kind, one.size) for one in found} == {
        (one["name"], one["kind"], one["size"]) for one in _sources(before)
    }:
        return False
    built = before.path.stat().st_mtime
    return any(one.path.stat().st_mtime > built for one in found)


def _lost_files(found: Sequence[SourceFile], before: Gazetteer) -> list[str]:
    there = {one.short for one in found}
    return [
        one["name"] for one in _sources(before) if one["kind"] in ("buildings", "lots") and one["name"] not in there
    ]


def _sources(gazetteer: Gazetteer) -> list[dict[str, Any]]:
    """Return name, kind, size and date of the files that a gazetteer was built from; none where it does not say."""
    found = gazetteer.about.get("sources")
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
