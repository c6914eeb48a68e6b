"""How closures are told: signed webhooks over a real socket, lines in a file, and when a failed one is tried again."""

from __future__ import annotations

import base64
import errno
import hmac
import json
import logging
import os
import socket
import stat
import threading
from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bansong.client.webhook import Outcome, WebhookSender, WebhookUrl, signature_headers
from bansong.errors import OutputError, UsageError
from bansong.notify.channels import Message, WebhookChannel, append_lines, deliver
from bansong.notify.queue import Backoff, PendingDelivery
from bansong.watch import verify_signature
from examples import examples
from hooks import Answer, receiving

SECRET = "whsec-do-not-tell"
NOW = 1_700_000_000.0
PAYLOAD = '{"event":"closure","id":"n1","name":"가나다"}'


def delivery(id_: str = "n1") -> PendingDelivery:
    return PendingDelivery(1, id_, "k1", "1248100998", PAYLOAD, NOW, "webhook", NOW, 0, NOW, None)


def sent(url: str, *, times: int = 1, timeout: float = 10.0) -> list[Outcome]:
    """Send the notice some times, one after the other, over one sender."""

    async def run() -> list[Outcome]:
        webhook = WebhookChannel(WebhookUrl.parse(url), WebhookSender(timeout=timeout), SECRET, lambda: NOW)
        return [await webhook.send([delivery()]) for _ in range(times)]

    return anyio.run(run)


def test_a_notice_arrives_signed() -> None:
    with receiving() as receiver:
        assert sent(f"{receiver.url}?token=t1", times=2) == [Outcome(None)] * 2
    got, again = receiver.received
    assert (got.body, got.path) == (PAYLOAD.encode(), "/hook?token=t1")
    usual = {"X-Bizverify-Event": "closure", "Content-Type": "application/json"}
    assert got.headers.items() >= usual.items()
    for header in ("X-Bizverify-Delivery", "webhook-id"):
        assert got.headers[header] == again.headers[header] == "n1"
    assert got.is_signed(SECRET, NOW + 10)
    assert not got.is_signed("another secret", NOW + 10)
    assert not got.is_signed(SECRET, NOW + 301)
    assert not got.is_signed(SECRET, NOW - 301)


ANSWERS: list[tuple[Answer, Outcome]] = [
    *[((status, {}, b""), Outcome(None)) for status in (200, 204, 299)],
    ((500, {}, b"secret words"), Outcome("answered 500")),
    ((429, {"Retry-After": "77"}, b""), Outcome("answered 429", 77.0)),
    ((200, {"Content-Length": str(1 << 40)}, b"x" * 200_000), Outcome(None)),  # endless: not read
]


def test_any_2xx_acknowledges_and_nothing_else_does() -> None:
    left = iter(ANSWERS)
    with receiving(lambda _: next(left)[0]) as receiver:
        assert sent(receiver.url, times=len(ANSWERS), timeout=5.0) == [outcome for _, outcome in ANSWERS]


def test_a_receiver_that_redirects_hangs_speaks_no_http_or_is_not_there_is_told_apart() -> None:
    with receiving() as elsewhere, receiving(lambda _: (307, {"Location": elsewhere.url}, b"")) as receiver:
        assert sent(receiver.url) == [Outcome("answered 307; redirects are not followed")]
    assert elsewhere.received == []
    with receiving(lambda _: None) as receiver:
        assert sent(receiver.url, timeout=0.2) == [Outcome("no answer within 0.2 s")]
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/token-in-path"

        def babble() -> None:
            with server.accept()[0] as line:
                line.sendall(b"SSH-2.0-none\r\n\r\n")

        thread = threading.Thread(target=babble)
        thread.start()
        assert str(sent(url, timeout=5.0)[0].error).startswith("the connection broke (")
        thread.join()
    assert sent(url) == [Outcome("cannot connect")]


def test_nothing_of_secret_or_path_is_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with receiving(lambda _: (500, {}, b"")) as receiver:
        url = f"{receiver.url}/token-in-path?key=token-in-query"
        outcomes = sent(url)
    webhook = WebhookChannel(WebhookUrl.parse(url), WebhookSender(), SECRET)
    told = f"{caplog.text} {outcomes} {webhook!r} {webhook.url} {webhook.url!r}"
    assert not [word for word in (SECRET, "token-in-path", "token-in-query") if word in told]
    assert webhook.url.reveal() == url


