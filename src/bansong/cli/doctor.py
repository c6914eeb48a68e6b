"""``bansong doctor``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from bansong.cli.console import print_json, print_out, print_table
from bansong.cli.options import account_options, json_option, options_of
from bansong.options import LocalOptions, RunOptions, ServiceOptions, StatusOptions
from bansong.translation import gettext, gettext_noop

if TYPE_CHECKING:
    from bansong.diagnosis import Diagnosis

_MARKS: Final = {
    "ok": (gettext_noop("ok"), "green"),
    "note": ("-", ""),
    "warning": (gettext_noop("look"), "yellow"),
    "error": (gettext_noop("BROKEN"), "red"),
}


@click.command(short_help="What is missing or old, and its remedy.")
@options_of(LocalOptions)
@options_of(ServiceOptions, "ledger")
@options_of(RunOptions, "labels")
@options_of(StatusOptions, "status_store", "nts_key_file")
@account_options
@click.option("--offline", is_flag=True, help="Ask nobody over the network.")
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="How long the service and the tax authority may take to answer.",
)
@json_option
def doctor(as_json: bool, **options: Any) -> None:
    """Look at what a run needs: versions, extras, registry, gazetteer, stores, keys, and whether the services answer.

    Give the options that your runs are given. The hosted service and the tax authority are asked only if their key is
    there: for the account, and for the status of one listed company. Keys are never shown. Exit code 2 where a run
    would break; what is old or not set up is shown with its remedy and is no failure.
    """
    from bansong.diagnosis import DoctorOptions, diagnose

    diagnosis = diagnose(DoctorOptions(**options))
    if as_json:
        print_json(diagnosis.as_dict())
    else:
        print_findings(diagnosis)
    click.get_current_context().exit(diagnosis.exit_code)


_NAMES: Final = (
    *(gettext_noop("scorecard"), gettext_noop("registry"), gettext_noop("status store"), gettext_noop("gazetteer")),
    *(gettext_noop("state directory"), gettext_noop("ledger"), gettext_noop("label store"), gettext_noop("API key")),
    *(gettext_noop("tax authority's key"), gettext_noop("tax authority"), gettext_noop("service")),
    *(gettext_noop("watch list"), gettext_noop("jobs"), gettext_noop("server"), gettext_noop("database")),
)
"""For translation."""


def print_findings(diagnosis: Diagnosis) -> None:
    rows = [(gettext(finding.what), gettext(_MARKS[finding.level][0]), finding.said) for finding in diagnosis.findings]
    print_table((gettext_noop("what"), "", gettext_noop("found")), rows)
    remedies = [finding for finding in diagnosis.findings if finding.remedy or finding.level == "error"]
    if remedies:
        print_out("")
    for finding in remedies:
        word, colour = _MARKS[finding.level]
        label = click.style(f"{gettext(finding.what)}:", fg=colour or None, dim=word == "-")
        print_out(f"{label} {finding.remedy or finding.said}")
