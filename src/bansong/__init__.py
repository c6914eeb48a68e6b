"""Verify a file of Korean business customers before you mail it: ``bansong.enrich("customers.xlsx")``.

Each name has its own help, as ``help(bansong.enrich)``, which documents the options. Read on in README.md.
Fakes for your tests: ``help("bansong.testing")``; as fixtures of pytest: ``help("bansong.testing.plugin")``.
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
    from bansong.base.business_number import brn as brn
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
    from bansong.run.verify import scan_verify as scan_verify
    from bansong.run.verify import verify as verify
    from bansong.run.verify import verify_frame as verify_frame
    from bansong.upkeep.forget import ErasureReport as ErasureReport
    from bansong.upkeep.forget import forget as forget

    number = business_number

_NAMES = (  # group in `help()`, module, names; they are loaded on first use
    ("Verify", "run.enrich", ("enrich", "aenrich", "plan")),
    ("Verify", "run.verify", ("verify", "verify_frame", "scan_verify")),
    ("Verify", "jobs.run", ("run_job",)),
    ("Verify", "base.business_number", ("brn",)),
    ("Engines", "engine.local", ("LocalEngine",)),
    ("Engines", "engine.registry", ("Registry",)),
    ("Engines", "engine.address.gazetteer", ("Gazetteer",)),
    ("Engines", "engine.overlays", ("StatusOverlay",)),
    ("Engines", "engine.risk.scorecard", ("Scorecard",)),
    ("Engines", "purchase.engines", ("ServiceEngine", "HybridEngine")),
    ("Data", "run.statuses", ("fetch_status", "afetch_status")),
    ("Data", "reference.registry", ("build_registry",)),
    ("Data", "reference.gazetteer", ("build_gazetteer",)),
    ("Data", "reference.reviews", ("apply_review",)),
    ("Letters", "run.decisions", ("letters",)),
    ("Letters", "labels.label", ("label",)),
    ("Letters", "learning.calibrate", ("calibrate",)),
    ("Letters", "upkeep.forget", ("forget",)),
    ("Results", "run.verify", ("Verification",)),
    ("Results", "run.report", ("Report",)),
    ("Results", "run.files_report", ("FilesReport",)),
    ("Results", "jobs.report", ("JobReport",)),
    ("Results", "run.decisions", ("LettersReport",)),
    ("Results", "labels.label", ("LabelReport",)),
    ("Results", "reference.reviews", ("ReviewReport",)),
    ("Results", "upkeep.forget", ("ErasureReport",)),
    ("Options", "base.options", ("ReadOptions", "ServiceOptions", "StatusOptions")),
    ("Options", "run.options", ("WriteOptions",)),
    ("Options", "base.key", ("ApiKey",)),
    ("Options", "reference.nts", ("NtsKey",)),
    ("Typing", "run.enrich", ("EnrichKeywords", "FrameKeywords", "VerifyKeywords")),
    ("Typing", "base.options", ("ServiceKeywords", "EngineKind")),
    ("Typing", "engine.protocol", ("Engine",)),
    ("Service", "client.client", ("Client",)),
    ("Service", "client.blocking", ("BlockingClient",)),
    ("Others", "base.cancel", ("CancelToken",)),
    ("Others", "base.messages", ("set_language",)),
    ("Others", "base.errors", ("BansongError", "GazetteerError")),
    ("Modules", "", ("errors", "number", "watch")),
)
_HOMES = {name: module for _, module, names in _NAMES for name in names}
_GROUPS = {group: [name for one, _, names in _NAMES for name in names if one == group] for group, *_ in _NAMES}
_PUBLIC = ["__version__", *sorted(_HOMES)]

__doc__ = "\n".join([__doc__ or "", *(f"{group:9}{', '.join(names)}" for group, names in _GROUPS.items())])

if not TYPE_CHECKING:  # else checkers would take any misspelt name for one of ours

    def __getattr__(name: str) -> object:
        if name == "__all__" and not _is_pydoc(sys._getframe(1).f_globals):
            return _PUBLIC
        if name not in _HOMES:
            raise AttributeError(f"module 'bansong' has no attribute {name!r}")
        home = importlib.import_module(f"bansong.{_HOMES[name] or name}")
        found = globals()[name] = getattr(home, name) if _HOMES[name] else home
        return found


def _is_pydoc(caller: dict[str, object]) -> bool:
    # `help(bansong)` would print all of `__all__` in full, which is 3,500 lines; without it, it prints the docstring
    return getattr(caller.get("__spec__"), "name", None) == "pydoc"


def __dir__() -> list[str]:
    return _PUBLIC


def _is_bansong_starting() -> bool:
    # `python -m bansong`: while Python looks for the module, sys.argv[0] is "-m"
    is_module = sys.argv[:1] == ["-m"] and sys.orig_argv[-len(sys.argv)].removeprefix("-m").split(".")[0] == "bansong"
    return is_module or "_bansong_start" in sys.modules


if not _is_bansong_starting():  # decision 003
    from bansong.base import business_number as _business_number  # noqa: F401 - adds `brn` to polars, watches forks
