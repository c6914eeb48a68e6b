"""Channels for messages, and the loop that delivers a queue. A new channel is one entry of :data:`CHANNELS`."""

from __future__ import annotations

import os
import stat
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, NamedTuple, Protocol, TypeVar

import msgspec

from bansong.base.errors import BansongError, OutputError, Problem, UsageError
from bansong.base.files import last_byte, open_private, sync_folder
from bansong.base.messages import describe_os_error, gettext

if TYPE_CHECKING:
    from bansong.client.webhook import Outcome, WebhookSender, WebhookUrl

CLOSURES_UNWRITABLE: Final = Problem(
    "watch.closures_unwritable", "{path}: closures cannot be appended: {value}; make it writable, or free space"
)
WEBHOOK_VARIABLE_EMPTY: Final = Problem(
    "jobs.webhook_variable_empty", "the variable {variable} holds no URL; set it, or take `webhook_env` out"
)
COMMAND_FAILED: Final = Problem("jobs.command_failed", "{name}: ended with {code}: {said}")

# names of channels, as stored
FILE: Final = "file"
WEBHOOK: Final = "webhook"
COMMAND: Final = "command"
_MAX_LINES: Final = 10_000
_COMMAND_TIMEOUT_S: Final = 60.0


class Message(Protocol):
    """A message, as JSON ``payload`` and as ``text`` for people. Its ``id`` is the same at each attempt."""

    @property
    def id(self) -> str: ...
    @property
    def event(self) -> str: ...
    @property
    def payload(self) -> str: ...
    @property
    def text(self) -> str: ...


class Channel(Protocol):
    """A receiver of at most ``batch`` messages per attempt. ``receiver`` is its name if its errors do not have it."""

    @property
    def name(self) -> str: ...
    @property
    def batch(self) -> int: ...
    @property
    def receiver(self) -> str: ...

    async def send(self, messages: Sequence[Message]) -> Outcome:
        """Deliver up to ``batch`` messages, all or none. An error is returned, not raised."""


@dataclass(frozen=True, slots=True)
class FileChannel:
    """Append messages as lines to a file."""

    path: Path
    name: ClassVar[str] = FILE
    batch: ClassVar[int] = _MAX_LINES
    receiver: ClassVar[str] = ""

    async def send(self, messages: Sequence[Message]) -> Outcome:
        return await _in_thread(lambda: append_lines(self.path, [message.text for message in messages]))


@dataclass(frozen=True, slots=True)
class WebhookChannel:
    """POST each payload to a URL, signed if there is a ``secret``. ``now`` returns seconds since 1970."""

    url: WebhookUrl
    sender: WebhookSender = field(repr=False)
    secret: str | None = field(default=None, repr=False)
    now: Callable[[], float] = field(default=time.time, repr=False)
    name: ClassVar[str] = WEBHOOK
    batch: ClassVar[int] = 1

    @property
    def receiver(self) -> str:
        return str(self.url)

    async def send(self, messages: Sequence[Message]) -> Outcome:
        from bansong.client.webhook import signature_headers

        (message,) = messages
        body, headers = message.payload.encode(), dict[str, str]()
        if self.secret is not None:
            headers = signature_headers(self.secret, message.event, message.id, body, self.now())
        return await self.sender.send(self.url, headers, body)


@dataclass(frozen=True, slots=True)
class CommandChannel:
    """Pass each text to the operator's command, without a shell. No error shows its arguments or ``secret_url``."""

    command: tuple[str, ...] = field(repr=False)
    folder: Path
    secret_url: str = field(default="", repr=False)
    name: ClassVar[str] = COMMAND
    batch: ClassVar[int] = 1
    receiver: ClassVar[str] = ""

    async def send(self, messages: Sequence[Message]) -> Outcome:
        (message,) = messages
        return await _in_thread(lambda: self._run(message.text))

    def _run(self, text: str) -> None:
        name = self.command[0]
        try:
            done = subprocess.run(  # noqa: S603 - see above
                self.command,
                input=f"{text}\n".encode(),
                cwd=self.folder,
                timeout=_COMMAND_TIMEOUT_S,
                capture_output=True,
                check=False,
                start_new_session=True,  # Ctrl-C reaches this process alone, which waits for the command
            )
        except subprocess.TimeoutExpired:
            reason = gettext(
                "{name}: had not ended after {seconds:g} s, and was stopped", name=name, seconds=_COMMAND_TIMEOUT_S
            )
            raise OutputError(reason) from None
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip()
            said = said.replace(self.secret_url, gettext("(the webhook's URL)")) if self.secret_url else said
            raise OutputError(COMMAND_FAILED, name=name, code=done.returncode, said=said[:200])


@dataclass(frozen=True, slots=True)
class UnusableChannel:
    """A channel that could not be opened. Its messages wait."""

    name: str
    error: str
    batch: ClassVar[int] = 1
    receiver: ClassVar[str] = ""

    async def send(self, messages: Sequence[Message]) -> Outcome:  # noqa: ARG002 - as all channels
        from bansong.client.webhook import Outcome

        return Outcome(self.error)


