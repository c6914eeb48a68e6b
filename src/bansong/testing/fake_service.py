"""The hosted service, faked: an ASGI app that keeps count of every lookup it was paid for."""

from __future__ import annotations

from collections import Counter
from hmac import compare_digest
from pathlib import Path
from threading import Lock
from typing import Final, Literal
from urllib.parse import unquote

from bansong.testing import dialect_bodies, verdicts
from bansong.testing.billing import Billing, ReplayMemory
from bansong.testing.dialects import Dialect
from bansong.testing.endpoints import ENDPOINTS
from bansong.testing.faults import Faults
from bansong.testing.messages import (
    WRITE,
    ClientGoneError,
    FakeReply,
    FakeRequest,
    Receive,
    RefusedError,
    Scope,
    Send,
    header,
)
from bansong.testing.service_state import FakeJob, FakeLabel, FakeUpload, FakeWatches
from bansong.testing.verdicts import Lookup, Verdict

_ROUTES: Final = {
    ("POST", ("verify",)): "verify",
    ("POST", ("batch",)): "batch",
    ("GET", ("batch", "*")): "job",
    ("POST", ("batch", "*", "label")): "label",
    ("POST", ("watch",)): "watch_add",
    ("GET", ("watch",)): "watch_list",
    ("DELETE", ("watch", "*")): "watch_remove",
    ("GET", ("watch", "*", "history")): "watch_history",
    ("GET", ("me",)): "me",
}


