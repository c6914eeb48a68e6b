"""The dispatcher alone, on trio's fake clock: what each error means for a request and for its run."""

from __future__ import annotations

from functools import partial

import anyio
import pytest
from trio.testing import MockClock

from bansong import errors
from bansong.client.dispatcher import Dispatcher, OutgoingRequest, Slot, Task
from bansong.client.errors import ERROR_ACTIONS, Action, error_action, may_pass
from bansong.errors import CertificateError, NotSentError, QuotaError, RejectedError, ServiceError


class Sending(OutgoingRequest[str]):
    """A request that comes to these errors, one an attempt, and is answered then."""

    def __init__(self, *outcomes: ServiceError) -> None:
        self.outcomes = list(outcomes)
        self.written: list[str] = []

    async def send(self, slot: Slot) -> str:
        del slot
        self.written.append("sent")
        if self.outcomes:
            raise self.outcomes.pop(0)
        return "reply"

    async def record_reply(self, reply: str, slot: Slot) -> None:
        del slot
        self.written.append(reply)

    async def record_error(self, error: ServiceError, action: Action) -> None:
        del error
        self.written.append(action.name)


def delivered(*requests: Sending) -> Dispatcher:
    async def main() -> Dispatcher:
        dispatcher = Dispatcher(rate=1e6, drain=1.0)
        source = iter(requests)

        def next_task() -> Task | None:
            request = next(source, None)
            return None if request is None else partial(dispatcher.deliver, request)

        await dispatcher.run(next_task, 1)
        return dispatcher

    return anyio.run(main, backend="trio", backend_options={"clock": MockClock(autojump_threshold=0)})


def every(kind: type[ServiceError]) -> list[type[ServiceError]]:
    return [kind, *(one for child in kind.__subclasses__() for one in every(child))]


def test_every_error_of_the_service_has_an_action() -> None:
    assert all(isinstance(error_action(kind("…")), Action) for kind in every(ServiceError))
    assert set(ERROR_ACTIONS) <= set(every(ServiceError))
    assert {error_action(kind("…", status=302)) for kind in (RejectedError,)} == {Action.END_RUN}


@pytest.mark.parametrize(
    ("outcomes", "written", "why"),
    [
        ([], ["sent", "reply"], None),
        ([NotSentError("no way")], ["sent", "RETRY", "sent", "reply"], None),
        ([QuotaError("429", retry_after=5.0)], ["sent", "WAIT", "sent", "reply"], None),
        ([QuotaError("429")], ["sent", "WAIT"], "quota"),
        ([QuotaError("429", retry_after=700.0)], ["sent", "WAIT"], "quota"),
        ([errors.LimitError("429", retry_after=5.0)] * 9, [*["sent", "DELAY"] * 9, "sent", "reply"], None),
        ([errors.LimitError("429")], ["sent", "DELAY", "sent", "reply"], None),
        ([errors.LimitError("429", retry_after=3600.0)], ["sent", "DELAY"], "limit"),
        ([errors.DoubtError("lost")], ["sent", "HOLD"], None),
        ([errors.UnavailableError("down")], ["sent", "RETRY_OR_HOLD", "sent", "reply"], None),
        ([errors.UnavailableError("down")] * 9, ["sent", "RETRY_OR_HOLD"] * 7, None),
        ([errors.ShapeError("a page")], ["sent", "HOLD"], None),
        ([RejectedError("400", status=400)], ["sent", "REFUSE"], None),
        ([RejectedError("302", status=302)], ["sent", "END_RUN"], "refused"),
        ([errors.PlanError("403", status=403)], ["sent", "END_RUN"], "refused"),
        ([NotSentError("no way")] * 9, [*["sent", "RETRY"] * 7], "unreachable"),
    ],
)
def test_what_follows_from_an_error(outcomes: list[ServiceError], written: list[str], why: str | None) -> None:
    request, after = Sending(*outcomes), Sending()
    halt = delivered(request, after).halt
    assert request.written == written
    assert (halt.why if halt else None) == why
    assert after.written == ([] if halt else ["sent", "reply"])


def test_a_bound_that_passes_never_ends_a_run() -> None:
    requests = [Sending(*[errors.LimitError("429", status=429, retry_after=1.0)] * 9) for _ in range(50)]
    assert delivered(*requests).halt is None
    assert [request.written[-1] for request in requests] == ["reply"] * 50


def test_a_bound_that_does_not_pass_and_an_outage_of_what_is_free_pause_the_run_without_an_error() -> None:
    limit = errors.LimitError("429", status=429, retry_after=1.0)
    for why, kind, requests, times, most in (
        ("limit", limit, 1, 10_000, 1_000),
        ("failing", errors.UnavailableError("maintenance", status=503), 40, 9, 200),
    ):
        sent = [Sending(*[kind] * times) for _ in range(requests)]
        halt = delivered(*sent).halt
        assert halt is not None
        assert (halt.why, halt.error) == (why, None)
        assert sum(len(request.written) for request in sent) < most


def test_a_certificate_that_is_not_trusted_ends_any_run_at_once() -> None:
    request = Sending(*[CertificateError("not trusted")] * 9)
    halt = delivered(request).halt
    assert request.written == ["sent", "END_RUN"]
    assert halt is not None
    assert isinstance(halt.error, CertificateError)
    assert not may_pass(CertificateError("not trusted"))
