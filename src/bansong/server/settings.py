"""Settings of a server, and the plans: what a key may do, how much, how often."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import msgspec

from bansong.client.address_policy import IpNetwork
from bansong.errors import Problem, UsageError
from bansong.library_messages import describe_library_error, describe_os_error
from bansong.options import StatusOptions
from bansong.schema import Lang
from bansong.server.client_address import TrustedProxies
from bansong.server.store.schema import files_folder
from bansong.translation import gettext

PLANS_EMPTY: Final = Problem("server.plans_empty", "{path}: names no plan; see the built-in {name}")
PLANS_UNREADABLE: Final = Problem(
    "server.plans_unreadable", "{path}: the plans cannot be read: {reason}; check `plans=`"
)
PLANS_INVALID: Final = Problem("server.plans_invalid", "{path}: not a file of plans: {error}; see the built-in {name}")

_NOBODY: Final = StatusOptions(source="none")
_NO_PROXIES: Final = TrustedProxies()
BUILT_IN: Final = Path(__file__).with_name("plans.toml")
_Count = Annotated[int, msgspec.Meta(ge=0)]
_DISK_BYTES: Final = 2_000_000_000
_FILES_KEPT: Final = 32
"""Files of the plan's size for which a key has room where its plan does not say how much it has."""
_NOT_GIVEN: Final = -1
_CHANGES: Final = 2
"""How often a list may be changed whole in a month where the plan does not say how many changes it may have."""
_Size = Annotated[int, msgspec.Meta(gt=0)]


class ServicePlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a plan allows; the fields are explained in ``plans.toml``.

    Those with a default may be missing in a file: 0, or -1, is what follows from the others then.
    """

    api: bool
    quota: _Count
    watch_history: bool
    watches: _Count
    recheck_hours: Annotated[float, msgspec.Meta(gt=0, le=1_000_000)]
    upload_bytes: _Size
    rows: _Size
    jobs: _Size
    uploads: _Size = 0
    disk_bytes: _Size = 0
    requests_per_second: Annotated[float, msgspec.Meta(gt=0, le=1_000_000)] = 100.0
    request_burst: _Size = 1_000
    requests_at_once: _Size = 256
    watch_changes: _Count = _NOT_GIVEN

    def __post_init__(self) -> None:
        """Set what was not given; raise :class:`ValueError` for a plan under which no file of its size has room."""
        set_field = msgspec.structs.force_setattr
        if not self.uploads:
            set_field(self, "uploads", self.jobs)
        if not self.disk_bytes:
            set_field(self, "disk_bytes", max(_DISK_BYTES, _FILES_KEPT * self.upload_bytes))
        if self.watch_changes == _NOT_GIVEN:
            set_field(self, "watch_changes", _CHANGES * self.watches)
        if self.disk_bytes < self.upload_bytes:
            raise ValueError(
                gettext(
                    "disk_bytes ({disk_bytes:,}) must be at least upload_bytes ({upload_bytes:,})",
                    disk_bytes=self.disk_bytes,
                    upload_bytes=self.upload_bytes,
                )
            )


Plans = Mapping[str, ServicePlan]


def load_plans(path: Path | None = None) -> Plans:
    """Read the plans of a file, the built-in ones by default; raises :class:`UsageError` with the plan and field."""
    path = path or BUILT_IN
    try:
        plans = msgspec.toml.decode(path.read_bytes(), type=dict[str, ServicePlan])
    except OSError as error:
        raise UsageError(PLANS_UNREADABLE, path=path, reason=describe_os_error(error)) from error
    except msgspec.DecodeError as error:
        raise UsageError(PLANS_INVALID, path=path, error=describe_library_error(error), name=BUILT_IN.name) from error
    if not plans:
        raise UsageError(PLANS_EMPTY, path=path, name=BUILT_IN.name)
    return plans


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """``db`` is the SQLite file; files that belong to it (jobs, label stores, models) are in the folder ``DB.files``.

    ``registry``, ``gazetteer``, ``model``, ``lang``: as for the local engine. ``notices``: a file to which each closure
    that is found is appended as a JSON line. ``keep_days``: how long a job and its results are kept after it ended;
    ``keep_labels_days``: how long outcomes are learned from, from the day on which their job ended;
    ``keep_revoked_days``: how long the account of a revoked key is kept;
    ``queue``: jobs of all keys that may wait; ``body_seconds``: how long the body of a request may take to come in, and
    ``stall_seconds`` how long nothing of it may come; ``refresh_seconds``: how often the indexes' files are looked at
    for newer ones; ``learn_hours``: how often outcomes are learned from; ``pool_keys``: how many keys of the pool must
    agree before another learns of it. ``status``: whether the tax authority is asked for statuses, and how; its
    ``budget`` is one for all that the server does. ``trusted_proxies``: the proxies in front that say whose request
    they pass on; ``connections_per_address``: connections at once of any other address; ``reading_slots``: large
    uploads that are read at once, and small ones beside them. ``metrics_port``: where metrics are answered on
    ``metrics_host``, an address of their own; nowhere without it. ``webhook_networks``: networks that are not public,
    to which webhooks may be posted all the same.
    """

    db: Path
    status: StatusOptions = _NOBODY
    registry: Path | None = None
    gazetteer: Path | None = None
    model: str | Path | None = None
    lang: Lang | None = None
    plans: Mapping[str, ServicePlan] = field(default_factory=load_plans)
    notices: Path | None = None
    webhook_networks: tuple[IpNetwork, ...] = ()
    keep_days: float = 90.0
    keep_labels_days: float = 730.0
    keep_revoked_days: float = 30.0
    queue: int = 64
    body_seconds: float = 600.0
    stall_seconds: float = 30.0
    refresh_seconds: float = 10.0
    learn_hours: float = 24.0
    pool_keys: int = 3
    trusted_proxies: TrustedProxies = _NO_PROXIES
    connections_per_address: int = 256
    reading_slots: int = 4
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"

    @property
    def files(self) -> Path:
        """The folder of what is too large for the database."""
        return files_folder(self.db)

    @property
    def status_store(self) -> Path:
        """The file of the statuses that were fetched: ``status.store`` if it says one, else it is in the folder."""
        return Path(self.status.store) if self.status.store is not None else self.files / "statuses.sqlite"
