"""The SQLite file that remembers every lookup paid: cache, resume point and quota book in one."""

from bizverify.execute.ledger.aging import Purged
from bizverify.execute.ledger.changes import (
    NO_ANSWER,
    Answered,
    Asking,
    Change,
    Doubted,
    Fetched,
    Gated,
    JobLost,
    Known,
    Prepared,
    Refused,
    Retracted,
    Sent,
    Unreadable,
    UploadDoubted,
    UploadDropped,
    UploadRefused,
    UploadUnreadable,
)
from bizverify.execute.ledger.journal import Journal
from bizverify.execute.ledger.ledger import Ledger, Run
from bizverify.execute.ledger.looking import Doubt, Entry, RunRecord, Upload
from bizverify.execute.ledger.settling import KILLED, Recovered

__all__ = [
    "KILLED",
    "NO_ANSWER",
    "Answered",
    "Asking",
    "Change",
    "Doubt",
    "Doubted",
    "Entry",
    "Fetched",
    "Gated",
    "JobLost",
    "Journal",
    "Known",
    "Ledger",
    "Prepared",
    "Purged",
    "Recovered",
    "Refused",
    "Retracted",
    "Run",
    "RunRecord",
    "Sent",
    "Unreadable",
    "Upload",
    "UploadDoubted",
    "UploadDropped",
    "UploadRefused",
    "UploadUnreadable",
]
