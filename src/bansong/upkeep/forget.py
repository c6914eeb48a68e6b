"""Erase business numbers from every store on this machine, and report what is out of reach."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from bansong.base import business_number
from bansong.base.after_fork import refuse_after_fork
from bansong.base.display import Shown
from bansong.base.errors import Problem, StoreError, UsageError
from bansong.base.files import list_folder, state_directory
from bansong.base.messages import Option, describe_os_error, gettext, gettext_noop, gettext_noops, ngettext
from bansong.base.sqlite import rewrite_file
from bansong.history.labels import LabelStore
from bansong.jobs.state import RunStore, state_folder
from bansong.purchase.ledger import Ledger, explain_unsettled
from bansong.purchase.ledger_file import LEDGER_FILE
from bansong.reference.reviews import CHOICE_FILE, ChoiceStore
from bansong.reference.status_store import STATUS_FILE, StatusStore
from bansong.watch import store as watch_forget
from bansong.watch.store import WATCH_FILE, LocalFile, alone

PLACE_UNREADABLE: Final = Problem(
    "forget.place_unreadable", "{path}: cannot be looked at: {why}; nothing was erased: make it readable, and try again"
)
NUMBER_NOT_GIVEN: Final = Problem("forget.number_not_given", "no business number was given")
PLACE_MISSING: Final = Problem("forget.place_missing", "{path}: does not exist; check {option}")

_PAID: Final = gettext_noop("paid answers")
# marked for translation: stores, kinds of rows, places out of reach
_NAMES: Final = (
    *gettext_noops("ledger", "label store", "watch list", "status store", "chosen addresses", "job", "server"),
    *gettext_noops(
        "letters", "statuses", "choices", "outputs", "reference", "closures", "scorecards", "service", "written"
    ),
    *gettext_noops("answers", "notifications", "summaries", "results of jobs", "records of jobs"),
)
OUT_OF_REACH: Final = {
    "outputs": gettext_noop(
        "files that were read or written, their backups (.bak), exports of a server's keys: delete them, or the row "
        "in them"
    ),
    "written": gettext_noop(
        "digests of the rows of outputs, in `written` of the state directory: no number is found in them; to be sure, "
        "delete the folder: the next runs then do not know what people decided in their outputs"
    ),
    "reference": gettext_noop("registries, and statuses written to files: build them again without the number"),
    "closures": gettext_noop(
        "files and receivers that were told of closures (`notify=`, `webhook=`, `notices=`), and logs"
    ),
    "scorecards": gettext_noop("points learned from letters: sums over many, in which no business can be told apart"),
    "service": gettext_noop(
        "what was sent to the hosted service: take watches off with `bansong watch remove`, and ask it to erase "
        "lookups, uploads and labels"
    ),
}


@dataclass(frozen=True, slots=True)
class StoreHoldings:
    """Records of business numbers in one store."""

    store: str
    path: str
    counts: Mapping[str, int]  # rows by kind
    unsettled: tuple[str, ...] = ()  # ids of lookups to settle first
    files: tuple[str, ...] = ()  # names of files with a number


@dataclass(frozen=True, slots=True)
class ErasureReport(Shown):
    """The report of erasing ``numbers``: counts of rows that were erased, or would be (``erased`` is false).

    ``manifests``: paths of manifests that name a number. ``unreachable``: :data:`OUT_OF_REACH`.
    """

    numbers: tuple[str, ...]
    stores: tuple[StoreHoldings, ...]
    manifests: tuple[str, ...]
    unreachable: Mapping[str, str]
    erased: bool

    @property
    def paid_answers(self) -> int:
        """Number of erased paid answers; their lookups cost again if they are needed again."""
        return sum(store.counts.get(_PAID, 0) for store in self.stores)

    @property
    def unsettled(self) -> tuple[str, ...]:
        """Ids of lookups and uploads to settle first, as in ``bansong resolve``."""
        return tuple(id for store in self.stores for id in store.unsettled)

    @property
    def files(self) -> tuple[str, ...]:
        """Input files of runs and mailings that contained a number."""
        return tuple(dict.fromkeys(file for store in self.stores for file in store.files))

    def as_dict(self) -> dict[str, object]:
        more = {"paid_answers": self.paid_answers, "unsettled": self.unsettled, "files": self.files}
        return asdict(self) | more

    def _describe(self) -> list[tuple[str, str]]:
        done = gettext("erased") if self.erased else gettext("to be erased")
        if not any(count for store in self.stores for count in store.counts.values()):
            done = gettext("stored nowhere")
        found = [(done, ", ".join(map(business_number.format, self.numbers)))]
        for store in self.stores:
            held = ", ".join(f"{gettext(what)} {count:,}" for what, count in store.counts.items() if count)
            held = held or gettext("nothing")
            found.append((gettext(store.store), f"{held} ({store.path})"))
        if self.paid_answers:
            again = gettext("paid again if needed again, since the answer is gone")
            lookups = ngettext("{count:,} lookup", "{count:,} lookups", self.paid_answers)
            found.append((gettext("attention"), f"{lookups}: {again}"))
        if self.unsettled:
            found.append((gettext("in the way"), explain_unsettled(self.unsettled)))
        places = [(gettext(what), gettext(why)) for what, why in self.unreachable.items()]
        places += [(gettext("known file"), file) for file in self.files]
        manifest, named = gettext("manifest"), gettext_noop("{path} names the number: delete it")
        places += [(manifest, gettext(named, path=path)) for path in self.manifests]
        return [*found, (gettext("out of reach"), ""), *((f"  {what}", text) for what, text in places)]


def forget(
    b_no: str | int | Iterable[str | int],
    *,
    dry_run: bool = False,
    ledger: str | Path | None = None,
    labels: str | Path | None = None,
    local: str | Path | None = None,
    status_store: str | Path | None = None,
    db: Iterable[str | Path] = (),
) -> ErasureReport:
    """Erase business numbers from all stores: ledger, labels, local watch list, statuses, choices, jobs, servers.

    A store without a path is the user's default; ``local``: database of the watch list; ``db``: those of servers,
    which must be stopped. With ``dry_run`` nothing is erased. All stores are opened and checked before anything is
    erased; after an error, call it again. Paid answers are erased, too, so the same lookup costs again.

    Raises :class:`~bansong.errors.NumberError`; :class:`UsageError` for a named store that does not exist, or unsettled
    lookups, which may have been paid; :class:`~bansong.errors.BansongError` of a store that is in use or damaged.
    """
    refuse_after_fork()
    given = [b_no] if isinstance(b_no, str | int) else list(b_no)
    numbers = tuple(dict.fromkeys(map(business_number.compact, given)))
    if not numbers:
        raise UsageError(NUMBER_NOT_GIVEN)
    with ExitStack() as stack:
        own = [open_(path) for open_, path in _own_stores(ledger, labels, local, status_store)]
        opened = [stack.enter_context(store) for store in (*own, *map(_open_server, db))]
        stores, manifests = tuple(store.look(numbers) for store in opened), _manifests(numbers)
        if not dry_run:
            for store in opened:  # the ledger is first, since it refuses unsettled lookups
                store.erase(numbers)
    return ErasureReport(numbers, stores, manifests, OUT_OF_REACH, not dry_run)


@dataclass(frozen=True, slots=True)
class _OpenStore:
    look: Callable[[Sequence[str]], StoreHoldings]
    erase: Callable[[Sequence[str]], None]


_Opener = Callable[[Path], AbstractContextManager[_OpenStore]]


def _own_stores(
    ledger: str | Path | None, labels: str | Path | None, local: str | Path | None, status_store: str | Path | None
) -> list[tuple[_Opener, Path]]:
    folder = LabelStore(None if labels is None else Path(labels)).folder
    stores: list[tuple[str, object, Path, _Opener]] = [
        ("ledger", ledger, LEDGER_FILE.find(ledger), _open_ledger),
        ("labels", labels, folder, _open_labels),
        ("local", local, WATCH_FILE.find(local), _open_watches),
        ("status_store", status_store, STATUS_FILE.find(status_store), _open_statuses),
        ("choices", None, CHOICE_FILE.find(None), _open_choices),
    ]
    for name, given, path, _ in stores:
        if given is not None:
            _check_named(name, path)
    found = [(open_, path) for _, _, path, open_ in stores if _is_there(path)]
    return [*found, *((_open_job, path) for path in _files_in(state_folder(), ".sqlite"))]


def _files_in(folder: Path, suffix: str) -> list[Path]:
    try:
        return [path for path in list_folder(folder) if path.suffix == suffix]
    except OSError as error:
        raise _unreadable(folder, error) from error


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> StoreError:
    return StoreError(PLACE_UNREADABLE, path=path, why=describe_os_error(error))


def _check_named(name: str, path: str | Path) -> None:
    if not _is_there(Path(path)):
        raise UsageError(PLACE_MISSING, path=path, option=Option(name))


@contextmanager
def _open_ledger(path: Path) -> Iterator[_OpenStore]:
    with Ledger.open(path) as ledger:

        def look(numbers: Sequence[str]) -> StoreHoldings:
            found = [ledger.holdings(b_no) for b_no in numbers]
            unsettled = dict.fromkeys(id for held in found for id in held.unsettled)
            files = dict.fromkeys(file for held in found for file in held.files)
            counts = _sum_counts(held.counts for held in found)
            return StoreHoldings("ledger", str(path), counts, tuple(unsettled), tuple(files))

        yield _OpenStore(look, ledger.erase)


@contextmanager
def _open_labels(path: Path) -> Iterator[_OpenStore]:
    store = LabelStore(path)

    def look(numbers: Sequence[str]) -> StoreHoldings:
        held = store.holdings(numbers)
        files = tuple(mailing.about.file for mailing in store.mailings() if mailing.path in held)
        return StoreHoldings("label store", str(path), {"letters": sum(held.values())}, files=files)

    yield _OpenStore(look, store.erase)


@contextmanager
def _open_watches(path: Path) -> Iterator[_OpenStore]:
    with alone(path), LocalFile(path, create=False) as file:

        def look(numbers: Sequence[str]) -> StoreHoldings:
            with file.reading() as db:
                counts = _sum_counts(watch_forget.holdings(db, b_no) for b_no in numbers)
            return StoreHoldings("watch list", str(path), counts)

        def erase(numbers: Sequence[str]) -> None:
            with file.writing() as db:
                for b_no in numbers:
                    watch_forget.erase(db, b_no)
            with WATCH_FILE.errors(path):
                rewrite_file(file.connection)

        yield _OpenStore(look, erase)


@contextmanager
def _open_statuses(path: Path) -> Iterator[_OpenStore]:
    with StatusStore(path) as store:
        yield _keyed_by_number("status store", path, "statuses", store)


@contextmanager
def _open_choices(path: Path) -> Iterator[_OpenStore]:
    yield _keyed_by_number("chosen addresses", path, "choices", ChoiceStore(path))


def _keyed_by_number(name: str, path: Path, kind: str, store: StatusStore | ChoiceStore) -> _OpenStore:
    def look(numbers: Sequence[str]) -> StoreHoldings:
        return StoreHoldings(name, str(path), {kind: sum(store.holdings(int(b_no)) for b_no in numbers)})

    def erase(numbers: Sequence[str]) -> None:
        store.forget(*map(int, numbers))

    return _OpenStore(look, erase)


@contextmanager
def _open_job(path: Path) -> Iterator[_OpenStore]:
    with RunStore.alone(path) as store:
        yield _OpenStore(lambda numbers: StoreHoldings("job", str(path), store.holdings(numbers)), store.erase)


@contextmanager
def _open_server(path: str | Path) -> Iterator[_OpenStore]:
    from bansong.server.erasure import open_stopped_server

    _check_named("db", path)
    with open_stopped_server(Path(path)) as server:
        yield _OpenStore(lambda numbers: StoreHoldings("server", str(path), server.holdings(numbers)), server.erase)


def _sum_counts(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for one in counts:
        found.update(one)
    return dict(found)


def _manifests(numbers: Sequence[str]) -> tuple[str, ...]:
    spellings = [spelling for b_no in numbers for spelling in (b_no, business_number.format(b_no))]
    paths = _files_in(state_directory() / "runs", ".json")
    try:
        texts = {path: path.read_text(encoding="utf-8", errors="replace") for path in paths}
    except OSError as error:
        raise _unreadable(Path(error.filename or paths[0].parent), error) from error
    return tuple(str(path) for path, text in texts.items() if any(spelling in text for spelling in spellings))
