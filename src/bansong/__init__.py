"""Verify a file of Korean business customers before you mail it: ``bansong.enrich("customers.xlsx")``.

Each name has its own help, as ``help(bansong.enrich)``, which documents the options. Read on in README.md.
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

_NAMES: dict[str, dict[str, tuple[str, ...]]] = {  # group in `help()` → module → names, loaded on first use
    "Verify": {
        "run.enrich": ("enrich", "aenrich", "plan"),
        "run.verify": ("verify", "verify_frame", "scan_verify"),
        "jobs.run": ("run_job",),
        "base.business_number": ("brn",),
    },
    "Engines": {
        "engine.local": ("LocalEngine",),
        "engine.registry": ("Registry",),
        "engine.address.gazetteer": ("Gazetteer",),
        "engine.overlays": ("StatusOverlay",),
        "engine.risk.scorecard": ("Scorecard",),
        "purchase.engines": ("ServiceEngine", "HybridEngine"),
    },
    "Data": {
        "run.statuses": ("fetch_status", "afetch_status"),
        "reference.registry": ("build_registry",),
        "reference.gazetteer": ("build_gazetteer",),
        "reference.reviews": ("apply_review",),
    },
    "Letters": {
        "run.decisions": ("letters",),
        "labels.label": ("label",),
        "learning.calibrate": ("calibrate",),
        "upkeep.forget": ("forget",),
    },
    "Results": {
        "run.verify": ("Verification",),
        "run.report": ("Report",),
        "run.files_report": ("FilesReport",),
        "jobs.report": ("JobReport",),
        "run.decisions": ("LettersReport",),
        "labels.label": ("LabelReport",),
        "reference.reviews": ("ReviewReport",),
        "upkeep.forget": ("ErasureReport",),
    },
    "Options": {
        "base.options": ("ReadOptions", "ServiceOptions", "StatusOptions"),
        "run.options": ("WriteOptions",),
        "base.key": ("ApiKey",),
        "reference.nts": ("NtsKey",),
    },
    "Typing": {
        "run.enrich": ("EnrichKeywords", "FrameKeywords", "VerifyKeywords"),
        "base.options": ("ServiceKeywords", "EngineKind"),
        "engine.protocol": ("Engine",),
    },
    "Service": {
        "client.client": ("Client",),
        "client.blocking": ("BlockingClient",),
    },
    "Others": {
        "base.cancel": ("CancelToken",),
        "base.messages": ("set_language",),
        "base.errors": ("BansongError", "GazetteerError"),
    },
}
_HOMES = {name: module for group in _NAMES.values() for module, names in group.items() for name in names}
_MODULES = ("errors", "number", "watch")
_PUBLIC = ["__version__", *sorted(_HOMES), *_MODULES]

_GROUPS = {group: [name for names in modules.values() for name in names] for group, modules in _NAMES.items()}
_LINES = (f"{group:9}{', '.join(names)}" for group, names in (_GROUPS | {"Modules": [*_MODULES]}).items())
__doc__ = "\n".join([__doc__ or "", *_LINES])

if not TYPE_CHECKING:  # else checkers would take any misspelt name for one of ours

    def __getattr__(name: str) -> object:
        if name == "__all__" and not _is_pydoc(sys._getframe(1).f_globals):
            return _PUBLIC
        if name in _MODULES:
            return importlib.import_module(f"bansong.{name}")
        if name in _HOMES:
            found = getattr(importlib.import_module(f"bansong.{_HOMES[name]}"), name)
            globals()[name] = found
            return found
        raise AttributeError(f"module 'bansong' has no attribute {name!r}")


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
