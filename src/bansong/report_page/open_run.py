"""The page of an earlier run, or of an enriched file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from bansong.cloud.remote_files import fetch_file
from bansong.cloud.remote_path import as_path, is_remote
from bansong.errors import InputError, Problem, UsageError
from bansong.labels.enrichments import is_manifest, manifest_of
from bansong.labels.mailing import OpenMailing, open_mailing
from bansong.report_page.earlier_run import BESIDES, RunChanges, find_changes
from bansong.report_page.page import check_page, write_page
from bansong.report_page.page_figures import PageFigures, collect_figures
from bansong.run.letter_list import check_letter_cost
from bansong.tables.publish import same_file

FILE_MISSING: Final = Problem(
    "report.file_missing", "{path}: there is no such file; check its name, or give the id of a run"
)
EARLIER_RUN_INCOMPARABLE: Final = Problem(
    "report.earlier_run_incomparable", "{path}: cannot be compared; give the enriched file of an earlier run"
)
OUTPUT_IS_ENRICHED: Final = Problem(
    "report.output_is_enriched", "{path}: is the enriched file itself; give another output"
)


def report_page(
    run: str | Path,
    output: str | Path,
    *,
    letter_cost: float | None = None,
    unmask: bool = False,
    sheet: str | None = None,
    encoding: str | None = None,
    json_path: str | None = None,
    delimiter: str | None = None,
    before: str | Path | None = None,
) -> Path:
    """Write the page of a run as HTML (mode 0600, in the current language) and return where it is.

    ``run``: its id, its manifest, or the enriched file; the output of a run must still be there. ``before``: the
    enriched file of an earlier run to compare with; by default the last one over the same input. ``letter_cost``: won a
    letter, for the money at stake. Names, numbers and addresses are masked unless ``unmask``. ``sheet``, ``encoding``,
    ``json_path``, ``delimiter``: of the enriched file. Raises :class:`bansong.errors.BansongError`.
    """
    check_letter_cost(letter_cost)
    target = check_page(as_path(output))
    given = as_path(run)
    described = is_manifest(given)
    file = given if (is_remote(given) or given.is_file()) and not described else None
    if file is None and not described and given.suffix:  # ids have none
        raise InputError(FILE_MISSING, path=given)
    where = {"sheet": sheet, "encoding": encoding, "json_path": json_path, "delimiter": delimiter}
    with open_mailing(None if file else run, file, **where, besides=BESIDES) as mailing:
        if same_file(mailing.path, target):
            raise UsageError(OUTPUT_IS_ENRICHED, path=target)
        figures = collect_figures(mailing.letters, unmask=unmask, first_row=mailing.table.first_row)
        facts = _facts(given if described else manifest_of(mailing.run_id or ""), mailing.id)
        changes = _changes_since(mailing, as_path(before) if before is not None else None, unmask)
        write_page(target, figures, facts or {"output": str(mailing.path)}, letter_cost, changes)
    return target


def read_figures(run: Path | None, file: Path) -> PageFigures:
    """Return the figures of an enriched file, described by the manifest ``run`` if there is one.

    Raises :class:`bansong.errors.BansongError`.
    """
    with open_mailing(run, file, besides=BESIDES) as mailing:
        return collect_figures(mailing.letters)


def _changes_since(mailing: OpenMailing, before: Path | None, unmask: bool) -> RunChanges | None:
    source = mailing.by.input if mailing.by is not None else str(mailing.path)
    found = find_changes(mailing.letters, source, mailing.run_id, earlier=before, besides=mailing.path, unmask=unmask)
    if found is None and before is not None:
        raise UsageError(EARLIER_RUN_INCOMPARABLE, path=before)
    return found


def _facts(manifest: Path, id: str) -> Mapping[str, Any]:
    if not is_remote(manifest) and not manifest.is_file():
        return {}
    with fetch_file(manifest) as data:
        found: dict[str, Any] = json.loads(data.path.read_text(encoding="utf-8"))
    return next((part for part in found.get("parts", ()) if part["id"] == id), found)
