"""A folder with a scheduled job that runs night after night, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import bansong as bs
from bansong.base.schema import SEOUL
from bansong.jobs.run import run_job
from bansong.jobs.state import RunStore
from conftest import write

WORDS = {"active": "계속사업자", "suspended": "휴업자", "closed": "폐업자"}
FIRST_NIGHT = datetime(2026, 11, 20, 2, tzinfo=SEOUL).timestamp()
DAY = 86_400.0


@dataclass
class Nights:
    """A folder with a job that runs each night over ``in.csv`` with ``registry.parquet``; both change between."""

    folder: Path
    job: str = ""
    statuses: dict[str, str] = field(default_factory=dict)
    night: int = 0

    def write_job(self, text: str = "", inputs: str = 'path = "in.csv"', end: str = "") -> None:
        write(
            self.folder / "job.toml", f"{text}\n[[inputs]]\n{inputs}\n[reference]\nregistry = 'registry.parquet'\n{end}"
        )

    def write_inputs(self, rows: Sequence[str] | None = None) -> None:
        """Write the list of customers, and the registry of this night."""
        rows = list(self.statuses) if rows is None else rows
        lines = [f"{b_no},상사 {b_no},서울시 중구 세종대로 {int(b_no) % 97}" for b_no in rows]
        write(self.folder / "in.csv", "\n".join(["사업자번호,상호,주소", *lines, ""]))
        lines = [f"{b_no},{WORDS[status]}" for b_no, status in self.statuses.items()]
        source = write(self.folder / "statuses.txt", "\n".join(["b_no,상태", *lines, ""]))
        day = datetime.fromtimestamp(self.now(), SEOUL).date()
        bs.build_registry([source], self.folder / "registry.parquet", as_of=day)
        source.unlink()

    def close(self, place: int = 0) -> str:
        """Have one more business closed; return its number."""
        number = list(self.statuses)[place]
        self.statuses[number] = "closed"
        self.write_inputs()
        return number

    def now(self) -> float:
        return FIRST_NIGHT + self.night * DAY

    def run(self, **more: Any) -> bs.JobReport:
        """Run the job of this night; the next call is the next night's."""
        report = run_job(self.folder / "job.toml", now=self.now, **more)
        self.night += 1
        return report

    def run_killed(self) -> None:
        """Run, and be killed when the outputs are written and the run is not."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(RunStore, "commit_run", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                self.run()


def kinds(report: bs.JobReport) -> dict[str, int]:
    return {kind: count for kind, count in report.counts.items() if count}
