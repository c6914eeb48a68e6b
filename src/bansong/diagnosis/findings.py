"""Findings, and checks that make them; a check that raises is a finding itself, in the words of its error."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Literal

from polars.exceptions import PanicException

from bansong.errors import BansongError
from bansong.library_messages import describe_os_error
from bansong.translation import gettext

Level = Literal["ok", "note", "warning", "error"]
"""``note``: an option that is not used; ``warning``: look at it; ``error``: a run would break."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found out about one thing: ``said`` describes it, ``remedy`` is what to do, if anything."""

    what: str
    level: Level
    said: str
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All findings, in the order in which they were made."""

    findings: tuple[Finding, ...]

    @property
    def exit_code(self) -> int:
        """0, or 2 where a run would break."""
        return 2 if any(finding.level == "error" for finding in self.findings) else 0

    def as_dict(self) -> dict[str, object]:
        """The findings as plain values for JSON."""
        return {"exit_code": self.exit_code, "findings": [asdict(finding) for finding in self.findings]}


def findings_of(what: str, check: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """Return the findings of a check, and its error as the last; what is no error of ours is told, too."""
    try:
        yield from check()
    except BansongError as error:
        yield Finding(what, "error", str(error))
    except OSError as error:
        place = f"{os.fsdecode(error.filename)}: " if error.filename is not None else ""
        remedy = gettext("let it be read by the user who runs bansong, or name another place")
        yield Finding(
            what,
            "error",
            gettext(
                "{place}cannot be looked at: {value}",
                place=place,
                value=describe_os_error(error),
            ),
            remedy,
        )
    except (Exception, PanicException) as error:  # a text of others might hold anything, a key too
        said = gettext("cannot be looked at: {name}, which is a defect of bansong", name=type(error).__name__)
        yield Finding(what, "error", said, gettext("please report it, with the versions above"))
