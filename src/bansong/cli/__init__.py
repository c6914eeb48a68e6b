"""The command line: parsing, printing, exit codes. Heavy modules are imported when needed."""

from __future__ import annotations

import sys
from contextlib import suppress

import click

from bansong import __version__
from bansong.cli.calibrate import calibrate
from bansong.cli.console import (
    INTERRUPTED,
    escape_what_stdout_lacks,
    open_closed_streams,
    say,
    set_up_logging,
)
from bansong.cli.data import data
from bansong.cli.doctor import doctor
from bansong.cli.enrich import enrich, plan
from bansong.cli.forget import forget
from bansong.cli.keys import keys
from bansong.cli.label import label
from bansong.cli.language import LocalizedGroup, add_language_option, command_line_reads, language_of
from bansong.cli.ledger import ledger, me, resolve
from bansong.cli.model import model
from bansong.cli.notices import notifications
from bansong.cli.report import report
from bansong.cli.run import run, runs
from bansong.cli.serve import serve
from bansong.cli.status import status
from bansong.cli.stop_signals import let_stop_signals_interrupt
from bansong.cli.verify import verify
from bansong.cli.watch import watch
from bansong.errors import BansongError
from bansong.translation import gettext, join_clauses

__all__ = ["app", "main"]


@click.group(cls=LocalizedGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="bansong", help="Show the version and exit.")
def app() -> None:
    """Verify a file of Korean business customers before you mail it.

    bansong finds business number, name and address in a CSV, Excel, JSON or Parquet file, verifies every row and
    writes the same file back with status, bounce probability, grade, action and reasons.

    Exit codes: 0 done, every row accounted for; 2 usage or unreadable input; 3 finished, but rows failed or in doubt;
    4 refused; 5 paused, resumable; 130 interrupted, nothing published. 1 is a defect of bansong: nothing published.
    """


_COMMANDS = (
    *(enrich, plan, verify, status, run, runs, report, label, watch, me),
    *(ledger, resolve, calibrate, model, data, doctor, forget, serve, keys, notifications),
)
for _command in _COMMANDS:
    app.add_command(_command)
add_language_option(app)


def main() -> None:
    """Run the command line; expected errors become one line on stderr and an exit code."""
    open_closed_streams()
    escape_what_stdout_lacks()
    set_up_logging()
    with language_of(sys.argv[1:]), command_line_reads():
        _run()


def _run() -> None:
    stdout = sys.stdout
    try:
        code = app.main(standalone_mode=False, obj=let_stop_signals_interrupt()) or 0
    except SystemExit as error:  # so click ends where the reader of its help is gone, with another stdout: no failure
        code = error.code if sys.stdout is stdout else 0
    except (click.exceptions.Abort, KeyboardInterrupt) as error:
        bought = str(error.__cause__ or "")  # click's Abort hides what it was
        _fail(join_clauses(gettext("interrupted; nothing was published"), bought), INTERRUPTED)
    except click.ClickException as error:
        with suppress(OSError):
            error.show()
        code = 2
    except BansongError as error:
        _fail(str(error), error.exit_code)
    sys.exit(code)


def _fail(message: str, code: int) -> None:
    say(f"bansong: {message}")
    sys.exit(code)
