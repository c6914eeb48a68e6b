"""The files and the work of `bansong app`, in a private folder that is emptied once its page is closed."""

from __future__ import annotations

import logging
import os
import re
import secrets
import shutil
import time
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock, Thread
from typing import Any, Final

from bansong.base.cancel import CancelToken
from bansong.base.display import FetchReport, Shown, describe_fetch, describe_progress
from bansong.base.errors import BansongError, InputError, Problem, StoppedError
from bansong.base.files import create_private, lock_file, make_folders, remove_unless_locked, state_directory
from bansong.base.messages import (
    NO_VALUE,
    Audience,
    Lang,
    current_audience,
    current_language,
    describe_os_error,
    gettext,
    gettext_noop,
    use_audience,
    use_language,
)
from bansong.base.options import ReadOptions, StatusOptions
from bansong.labels.label import label
from bansong.reference.reviews import apply_review
from bansong.run.enrich import enrich, plan
from bansong.run.report import Report
from bansong.tables.detect import default_output, open_table, reading
from bansong.tables.table import Format

UPLOAD_FAILED: Final = Problem("app.upload_failed", "{name}: cannot be stored: {reason}; make room, and give it again")
DEFECT: Final = Problem("app.defect", "this is a defect of bansong, and no file was written: {error}")

log = logging.getLogger(__name__)

_DAY_S: Final = 24 * 3600.0
_CLOSED_FOR_S: Final = 120.0  # a page that is reloaded, or closed by mistake, finds its files again
_SAMPLE_ROWS: Final = 200
_SHOWN_CELLS: Final = 3
_NAME_BYTES: Final = 160  # of 255, since the names of outputs are longer
_APPLY_REVIEW: Final = re.compile("`bansong data apply-review [^`]*`")
_UNSAFE: Final = re.compile(r'[\x00-\x1f\x7f<>:"/\\|?*]')


@dataclass(frozen=True)
class PageAudience:
    """People before the page, who choose columns and a sheet there, and give all other options at its start."""

    started_with: Audience
    sets_limits = True

    def option(self, name: str, value: object = NO_VALUE) -> str | None:
        chosen = {"columns": gettext("Use"), "sheet": gettext("Sheet")}.get(name)
        return f"'{chosen}'" if chosen else self.started_with.option(name, value)


@dataclass(slots=True)
class Work:
    """The work under way, and the display of its progress."""

    doing: str
    done: int = 0
    total: int = 0
    figures: str = ""
    is_cancelled: bool = False
    token: CancelToken = field(default_factory=CancelToken)
    started: float = field(default_factory=time.monotonic)

    def __call__(self, done: int, total: int, /) -> None:
        if self.is_cancelled:
            raise StoppedError
        self.doing, self.done, self.total = gettext_noop("verifying"), done, total
        self.figures = describe_progress(done, total, "rows", time.monotonic() - self.started)

    def watch(self, fetch: FetchReport) -> None:
        self.doing, self.done, self.total = gettext_noop("asking nts"), fetch.answered, fetch.answered + fetch.left
        self.figures = describe_fetch(fetch)

    def cancel(self) -> None:
        self.is_cancelled = True
        self.token.cancel()


@dataclass(frozen=True, slots=True)
class FoundTable:
    """What was found in the list: its columns with their first cells, the sheets to choose from, the plan."""

    headers: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    format: Format
    sheets: tuple[str, ...]
    sheet: str | None
    plan: Report | None = None  # None: the columns must be chosen first

    def role_of(self, place: int) -> str:
        chosen = self.plan.columns.items() if self.plan else ()
        return next((role for role, choice in chosen if place in (part.column for part in choice.parts)), "")

    def spell_columns(self, roles: Mapping[int, str]) -> dict[str, Any] | None:
        """Return ``columns=`` for a run; a role that is as it was found keeps its order and alternatives."""
        if all(role == self.role_of(place) for place, role in roles.items()):
            return None
        found = dict(self.plan.columns) if self.plan else {}
        chosen: dict[str, Any] = dict.fromkeys(found, ())  # no column
        for role in filter(None, roles.values()):
            places = [place for place, one in roles.items() if one == role]
            if role in found and sorted(part.column for part in found[role].parts) == places:
                chosen[role] = found[role].spell(lambda part: f"#{part.column + 1}")
            else:
                chosen[role] = "+".join(f"#{place + 1}" for place in places)
        return chosen


