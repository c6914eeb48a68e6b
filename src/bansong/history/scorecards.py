"""The store of learned scorecards: files, journal, promotion and rollback."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import msgspec
import polars as pl

from bansong.base.errors import ModelError, Problem
from bansong.base.files import make_folders, open_private, state_directory
from bansong.base.messages import Option, Phrase, current_language, describe_os_error, gettext
from bansong.base.publish import publish_file
from bansong.base.schema import GRADES
from bansong.engine.risk.reasons import FEATURES
from bansong.engine.risk.scorecard import Level, Scorecard, check_scorecard
from bansong.tables.streams import refuse_url

JOURNAL_DAMAGED: Final = Problem(
    "models.journal_damaged",
    "{path}: line {place} is damaged, so it is not known which scorecard answers; restore the file from a "
    "backup or take the line out; until then, `model='builtin'` or a scorecard file answers",
)
JOURNAL_UNREADABLE: Final = Problem(
    "models.journal_unreadable",
    "{path}: the journal of the scorecards cannot be read: {reason}; let it be read by the user who runs "
    "bansong, or name another place",
)
JOURNAL_UNWRITABLE: Final = Problem(
    "models.journal_unwritable", "{path}: the journal of the scorecards cannot be written: {reason}"
)

PROMOTED: Final = "promoted"
ROLLED_BACK: Final = "rolled_back"
DECIDING: Final = (PROMOTED, ROLLED_BACK)  # kinds of events that change the champion; other events are notes
_OWN: Final = ("at", "kind", "version")


@dataclass(frozen=True, slots=True)
class Event:
    """An entry of the journal."""

    at: datetime
    kind: str  # promoted, rolled_back, or a note: refused, quarantined, …
    version: str | None  # of the scorecard that the event is about, if any
    data: Mapping[str, Any]  # other fields: e_value, labels, …

    def as_dict(self) -> dict[str, object]:
        return {"at": self.at.isoformat(), "kind": self.kind, "version": self.version, **self.data}


def read_events(path: Path) -> list[Event]:
    """Read all events, the oldest first; an incomplete last line (after a crash) is ignored."""
    # any other unreadable line is an error, since it may have changed the champion
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):  # nothing was ever promoted
        return []
    except OSError as error:
        raise ModelError(JOURNAL_UNREADABLE, path=path, reason=describe_os_error(error)) from error
    *whole, last = content.split(b"\n")
    events = [_parse_event(line) for line in whole]
    if None in events:
        raise ModelError(JOURNAL_DAMAGED, path=path, place=events.index(None) + 1)
    return [event for event in (*events, _parse_event(last)) if event is not None]


def append_event(path: Path, kind: str, version: str | None, data: Mapping[str, Any]) -> None:
    """Append an event durably and remove an incomplete last line; the caller must hold the store's lock."""
    own = {"at": datetime.now(UTC).isoformat(), "kind": kind, "version": version}
    record = own | {name: value for name, value in data.items() if name not in _OWN}
    line = json.dumps(record, ensure_ascii=False, default=str).encode("utf-8", "backslashreplace")
    try:
        descriptor = open_private(path)
        with os.fdopen(descriptor, "r+b") as file:
            content = file.read()
            cut = content.rfind(b"\n") + 1
            start = b"\n" if _parse_event(content[cut:]) is not None else b""  # only the line end is missing
            file.seek(len(content) if start else cut)
            file.truncate()
            file.write(start + line + b"\n")
            file.flush()
            os.fsync(descriptor)
    except OSError as error:
        raise ModelError(JOURNAL_UNWRITABLE, path=path, reason=describe_os_error(error)) from error


def _parse_event(line: bytes) -> Event | None:
    """Parse a line; ``None`` if it is incomplete, or no event."""
    try:
        record = json.loads(line)
        at, kind, version = datetime.fromisoformat(record["at"]), record["kind"], record["version"]
    except (ValueError, TypeError, KeyError):
        return None
    if not isinstance(kind, str) or not isinstance(version, str | None) or at.tzinfo is None:
        return None
    return Event(at, kind, version, {name: value for name, value in record.items() if name not in _OWN})


BASE: Final = "base"
_TEXTS: Final = ("en", "ko", "source", "always")


