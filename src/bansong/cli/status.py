"""``bansong status``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import click

from bansong.cli.console import print_json, print_table, say
from bansong.cli.options import chosen_status, fetch_options, json_option
from bansong.column_words import word_of
from bansong.translation import current_language, gettext, gettext_noop

_COLUMNS: Final = (
    gettext_noop("b_no"),
    gettext_noop("status"),
    gettext_noop("since"),
    gettext_noop("taxation"),
    gettext_noop("as of"),
    gettext_noop("note"),
)


@click.command(short_help="Ask the tax authority for the status of businesses.")
@click.argument("numbers", nargs=-1, required=True, metavar="B_NO…")
@fetch_options
@json_option
def status(numbers: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Ask the tax authority's free API for the status of businesses by their numbers, readable or as JSON.

    What was fetched in the last `--max-status-age` days is not asked again. Exit code 2 if one cannot be a business
    number, 4 if the key is refused, 5 if not all could be asked.
    """
    from bansong.status_lookup import look_up_statuses

    found = look_up_statuses(numbers, chosen_status(options))
    rows = found.frame.to_dicts()
    if as_json:
        print_json({"statuses": rows, "halt": found.fetch.halt})
    else:
        print_table(_COLUMNS, map(_cells, rows))
    if found.fetch.halt is not None:
        say(f"bansong: {found.fetch.halt}")
    is_invalid = any(row["b_no"] is None for row in rows)
    click.get_current_context().exit(found.fetch.exit_code or (2 if is_invalid else 0))


def _cells(row: Mapping[str, Any]) -> list[str]:
    digits = row["b_no"]
    number = f"{digits[:3]}-{digits[3:5]}-{digits[5:]}" if digits else None
    status = word_of(row["biz_status"], current_language()) if row["biz_status"] else None
    if row["merged"]:
        status = gettext("{status} (merged)", status=status)
    return [str(value or "-") for value in (number, status, row["since"], row["taxation"], row["as_of"], row["note"])]