NO_PLACES = [
    *("", "example.com/x", "ftp://example.com/", "http://example.com/tok", "http://192.168.0.1/tok"),
    *("https://user:tok@example.com/", "https://tok@example.com/", "https:///tok", "https://example.com/to k"),
    *("https://example.com/tok\nx", "https://example.com:0/tok", "https://example.com:99999/tok", "https://[::1/tok"),
    *("https://example.com/x#tok", "https://hooks..example.com/tok", "https://.example.com/tok"),
    *("https://example.com../tok", "https://-hooks.example.com/tok", "https://a,b.example.com/tok"),
    *("https://a%20b.example.com/tok", f"https://{'a' * 64}.example.com/tok", f"https://{'a.' * 130}com/tok"),
    *("https://1.2.3.4.5/tok", "https://hooks.invalid/tok"),
]


def test_what_is_no_place_for_notices_is_refused_without_its_secrets() -> None:
    for url in NO_PLACES:
        with pytest.raises(UsageError) as caught:
            WebhookUrl.parse(url)
        assert "tok" not in str(caught.value)


def test_where_notices_may_go() -> None:
    named = ("https://example.com/a?b=c", "https://my_hooks/", "https://example.com./x", f"https://{'a' * 63}.kr/")
    for url in (*named, "http://localhost:9/x", "http://127.0.0.1/x", "http://[::1]:8/x"):
        assert WebhookUrl.parse(url).reveal() == url
    assert str(WebhookUrl.parse("http://example.com:81/tok", allow_http=True)) == "http://example.com:81"


FORMER = ["", "t=1", "v1=00", "t=x,v1=00", "t=1,t=1,v1=00", "t=²,v1=00", f"t={'9' * 400},v1=00", "t=1,v1=é"]


def test_what_is_no_signature_is_refused() -> None:
    for value in FORMER:
        assert not verify_signature(SECRET, {"X-Bizverify-Signature": value}, b"", now=1.0)
    for value in ("", "v1", "v1,", "v1,é", "v2,AAAA", "v1 AAAA", " " * 400):
        headers = signature_headers(SECRET, "closure", "n1", b"", 1.0) | {"webhook-signature": value}
        assert not verify_signature(SECRET, headers, b"", now=1.0)
    forged = hmac.digest(b"", b"n.1700000000.{}", "sha256")  # with the key that is no key
    headers = {"webhook-id": "n", "webhook-timestamp": "1700000000"}
    headers["webhook-signature"] = f"v1,{base64.b64encode(forged).decode()}"
    assert not verify_signature("whsec_", headers, b"{}", now=1_700_000_000)


def test_the_published_example_of_standard_webhooks() -> None:
    secret, body = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", b'{"test": 2432232314}'
    headers = {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }
    assert signature_headers(secret, "closure", headers["webhook-id"], body, 1614265330.5).items() >= headers.items()
    assert verify_signature(secret, headers, body, now=1614265331)
    rotated = headers | {"webhook-signature": f"v1a,x v1,{'A' * 43}= {headers['webhook-signature']}"}
    assert verify_signature(secret, rotated, body, now=1614265331)
    assert not verify_signature(secret, headers | {"webhook-id": "msg_other"}, body, now=1614265331)
    assert not verify_signature(secret, headers, body, now=1614265331 + 301)


def test_a_secret_is_used_in_either_form() -> None:
    sent = signature_headers("열려라 참깨 123456", "closure", "n1", b"{}", NOW)
    standard = {name: value for name, value in sent.items() if name.startswith("webhook-")}
    encoded = base64.b64encode("열려라 참깨 123456".encode()).decode()
    for secret in (f"whsec_{encoded}", f"whsec_{encoded.rstrip('=')}"):
        assert verify_signature(secret, standard, b"{}", now=NOW)
    assert not verify_signature("whsec_열려라", standard, b"{}", now=NOW)


@examples(30)
@given(st.binary(max_size=40), st.integers(0, 30), st.integers(1, 255), st.integers(0, 10**10))
def test_a_changed_body_is_seen(body: bytes, place: int, change: int, at: int) -> None:
    headers = {name.lower(): value for name, value in signature_headers(SECRET, "closure", "n1", body, at).items()}
    assert verify_signature(SECRET, headers, body, now=at + 300)
    changed = bytearray(body or b"\0")
    changed[place % len(changed)] ^= change
    assert not verify_signature(SECRET, headers, bytes(changed), now=at)
    later = headers | {"webhook-timestamp": str(at + 1)}
    assert not verify_signature(SECRET, later, body, now=at)
    former = {name: value for name, value in headers.items() if name.startswith("x-")}
    assert verify_signature(SECRET, former, body, now=at)
    assert not verify_signature(SECRET, former, bytes(changed), now=at)
    moved = headers["x-bizverify-signature"].replace(f"t={at},", f"t={at + 1},")
    assert not verify_signature(SECRET, {"X-BANSONG-SIGNATURE": moved}, body, now=at)


