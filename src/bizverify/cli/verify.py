"""``bizverify verify``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from bizverify.cli.console import print_json, print_out
from bizverify.cli.options import json_option, lang_option, model_option, registry_option


@click.command(short_help="Verify one business.")
@click.argument("b_no", metavar="B_NO")
@click.option("--name", help="The business's name.")
@click.option("--address", help="Its address; with it the risk of a bounce is assessed.")
@click.option("--zipcode", help="Its postal code.")
@registry_option
@model_option
@lang_option
@json_option
def verify(as_json: bool, **options: Any) -> None:
    """Verify one business by its number, readable or as JSON. Exit code 2 if it cannot be a business number."""
    from bizverify import pipeline

    answer = pipeline.verify(**options)
    if as_json:
        print_json(asdict(answer))
    else:
        print_out(str(answer))
    click.get_current_context().exit(2 if answer.row_status == "invalid" else 0)
