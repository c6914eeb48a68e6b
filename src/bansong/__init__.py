"""bansong: verify a file of Korean business customers before you mail it.

>>> import bansong as bs
>>> bs.number.is_valid("124-81-00998")
True

The public names below are loaded on first use, so that ``import bansong`` and ``bansong --help`` are fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from bansong import _polars_namespace
from bansong import forking as forking
from bansong._version import __version__ as __version__

if TYPE_CHECKING:
    from bansong import business_number
    from bansong import errors as errors
    from bansong import watch as watch
    from bansong.api.enrich_files import EnrichKeywords as EnrichKeywords
    from bansong.api.enrich_files import aenrich as aenrich
    from bansong.api.enrich_files import enrich as enrich
    from bansong.api.enrich_files import plan as plan
    from bansong.api.verify_business import verify as verify
    from bansong.api.verify_frames import verify_frame as verify_frame
    from bansong.cancellation import CancelToken as CancelToken
    from bansong.client import ApiKey as ApiKey
    from bansong.client import BlockingClient as BlockingClient
    from bansong.client import Client as Client
    from bansong.engine import LocalEngine as LocalEngine
    from bansong.engine import Registry as Registry
    from bansong.engine import Scorecard as Scorecard
    from bansong.engine.address.gazetteer import Gazetteer as Gazetteer
    from bansong.engine.status_overlay import StatusOverlay as StatusOverlay
    from bansong.enrichment.files_report import FilesReport as FilesReport
    from bansong.erasure import ErasureReport as ErasureReport
    from bansong.erasure import forget as forget
    from bansong.errors import BansongError as BansongError
    from bansong.errors import GazetteerError as GazetteerError
    from bansong.labels.labelling import label as label
    from bansong.labels.report import LabelReport as LabelReport
    from bansong.learning import calibrate as calibrate
    from bansong.options import EngineKind as EngineKind
    from bansong.options import ReadOptions as ReadOptions
    from bansong.options import ServiceKeywords as ServiceKeywords
    from bansong.options import ServiceOptions as ServiceOptions
    from bansong.options import StatusOptions as StatusOptions
    from bansong.options import WriteOptions as WriteOptions
    from bansong.purchase.paid_engines import HybridEngine as HybridEngine
    from bansong.purchase.paid_engines import ServiceEngine as ServiceEngine
    from bansong.reference import build_gazetteer as build_gazetteer
    from bansong.reference import build_registry as build_registry
    from bansong.reference.nts import NtsKey as NtsKey
    from bansong.reference.review_reader import ReviewReport as ReviewReport
    from bansong.reference.review_reader import apply_review as apply_review
    from bansong.report import Report as Report
    from bansong.run.engine import Engine as Engine
    from bansong.scheduling.job import run_job as run_job
    from bansong.scheduling.job_report import JobReport as JobReport
    from bansong.status_lookup import afetch_status as afetch_status
    from bansong.status_lookup import fetch_status as fetch_status
    from bansong.translation import set_language as set_language
    from bansong.verification import Verification as Verification

if TYPE_CHECKING:
    number = business_number

_HOMES = {
    "ApiKey": "client",
    "BansongError": "errors",
    "BlockingClient": "client",
    "CancelToken": "cancellation",
    "Client": "client",
    "Engine": "run.engine",
    "EngineKind": "options",
    "EnrichKeywords": "api.enrich_files",
    "ErasureReport": "erasure",
    "FilesReport": "enrichment.files_report",
    "Gazetteer": "engine.address.gazetteer",
    "GazetteerError": "errors",
    "HybridEngine": "purchase.paid_engines",
    "JobReport": "scheduling.job_report",
    "LabelReport": "labels.report",
    "LocalEngine": "engine",
    "NtsKey": "reference.nts",
    "ReadOptions": "options",
    "Registry": "engine",
    "Report": "report",
    "ReviewReport": "reference.review_reader",
    "Scorecard": "engine",
    "ServiceEngine": "purchase.paid_engines",
    "ServiceKeywords": "options",
    "ServiceOptions": "options",
    "StatusOptions": "options",
    "StatusOverlay": "engine.status_overlay",
    "Verification": "verification",
    "WriteOptions": "options",
    "aenrich": "api.enrich_files",
    "afetch_status": "status_lookup",
    "apply_review": "reference.review_reader",
    "build_gazetteer": "reference",
    "build_registry": "reference",
    "calibrate": "learning",
    "enrich": "api.enrich_files",
    "fetch_status": "status_lookup",
    "forget": "erasure",
    "label": "labels.labelling",
    "plan": "api.enrich_files",
    "run_job": "scheduling.job",
    "set_language": "translation",
    "verify": "api.verify_business",
    "verify_frame": "api.verify_frames",
}
_MODULES = ("errors", "number", "watch")

__all__ = ["__version__", *_HOMES, *_MODULES]


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


_polars_namespace.register_with_polars()
