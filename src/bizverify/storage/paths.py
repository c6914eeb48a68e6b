"""What outlives a run: its id, and the folder where manifests and the ledger are kept."""

from __future__ import annotations

import os
import secrets
from datetime import UTC, datetime
from pathlib import Path


def new_run_id(started: datetime) -> str:
    """A run's id: when it started, and a random part (``20261121T081500-3f9a2c``)."""
    return f"{started.astimezone(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"


def state_directory() -> Path:
    """Where manifests are kept: ``BIZVERIFY_STATE_DIR``, or the user's state directory of the platform."""
    if given := os.environ.get("BIZVERIFY_STATE_DIR"):
        return Path(given)
    from platformdirs import user_state_path

    return user_state_path("bizverify", appauthor=False)
