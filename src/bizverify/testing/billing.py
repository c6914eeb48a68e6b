"""What was paid: counted when a lookup is taken, and never forgotten."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from threading import Lock

from bizverify.testing.answers import Lookup


class Till:
    """Counts paid lookups against a monthly quota; safe to use from several threads.

    With ``count_only`` it keeps 16 bytes a lookup instead of the lookup itself: then it knows how many were paid again,
    but not which. ``journal`` is a file that gets one JSON line for each paid lookup before the reply goes out, so that
    another process can judge, whatever happens to this one.
    """

    def __init__(
        self, quota: int | None, used: int = 0, *, count_only: bool = False, journal: Path | None = None
    ) -> None:
        self.quota = quota
        self.used = used
        self.total = 0
        self.count_only = count_only
        self.journal = journal
        self._lock = Lock()
        self._paid: Counter[Lookup] = Counter()
        self._marks: set[bytes] = set()

    def take(self, lookups: Sequence[Lookup], *, partial: bool = False, job: str | None = None) -> int:
        """Take the lookups, all or none of them (``partial``: the first that fit); how many were taken, and paid."""
        with self._lock:
            free = len(lookups) if self.quota is None else max(self.quota - self.used, 0)
            taken = len(lookups) if len(lookups) <= free else free if partial else 0
            paid = lookups[:taken]
            self.used += taken
            self.total += taken
            if self.count_only:
                self._marks.update(map(_mark, paid))
            else:
                self._paid.update(paid)
            if self.journal is not None and paid:
                self._write(paid, job, self.journal)
        return taken

    def paid(self) -> Counter[Lookup]:
        """How often each lookup was paid, as of now."""
        if self.count_only:
            raise RuntimeError("with count_only only the numbers are kept: ask paid_total and paid_again")
        with self._lock:
            return self._paid.copy()

    def again(self) -> int:
        """How many payments were for a lookup that had been paid before: what must be 0."""
        with self._lock:
            return self.total - (len(self._marks) if self.count_only else len(self._paid))

    def _write(self, paid: Sequence[Lookup], job: str | None, path: Path) -> None:
        lines = (json.dumps({**lookup._asdict(), "job_id": job}, ensure_ascii=False) + "\n" for lookup in paid)
        with path.open("ab") as file:
            file.write("".join(lines).encode("utf-8"))


def _mark(lookup: Lookup) -> bytes:
    return blake2b("\x1f".join(lookup).encode("utf-8"), digest_size=16).digest()