class FakeService:
    """The service of INTERFACE.md, for tests: give it to ``httpx.ASGITransport`` or :func:`bansong.testing.serve`.

    A lookup is paid when it is taken: ``/verify`` when the request has been understood, ``/batch`` with all its rows
    when the whole upload has. Whatever goes wrong afterwards, it stays paid. ``paid`` says how often each was; that is
    what a test of "no lookup is ever paid twice" looks at.

    ``quota`` ``None`` is unlimited. A batch that does not fit the quota is refused whole, or with
    ``batch_quota="partial"`` its first rows are taken and the others come back with an error. ``plan`` other than
    ``business`` has no watch history, ``free`` has nothing. ``job_seconds`` is how long a job takes (0: as many polls
    as the dialect has words). ``forget_fetched`` drops a job when all its results have been given. What is given here
    may be changed while it serves. With ``idempotency`` it says in ``/me`` that a request to ``/verify`` or ``/batch``
    with an ``Idempotency-Key`` is done once, and keeps its word: the same request again gets the same reply and is not
    paid, another one with that key 409. One service can be served again and again: it remembers, unless
    :meth:`forget_jobs`.
    """

    def __init__(
        self,
        api_key: str = "test-key",
        *,
        quota: int | None = None,
        used: int = 0,
        plan: str = "business",
        dialect: Dialect | None = None,
        faults: Faults | None = None,
        verdict: Verdict | None = None,
        max_rows: int | None = None,
        max_bytes: int | None = None,
        batch_quota: Literal["whole", "partial"] = "whole",
        quota_retry_after: str | None = None,
        job_seconds: float = 0.0,
        forget_fetched: bool = False,
        count_only: bool = False,
        journal: str | Path | None = None,
        prefix: str = "",
        idempotency: bool = False,
    ) -> None:
        self.api_key = api_key
        self.plan = plan
        self.dialect = dialect or Dialect()
        self.faults = faults or Faults()
        self.verdict = verdict or verdicts.verdict
        self.max_rows = max_rows
        self.max_bytes = max_bytes
        self.batch_quota = batch_quota
        self.quota_retry_after = quota_retry_after
        self.job_seconds = job_seconds
        self.forget_fetched = forget_fetched
        self.prefix = prefix
        self.idempotency = idempotency
        self.memory = ReplayMemory()
        self.billing = Billing(quota, used, count_only=count_only, journal=None if journal is None else Path(journal))
        self.jobs: dict[str, FakeJob] = {}
        self.uploads: list[FakeUpload] = []
        self.labels: list[FakeLabel] = []
        self.watches = FakeWatches()
        self.in_flight = 0
        self.most_in_flight = 0
        self._requests: Counter[str] = Counter()
        self._polls: Counter[str] = Counter()
        self._lock = Lock()

    @property
    def paid(self) -> Counter[Lookup]:
        """How often each (b_no, name, address) was paid, as of now; a copy, to be read from any thread."""
        return self.billing.count_paid()

    @property
    def paid_total(self) -> int:
        """How many lookups were paid."""
        return self.billing.total

    @property
    def paid_again(self) -> int:
        """How many of them had been paid before: what must be 0."""
        return self.billing.again()

    @property
    def requests(self) -> Counter[str]:
        """How many requests of each kind came in, those that faults struck among them; a copy."""
        with self._lock:
            return self._requests.copy()

    @property
    def quota(self) -> int | None:
        """The monthly quota of lookups."""
        return self.billing.quota

    @quota.setter
    def quota(self, quota: int | None) -> None:
        self.billing.quota = quota

    @property
    def used(self) -> int:
        """How much of the quota is used; set it to 0 for a new month."""
        return self.billing.used

    @used.setter
    def used(self, used: int) -> None:
        self.billing.used = used

    def forget_jobs(self) -> None:
        """Restart with a short memory: every job is unknown from now on. What was paid stays paid."""
        self.jobs.clear()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        request = FakeRequest(*self._kind(scope), scope, receive, self, self.faults.releases)
        with self._lock:
            self._requests[request.kind] += 1
            if request.kind == "job":
                self._polls[request.target] += 1
                request.polls = self._polls[request.target]
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            reply = await self._reply(request)
            await reply.send(send)
            if reply.twice and WRITE in scope:
                scope[WRITE](reply.whole())
            if request.last is not None:
                self.jobs.pop(request.last, None)
        except ClientGoneError:
            pass
        finally:
            with self._lock:
                self.in_flight -= 1

    async def _reply(self, request: FakeRequest) -> FakeReply:
        acts = self.faults.of(request)
        for act in acts:
            instead = await act.before(request)
            if instead is not None:
                return instead
        try:
            reply = await self._answer(request)
        except RefusedError as refused:
            await request.rest()  # a client that is still sending would see a broken connection
            reply = self._refusal(refused)
        for act in acts:
            reply = await act.after(request, reply)
        return reply

    async def _answer(self, request: FakeRequest) -> FakeReply:
        key = header(request.scope, b"x-api-key")
        if key is None or not compare_digest(key, self.api_key.encode("utf-8")):
            raise RefusedError(401, "the API key is missing or invalid")
        if self.plan == "free":
            raise RefusedError(403, "the API is not available in this plan")
        endpoint = ENDPOINTS.get(request.kind)
        if endpoint is None:
            raise RefusedError(404 if request.kind == "unknown" else 405, "no such endpoint")
        if not self.idempotency:
            return await endpoint(self, request)
        return await self.memory.reply(request, self.max_bytes, lambda: endpoint(self, request))

    def _refusal(self, refused: RefusedError) -> FakeReply:
        body, content_type = dialect_bodies.error_body(self.dialect, refused.status, str(refused))
        wait = refused.retry_after
        headers = [] if wait is None else [(b"retry-after", wait.encode("latin-1"))]
        return FakeReply(refused.status, body, content_type, headers)

    def _kind(self, scope: Scope) -> tuple[str, str]:
        """The kind of a request, and the identifier in its path."""
        path = scope.get("raw_path", b"").decode("latin-1") or scope["path"]
        if path == "/verify" and not self.prefix:  # the way that must be short
            segments = ["verify"]
        elif path.startswith(f"{self.prefix}/"):
            segments = path[len(self.prefix) + 1 :].split("/")
        else:
            return "unknown", ""
        target = unquote(segments[1]) if len(segments) > 1 else ""
        shape = (segments[0], *(["*"] if target else segments[1:2]), *segments[2:])
        kind = _ROUTES.get((scope["method"], shape))
        if kind is None:
            kind = "wrong_method" if any(shape == known for _, known in _ROUTES) else "unknown"
        return kind, target


async def _live(receive: Receive, send: Send) -> None:
    """There is nothing to start and nothing to stop, but servers ask."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
