"""bansong: verify a file of Korean business customers before you mail it.

>>> import bansong as bs
>>> bs.number.is_valid("124-81-00998")
True

The public names below are loaded on first use, so that ``import bansong`` and ``bansong --help`` are fast.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

from bansong._version import __version__ as __version__

if TYPE_CHECKING:
    from bansong import watch as watch
    from bansong.base import business_number as business_number
    from bansong.base import errors as errors
    from bansong.base.cancel import CancelToken as CancelToken
    from bansong.base.errors import BansongError as BansongError
    from bansong.base.errors import GazetteerError as GazetteerError
    from bansong.base.key import ApiKey as ApiKey
    from bansong.base.messages import set_language as set_language
    from bansong.base.options import EngineKind as EngineKind
    from bansong.base.options import ReadOptions as ReadOptions
    from bansong.base.options import ServiceKeywords as ServiceKeywords
    from bansong.base.options import ServiceOptions as ServiceOptions
    from bansong.base.options import StatusOptions as StatusOptions
    from bansong.client.blocking import BlockingClient as BlockingClient
    from bansong.client.client import Client as Client
    from bansong.engine.address.gazetteer import Gazetteer as Gazetteer
    from bansong.engine.local import LocalEngine as LocalEngine
    from bansong.engine.overlays import StatusOverlay as StatusOverlay
    from bansong.engine.protocol import Engine as Engine
    from bansong.engine.registry import Registry as Registry
    from bansong.engine.risk.scorecard import Scorecard as Scorecard
    from bansong.jobs.report import JobReport as JobReport
    from bansong.jobs.run import run_job as run_job
    from bansong.labels.label import LabelReport as LabelReport
    from bansong.labels.label import label as label
    from bansong.learning.calibrate import calibrate as calibrate
    from bansong.purchase.engines import HybridEngine as HybridEngine
    from bansong.purchase.engines import ServiceEngine as ServiceEngine
    from bansong.reference.gazetteer import build_gazetteer as build_gazetteer
    from bansong.reference.nts import NtsKey as NtsKey
    from bansong.reference.registry import build_registry as build_registry
    from bansong.reference.reviews import ReviewReport as ReviewReport
    from bansong.reference.reviews import apply_review as apply_review
    from bansong.run.decisions import LettersReport as LettersReport
    from bansong.run.decisions import letters as letters
    from bansong.run.enrich import EnrichKeywords as EnrichKeywords
    from bansong.run.enrich import FrameKeywords as FrameKeywords
    from bansong.run.enrich import VerifyKeywords as VerifyKeywords
    from bansong.run.enrich import aenrich as aenrich
    from bansong.run.enrich import enrich as enrich
    from bansong.run.enrich import plan as plan
    from bansong.run.files_report import FilesReport as FilesReport
    from bansong.run.options import WriteOptions as WriteOptions
    from bansong.run.report import Report as Report
    from bansong.run.statuses import afetch_status as afetch_status
    from bansong.run.statuses import fetch_status as fetch_status
    from bansong.run.verify import Verification as Verification
    from bansong.run.verify import verify as verify
    from bansong.run.verify import verify_frame as verify_frame
    from bansong.upkeep.forget import ErasureReport as ErasureReport
    from bansong.upkeep.forget import forget as forget

    number = business_number

_NAMES = {
    "base.cancel": ("CancelToken",),
    "base.errors": ("BansongError", "GazetteerError"),
    "base.key": ("ApiKey",),
    "base.messages": ("set_language",),
    "base.options": ("EngineKind", "ReadOptions", "ServiceKeywords", "ServiceOptions", "StatusOptions"),
    "client.blocking": ("BlockingClient",),
    "client.client": ("Client",),
    "engine.address.gazetteer": ("Gazetteer",),
    "engine.local": ("LocalEngine",),
    "engine.overlays": ("StatusOverlay",),
    "engine.protocol": ("Engine",),
    "engine.registry": ("Registry",),
    "engine.risk.scorecard": ("Scorecard",),
    "jobs.report": ("JobReport",),
    "jobs.run": ("run_job",),
    "labels.label": ("LabelReport", "label"),
    "learning.calibrate": ("calibrate",),
    "purchase.engines": ("HybridEngine", "ServiceEngine"),
    "reference.gazetteer": ("build_gazetteer",),
    "reference.nts": ("NtsKey",),
    "reference.registry": ("build_registry",),
    "reference.reviews": ("ReviewReport", "apply_review"),
    "run.decisions": ("LettersReport", "letters"),
    "run.enrich": ("EnrichKeywords", "FrameKeywords", "VerifyKeywords", "aenrich", "enrich", "plan"),
    "run.files_report": ("FilesReport",),
    "run.options": ("WriteOptions",),
    "run.report": ("Report",),
    "run.statuses": ("afetch_status", "fetch_status"),
    "run.verify": ("Verification", "verify", "verify_frame"),
    "upkeep.forget": ("ErasureReport", "forget"),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}
_MODULES = ("errors", "number", "watch")

__all__ = ["__version__", *sorted(_HOMES), *_MODULES]


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return importlib.import_module(f"bansong.{name}")
    if name in _HOMES:
        found = getattr(importlib.import_module(f"bansong.{_HOMES[name]}"), name)
        globals()[name] = found
        return found
    raise AttributeError(f"module 'bansong' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


def _is_bansong_starting() -> bool:
    # `python -m bansong`: while Python looks for the module, sys.argv[0] is "-m"
    is_module = sys.argv[:1] == ["-m"] and sys.orig_argv[-len(sys.argv)].removeprefix("-m").split(".")[0] == "bansong"
    return is_module or "_bansong_start" in sys.modules


if not _is_bansong_starting():  # decision 003
    from bansong.base import after_fork as _after_fork  # noqa: F401 - which watches forks from now on
    from bansong.base import business_number as _business_number  # noqa: F401 - which adds `brn` to polars
