"""Options of a run: how it reads, writes and spends, checked when they are made; and which kinds of engines exist.

- ``option_rules``: how an option is declared, what values a field takes, and options that are given twice
- ``file_options``: reading and writing; ``purchase_options``: buying; ``fetch_options``: asking for statuses
- ``run_options``: what the local engine answers from, and what a run takes into account beside its engine
- ``engine_kinds``: what all engines of one name have in common
"""

from bansong.options.engine_kinds import ENGINE_KINDS, EngineKind, EngineName, engine_kind, service_options
from bansong.options.fetch_options import (
    ENV_NTS_KEY,
    ENV_NTS_KEY_FILE,
    STATUS_SOURCES,
    StatusOptions,
    StatusSource,
    status_options,
)
from bansong.options.file_options import ALL_SHEETS, ReadOptions, WriteOptions
from bansong.options.option_rules import OptionSpec, choose_options, specs_of, take_options
from bansong.options.purchase_options import ServiceKeywords, ServiceOptions, check_keywords, hide_key
from bansong.options.run_options import LocalOptions, RunOptions

OPTION_KINDS = (ReadOptions, WriteOptions, LocalOptions, RunOptions, ServiceOptions, StatusOptions)

__all__ = [
    "ALL_SHEETS",
    "ENGINE_KINDS",
    "ENV_NTS_KEY",
    "ENV_NTS_KEY_FILE",
    "OPTION_KINDS",
    "STATUS_SOURCES",
    "EngineKind",
    "EngineName",
    "LocalOptions",
    "OptionSpec",
    "ReadOptions",
    "RunOptions",
    "ServiceKeywords",
    "ServiceOptions",
    "StatusOptions",
    "StatusSource",
    "WriteOptions",
    "check_keywords",
    "choose_options",
    "engine_kind",
    "hide_key",
    "service_options",
    "specs_of",
    "status_options",
    "take_options",
]
