"""Runs that wrote enriched files, read back from their manifests."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from bansong.cloud.remote_files import fetch_file
from bansong.cloud.remote_path import as_path, describe_given, is_remote
from bansong.environment import state_directory
from bansong.errors import LabelError, Problem
from bansong.tables.publish import same_file
from bansong.translation import Option, Phrase, count_rows, gettext_of

RUN_AMBIGUOUS: Final = Problem(
    "mailings.run_ambiguous",
    "run {run} wrote {count:,} tables; give the id of one as `run=`, or its file as `file=`: {parts}",
)
MANIFEST_MISSING: Final = Problem(
    "mailings.manifest_missing",
    "{parameter}: there is no manifest {manifest}; give `run=` the path of the manifest, or `file=` "
    "with the enriched file",
)
MANIFEST_FOREIGN: Final = Problem(
    "mailings.manifest_foreign",
    "{manifest}: is not the manifest of a run of enrich; give `file=` with the enriched file",
)
RUN_OUTPUT_GONE: Final = Problem(
    "mailings.run_output_gone",
    "run {run_id} wrote {output}, which is not there any more; if it was moved, give it with `file=` "
    "as well: {parameter} `file='PATH'`",
)
RUN_UNKNOWN: Final = Problem(
    "mailings.run_unknown",
    "{parameter}: is no run's id, nor the path of a manifest; the report of `enrich` ends with it",
)

Alternatives = tuple[tuple[str, ...], ...]
"""Headers of a role: alternatives, each of one or more joined columns."""
_SHOWN: Final = 5
_RUN_ID: Final = re.compile(r"[0-9A-Za-z-]+")


@dataclass(frozen=True, slots=True)
class Enrichment:
    """A run of enrichment, read from its manifest; ``id`` distinguishes the tables of a run."""

    id: str
    run_id: str
    input: str
    output: str
    sheet: str | None
    engine: str
    model: str
    rows: int
    started: datetime
    headers: dict[str, Alternatives]


def is_manifest(path: Path) -> bool:
    """Whether a file is the manifest of a run."""
    return _may_be_manifest(path) and bool(_read_manifest(path))


def _may_be_manifest(path: Path) -> bool:
    return path.suffix == ".json" and (is_remote(path) or path.is_file())


def manifest_of(run_id: str) -> Path:
    """Return the default manifest of a run."""
    return state_directory() / "runs" / f"{run_id}.json"


def find_run(run: str | Path, file: Path | None) -> Enrichment:
    """Return a run by id or manifest; among several tables the one with the part's id, or written to ``file``."""
    manifest, part = as_path(run), None
    if not _may_be_manifest(manifest):
        if not _RUN_ID.fullmatch(str(run)):
            raise LabelError(RUN_UNKNOWN, parameter=Option("run", describe_given(run)))
        manifest = manifest_of(str(run))
        whole, _, place = str(run).rpartition("-")
        if not manifest.is_file() and place.isdecimal() and manifest_of(whole).is_file():
            manifest, part = manifest_of(whole), str(run)
    if not _may_be_manifest(manifest):
        raise LabelError(MANIFEST_MISSING, parameter=Option("run", str(run)), manifest=manifest)
    found = _read_manifest(manifest)
    if not found:
        raise LabelError(MANIFEST_FOREIGN, manifest=manifest)
    meant = [one for one in found if part in (None, one.id)]
    if file is not None and len(meant) > 1:
        meant = [one for one in meant if same_file(as_path(one.output), file)]
    if len(meant) == 1:
        return meant[0]
    parts = ", ".join(f"{one.id} ({one.output}{f' [{one.sheet}]' if one.sheet else ''})" for one in found[:_SHOWN])
    parts = f"{parts}, …" if len(found) > _SHOWN else parts
    raise LabelError(RUN_AMBIGUOUS, run=found[0].run_id, count=len(found), parts=parts)


def _read_manifest(path: Path) -> list[Enrichment]:
    try:
        with fetch_file(path) as data:
            found: dict[str, Any] = json.loads(data.path.read_text(encoding="utf-8"))
        return [_enrichment_of(one) for one in found.get("parts", [found])]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []


def _enrichment_of(found: Mapping[str, Any]) -> Enrichment:
    return Enrichment(
        id=str(found.get("id", found["run_id"])),
        run_id=str(found["run_id"]),
        input=str(found["input"]),
        output=str(found["output"]),
        sheet=found.get("sheet"),
        engine=str(found["engine"]),
        model=str(found["versions"]["model"]),
        rows=int(found["rows"]),
        started=datetime.fromisoformat(found["started"]),
        headers={role: _headers_of(choice) for role, choice in found["columns"].items()},
    )


def last_runs(source: str, *, before: str | None = None) -> Iterator[Enrichment]:
    """Yield runs over an input whose output is still as they wrote it, the last first.

    ``before``: only runs before this id; ids begin with their time.
    """
    replaced = set[str]()
    for manifest in _manifests():
        is_earlier = before is None or manifest.stem < before
        for one in _read_manifest(manifest):
            if is_earlier and one.input == source and one.output not in replaced and Path(one.output).is_file():
                yield one
            replaced.add(one.output)


def output_of(by: Enrichment) -> Path:
    """Return the file that a run wrote; raise :class:`LabelError` if it is gone."""
    path = as_path(by.output)
    if not is_remote(path) and not path.is_file():
        raise LabelError(RUN_OUTPUT_GONE, run_id=by.run_id, output=by.output, parameter=Option("run", by.run_id))
    return path


def find_writer(path: Path, rows: int, name: str) -> tuple[Enrichment | None, tuple[str, ...]]:
    """Find the last run that wrote a file (table ``name``), by manifests; with a note if it is not known."""
    for found in (one for manifest in _manifests() for one in _read_manifest(manifest)):
        if not same_file(Path(found.output), path) or (found.sheet and not name.endswith(f"[{found.sheet}]")):
            continue
        if found.rows == rows:
            return found, ()
        note = gettext_of(
            found,
            "{path} has {rows}, run {run_id} wrote {found_rows:,}: it is taken for a file of its own, and which "
            "model answered is not known",
            path=path,
            rows=count_rows(rows),
            found_rows=found.rows,
        )
        return None, (note,)
    note = Phrase("no run is known that wrote {path}: which model answered is read from the reasons alone", path=path)
    return None, (note,)


def _manifests() -> list[Path]:
    """List the manifests in the state directory, the newest first."""
    folder = state_directory() / "runs"
    return sorted(folder.glob("*.json"), reverse=True) if folder.is_dir() else []


def _headers_of(choice: Mapping[str, Any]) -> Alternatives:
    own = tuple(str(part["header"]) for part in (choice, *choice.get("joined", ())))
    return (own, *(one for other in choice.get("otherwise", ()) for one in _headers_of(other)))
