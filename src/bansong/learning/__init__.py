"""Relearn the scorecard from recorded outcomes, and promote the result only if it is surely better."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Final

from bansong.errors import LabelError, Problem
from bansong.forking import refuse_after_fork
from bansong.labels.label_store import LabelStore
from bansong.learning.calibration_outcome import Calibrated
from bansong.learning.calibration_run import CalibrationRun
from bansong.learning.fit import numpy
from bansong.learning.quarantine import SIZE, draw_sample, evaluate_audit
from bansong.models.model_store import ModelStore

LABELS_MISSING: Final = Problem(
    "learning.labels_missing", "{folder}: no labels are recorded there; record outcomes with `bansong label`"
)

__all__ = ["Calibrated", "audit_sample", "calibrate"]


def calibrate(
    *,
    labels: str | Path | None = None,
    store: ModelStore | None = None,
    today: date | str | None = None,
    dry_run: bool = False,
    audited: str | Path | None = None,
    now: datetime | None = None,
) -> Calibrated:
    """Relearn the scorecard from the label store, and let it answer if it is surely better.

    ``labels``: the label store's folder, ``store``: where scorecards are kept; both by default the user's. ``audited``:
    a sample of :func:`audit_sample`, looked up again. ``dry_run`` decides, but neither promotes nor records anything.
    ``now``: the time that a learned scorecard bears. Raises :class:`bansong.errors.LabelError`,
    :class:`~bansong.errors.ModelError`, and :class:`~bansong.errors.UsageError` without numpy; the champion stays then.
    """
    numpy()  # says at once what is missing
    run = CalibrationRun.of(_open_store(labels), store, today, now or datetime.now(UTC))
    audit = None if audited is None else evaluate_audit(run.labels, run.auditable(), Path(audited))
    if audit is not None and not dry_run:
        run.models.note("released" if audit.releases else "kept", audit.as_dict())
    return run.finish(audit, dry_run=dry_run)


def audit_sample(
    path: str | Path,
    *,
    labels: str | Path | None = None,
    store: ModelStore | None = None,
    today: date | str | None = None,
    size: int = SIZE,
) -> int:
    """Write letters of quarantined mailings to a CSV file, to be looked up again; return how many.

    Somebody fills in the column ``checked``. Raises as :func:`calibrate`.
    """
    numpy()
    run = CalibrationRun.of(_open_store(labels), store, today, datetime.now(UTC))
    return draw_sample(run.labels, run.auditable(), Path(path), size)


def _open_store(folder: str | Path | None) -> LabelStore:
    refuse_after_fork()
    store = LabelStore(None if folder is None else Path(folder))
    if not store.mailings():
        raise LabelError(LABELS_MISSING, folder=store.folder)
    return store
