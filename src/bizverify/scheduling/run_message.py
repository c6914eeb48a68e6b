"""What a run has to tell, in a sentence or two, and how it gets to people: a webhook, a command, a file."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final, Literal

import msgspec

from bizverify.cancellation import CancelToken, run_async
from bizverify.errors import BizverifyError, OutputError, UsageError
from bizverify.scheduling.job_file import CHANGES, Change, NotificationPart
from bizverify.schema import SEOUL, Lang
from bizverify.watch.notifications import append_lines

_WORDS: Final[Mapping[Lang, Mapping[Change, str]]] = {
    "ko": {
        "closed": "새로 폐업 {}곳",
        "suspended": "새로 휴업 {}곳",
        "reopened": "다시 영업 {}곳",
        "risk_up": "반송 위험 상승 {}곳",
        "risk_down": "반송 위험 하락 {}곳",
        "action_up": "조치 강화 {}곳",
        "action_down": "조치 완화 {}곳",
        "address": "교정 주소 변경 {}곳",
        "new": "새 거래처 {}곳",
        "gone": "빠진 거래처 {}곳",
    },
    "en": {
        "closed": "{} newly closed",
        "suspended": "{} newly suspended",
        "reopened": "{} open again",
        "risk_up": "{} with a higher risk of return",
        "risk_down": "{} with a lower risk of return",
        "action_up": "{} with a stricter action",
        "action_down": "{} with a milder action",
        "address": "{} with another corrected address",
        "new": "{} new",
        "gone": "{} gone",
    },
}
_SENTENCES: Final[Mapping[Lang, Mapping[str, str]]] = {
    "ko": {
        "since": "{job}: {day} 이후 {changes}",
        "same": "{day} 이후 바뀐 것 없음",
        "first": "{job}: 첫 실행, {rows:,}행 확인 (비교할 이전 실행 없음)",
        "failed": "실패: {error}",
        "paused": "일부 행은 다음 실행에서 이어집니다: {error}",
    },
    "en": {
        "since": "{job}: since {day} {changes}",
        "same": "nothing changed",
        "first": "{job}: first run, {rows:,} rows verified (no run before to compare with)",
        "failed": "failed: {error}",
        "paused": "the next run goes on with some rows: {error}",
    },
}
_COMMAND_SECONDS: Final = 60.0

Channel = Literal["file", "webhook", "command"]
"""Where a message goes."""


def compose_message(
    lang: Lang,
    job: str,
    rows: int,
    since: float | None,
    counts: Mapping[str, int],
    failed: Sequence[str] = (),
    paused: Sequence[str] = (),
) -> str:
    """Return what a run has to say: what changed ``since`` a time (``None``: it is the first), what failed.

    Numbers, names and addresses are not in it, apart from paths of inputs.
    """
    words = _SENTENCES[lang]
    if since is None:
        text = words["first"].format(job=job, rows=rows)
    else:
        parts = [_WORDS[lang][kind].format(f"{counts[kind]:,}") for kind in CHANGES if counts.get(kind)]
        day = datetime.fromtimestamp(since, SEOUL).date().isoformat()
        changes = ", ".join(parts) if parts else words["same"].format(day=day)
        text = words["since"].format(job=job, day=day, changes=changes) if parts else f"{job}: {changes}"
    ends = [words["failed"].format(error=error) for error in failed]
    ends += [words["paused"].format(error=error) for error in paused]
    return "\n".join([text, *ends])


def channels_of(part: NotificationPart) -> frozenset[Channel]:
    """Return where the messages of a job go."""
    named: dict[Channel, object] = {"file": part.file, "webhook": part.webhook_env, "command": part.command}
    return frozenset(channel for channel, value in named.items() if value)


def deliver_message(
    part: NotificationPart, folder: Path, text: str, channels: Collection[Channel]
) -> dict[Channel, str | None]:
    """Send a message to ``channels``; return why it did not arrive, ``None`` where it did. Raises nothing."""
    outcome: dict[Channel, str | None] = {}
    for channel, deliver in _DELIVER.items():
        if channel in channels:
            try:
                deliver(part, folder, text)
                outcome[channel] = None
            except (BizverifyError, OSError, ValueError) as error:
                outcome[channel] = str(error)
    return outcome


def _append(part: NotificationPart, folder: Path, text: str) -> None:
    append_lines(folder / Path(part.file or "").expanduser(), text.splitlines())


def _post(part: NotificationPart, _: Path, text: str) -> None:
    """POST ``{"text": …}``, the form that Slack and what imitates it take."""
    from bizverify.client.webhook import WebhookSender, WebhookUrl

    value = _url_of(part)
    if not value:
        raise UsageError(f"the variable {part.webhook_env} holds no URL; set it, or take `webhook_env` out")
    url, body = WebhookUrl.parse(value), msgspec.json.encode({"text": text})

    async def send() -> str | None:
        return (await WebhookSender().send(url, {}, body)).error

    if error := run_async(send, CancelToken()):
        raise OutputError(f"{url}: the message was not taken: {error}")


def _url_of(part: NotificationPart) -> str:
    return os.environ.get(part.webhook_env or "", "").strip()


def _run_command(part: NotificationPart, folder: Path, text: str) -> None:
    """Run the operator's own command, without a shell; its arguments, which may be secrets, are never shown."""
    name = part.command[0]
    try:
        done = subprocess.run(  # noqa: S603 - see above
            part.command,
            input=f"{text}\n".encode(),
            cwd=folder,
            timeout=_COMMAND_SECONDS,
            capture_output=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise OutputError(f"{name}: had not ended after {_COMMAND_SECONDS:g} s, and was stopped") from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        said = said.replace(url, "(the webhook's URL)") if (url := _url_of(part)) else said
        raise OutputError(f"{name}: ended with {done.returncode}: {said[:200]}")


_DELIVER: Final[Mapping[Channel, Callable[[NotificationPart, Path, str], None]]] = {
    "file": _append,
    "webhook": _post,
    "command": _run_command,
}