@dataclass(frozen=True, slots=True)
class ScorecardDifference:
    """A value that differs between two scorecards."""

    what: str  # name of the value, as "status.active points"
    a: object  # value in the first scorecard
    b: object  # value in the second one

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def add_missing_levels(card: Scorecard, builtin: Scorecard) -> tuple[Scorecard, tuple[str, ...]]:
    """Add to a learned scorecard of an older release the levels that it lacks; return it, and their names."""
    missing = [
        (feature, level)
        for feature, levels in FEATURES.items()
        for level in levels
        if level not in card.features.get(feature, {})
    ]
    if not missing:
        return card, ()
    features = {feature: dict(levels) for feature, levels in card.features.items()}
    for feature, level in missing:
        features.setdefault(feature, {})[level] = builtin.features[feature][level]
    return msgspec.structs.replace(card, features=features), tuple(".".join(place) for place in missing)


def differences(a: Scorecard, b: Scorecard) -> list[ScorecardDifference]:
    """Return the differences of two scorecards: points first, then grades, ceiling and actions, then texts."""
    ours, theirs = dict(levels_of(a)), dict(levels_of(b))
    shared = [name for name in ours if name in theirs]
    points = [(f"{name} points", ours[name].points, theirs[name].points) for name in shared]
    whole = [(name, getattr(a, name), getattr(b, name)) for name in ("ceiling", "points_to_double", "stale_after")]
    cuts = [(f"grade {grade} up to", a.grades.get(grade), b.grades.get(grade)) for grade in GRADES[:-1]]
    acts = [
        (f"actions {name}", getattr(a.actions, name), getattr(b.actions, name))
        for name in (*GRADES, "repair_from", "repair_features")
    ]
    texts = [
        (f"{name} {field}", getattr(ours[name], field), getattr(theirs[name], field))
        for name in shared
        for field in _TEXTS
    ]
    return [ScorecardDifference(*found) for found in (*points, *whole, *cuts, *acts, *texts) if found[1] != found[2]]


def points_table(card: Scorecard, beside: Scorecard) -> pl.DataFrame:
    """Return the points of two scorecards side by side: one row for each level, the base first."""
    others, lang = dict(levels_of(beside)), current_language()
    rows = [
        (name, level.points, others[name].points if name in others else None, level.source, getattr(level, lang))
        for name, level in levels_of(card)
    ]
    schema = {"level": pl.String, "points": pl.Int32, "beside": pl.Int32, "source": pl.String, "text": pl.String}
    return pl.DataFrame(rows, schema=schema, orient="row")


def levels_of(card: Scorecard) -> Iterator[tuple[str, Level]]:
    """Yield the base and all levels of a scorecard by name (``status.active``)."""
    yield BASE, card.base
    yield from (
        (f"{feature}.{name}", level) for feature, levels in card.features.items() for name, level in levels.items()
    )


SCORECARD_UNKNOWN: Final = Problem(
    "models.scorecard_unknown", "{name}: is neither a scorecard file nor a version that is stored; {list_versions}"
)
SCORECARD_FILE_MISSING: Final = Problem("models.scorecard_file_missing", "{name}: there is no such scorecard file")
VERSION_NOT_STORED: Final = Problem(
    "models.version_not_stored", "{wanted}: no scorecard of that version is stored; {list_versions}"
)
JOURNAL_MISSING: Final = Problem(
    "models.journal_missing",
    "{path}: the journal is missing, so it is not known whether {stem} answers; restore it from a "
    "backup, or begin a new one with `bansong model rollback {builtin}`",
)
VERSION_INVALID: Final = Problem(
    "models.version_invalid", "{version!r} cannot be a version: letters, digits and . _ + - only, not {builtin!r}"
)
VERSION_EXISTS: Final = Problem("models.version_exists", "{file}: this version exists already, and is never changed")
PARENT_REPLACED: Final = Problem(
    "models.parent_replaced",
    "{version} was learned to replace {parent}, but {answering} answers by now; learn again with `bansong calibrate`",
)
NOTHING_TO_RESTORE: Final = Problem(
    "models.nothing_to_restore", "there is nothing to go back to: the built-in scorecard answers; {list_versions}"
)
ALREADY_ANSWERING: Final = Problem(
    "models.already_answering", "{wanted}: is the scorecard that answers already; {list_versions}"
)
SCORECARD_CHANGED: Final = Problem(
    "models.scorecard_changed", "it is not what was promoted, somebody or something changed it"
)
SCORECARD_UNUSABLE: Final = Problem(
    "models.scorecard_unusable", "{path}: the scorecard {version} cannot be used: {reason}; {remedy}"
)
STORE_BUSY: Final = Problem(
    "models.store_busy", "{folder}: another process is changing the scorecards; try again later"
)
STORE_UNWRITABLE: Final = Problem("models.store_unwritable", "{folder}: scorecards cannot be kept here: {reason}")

