"""Figures of a job's last run for Prometheus: a file that node-exporter's textfile collector reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from bansong.scheduling.job_report import WHATS, JobReport
from bansong.scheduling.output_files import set_mode
from bansong.tables import publish_file

_READABLE: Final = 0o644
"""Anybody may read it: the collector runs as another user, and only figures are in it."""


def write_metrics(report: JobReport, target: Path) -> None:
    """Write a run's figures, in one step and readable for all; raise :class:`bansong.errors.OutputError`."""
    job = f"job={json.dumps(report.job, ensure_ascii=False)}"
    figures: dict[str, float] = {
        f"bansong_job_last_run_timestamp_seconds{{{job}}}": report.started.timestamp(),
        f"bansong_job_duration_seconds{{{job}}}": round(report.seconds, 3),
        f"bansong_job_exit_code{{{job}}}": report.exit_code,
        f"bansong_job_rows{{{job}}}": report.rows,
        f"bansong_job_problems{{{job}}}": len(report.problems),
        f"bansong_job_paid_lookups{{{job}}}": sum(one.paid for one in report.inputs),
    }
    for what in WHATS:
        figures[f'bansong_job_inputs{{{job},what="{what}"}}'] = sum(one.what == what for one in report.inputs)
    for kind, count in report.counts.items():
        figures[f'bansong_job_changes{{{job},kind="{kind}"}}'] = count
    names = dict.fromkeys(name.partition("{")[0] for name in figures)
    lines = [f"# TYPE {name} gauge" for name in names] + [f"{name} {value}" for name, value in figures.items()]
    with publish_file(target) as temporary:
        temporary.write_text("\n".join(sorted(lines, key=_by_name)) + "\n", encoding="utf-8")
    set_mode(target, _READABLE)


def _by_name(line: str) -> tuple[str, bool]:
    """Each name's type before its figures, which stand together."""
    is_type = line.startswith("# TYPE ")
    return (line.split()[2] if is_type else line.partition("{")[0]), not is_type
