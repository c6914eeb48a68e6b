"""The list for the mail house over all tables of a run: who stands in two of them gets one letter."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import polars as pl

from bansong.engine.local import NUMBER
from bansong.options import WriteOptions
from bansong.run.duplicates import with_duplicates
from bansong.run.letter_list import count_letters, mark_letters, publish_letters
from bansong.run.records import ROW_ID
from bansong.run.side_files import WrittenSides, letter_list_of
from bansong.storage.filesystem import private_folder
from bansong.tables import publish_file
from bansong.tables.publish import backed_up, find_foreign
from bansong.translation import gettext

_KEPT: Final = {
    **dict.fromkeys(
        ("name", "address", "zipcode", "action", "fixed_address", "fixed_zipcode", "row_status"), pl.String
    ),
    NUMBER: pl.UInt64,
}
"""What of the answers the letters are made of."""
_BATCH: Final = 20_000

Observe = Callable[[pl.LazyFrame], pl.LazyFrame]


@dataclass(frozen=True, slots=True)
class AnswersForLetters:
    """The answers of tables, kept in private files of ``folder`` as far as letters need them.

    ``list_path``: where the list goes; ``cost``: won a letter. ``allow_empty``: whether a list
    without a letter replaces an earlier one.
    """

    folder: Path
    list_path: Path | None
    cost: float | None
    allow_empty: bool = False
    paths: list[Path] = field(default_factory=list)

    def observing(self, observe: Observe | None) -> Observe:
        """Return :meth:`keep` behind another that puts itself between the answers of a table and its output."""
        return self.keep if observe is None else lambda answers: self.keep(observe(answers))

    def keep(self, answers: pl.LazyFrame) -> pl.LazyFrame:
        """Keep the answers of one table, which are obtained for it, once; return the same rows to be written."""
        place = len(self.paths)
        whole, kept = self.folder / f"whole-{place}.arrow", self.folder / f"letters-{place}.arrow"
        for earlier in self.folder.glob("whole-*.arrow"):  # its table has been written
            earlier.unlink()
        answers.sink_ipc(whole, compression="lz4", record_batch_size=_BATCH, engine="streaming")
        answered = pl.scan_ipc(whole)
        names = answered.collect_schema().names()
        answered.select(
            (pl.col(name).cast(dtype) if name in names else pl.lit(None, dtype)).alias(name)
            for name, dtype in _KEPT.items()
        ).sink_ipc(kept, compression="lz4", record_batch_size=_BATCH, engine="streaming")
        self.paths.append(kept)
        return answered

    def publish(self, failed: dict[str, str], *, complete: bool) -> WrittenSides | None:
        """Count and publish the letters of all tables; where not ``complete``, note in ``failed`` why there is no list.

        Without the customers of an input that has just failed it would be no list of all.
        """
        path = self.list_path
        if not complete:
            if path is not None:
                failed[str(path)] = gettext(
                    "{path}: was not written, since an input failed; run again for the list of letters", path=path
                )
            return None
        answers = mark_letters(with_duplicates(pl.scan_ipc(self.paths).with_row_index(ROW_ID)))
        counts = count_letters(answers, self.cost, listed=path is not None)
        kept: dict[Path, Path] = {}
        if path is not None:
            with ExitStack() as backups, publish_file(path) as temporary:
                if not publish_letters(answers, path, temporary, counts.letters, allow_empty=self.allow_empty):
                    return WrittenSides({}, counts, None, kept_letters=path)
                foreign = find_foreign({path: temporary})
                kept = {one: backups.enter_context(backed_up(one, one)) for one in foreign}
        return WrittenSides({}, counts, path, kept=kept)


def letters_of(write: WriteOptions, resources: ExitStack) -> AnswersForLetters | None:
    """Return where answers are kept for letters as long as ``resources`` live; ``None`` where none are asked for."""
    path = letter_list_of(write)
    if path is None and write.letter_cost is None:
        return None
    return AnswersForLetters(resources.enter_context(private_folder()), path, write.letter_cost, write.allow_empty)
