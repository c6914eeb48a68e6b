"""``bizverify serve``."""

from __future__ import annotations

from pathlib import Path

import click

from bizverify.cli.console import say
from bizverify.cli.options import PATH, gazetteer_option, lang_option, model_option, registry_option
from bizverify.model import Lang


@click.command(short_help="The service itself, answered by the embedded engine.")
@click.option("--db", type=PATH, required=True, metavar="FILE", help="The server's SQLite file; made if it is missing.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="0 takes a free one.")
@registry_option
@gazetteer_option
@model_option
@lang_option
def serve(
    db: Path,
    host: str,
    port: int,
    registry: Path | None,
    gazetteer: Path | None,
    model: str | None,
    lang: Lang,
) -> None:
    """Serve the whole interface of the hosted service over HTTP, answered by the embedded engine."""
    from bizverify.server.process import run
    from bizverify.server.settings import Settings

    settings = Settings(db=db, registry=registry, gazetteer=gazetteer, model=model, lang=lang)
    run(settings, host, port, lambda url: say(f"serving on {url}; stop with Ctrl-C"))
