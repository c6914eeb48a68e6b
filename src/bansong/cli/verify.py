"""``bansong verify``."""

from __future__ import annotations

import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click

from bansong.cli.console import freeze_imports, print_json, print_out, warn
from bansong.cli.options import (
    choices_option,
    chosen_choices,
    chosen_labels,
    chosen_status,
    engine_option,
    gazetteer_option,
    given_options,
    json_option,
    labels_option,
    model_option,
    no_choices_option,
    no_labels_option,
    registry_option,
    single_options,
    status_options,
)

_EXIT_CODES: Final = {"invalid": 2, "failed": 3, "in_doubt": 3, "pending": 5}


@click.command(short_help="Verify one business.")
@click.argument("b_no", metavar="B_NO")
@click.option("--name", help="The business's name.")
@click.option("--address", help="Its address; with it the risk of a bounce is assessed.")
@click.option("--zipcode", help="Its postal code.")
@engine_option("local", "verify")
@registry_option
@status_options
@gazetteer_option
@model_option
@labels_option
@no_labels_option
@choices_option
@no_choices_option
@single_options
@json_option
def verify(as_json: bool, labels: Path | None, no_labels: bool, **options: Any) -> None:
    """Verify one business by its number, readable or as JSON.

    With `--engine verify` the hosted service is asked, unless the ledger has its answer. Exit code 2 if it cannot be a
    business number, 3 if the answer is in doubt or unusable, 5 if it is still to be had.
    """
    with freeze_imports():
        from bansong.api import verify_business

    status, choices = chosen_status(options), chosen_choices(options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        answer = verify_business.verify(
            **given_options(options), status=status, labels=chosen_labels(labels, no_labels), choices=choices
        )
    warn(str(warning.message) for warning in caught)
    if as_json:
        print_json(asdict(answer))
    else:
        print_out(str(answer))
    click.get_current_context().exit(_EXIT_CODES.get(answer.row_status, 0))
