"""Findings of checks; an exception of a check is a finding, too."""

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
"""``note``: not used; ``warning``: worth a look; ``error``: a run would fail."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding: ``said`` describes it, ``remedy`` is what to do, if anything."""

    what: str
    level: Level
    said: str
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All findings in order."""

    findings: tuple[Finding, ...]

    @property
    def exit_code(self) -> int:
        """0, or 2 if a run would fail."""
        return 2 if any(finding.level == "error" for finding in self.findings) else 0

    def as_dict(self) -> dict[str, object]:
        return {"exit_code": self.exit_code, "findings": [asdict(finding) for finding in self.findings]}


def findings_of(what: str, check: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """Yield the findings of a check, then its exception, if any."""
    try:
        yield from check()
    except BansongError as error:
        yield Finding(what, "error", str(error))
    except OSError as error:
        place = f"{os.fsdecode(error.filename)}: " if error.filename is not None else ""
        remedy = gettext("let it be read by the user who runs bansong, or name another place")
        said = gettext(
            "{place}cannot be looked at: {value}",
            place=place,
            value=describe_os_error(error),
        )
        yield Finding(what, "error", said, remedy)
    except (Exception, PanicException) as error:  # a text of others might hold anything, a key too
        said = gettext("cannot be looked at: {name}, which is a defect of bansong", name=type(error).__name__)
        yield Finding(what, "error", said, gettext("please report it, with the versions above"))
