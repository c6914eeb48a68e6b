"""The commands ``bansong data …``."""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import date
from pathlib import Path
from subprocess import list2cmdline
from typing import TYPE_CHECKING, Any, Final

import click

from bansong.base.errors import OutputError, Problem, UsageError
from bansong.base.files import installed_path
from bansong.base.messages import gettext, gettext_noops
from bansong.base.options import ReadOptions
from bansong.base.publish import make_folder, publish_file
from bansong.cli.console import print_json, progress_shown, say_columns, say_table, show_summary
from bansong.cli.options import (
    DAY,
    PATH,
    add_all,
    chosen_status,
    fetch_options,
    is_configured,
    json_option,
    options_of,
    progress_option,
)
from bansong.run.options import LocalOptions, with_installed

if TYPE_CHECKING:
    from bansong.reference.gazetteer import GazetteerReport
    from bansong.reference.registry import DataUpdate, FetchedRegistry, RegistryReport

GAZETTEER_OPTION_ALONE: Final = Problem(
    "cli.gazetteer_option_alone", "--gazetteer needs --addresses: where the address files are"
)
SAMPLE_THERE: Final = Problem("cli.sample_there", "{path}: is there already; name another folder for the sample")

_PACKAGE: Final = Path(__file__).parents[1]
_REGISTRY_ROLES: Final = ("b_no", "status", "since", "opened", "as_of", "taxation", "merged", "name")
_STATES: Final = gettext_noops("refreshed", "current")


_output_option: Final = click.option(
    "-o",
    "--output",
    type=PATH,
    metavar="OUT.parquet",
    help="The file to write. By default it is installed in the state directory, and later runs use it.",
)


def _choose_output(what: str, output: Path | None) -> Path:
    """Return the file of ``-o``, else the place of installed files, whose folder is made."""
    if output is not None:
        return output
    make_folder(installed_path(what).parent)
    return installed_path(what)


def _say_use(report: RegistryReport | GazetteerReport, what: str) -> None:
    """Print that an installed file will be used."""
    if report.output == str(installed_path(what)):
        said = gettext("{name} is used from now on; --no-{what} leaves it out", name=gettext(what), what=what)
        say_table([(gettext("installed"), said)])


@click.group()
def data() -> None:
    """Build a registry or a gazetteer for the local engine."""


@data.command(short_help="Build a registry of businesses and their status.")
@click.argument("sources", type=PATH, nargs=-1, required=True, metavar="SRC…")
@_output_option
@options_of(ReadOptions, "columns", roles=_REGISTRY_ROLES)
@click.option(
    "--as-of",
    type=DAY,
    help="How fresh sources without a date column are; default: their file's date.",
)
@options_of(ReadOptions, "encoding", "delimiter")
@json_option
def build_registry(output: Path | None, as_of: date | None, as_json: bool, **options: Any) -> None:
    """Build a registry from files, or folders of files, with a number and a status column.

    Any table that `enrich` reads will do: lists of statuses, the mail-order registry's CSVs, files enriched before. The
    newest row of a number wins. Statuses are understood in Korean and English; words that are not are listed. Taxation,
    merging into unit taxation and the registered name are kept where a source has them.
    """
    from bansong.reference.registry import build_registry

    target = _choose_output("registry", output)
    report = build_registry(output=target, as_of=as_of, **options)
    if not as_json and len(report.sources) <= 10:
        for source, chosen in zip(report.sources, report.columns, strict=True):
            say_table([(gettext("source"), source)])
            say_columns(chosen)
    show_summary(report, as_json)
    _say_use(report, "registry")


@data.command(short_help="Build a gazetteer of the official addresses.")
@click.argument("sources", type=PATH, nargs=-1, required=True, metavar="SRC…")
@_output_option
@progress_option
@json_option
def build_gazetteer(sources: tuple[Path, ...], output: Path | None, progress: str, as_json: bool) -> None:
    """Build a gazetteer from the official address files: files, folders of them, zips as downloaded.

    From business.juso.go.kr: 도로명주소 한글, the full set of one month (rnaddrkor_*.txt and jibun_rnaddrkor_*.txt of
    each province), and if wanted the daily changes since. Also read: the post office's zipcode_DB, and
    KIKmix.YYYYMMDD.xlsx, which says what legal dongs an administrative dong has. One province or all of them.
    """
    from bansong.reference.gazetteer import build_gazetteer

    with progress_shown(progress, "MB", "reading") as advance:
        report = build_gazetteer(sources, _choose_output("gazetteer", output), progress=advance)
    show_summary(report, as_json)
    _say_use(report, "gazetteer")


_fetch_options: Final = add_all([fetch_options, progress_option, json_option])


@data.command(short_help="Fetch the statuses of the numbers in files into a registry.")
@click.argument("files", type=PATH, nargs=-1, required=True, metavar="FILE…")
@click.option("-o", "--output", type=PATH, required=True, metavar="OUT.parquet", help="The registry file.")
@options_of(ReadOptions, "columns", "encoding", "delimiter", roles=("b_no",))
@_fetch_options
def fetch_status(files: tuple[Path, ...], output: Path, progress: str, as_json: bool, **options: Any) -> None:
    """Ask the tax authority's free API for the statuses of the numbers in FILE…, and write them as a registry.

    The numbers are found as `enrich` finds them, each is asked once, and nothing else is sent. What is answered is
    stored at once: a run that was stopped goes on where it was when the same command is given again. Exit code 4 if the
    key is refused, 5 if the run is to go on later.
    """
    from bansong.run.statuses import fetch_files

    status = chosen_status(options)
    with progress_shown(progress, "numbers", "asking nts") as display:
        report = fetch_files(files, output, status, ReadOptions(**options), None if display is None else display.watch)
    _show_fetched(report, as_json)


