"""What settles a doubt without anybody's decision: the request was sent again with its key, and was answered.

::

    lookup   doubt ── Settled ──────▶ done          upload   doubt ── UploadSettled ─▶ known

Both are refused where the ledger does not hold the request itself, which it does only if it was sent with a key.
"""

from __future__ import annotations

from dataclasses import dataclass

from bizverify.ledger.transaction import Writing, clean, whole
from bizverify.ledger.transitions import answered, count_upload, step
from bizverify.schema import Answer


@dataclass(frozen=True, slots=True)
class Settled:
    """The service answered a lookup that was in doubt: it is paid and done."""

    key: bytes
    answer: Answer

    def write(self, to: Writing) -> None:
        """Keep the answer and count it as paid by the run that asked first."""
        to.one(
            self,
            "UPDATE lookups SET state = 'done', since = :now, note = NULL WHERE key = :key AND state = 'doubt' "
            "AND EXISTS (SELECT 1 FROM requests WHERE key = :key)",
            {"key": self.key, "now": to.now},
        )
        answered(to, self.key, self.answer)


@dataclass(frozen=True, slots=True)
class UploadSettled:
    """The service named the job of an upload that was in doubt: its rows are paid."""

    upload: str
    job_id: str
    total: int | None

    def write(self, to: Writing) -> None:
        """Note the job; the rows are fetched as those of any other."""
        find = "SELECT 1 FROM requests WHERE upload = (SELECT number FROM uploads WHERE upload = ?)"
        if to.connection.execute(find, (self.upload,)).fetchone() is None:
            raise to.out_of_order(self)
        job = {"job_id": clean(self.job_id), "total": whole(self.total), "note": None}
        step(self, to, self.upload, "known", "'doubt'", **job)
        count_upload(to, self.upload)


@dataclass(frozen=True, slots=True)
class Repeating:
    """A request is about to be sent again with its key."""

    token: str

    def write(self, to: Writing) -> None:
        """Count it, whatever comes of it."""
        to.one(self, "UPDATE requests SET repeats = repeats + 1 WHERE token = :token", {"token": self.token})


Repeated = Settled | UploadSettled | Repeating
"""Any of them."""
