"""Options of the local engine and of a run; the list of all option classes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bansong.base.messages import Lang
from bansong.base.option import Options, option
from bansong.base.options import ReadOptions, ServiceOptions, StatusOptions, StatusSource, WriteOptions

if TYPE_CHECKING:
    from bansong.base.display import AskedProgress
    from bansong.engine.address.gazetteer import Gazetteer
    from bansong.engine.registry import Registry
    from bansong.engine.risk.scorecard import Scorecard


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalOptions(Options):
    """Options of the local engine that a run opens, see :class:`bansong.LocalEngine`."""

    registry: str | Path | Registry | None = option(
        flag="--registry", job="reference.registry", help="A registry built by `bansong data build-registry`."
    )
    gazetteer: str | Path | Gazetteer | None = option(
        flag="--gazetteer",
        job="reference.gazetteer",
        help="The official addresses, built by `bansong data build-gazetteer`: addresses and postal codes are "
        "corrected.",
    )
    model: str | Path | Scorecard | None = option(
        flag="--model PATH|VERSION",
        parse=str,
        job="reference.model",
        help="A scorecard file, a version of `bansong model history`, or builtin; default: the one promoted last.",
    )
    lang: Lang | None = None
    today: date | str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions(Options):
    """Options of a run that do not concern its engine; see :func:`bansong.enrich` for each field."""

    status: StatusSource | StatusOptions = "auto"
    max_status_age: float | None = None
    labels: str | Path | Literal[False] | None = option(
        flag="--labels",
        off="--no-labels",
        job="reference.labels",
        help="The folder of recorded labels: what came back of earlier letters; by default labels in the state "
        "directory.",
        off_help="Do not use what came back of earlier letters.",
    )
    choices: str | Path | Literal[False] | None = option(
        flag="--choices",
        off="--no-choices",
        help="The file of addresses chosen in reviews; by default BANSONG_CHOICES, else in the state directory.",
        off_help="Do not use the addresses that were chosen in reviews.",
    )
    keep_going: bool = option(
        False, flag="--keep-going", help="Of several inputs, leave out those that cannot be enriched: exit code 3."
    )
    progress: AskedProgress = True


OPTION_KINDS = (ReadOptions, WriteOptions, LocalOptions, RunOptions, ServiceOptions, StatusOptions)