class _Receiver:
    """A channel that takes one message at a time, and fails for some."""

    name, batch, receiver = "receiver", 1, ""

    def __init__(self, *failing: str) -> None:
        self.failing, self.open, self.most, self.got = failing, 0, [], list[str]()

    async def send(self, messages: Sequence[Message]) -> Outcome:
        (message,) = messages
        self.open += 1
        self.most.append(self.open)
        await anyio.sleep(0.01)
        self.open -= 1
        self.got.append(message.id)
        return Outcome("no" if message.id in self.failing else None)


@pytest.mark.parametrize(
    ("failing", "patience", "parallel", "until", "got", "fails"),
    [
        ("c", 1, 1, 9, "abc", True),
        ("be", 2, 1, 9, "abcdef", False),
        ("bce", 2, 1, 9, "abc", True),
        ("", 1, 3, 9, "abcdef", False),
        ("a", 1, 3, 9, "a", True),
        ("", 1, 1, 2, "ab", False),
    ],
)
def test_a_queue_is_delivered_in_order_until_it_fails_or_the_run_is_over(
    failing: str, patience: int, parallel: int, until: int, got: str, fails: bool
) -> None:
    receiver, settled = _Receiver(*failing), list[tuple[str, bool]]()

    async def settle(messages: Sequence[PendingDelivery], outcome: Outcome) -> None:
        settled.extend((one.id, outcome.error is None) for one in messages)

    async def run() -> bool:
        queue, bounds = [delivery(id_) for id_ in "abcdef"], {"patience": patience, "parallel": parallel}
        return await deliver(receiver, queue, settle, is_over=lambda: len(receiver.got) >= until, **bounds)

    assert anyio.run(run) is fails
    assert sorted(receiver.got) == list(got)
    assert settled == [(id_, id_ not in failing) for id_ in receiver.got]
    assert receiver.most[0] == 1
    assert max(receiver.most) == min(parallel, len(got))


def test_lines_are_appended_to_a_file_of_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "closures.jsonl"
    append_lines(path, [PAYLOAD])
    append_lines(path, [PAYLOAD, PAYLOAD])
    assert [json.loads(line)["name"] for line in path.read_text("utf-8").splitlines()] == ["가나다"] * 3
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_bytes(b'{"event":"clo')  # a crash left it unfinished
    append_lines(path, [PAYLOAD])
    assert path.read_bytes() == f'{{"event":"clo\n{PAYLOAD}\n'.encode()
    with pytest.raises(OutputError, match=r"none/closures\.jsonl"):
        append_lines(tmp_path / "none" / "closures.jsonl", [PAYLOAD])


def test_a_failed_notice_waits_longer_each_time_and_by_default_for_days() -> None:
    backoff = Backoff(first=10, longest=100, attempts=8, patience=1_000, random=lambda: 0.5)
    assert [backoff.next_due(n, 0.0, 0.0) for n in range(1, 9)] == [10, 20, 40, 80, 100, 100, 100, None]
    assert backoff.next_due(1, 0.0, 995.0) is None
    spread = [Backoff(first=10, random=lambda r=r: r).next_due(1, 0.0, 0.0) for r in (0.0, 0.999)]
    assert spread == [5.0, pytest.approx(15.0, abs=0.02)]
    assert [backoff.next_due(1, 0.0, 0.0, wait) for wait in (60.0, 1e9)] == [60.0, 100.0]
    assert backoff.next_due(3, 0.0, 0.0, 1.0) == 40.0
    usual, times = Backoff(random=lambda: 0.5), [0.0]
    while (due := usual.next_due(len(times), 0.0, times[-1])) is not None:
        times.append(due)
    assert 2 * 86400 < times[-1] <= 3 * 86400
    assert len(times) < 20


def test_a_disk_that_fills_up_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "closures.jsonl"
    append_lines(path, [PAYLOAD])
    before, works = path.read_bytes(), os.write

    def write(file: int, content: bytes) -> int:
        if len(content) < len(PAYLOAD):
            raise OSError(errno.ENOSPC, "No space left on device")
        return works(file, content[: len(PAYLOAD) // 2])

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(OutputError, match="No space left"):
        append_lines(path, [PAYLOAD])
    monkeypatch.undo()
    assert path.read_bytes() == before
    append_lines(path, [PAYLOAD])
    assert path.read_bytes() == before * 2