class LocalDesk:
    """One list of a user, and what was made of it. All pages of the app show the same desk."""

    def __init__(self, folder: Path, reference: Mapping[str, Any], status: StatusOptions) -> None:
        self.folder, self.reference, self.status = folder, reference, status
        self.lang: Lang = current_language()
        self.version = 0
        self.work: Work | None = None
        self._thread = Thread()
        self._lock = Lock()
        self.pages = set[str]()  # the open ones
        self.seen = time.time()  # when a page asked last, in seconds since 1970
        self.clear()

    def clear(self, kept: Path | None = None) -> None:
        """Forget and delete all files, but the folder ``kept``."""
        self.given: dict[str, Path] = {}
        self.found: FoundTable | None = None
        self.report: Report | None = None
        self.files: dict[str, Path] = {}  # of the report's run, by use
        self.recorded: dict[str, Shown] = {}
        self.error: BansongError | None = None
        self.latest = ""  # the section that changed last
        self._filled: float | None = None
        self._delete(*(one for one in self.folder.iterdir() if one != kept))
        self.version += 1

    def sweep(self, now: float) -> None:
        """Delete all files once no page is open, or a day after the first came; ``now``: seconds since 1970."""
        is_closed = not self.pages and now - self.seen > _CLOSED_FOR_S
        if self._filled is None or not (is_closed or now - self._filled > _DAY_S):
            return
        if self.work is not None:
            self.work.cancel()  # the next sweep deletes
        else:
            self.clear()

    def begin(self, doing: str) -> Work | None:
        """Return new work, or ``None`` if there is some already."""
        with self._lock:
            if self.work is not None:
                return None
            self.error, self.work = None, Work(doing)
            return self.work

    @contextmanager
    def receive(self, work: Work, use: str, name: str, size: int) -> Iterator[Callable[[bytes], None]]:
        """Yield a function that writes an upload of ``size`` bytes, which counts once the block ends."""
        path = self._new_folder() / safe_name(name)

        def write(piece: bytes) -> None:
            file.write(piece)
            work.done, work.total = file.tell(), size
            if work.is_cancelled:
                raise StoppedError

        try:
            with os.fdopen(create_private(path), "wb") as file:
                yield write
        except BaseException as error:
            self._delete(path.parent)
            if isinstance(error, OSError):
                self.error = InputError(UPLOAD_FAILED, name=path.name, reason=describe_os_error(error))
            raise
        else:
            if use == "list":
                self.clear(path.parent)
            elif use in self.given:
                self._delete(self.given[use].parent)
            self.given[use], self._filled = path, self._filled or time.time()
        finally:
            self.version, self.work = self.version + 1, None

    def start(self, work: Work, do: Callable[[Work], None]) -> None:
        """Do the work in another thread."""
        self._thread = Thread(target=self._carry_out, args=(work, do), name="bansong-app", daemon=True)
        self._thread.start()

    def stop(self, seconds: float) -> None:
        """Cancel the work and wait for its end."""
        if self.work is not None:
            self.work.cancel()
        if self._thread.is_alive():
            self._thread.join(seconds)

    def _carry_out(self, work: Work, do: Callable[[Work], None]) -> None:
        with self.speaking():
            try:
                do(work)
            except BaseException as error:  # a panic of polars is no Exception
                if isinstance(error, BansongError) and not work.is_cancelled:
                    self.error = error
                elif not work.is_cancelled:
                    log.exception("the work of the page failed")
                    self.error = BansongError(DEFECT, error=repr(error))
        self.version, self.work = self.version + 1, None

    def look(self, work: Work, sheet: str | None = None) -> None:  # noqa: ARG002 - reads only
        """Read the list, and plan its run."""
        if (path := self.given.get("list")) is None:
            return  # another page has cleared the desk
        self.latest, self.found = "list", None
        self.found = found = _find_table(path, sheet)
        made = plan(path, sheet=sheet, status=self.status, **self.reference)
        self.found = replace(found, plan=made)

    def run(self, work: Work, *, wanted: frozenset[str], roles: Mapping[int, str], cost: float | None) -> None:
        """Enrich the list; ``wanted``: the files beside the result, ``headers`` for Korean ones, ``status`` to ask."""
        if (found := self.found) is None:
            return  # another page has cleared the desk
        path, folder = self.given["list"], self._new_folder()
        names = {
            "letters": gettext("{name} letters.xlsx", name=path.stem),
            "review": gettext("{name} review.xlsx", name=path.stem),
            "report": gettext("{name} report.html", name=path.stem),
        }
        result = folder / default_output(path, found.format, gettext(" checked")).name
        files = {use: folder / name for use, name in names.items() if use in wanted}
        options: dict[str, Any] = {**files, **self.reference, "columns": found.spell_columns(roles)}
        options |= {"headers": "ko" if "headers" in wanted else None, "letter_cost": cost}
        options |= {"status": self.status if "status" in wanted else "none", "progress": work, "cancel": work.token}
        try:
            report = enrich(path, result, sheet=found.sheet, **options)
            if work.is_cancelled:
                raise StoppedError
        except BaseException:
            self._delete(folder)
            raise
        if self.files:
            self._delete(self.files["result"].parent)
        self.latest, self.report, self.files = "result", report, {"result": result, **files}

    def record_outcomes(self, work: Work, *, returned: Path, **options: Any) -> None:  # noqa: ARG002 - takes no time
        """Record returned letters of the file that was given with them, else of the result."""
        file, self.latest = self.given.pop("mailed", self.files.get("result")), "outcomes"
        self.recorded.pop("outcomes", None)
        self.recorded["outcomes"] = label(returned, file=file, send=False, **options)

    def take_review(self, work: Work, *, review: Path) -> None:  # noqa: ARG002 - takes no time
        self.latest = "review"
        self.recorded.pop("review", None)
        self.recorded["review"] = apply_review(review)

    @contextmanager
    def speaking(self) -> Iterator[None]:
        """Write the messages of the block for the people before the page."""
        of_list = self.latest in ("", "list", "result")
        audience = PageAudience(current_audience()) if of_list else current_audience()
        with use_language(self.lang), use_audience(audience):
            yield

    def tidy(self, text: object) -> str:
        """Return a message without the private folder's path, and with the page's button in place of a command."""
        plain = re.sub(rf"{re.escape(str(self.folder))}[\\/]\w+[\\/]", "", str(text))
        return _APPLY_REVIEW.sub(f"'{gettext('Take the choices')}'", plain)

    def _new_folder(self) -> Path:
        folder = self.folder / secrets.token_hex(8)
        folder.mkdir(mode=0o700)
        return folder

    def _delete(self, *folders: Path) -> None:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


