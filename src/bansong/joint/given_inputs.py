"""What is given as the inputs of one run: names, globs, folders and datasets become the files that are enriched."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bansong.cloud.remote_path import describe_given
from bansong.errors import InputError, Problem, UsageError
from bansong.tables.input_files import InputFile, each_once, find_files, why_passed_over
from bansong.tables.standard_streams import STREAM
from bansong.translation import gettext

INPUT_NOT_GIVEN: Final = Problem("inputs.input_not_given", "no input is given; name a file, a folder or a pattern")
STDIN_NOT_ALONE: Final = Problem(
    "inputs.stdin_not_alone", "standard input is one table: give `-` by itself, without other inputs and sheets"
)
NO_FILE_USABLE: Final = Problem("inputs.no_file_usable", "none of the files that were found is an input:\n  {reasons}")

_LABEL_LENGTH: Final = 200


def collect_inputs(
    given: Sequence[str | Path], output_folder: Path | None, read_besides: Sequence[Path]
) -> tuple[list[InputFile], tuple[str, ...]]:
    """Return the files that are meant, each once, and sentences on those that were found and are no inputs.

    ``read_besides``: what the run reads as something else. Raises :class:`InputError` where no file is meant.
    """
    if not given:
        raise UsageError(INPUT_NOT_GIVEN)
    if any(Path(one) == STREAM for one in given):
        raise UsageError(STDIN_NOT_ALONE)
    files, again = each_once(file for one in given for file in find_files(one))
    notes = [
        gettext("{path}: is the same file as {other}, and is enriched once", path=path, other=other)
        for path, other in again.items()
    ]
    kept = list[InputFile]()
    for file in files:
        why = why_passed_over(file, output_folder, read_besides)
        if why is None:
            kept.append(file)
        else:
            notes.append(why)
    if not kept:
        raise InputError(NO_FILE_USABLE, reasons="\n  ".join(notes[:5]))
    return kept, tuple(notes)


def label_inputs(given: Sequence[str | Path]) -> str:
    """Return what the ledger calls all inputs: the same for the same call, by which a run that goes on is known."""
    label = " ".join(map(describe_given, given))
    if len(label) <= _LABEL_LENGTH:
        return label
    digest = hashlib.sha256(label.encode(errors="surrogateescape")).hexdigest()[:12]
    return f"{label[:_LABEL_LENGTH]}… ({len(given):,}, {digest})"
