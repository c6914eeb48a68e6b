"""Refresh reference data, and say what must be downloaded."""

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
    "{path}: was built from {lost}, too, which are not among the files given, so their addresses would be lost; put "
    "them there, or build it with `bansong data build-gazetteer`",
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
"""Data that must be downloaded by hand, and how."""


@dataclass(frozen=True, slots=True)
class DataUpdate:
    """The update of one file: ``refreshed``, or ``current``; ``said`` describes it.

    ``remedy``: what else to do; ``exit_code``: of a command.
    """

    what: str
    path: str
    state: Literal["refreshed", "current"]
    said: str
    remedy: str | None = None
    exit_code: int = 0


def update_registry(path: Path, options: StatusOptions, *, watch: Watch | None = None) -> DataUpdate:
    """Refresh the oldest statuses of a registry from the tax authority; raises its errors.

    ``exit_code`` is 4 for a refused key, 5 if the same call goes on later; ``remedy`` says why.
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
    """Build the gazetteer at ``path`` anew if the address files are newer, or there is none.

    A set without building files of the old gazetteer is refused: provinces would be lost. The old one stays until the
    new one is whole. Raises the errors of :func:`build_gazetteer`.
    """
    found, _ = find_sources(addresses, path)
    before = Gazetteer.open(path) if path.exists() else None
    if before is not None and not _is_newer(found, before):
        said = gettext(
            "built from these files or newer ones (addresses of {source_date})",
            source_date=before.source_date or gettext("a day that is not known"),
        )
        return DataUpdate("gazetteer", str(path), "current", said, gettext(_DOWNLOAD))
    needed = [one["name"] for one in _sources(before) if one["kind"] in ("buildings", "lots")] if before else []
    if lost := [name for name in needed if name not in {one.short for one in found}]:
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
    """Whether files are of a later day than the gazetteer's; without days, other files changed since."""
    days = [one.named for one in found if one.named is not None]
    if days and before.source_date is not None and max(days) != before.source_date:
        return max(days) > before.source_date
    if {(one.short, one.kind, one.size) for one in found} == {
        (one["name"], one["kind"], one["size"]) for one in _sources(before)
    }:
        return False
    built = before.path.stat().st_mtime
    return any(one.path.stat().st_mtime > built for one in found)


def _sources(gazetteer: Gazetteer) -> list[dict[str, Any]]:
    found = gazetteer.about.get("sources")
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
