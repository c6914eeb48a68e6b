"""``bizverify me``."""

from __future__ import annotations

from pathlib import Path

import click

from bizverify.cli.console import print_json, print_out
from bizverify.cli.options import account_options, json_option


@click.command(short_help="The account at the hosted service and its quota.")
@account_options
@json_option
def me(base_url: str | None, key_file: Path | None, allow_http: bool, as_json: bool) -> None:
    """Show the account at the hosted service: its plan, and what is left of the monthly quota. Costs nothing."""
    from bizverify.client import ApiKey, BlockingClient

    with BlockingClient(base_url, ApiKey.load(key_file), allow_http=allow_http) as client:
        account = client.me()
    said = {"plan": account.plan, "limit": account.limit, "used": account.used, "remaining": account.remaining}
    if as_json:
        print_json(said | {"account": account.model_dump(mode="json")})
        return
    for name, value in said.items():
        shown = "not said" if value is None else f"{value:,}" if isinstance(value, int) else value
        print_out(f"{name:<12}{shown}")
