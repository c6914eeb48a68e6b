"""The ledger: the SQLite file that holds every lookup paid; cache, resume point and record of the quota in one.

- ``ledger``: :class:`Ledger`, one connection for one process, and :class:`Journal`, many tasks that share one commit;
- ``schema``: its file;
- ``transitions`` and ``transaction``: what can happen to a lookup and to an upload, and what writes it;
- ``recovery``: what is settled by hand, after a process was killed, or by sending a request again with its key;
- ``retention``: what is deleted when it is old, and what is erased of a number;
- ``trial_limits``: what a broken service may cost;
- ``queries``: what is read; ``label_outbox``: labels on their way to the service.
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
