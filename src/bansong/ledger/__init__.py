"""The ledger: a SQLite file with every paid lookup; cache, resume point and quota record in one.

- ``ledger``: :class:`Ledger`, one connection for one process, and :class:`Journal`, many tasks that share one commit;
- ``schema``: its tables; ``queries``: what is read;
- ``transitions`` and ``transaction``: what can happen to a lookup and to an upload, and how it is written;
- ``recovery``: what is settled by hand, after a kill, or by repeating a request with its key;
- ``retention``: deletion by age, and erasure of a number;
- ``trial_limits``: what a broken service may cost; ``label_outbox``: labels on their way to the service.
"""

from bansong.ledger.label_outbox import (
    HeldLabel,
    JobNumbered,
    LabelDone,
    LabelDoubted,
    LabelledJob,
    LabelQueue,
    LabelRefused,
    LabelRetracted,
    LabelSent,
    QueuedLabel,
    WantedLabel,
)
from bansong.ledger.ledger import Journal, Ledger, LedgerRun
from bansong.ledger.queries import Doubt, LedgerEntry, RunRecord, StoredUpload
from bansong.ledger.recovery import (
    KILLED,
    LookupSettled,
    PendingRequest,
    RecoveryCounts,
    Repetition,
    RequestRepeated,
    UploadSettled,
)
from bansong.ledger.retention import LedgerHoldings, PurgeCounts
from bansong.ledger.transaction import StoredRequest
from bansong.ledger.transitions import (
    NO_ANSWER,
    Change,
    JobFetched,
    JobKnown,
    JobLost,
    JobUnfetched,
    LookupAnswered,
    LookupAsked,
    LookupDoubted,
    LookupRefused,
    LookupRetracted,
    LookupUnreadable,
    UploadDoubted,
    UploadDropped,
    UploadGated,
    UploadPrepared,
    UploadRefused,
    UploadSent,
    UploadUnreadable,
)
from bansong.ledger.trial_limits import passes

__all__ = [
    "KILLED",
    "NO_ANSWER",
    "Change",
    "Doubt",
    "HeldLabel",
    "JobFetched",
    "JobKnown",
    "JobLost",
    "JobNumbered",
    "JobUnfetched",
    "Journal",
    "LabelDone",
    "LabelDoubted",
    "LabelQueue",
    "LabelRefused",
    "LabelRetracted",
    "LabelSent",
    "LabelledJob",
    "Ledger",
    "LedgerEntry",
    "LedgerHoldings",
    "LedgerRun",
    "LookupAnswered",
    "LookupAsked",
    "LookupDoubted",
    "LookupRefused",
    "LookupRetracted",
    "LookupSettled",
    "LookupUnreadable",
    "PendingRequest",
    "PurgeCounts",
    "QueuedLabel",
    "RecoveryCounts",
    "Repetition",
    "RequestRepeated",
    "RunRecord",
    "StoredRequest",
    "StoredUpload",
    "UploadDoubted",
    "UploadDropped",
    "UploadGated",
    "UploadPrepared",
    "UploadRefused",
    "UploadSent",
    "UploadSettled",
    "UploadUnreadable",
    "WantedLabel",
    "passes",
]