BUILTIN: Final = "builtin"  # another name of the scorecard of this release
_JOURNAL: Final = "journal.jsonl"
# can be a file name everywhere; Windows reserves some names with any suffix
_VERSION: Final = re.compile(r"(?!(?i:con|prn|aux|nul|com\d|lpt\d)(?:\.|$))[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")
_WAIT: Final = 10.0
_SINCE: Final = "release"  # field of a promotion: version of the built-in scorecard at that time


@dataclass(frozen=True, slots=True)
class StoredScorecard:
    """A scorecard read from the store."""

    card: Scorecard
    added: tuple[str, ...] = ()  # levels that its file lacks, taken from the built-in scorecard
    release: str | None = None  # version of the built-in scorecard when it was promoted, if recorded


class ModelStore:
    """A folder of scorecards (``<version>.toml``, never changed) and their journal; by default ``models/``."""

    # reading takes no lock; writing waits up to ten seconds for another process

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = Path(folder) if folder is not None else state_directory() / "models"

    @property
    def path(self) -> Path:
        return self.folder / _JOURNAL

    def champion(self) -> Scorecard:
        """Return the scorecard in use; raise :class:`ModelError` if its file is missing or was changed."""
        return self.load_stored(None).card

    def champion_version(self) -> str:
        return _succession(self.history())[-1]

    def load(self, version: str) -> Scorecard:
        return self.load_stored(version).card

    def load_stored(self, version: str | None) -> StoredScorecard:
        """Return the scorecard of a version (``None``: the one in use), and facts of its promotion."""
        events = self.history()
        champion = _succession(events)[-1]
        wanted = champion if version is None else version
        if wanted in (BUILTIN, Scorecard.load().version) and wanted not in _promotions(events):
            return StoredScorecard(Scorecard.load(), release=Scorecard.load().version)
        if wanted not in _promotions(events):
            raise ModelError(VERSION_NOT_STORED, wanted=wanted, list_versions=_list_versions(events))
        return self._read(wanted, _promotions(events)[wanted], champion)

    def versions(self) -> list[str]:
        return list(_promotions(self.history()))

    def history(self) -> list[Event]:
        """Return the events of the journal, the oldest first; raise :class:`ModelError` if it is damaged or gone."""
        orphan = next(self.folder.glob("*.toml"), None)
        if orphan is not None and not self.path.exists():  # last: other processes make the journal first
            raise ModelError(JOURNAL_MISSING, path=self.path, stem=orphan.stem, builtin=BUILTIN)
        return read_events(self.path)

    def promote(self, card: Scorecard, event: Mapping[str, Any]) -> None:
        """Put a scorecard into use; refuse an existing version, or one learned from a scorecard no longer in use."""
        if not _VERSION.fullmatch(card.version) or card.version == BUILTIN:
            raise ModelError(VERSION_INVALID, version=card.version, builtin=BUILTIN)
        builtin, text = Scorecard.load(), card.to_toml()
        with self._lock():
            events = self.history()
            known = {version.casefold() for version in (*_promotions(events), builtin.version)}
            if card.version.casefold() in known:  # file systems may ignore case
                raise ModelError(VERSION_EXISTS, file=self._file(card.version))
            champion = _succession(events)[-1]
            answering = builtin.version if champion == BUILTIN else champion
            if card.learned is not None and card.learned.parent != answering:
                raise ModelError(PARENT_REPLACED, version=card.version, parent=card.learned.parent, answering=answering)
            if not events:
                self.path.touch(mode=0o600)  # before the file: a file without a journal means a lost journal
            with publish_file(self._file(card.version)) as temporary:
                temporary.write_text(text, encoding="utf-8")
            own = {"sha256": _digest(text.encode()), _SINCE: builtin.version, "replaced": answering}
            append_event(self.path, PROMOTED, card.version, {**event, **own})

    def note(self, kind: str, event: Mapping[str, Any]) -> None:
        """Record an event that does not change the scorecard in use: ``refused``, ``quarantined``, ``released``, …"""
        if kind in DECIDING:
            raise ValueError(gettext("{kind!r} changes the champion; use promote() or rollback()", kind=kind))
        version = event.get("version")
        with self._lock():
            self.history()
            append_event(self.path, kind, None if version is None else str(version), event)

    def rollback(self, to: str | None = None) -> Scorecard:
        """Put an earlier scorecard into use again: a version or ``builtin``, by default the previous one."""
        with self._lock():
            lost = to == BUILTIN and not self.path.exists()
            events = [] if lost else self.history()
            line = _succession(events)
            if to is None and len(line) == 1:
                raise ModelError(NOTHING_TO_RESTORE, list_versions=_list_versions(events))
            wanted = line[-2] if to is None else to
            wanted = BUILTIN if wanted == Scorecard.load().version and wanted not in _promotions(events) else wanted
            if wanted == line[-1] and not lost:
                raise ModelError(ALREADY_ANSWERING, wanted=wanted, list_versions=_list_versions(events))
            card = Scorecard.load() if wanted == BUILTIN else self.load(wanted)
            append_event(self.path, ROLLED_BACK, wanted, {"replaced": line[-1]})
        return card

    def _file(self, version: str) -> Path:
        return self.folder / f"{version}.toml"

    def _read(self, version: str, promoted: Event, champion: str) -> StoredScorecard:
        path = self._file(version)
        remedy = Phrase("restore it from a backup")
        if version == champion:
            remedy = Phrase(
                "`bansong model rollback` lets the one before it answer, {option} the built-in one",
                option=Option("model", BUILTIN),
            )
        try:
            content = path.read_bytes()
            if _digest(content) != promoted.data.get("sha256"):
                raise ModelError(SCORECARD_CHANGED)
            card, added = _parse_scorecard(content, version)
            return StoredScorecard(card, added, promoted.data.get(_SINCE))
        except (OSError, ModelError, UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
            reason = describe_os_error(error) if isinstance(error, OSError) else error
            raise ModelError(SCORECARD_UNUSABLE, path=path, version=version, reason=reason, remedy=remedy) from error

    @contextmanager
    def _lock(self) -> Iterator[None]:
        from filelock import FileLock, Timeout

        try:
            make_folders(self.folder)
            lock = FileLock(self.folder / "journal.lock", timeout=_WAIT, mode=0o600)
            lock.acquire()
        except Timeout as error:
            raise ModelError(STORE_BUSY, folder=self.folder) from error
        except OSError as error:
            raise ModelError(STORE_UNWRITABLE, folder=self.folder, reason=describe_os_error(error)) from error
        try:
            yield
        finally:
            lock.release()


def resolve_model(model: str | Path | Scorecard | None, store: ModelStore | None = None) -> Scorecard:
    """Find a scorecard: ``builtin``, a file, or a stored version, in this order; ``None``: the one in use."""
    if isinstance(model, Scorecard):
        return model
    store = store or ModelStore()
    if model is None:
        return store.champion()
    name = str(model)
    if name == BUILTIN:
        return Scorecard.load()
    with suppress(OSError, ValueError):  # the name is too long for a file, or contains NUL
        if Path(name).exists() and not Path(name).is_dir():
            return Scorecard.load(name)
    if os.sep in name or name.endswith(".toml"):
        refuse_url(Path(name), ModelError)
        raise ModelError(SCORECARD_FILE_MISSING, name=name)
    events = store.history()
    if name in (*_promotions(events), Scorecard.load().version):
        return store.load(name)
    raise ModelError(SCORECARD_UNKNOWN, name=name, list_versions=_list_versions(events))


def candidate_scorecards(version: str | None) -> list[Scorecard]:
    """Return the stored scorecard of a version, else all scorecards: the built-in one and the stored ones."""
    store = ModelStore()
    if version is not None:
        with suppress(ModelError):  # the version of a scorecard file, given with `model`
            return [store.load(version)]
    return [Scorecard.load(), *(store.load(known) for known in store.versions())]


def _promotions(events: Sequence[Event]) -> dict[str, Event]:
    return {event.version: event for event in events if event.kind == PROMOTED and event.version is not None}


def _succession(events: Sequence[Event]) -> list[str]:
    line = [BUILTIN]
    for event in events:
        if event.kind not in DECIDING or event.version is None:
            continue
        if event.kind == ROLLED_BACK and event.version in line:
            del line[line.index(event.version) + 1 :]
        else:
            line.append(event.version)
    return line


def _list_versions(events: Sequence[Event]) -> Phrase:
    versions = ", ".join(_promotions(events)) or Phrase("none")
    return Phrase(
        "stored versions: {versions}; {builtin} is the one of this release, {version}",
        versions=versions,
        builtin=BUILTIN,
        version=Scorecard.load().version,
    )


@lru_cache(maxsize=8)  # single verifications in a loop read the same scorecard each time
def _parse_scorecard(content: bytes, version: str) -> tuple[Scorecard, tuple[str, ...]]:
    card, added = add_missing_levels(msgspec.convert(tomllib.loads(content.decode()), Scorecard), Scorecard.load())
    return check_scorecard(card, version), added


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
