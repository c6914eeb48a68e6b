"""bizverify: verify a file of Korean business customers before you mail it.

>>> import bizverify as bv
>>> bv.number.is_valid("124-81-00998")
True

The public names below are loaded on first use, so that ``import bizverify`` and ``bizverify --help`` are fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from bizverify import _polars_namespace
from bizverify import forking as forking
from bizverify._version import __version__ as __version__

if TYPE_CHECKING:
    from bizverify import business_number
    from bizverify import errors as errors
    from bizverify import watch as watch
    from bizverify.api.enrich_files import EnrichKeywords as EnrichKeywords
    from bizverify.api.enrich_files import aenrich as aenrich
    from bizverify.api.enrich_files import enrich as enrich
    from bizverify.api.enrich_files import plan as plan
    from bizverify.api.verify_business import verify as verify
    from bizverify.api.verify_frames import verify_frame as verify_frame
    from bizverify.cancellation import CancelToken as CancelToken
    from bizverify.client import ApiKey as ApiKey
    from bizverify.client import BlockingClient as BlockingClient
    from bizverify.client import Client as Client
    from bizverify.engine import LocalEngine as LocalEngine
    from bizverify.engine import Registry as Registry
    from bizverify.engine import Scorecard as Scorecard
    from bizverify.engine.address.gazetteer import Gazetteer as Gazetteer
    from bizverify.engine.status_overlay import StatusOverlay as StatusOverlay
    from bizverify.erasure import ErasureReport as ErasureReport
    from bizverify.erasure import forget as forget
    from bizverify.errors import BizverifyError as BizverifyError
    from bizverify.errors import GazetteerError as GazetteerError
    from bizverify.joint.report import FilesReport as FilesReport
    from bizverify.labels.labelling import label as label
    from bizverify.labels.report import LabelReport as LabelReport
    from bizverify.learning import calibrate as calibrate
    from bizverify.options import EngineKind as EngineKind
    from bizverify.options import ReadOptions as ReadOptions
    from bizverify.options import ServiceKeywords as ServiceKeywords
    from bizverify.options import ServiceOptions as ServiceOptions
    from bizverify.options import StatusOptions as StatusOptions
    from bizverify.options import WriteOptions as WriteOptions
    from bizverify.purchase.paid_engines import HybridEngine as HybridEngine
    from bizverify.purchase.paid_engines import ServiceEngine as ServiceEngine
    from bizverify.reference import build_gazetteer as build_gazetteer
    from bizverify.reference import build_registry as build_registry
    from bizverify.reference.nts import NtsKey as NtsKey
    from bizverify.reference.review_reader import ReviewReport as ReviewReport
    from bizverify.reference.review_reader import apply_review as apply_review
    from bizverify.report import Report as Report
    from bizverify.run.engine import Engine as Engine
    from bizverify.scheduling.job import run_job as run_job
    from bizverify.scheduling.job_report import JobReport as JobReport
    from bizverify.status_lookup import afetch_status as afetch_status
    from bizverify.status_lookup import fetch_status as fetch_status
    from bizverify.translation import set_language as set_language
    from bizverify.verification import Verification as Verification

if TYPE_CHECKING:
    number = business_number

_HOMES = {
    "ApiKey": "client",
    "BizverifyError": "errors",
    "BlockingClient": "client",
    "CancelToken": "cancellation",
    "Client": "client",
    "Engine": "run.engine",
    "EngineKind": "options",
    "EnrichKeywords": "api.enrich_files",
    "ErasureReport": "erasure",
    "FilesReport": "joint.report",
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
        return importlib.import_module(f"bizverify.{name}")
    if name in _HOMES:
        found = getattr(importlib.import_module(f"bizverify.{_HOMES[name]}"), name)
        globals()[name] = found
        return found
    raise AttributeError(f"module 'bizverify' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


_polars_namespace.register_with_polars()
