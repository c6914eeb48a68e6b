"""The message of a run, and its delivery: a webhook, a command, a file."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final, Literal

import msgspec

from bansong.cancellation import CancelToken, run_async
from bansong.errors import BansongError, OutputError, Problem, UsageError
from bansong.run.changes import CHANGES, Change
from bansong.scheduling.job_file import NotificationPart
from bansong.schema import SEOUL
from bansong.translation import end_sentence, gettext, gettext_noop
from bansong.watch.notifications import append_lines

WEBHOOK_VARIABLE_EMPTY: Final = Problem(
    "jobs.webhook_variable_empty", "the variable {variable} holds no URL; set it, or take `webhook_env` out"
)
MESSAGE_NOT_TAKEN: Final = Problem("jobs.message_not_taken", "{url}: the message was not taken: {error}")
COMMAND_FAILED: Final = Problem("jobs.command_failed", "{name}: ended with {code}: {said}")

_WORDS: Final[Mapping[Change, str]] = {
    "closed": gettext_noop("{count:,} newly closed"),
    "suspended": gettext_noop("{count:,} newly suspended"),
    "reopened": gettext_noop("{count:,} open again"),
    "risk_up": gettext_noop("{count:,} with a higher risk of return"),
    "risk_down": gettext_noop("{count:,} with a lower risk of return"),
    "action_up": gettext_noop("{count:,} with a stricter action"),
    "action_down": gettext_noop("{count:,} with a milder action"),
    "address": gettext_noop("{count:,} with another corrected address"),
    "new": gettext_noop("{count:,} new"),
    "gone": gettext_noop("{count:,} gone"),
}
_COMMAND_SECONDS: Final = 60.0
Channel = Literal["file", "webhook", "command"]


def compose_message(
    job: str,
    rows: int,
    since: float | None,
    counts: Mapping[str, int],
    failed: Sequence[str] = (),
    paused: Sequence[str] = (),
    unasked_nights: int = 0,
) -> str:
    """Return the message of a run: changes ``since`` a time (``None``: the first run), failures.

    ``unasked_nights``: consecutive nights on which due statuses could not be asked. The message holds no numbers, names
    or addresses, apart from paths of inputs.
    """
    lines = [_describe_changes(job, rows, since, counts, is_whole=not (failed or paused))]
    if unasked_nights > 1:
        lines.append(
            gettext(
                "for {nights} nights in a row not all statuses could be asked of the tax authority, so closures may be "
                "missing",
                nights=unasked_nights,
            )
        )
    lines += [gettext("failed: {error}", error=error) for error in failed]
    lines += [gettext("the next run goes on with some rows: {error}", error=error) for error in paused]
    return "\n".join(map(end_sentence, lines))


def _describe_changes(job: str, rows: int, since: float | None, counts: Mapping[str, int], *, is_whole: bool) -> str:
    if since is None:
        return gettext("{job}: first run, {rows:,} rows verified (no run before to compare with)", job=job, rows=rows)
    day = datetime.fromtimestamp(since, SEOUL).date().isoformat()
    changes = describe_counts(counts)
    if not changes and not is_whole:
        return gettext("{job}: no change was found, but not all could be verified", job=job)
    if not changes:
        return gettext("{job}: nothing changed", job=job, day=day)
    return gettext("{job}: since {day} {changes}", job=job, day=day, changes=changes)


def describe_counts(counts: Mapping[str, int]) -> str:
    """Return how many rows changed in which way, in words."""
    return ", ".join(gettext(_WORDS[kind], count=counts[kind]) for kind in CHANGES if counts.get(kind))


def channels_of(part: NotificationPart) -> frozenset[Channel]:
    """Return the channels of a job's messages."""
    named: dict[Channel, object] = {"file": part.file, "webhook": part.webhook_env, "command": part.command}
    return frozenset(channel for channel, value in named.items() if value)


def deliver_message(
    part: NotificationPart, folder: Path, text: str, channels: Collection[Channel]
) -> dict[Channel, str | None]:
    """Send a message to ``channels``; return each one's error, if any. Raises nothing."""
    outcome: dict[Channel, str | None] = {}
    for channel, deliver in _DELIVER.items():
        if channel in channels:
            try:
                deliver(part, folder, text)
                outcome[channel] = None
            except (BansongError, OSError, ValueError) as error:
                outcome[channel] = str(error)
    return outcome


def _append(part: NotificationPart, folder: Path, text: str) -> None:
    append_lines(folder / Path(part.file or "").expanduser(), text.splitlines())


def _post(part: NotificationPart, _: Path, text: str) -> None:
    """POST ``{"text": …}``, the form of Slack and its imitators."""
    from bansong.client.webhook import WebhookSender, WebhookUrl

    value = _url_of(part)
    if not value:
        raise UsageError(WEBHOOK_VARIABLE_EMPTY, variable=part.webhook_env)
    url, body = WebhookUrl.parse(value), msgspec.json.encode({"text": text})

    async def send() -> str | None:
        return (await WebhookSender().send(url, {}, body)).error

    if error := run_async(send, CancelToken()):
        raise OutputError(MESSAGE_NOT_TAKEN, url=url, error=error)


def _url_of(part: NotificationPart) -> str:
    return os.environ.get(part.webhook_env or "", "").strip()


def _run_command(part: NotificationPart, folder: Path, text: str) -> None:
    """Run the operator's command without a shell; its arguments, which may be secrets, are never shown."""
    name = part.command[0]
    try:
        done = subprocess.run(  # noqa: S603 - see above
            part.command,
            input=f"{text}\n".encode(),
            cwd=folder,
            timeout=_COMMAND_SECONDS,
            capture_output=True,
            check=False,
            start_new_session=True,  # Ctrl-C is for this process, which lets it end
        )
    except subprocess.TimeoutExpired:
        reason = gettext(
            "{name}: had not ended after {seconds:g} s, and was stopped", name=name, seconds=_COMMAND_SECONDS
        )
        raise OutputError(reason) from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        said = said.replace(url, gettext("(the webhook's URL)")) if (url := _url_of(part)) else said
        raise OutputError(COMMAND_FAILED, name=name, code=done.returncode, said=said[:200])


_DELIVER: Final[Mapping[Channel, Callable[[NotificationPart, Path, str], None]]] = {
    "file": _append,
    "webhook": _post,
    "command": _run_command,
}
