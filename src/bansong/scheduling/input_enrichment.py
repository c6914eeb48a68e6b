"""One input of a job through the engine: the job file's options as those of :func:`bansong.enrich`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Final

from bansong.api.engine_request import EngineRequest
from bansong.cancellation import CancelToken
from bansong.client.key import ApiKey
from bansong.enrichment.single_file import enrich_file
from bansong.errors import BansongError, Problem, UsageError
from bansong.joint.joint_run import JointRun
from bansong.joint.output_places import OutputPlaces
from bansong.joint.report import FilesReport
from bansong.joint.survey import is_stray
from bansong.labels.history import read_history
from bansong.options import (
    ALL_SHEETS,
    LocalOptions,
    ReadOptions,
    RunOptions,
    ServiceKeywords,
    ServiceOptions,
    StatusOptions,
    WriteOptions,
    status_options,
)
from bansong.progress.display import Progress
from bansong.report import Report
from bansong.run.run_start import RunStart
from bansong.scheduling.earlier_rows import EarlierRows
from bansong.scheduling.inputs import JobInput
from bansong.scheduling.job_file import InputPart, JobFile
from bansong.scheduling.job_place import options_in
from bansong.scheduling.recorder import AnswerRecorder
from bansong.tables.input_files import InputFile

KEY_VARIABLE_EMPTY: Final = Problem(
    "jobs.key_variable_empty", "the variable {key_env} holds no key; set it, or take `key_env` out of [engine]"
)


@dataclass(frozen=True, slots=True)
class InputEnrichment:
    """Enriches inputs of a job, on one ``day``; ``now``: the time in seconds since 1970."""

    job: JobFile
    folder: Path
    day: date
    now: Callable[[], float]
    progress: Progress | None
    cancel: CancelToken

    def carry_out(
        self, one: JobInput, recorder: AnswerRecorder, earlier: EarlierRows, budget: int | None
    ) -> Report | FilesReport:
        """Verify an input and publish its output.

        ``recorder`` takes its answers down, ``earlier`` are the rows of the run before, ``budget`` bounds what it buys.
        Raises what :func:`bansong.enrich` raises.
        """
        job, reference = self.job, self.job.reference
        local = LocalOptions(**options_in(reference, LocalOptions, self.folder), lang=job.lang, today=self.day)
        engine = EngineRequest(job.engine.name, self._service_keywords(budget), local)
        known = read_history(**options_in(reference, RunOptions, self.folder))
        answering = engine.open(known.history if known else None)
        read = self._read_options(one.part)
        write = WriteOptions(**options_in(job.output, WriteOptions, self.folder))
        status = StatusOptions(**options_in(job.status, StatusOptions, self.folder))
        options: dict[str, Any] = {
            "start": RunStart.now(self.now),
            "known": known,
            "model": local.model,
            "progress": self.progress,
            "cancel": self.cancel,
            "status": status_options(status, None, engine.kind, given=False),
            "observe": recorder.observe,
            "inspect": earlier.refuse_loss,
        }
        if read.sheet is None or (isinstance(read.sheet, str) and read.sheet != ALL_SHEETS):
            return enrich_file(one.path, one.output, answering, read, write, **options)
        file = InputFile(one.path, one.path.parent)
        places = OutputPlaces(write, naming=lambda _: one.output)
        return JointRun(
            files=[file], label=str(one.path), engine=answering, read=read, places=places, **options
        ).carry_out()

    def is_stray(self, one: JobInput, error: BansongError) -> bool:
        """Return whether an input that nobody named failed because it holds no table at all."""
        return one.listed and is_stray(one.path, error, self._read_options(one.part))

    def _read_options(self, part: InputPart) -> ReadOptions:
        return ReadOptions(**options_in(part, ReadOptions, self.folder))

    def _service_keywords(self, budget: int | None) -> ServiceKeywords:
        """Return what the job file's ``[engine]`` gives, with the key from its variable."""
        part = self.job.engine
        options = options_in(part, ServiceOptions, self.folder)
        given = {name: value for name, value in options.items() if value is not None}
        if budget is not None:
            given["budget"] = budget
        if part.key_env is not None:
            if not os.environ.get(part.key_env):
                raise UsageError(KEY_VARIABLE_EMPTY, key_env=part.key_env)
            given["api_key"] = ApiKey(os.environ[part.key_env])
        return given  # type: ignore[return-value]
