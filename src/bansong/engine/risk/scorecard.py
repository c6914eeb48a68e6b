"""The scorecard: points, texts, grades and actions in a readable file."""

from __future__ import annotations

import tomllib
from datetime import datetime
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
import polars as pl
import tomli_w

from bansong.engine.risk.assess import assess
from bansong.engine.risk.features import STALE_AFTER, Levels
from bansong.engine.risk.reason_texts import StatusOrigin
from bansong.engine.risk.scorecard_checks import find_faults, find_misfit_of_grades, find_misfits
from bansong.errors import ModelError, Problem
from bansong.library_messages import describe_library_error
from bansong.schema import Lang
from bansong.translation import gettext

SCORECARD_UNREADABLE: Final = Problem("scorecard.scorecard_unreadable", "{path}: the scorecard cannot be read: {error}")
SCORECARD_NOT_TOML: Final = Problem("scorecard.scorecard_not_toml", "{name}: the scorecard is not TOML: {error}")

Points = Annotated[int, msgspec.Meta(ge=-500, le=500)]
Source = Literal["nts", "registry", "juso", "postal", "number", "file", "label", "model"]
Action = Literal["send", "fix_address", "confirm", "hold", "do_not_send"]
Grade = Literal["A", "B", "C", "D", "E"]


class Level(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The points of one level of a feature and the texts of its reason."""

    points: Points
    source: Source
    en: str
    ko: str
    always: bool = False


class Actions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The action of each grade, and when an address is to be repaired instead."""

    A: Action
    B: Action
    C: Action
    D: Action
    E: Action
    repair_from: Grade
    repair_features: list[str]


class Learned(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a learned scorecard comes from.

    ``parent`` is the version that it replaced, ``labels`` and ``bounced`` the mailed rows it was fitted to, ``e_value``
    the evidence at its promotion, ``false_bounces`` the share of wrong bounces that was estimated beside the points.
    """

    parent: str
    at: datetime
    labels: Annotated[int, msgspec.Meta(ge=0)]
    bounced: Annotated[int, msgspec.Meta(ge=0)]
    e_value: Annotated[float, msgspec.Meta(ge=0)]
    false_bounces: Annotated[float, msgspec.Meta(ge=0, le=1)]


class Scorecard(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A scorecard as its file holds it; see ``scorecard.toml`` for what each field means."""

    version: str
    points_to_double: Annotated[int, msgspec.Meta(ge=1, le=100)]
    ceiling: Annotated[float, msgspec.Meta(gt=0, le=1)]
    base: Level
    grades: dict[Grade, Points]
    actions: Actions
    features: dict[str, dict[str, Level]]
    learned: Learned | None = None
    stale_after: Annotated[int, msgspec.Meta(ge=1, le=3650)] = STALE_AFTER

    def __hash__(self) -> int:
        return hash(self.version)  # its fields hold dictionaries; equal cards have equal versions

    @classmethod
    def load(cls, path: str | Path | None = None) -> Scorecard:
        """Read a scorecard, the built-in one without ``path``; raise :class:`ModelError` naming file and field."""
        if path is None:
            return _built_in()
        try:
            return cls.parse(Path(path).read_text(encoding="utf-8-sig"), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise ModelError(SCORECARD_UNREADABLE, path=path, error=error) from error

    @classmethod
    def parse(cls, text: str, name: str | None = None) -> Scorecard:
        """Read the text of a scorecard file; raise :class:`ModelError` naming ``name``, the field and the remedy."""
        try:
            name = name or gettext("the scorecard")
            given = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ModelError(SCORECARD_NOT_TOML, name=name, error=describe_library_error(error)) from error
        faults_of_shape = [*find_misfits(given, cls, _PARTS), find_misfit_of_grades(given.get("grades"), Points)]
        for fault in filter(None, faults_of_shape):
            raise ModelError(f"{name}: {fault}")
        return check_scorecard(msgspec.convert(given, cls), name)

    def to_toml(self) -> str:
        """Return the text of a file that :meth:`load` reads as an equal scorecard."""
        fields = msgspec.to_builtins(self, builtin_types=(datetime,))
        return tomli_w.dumps({name: value for name, value in fields.items() if value is not None})

    def assess(
        self,
        frame: pl.LazyFrame,
        levels: dict[str, Levels],
        lang: Lang,
        origin: StatusOrigin | None = None,
        *,
        every_row: bool = False,
    ) -> pl.LazyFrame:
        """Add score, probability, grade, action and reasons (text) to a frame that has the features' columns.

        Risk needs a readable address. Without one there are no probability and grade, the action is ``fix_address``
        if a name or a (masked) address was given, and the reasons tell what is known all the same. The frame may be
        streamed: a batch is worked out by itself. ``origin``: given where the tax authority itself may have told
        statuses; the frame has the columns of :data:`~bansong.engine.risk.reason_texts.BY_NTS` then. ``every_row``:
        a row with neither name nor address is asked about, too: its action is ``fix_address``.
        """
        return assess(self, frame, levels, lang, origin, every_row=every_row)

    def probability(self, score: int) -> float:
        """Return the bounce probability of a score, rounded as it is written."""
        doublings = min(-score / self.points_to_double, 1000.0)  # beyond, the number of odds has no float
        return round(float(self.ceiling / (1 + 2**doublings)), 4)


# msgspec works out a type when it is first read, and crashes the process where two threads do so at once: it is done
# here, while the module is imported, which one thread does alone
msgspec.json.Decoder(Scorecard)

_PARTS: Final = {"base": Level, "actions": Actions, "learned": Learned, "features": Level}


def check_scorecard(card: Scorecard, name: str) -> Scorecard:
    """Return a scorecard that holds together, called ``name``; raise :class:`ModelError` naming field and remedy."""
    for fault in find_faults(card, _built_in()):
        raise ModelError(f"{name}: {fault}")
    return card


@cache
def _built_in() -> Scorecard:
    """The scorecard of this release. It is not checked here, which would take 25 ms: a test does it."""
    text = files("bansong.engine.risk").joinpath("scorecard.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), Scorecard)