def _find_table(path: Path, sheet: str | None) -> FoundTable:
    with open_table(path, ReadOptions(sheet=sheet)) as table, reading(table):
        rows = table.frame.select(table.ids).head(_SAMPLE_ROWS).collect()
        texts = ([str(cell).strip() for cell in column.to_list() if cell is not None] for column in rows)
        cells = tuple(tuple(filter(None, column))[:_SHOWN_CELLS] for column in texts)
        read = sheet or next((one for one in table.sheets if table.name.endswith(f" [{one}]")), None)
        return FoundTable(table.headers, cells, table.format, table.sheets, read)


def safe_name(name: str) -> str:
    """Return a browser's file name as one that any system takes: no folders, no signs, short, composed letters."""
    last = unicodedata.normalize("NFC", name).replace("\\", "/").rpartition("/")[2]
    plain = Path(_UNSAFE.sub("_", last).strip(". ") or "list")
    stem = plain.stem.encode()[:_NAME_BYTES].decode(errors="ignore").rstrip(". ")
    return f"{stem}{plain.suffix[:12]}"


@contextmanager
def open_desk(reference: Mapping[str, Any], status: StatusOptions) -> Iterator[LocalDesk]:
    """Yield a desk in a new private folder of the state directory; delete it at the end, and those of killed runs."""
    home = state_directory() / "app"
    make_folders(home)
    for lock in home.glob("*.lock"):
        with suppress(OSError):  # Windows keeps an open file
            remove_unless_locked(lock)
        if not lock.exists():
            shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
    folder = home / secrets.token_hex(8)
    descriptor = create_private(folder.with_suffix(".lock"))
    lock_file(descriptor)
    try:
        folder.mkdir(mode=0o700)
        yield LocalDesk(folder, reference, status)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)
        folder.with_suffix(".lock").unlink(missing_ok=True)
