"""``bansong verify``."""

from __future__ import annotations

import warnings
from dataclasses import asdict
from typing import Any, Final

import click

from bansong.cli.console import freeze_imports, print_json, print_out, warn
from bansong.cli.options import account_options, chosen_status, engine_option, given_options, json_option, options_of
from bansong.options import LocalOptions, RunOptions, ServiceOptions, StatusOptions

_EXIT_CODES: Final = {"invalid": 2, "failed": 3, "in_doubt": 3, "pending": 5}


@click.command(short_help="Verify one business.")
@click.argument("b_no", metavar="B_NO")
@click.option("--name", help="The business's name.")
@click.option("--address", help="Its address; with it the risk of a bounce is assessed.")
@click.option("--zipcode", help="Its postal code.")
@engine_option("local", "verify")
@options_of(LocalOptions)
@options_of(StatusOptions)
@options_of(RunOptions, "labels", "no_labels", "choices", "no_choices")
@account_options
@options_of(ServiceOptions, "ledger", "known_as", "max_age", "buy_suspect", "retry_trial")
@json_option
def verify(as_json: bool, **options: Any) -> None:
    """Verify one business by its number, readable or as JSON.

    With `--engine verify` the hosted service is asked, unless the ledger has its answer. Exit code 2 if it cannot be a
    business number, 3 if the answer is in doubt or unusable, 5 if it is still to be had.
    """
    with freeze_imports():
        from bansong.api import verify_business

    status = chosen_status(options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        answer = verify_business.verify(**given_options(options), status=status)
    warn(str(warning.message) for warning in caught)
    if as_json:
        print_json(asdict(answer))
    else:
        print_out(str(answer))
    click.get_current_context().exit(_EXIT_CODES.get(answer.row_status, 0))