class ChannelKind(NamedTuple):
    """A kind of channel in job files, with its ``field`` in [notify]. ``open`` gets that table and the job's folder."""

    name: str
    field: str
    type: Any
    open: Callable[[Mapping[str, Any], Path], Channel]
    default: Any = None


def _open_webhook(table: Mapping[str, Any], _: Path) -> Channel:
    from bansong.client.webhook import WebhookSender, WebhookUrl

    if not (url := _secret_url(table)):
        raise UsageError(WEBHOOK_VARIABLE_EMPTY, variable=table["webhook_env"])
    return WebhookChannel(WebhookUrl.parse(url), WebhookSender())


def _open_command(table: Mapping[str, Any], folder: Path) -> Channel:
    return CommandChannel(table["command"], folder, _secret_url(table))


def _secret_url(table: Mapping[str, Any]) -> str:
    return os.environ.get(table["webhook_env"] or "", "").strip()


VARIABLE_NAME: Final = "^[A-Za-z_][A-Za-z0-9_]*$"
VariableName = Annotated[str, msgspec.Meta(pattern=VARIABLE_NAME)]
NonemptyText = Annotated[str, msgspec.Meta(min_length=1)]

CHANNELS: Final = (
    ChannelKind(WEBHOOK, "webhook_env", VariableName | None, _open_webhook),
    ChannelKind(COMMAND, "command", tuple[NonemptyText, ...], _open_command, ()),
    ChannelKind(FILE, "file", str | None, lambda table, folder: FileChannel(folder / Path(table["file"]).expanduser())),
)


def open_channels(table: Mapping[str, Any], folder: Path) -> list[Channel]:
    """Open the channels that a table [notify] names."""
    channels: list[Channel] = []
    for kind in CHANNELS:
        if table[kind.field]:
            try:
                channels.append(kind.open(table, folder))
            except BansongError as error:
                channels.append(UnusableChannel(kind.name, str(error)))
    return channels


M = TypeVar("M", bound=Message)


async def deliver(
    channel: Channel,
    waiting: Sequence[M],
    settle: Callable[[Sequence[M], Outcome], Awaitable[None]],
    *,
    patience: int = 1,
    parallel: int = 1,
    places: AbstractAsyncContextManager[object] | None = None,
    is_over: Callable[[], bool] = lambda: False,
) -> bool:
    """Deliver a queue, each message at least once; return whether ``patience`` attempts in a row failed.

    ``settle`` gets the outcome of each attempt. ``parallel``: attempts at once; ``places`` is held during each.
    """
    import anyio

    failures = 0
    room = anyio.CapacityLimiter(parallel)

    async def attempt(messages: Sequence[M]) -> None:
        nonlocal failures
        async with room:
            if failures >= patience or is_over():
                return
            async with places or nullcontext():
                outcome = await channel.send(messages)
            if failures < patience:
                failures = 0 if outcome.error is None else failures + 1
            await settle(messages, outcome)

    batches = [waiting[first : first + channel.batch] for first in range(0, len(waiting), channel.batch)]
    # the first one alone: a receiver that hangs must not block more than one place
    for batch in batches[:1] if parallel > 1 else batches:
        await attempt(batch)
    if parallel > 1:
        async with anyio.create_task_group() as group:
            for batch in batches[1:]:
                group.start_soon(attempt, batch)
    return failures >= patience


async def _in_thread(act: Callable[[], None]) -> Outcome:
    import anyio.to_thread

    from bansong.client.webhook import Outcome

    try:
        await anyio.to_thread.run_sync(act)
    except (BansongError, OSError, ValueError) as error:
        return Outcome(str(error))
    return Outcome(None)


def append_lines(path: Path, lines: Sequence[str]) -> None:
    """Append lines to a file (0600) durably, in one write; complete an unfinished last line first."""
    try:
        is_new = not path.exists()
        file = open_private(path, append=True)
        try:
            content = "".join(f"{line}\n" for line in lines).encode()
            _write_all(file, b"\n" + content if content and _is_torn(file) else content)
        finally:
            os.close(file)
        if is_new:
            sync_folder(path.parent)
    except OSError as error:
        raise OutputError(CLOSURES_UNWRITABLE, path=path, value=describe_os_error(error)) from error


def _is_torn(file: int) -> bool:
    return stat.S_ISREG(os.fstat(file).st_mode) and last_byte(file) not in (b"", b"\n")


def _write_all(file: int, content: bytes) -> None:
    """Write everything, or nothing if the disk is full."""
    about, left = os.fstat(file), memoryview(content)
    try:
        while left:
            left = left[os.write(file, left) :]
        os.fsync(file)
    except OSError:
        if stat.S_ISREG(about.st_mode):
            os.ftruncate(file, about.st_size)
        raise