@data.command(short_help="Ask anew for the oldest statuses of a registry.")
@click.argument("registry", type=PATH, metavar="REGISTRY.parquet")
@_fetch_options
def refresh_registry(registry: Path, progress: str, as_json: bool, **options: Any) -> None:
    """Ask the tax authority's free API for the oldest statuses of a registry, and replace the file in one step.

    Names, days of opening and taxations that are known from elsewhere stay. With `--budget` the rest is asked on the
    next days. Exit code 4 if the key is refused, 5 if the run is to go on later.
    """
    from bansong.reference.registry import refresh_registry

    with progress_shown(progress, "numbers", "asking nts") as display:
        report = refresh_registry(registry, chosen_status(options), watch=None if display is None else display.watch)
    _show_fetched(report, as_json)


def _show_fetched(report: FetchedRegistry, as_json: bool) -> None:
    show_summary(report, as_json)
    click.get_current_context().exit(report.exit_code)


@data.command(short_help="Bring registry and gazetteer up to date.")
@options_of(LocalOptions, "registry")
@fetch_options
@options_of(LocalOptions, "gazetteer")
@click.option(
    "--addresses",
    type=PATH,
    multiple=True,
    metavar="SRC",
    help="Where you put downloaded address files: a folder, file or zip. Can be given several times.",
)
@progress_option
@json_option
def update(
    registry: Path | None,
    gazetteer: Path | None,
    addresses: tuple[Path, ...],
    progress: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Refresh what can be refreshed, and say for the rest what to download and where.

    Without --gazetteer and --registry, the installed files are meant. The gazetteer is built anew if the address files
    are newer than those it was built from. The registry's oldest statuses are asked of the tax authority, as `bansong
    data refresh-registry` does it. What is current stays as it is, and after an error the file that was there stays.
    Exit code 4 if the key is refused, 5 if it is to go on later.
    """
    from bansong.reference.registry import BY_HAND, update_gazetteer, update_registry

    if gazetteer is not None and not addresses and not is_configured("gazetteer"):
        raise UsageError(GAZETTEER_OPTION_ALONE)
    done, status = [], chosen_status(options)
    if addresses:
        with progress_shown(progress, "MB", "reading") as advance:
            done.append(update_gazetteer(_choose_output("gazetteer", gazetteer), addresses, progress=advance))
        _show_update(done[-1], as_json)
    if registry is None and replace(status, source="auto").is_asking:
        registry = with_installed({}).get("registry")
    if registry is not None:
        with progress_shown(progress, "numbers", "asking nts") as display:
            watch = None if display is None else display.watch
            done.append(update_registry(registry, status, watch=watch))
        _show_update(done[-1], as_json)
    if as_json:
        print_json({"updates": [asdict(one) for one in done], "by_hand": BY_HAND})
    else:
        say_table((gettext(what), gettext(how)) for what, how in BY_HAND.items())
    click.get_current_context().exit(max((one.exit_code for one in done), default=0))


def _show_update(update: DataUpdate, as_json: bool) -> None:
    if not as_json:
        say_table([(gettext(update.what), f"{gettext(update.state)}: {update.path}, {update.said}")])
        say_table([("", update.remedy)] if update.remedy else [])


@data.command(short_help="Remember what was chosen in a review of addresses.")
@click.argument("review", type=PATH, metavar="REVIEW.xlsx")
@click.option("--by", metavar="NAME", help="Who chose; it stands in the reasons. By default the user of this machine.")
@click.option(
    "--choices",
    "store",
    type=PATH,
    help="The file of addresses chosen in reviews; by default BANSONG_CHOICES, else in the state directory.",
)
@json_option
def apply_review(review: Path, by: str | None, store: Path | None, as_json: bool) -> None:
    """Remember the addresses that were chosen in REVIEW.xlsx, which `bansong enrich --review` wrote.

    The next runs take a chosen address for the one that is written, for the same business with the same address, and
    say so in the reasons. A later choice replaces an earlier one. A building that is gone by then is told, not used.
    """
    from bansong.reference.reviews import apply_review as apply

    report = apply(review, by=by, store=store)
    show_summary(report, as_json)


@click.command(short_help="Write the files of the sample, to try bansong with.")
@click.argument("folder", type=PATH, default="sample_data", metavar="[DIR]")
def sample(folder: Path) -> None:
    """Write a made-up list of customers, with a registry and a gazetteer for it, into DIR (default: sample_data).

    No file is overwritten. The businesses do not exist.
    """
    # a checkout has them beside src, with the script that makes them and outputs of runs
    places = (_PACKAGE / "sample_data", _PACKAGE.parents[1] / "sample_data")
    found = next(place for place in places if place.is_dir())
    sources = sorted(one for one in found.iterdir() if "." not in one.stem and one.suffix not in ("", ".py"))
    if there := next((folder / one.name for one in sources if (folder / one.name).exists()), None):
        raise OutputError(SAMPLE_THERE, path=there)
    make_folder(folder)
    for source in sources:
        with publish_file(folder / source.name) as temporary:
            temporary.write_bytes(source.read_bytes())
    names = ("customers.xlsx", "registry.parquet", "gazetteer.parquet")
    file, registry, gazetteer = ((folder / name).as_posix() for name in names)
    words = list2cmdline([file, "--registry", registry, "--gazetteer", gazetteer])
    say_table([(gettext("now try"), gettext("bansong enrich {file}", file=words))])
