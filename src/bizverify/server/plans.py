"""The plans: what a key may do, how much, how often."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

import msgspec

from bizverify.errors import UsageError

BUILT_IN: Final = Path(__file__).with_name("plans.toml")
_Count = Annotated[int, msgspec.Meta(ge=0)]
_Size = Annotated[int, msgspec.Meta(gt=0)]


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a plan allows; the fields are explained in ``plans.toml``."""

    api: bool
    quota: _Count
    watch_history: bool
    watches: _Count
    recheck_hours: Annotated[float, msgspec.Meta(gt=0, le=1_000_000)]
    upload_bytes: _Size
    rows: _Size
    jobs: _Size


Plans = Mapping[str, Plan]


def load_plans(path: Path | None = None) -> Plans:
    """Read the plans of a file, the built-in ones by default; raises :class:`UsageError` with the plan and field."""
    path = path or BUILT_IN
    try:
        plans = msgspec.toml.decode(path.read_bytes(), type=dict[str, Plan])
    except OSError as error:
        raise UsageError(f"{path}: the plans cannot be read: {error.strerror}; check `plans=`") from error
    except msgspec.DecodeError as error:
        raise UsageError(f"{path}: not a file of plans: {error}; see the built-in {BUILT_IN.name}") from error
    if not plans:
        raise UsageError(f"{path}: names no plan; see the built-in {BUILT_IN.name}")
    return plans
