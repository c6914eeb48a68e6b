"""One input of a job through the engine: the job file's options as those of :func:`bansong.enrich`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Final

from bansong.api.engine_request import EngineRequest
from bansong.cancellation import CancelToken
from bansong.client.key import ApiKey
from bansong.enrichment.files_report import FilesReport
from bansong.enrichment.outputs import Outputs
from bansong.enrichment.runner import Run
from bansong.enrichment.survey import is_stray
from bansong.errors import BansongError, Problem, UsageError
from bansong.labels.history import read_history
from bansong.options import (
    ALL_SHEETS,
    ReadOptions,
    ServiceKeywords,
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
from bansong.scheduling.job_place import locate
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
        engine = EngineRequest(
            job.engine.name,
            self._service_keywords(budget),
            *(locate(self.folder, name) for name in (reference.registry, reference.gazetteer, reference.model)),
            job.lang,
            self.day,
        )
        known = read_history(locate(self.folder, reference.labels))
        answering = engine.open(known.history if known else None)
        read, write = self._read_options(one.part), self._write_options()
        is_one_table = read.sheet is None or (isinstance(read.sheet, str) and read.sheet != ALL_SHEETS)
        return Run(
            files=[InputFile(one.path, one.path.parent)],
            label=str(one.path),
            engine=answering,
            read=read,
            outputs=Outputs(write, file=one.output, alone=is_one_table),
            start=RunStart.now(self.now),
            known=known,
            model=locate(self.folder, reference.model),
            status=status_options(self._status_options(), None, engine.kind, given=False),
            progress=self.progress,
            cancel=self.cancel,
            observe=recorder.observe,
            inspect=earlier.refuse_loss,
        ).carry_out()

    def is_stray(self, one: JobInput, error: BansongError) -> bool:
        """Return whether an input that nobody named failed because it holds no table at all."""
        return one.listed and is_stray(one.path, error, self._read_options(one.part))

    def _read_options(self, part: InputPart) -> ReadOptions:
        columns = part.columns.by_role() or None
        return ReadOptions(
            columns, part.sheet, part.encoding, part.json_path, part.has_header, delimiter=part.delimiter
        )

    def _write_options(self) -> WriteOptions:
        output = self.job.output
        return WriteOptions(
            output_encoding=output.encoding,
            select=output.select,
            prefix=output.prefix,
            summary=output.summary,
            with_outcomes=output.with_outcomes,
            headers=output.headers,
        )

    def _status_options(self) -> StatusOptions:
        status = self.job.status
        return StatusOptions(
            source=status.source,
            max_age=status.max_age,
            budget=status.budget,
            store=locate(self.folder, status.store),
            key_file=locate(self.folder, status.key_file),
        )

    def _service_keywords(self, budget: int | None) -> ServiceKeywords:
        """The job file's ``[engine]`` as keywords of :class:`bansong.ServiceOptions`, the key out of its variable."""
        part = self.job.engine
        given = {name: getattr(part, name) for name in part.__struct_fields__ if name not in ("name", "key_env")}
        given = {name: value for name, value in given.items() if value is not None}
        for name in ("key_file", "ledger"):
            if name in given:
                given[name] = locate(self.folder, given[name])
        if budget is not None:
            given["budget"] = budget
        if part.key_env is not None:
            if not os.environ.get(part.key_env):
                raise UsageError(KEY_VARIABLE_EMPTY, key_env=part.key_env)
            given["api_key"] = ApiKey(os.environ[part.key_env])
        return given  # type: ignore[return-value]
