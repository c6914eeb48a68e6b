"""How statuses are fetched from the tax authority's open API."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from bansong.environment import variable
from bansong.errors import Problem, UsageError
from bansong.options.engine_kinds import EngineKind
from bansong.options.option_rules import Options, above, hides_keys, option, whole
from bansong.options.purchase_options import SHARED_RULES
from bansong.translation import Option, gettext_noop

if TYPE_CHECKING:
    from bansong.client.key import SecretKey

ENGINE_GIVEN_READY: Final = Problem(
    "options.engine_given_ready",
    "{option} is for engines that are named; give the one that is given as {engine} what "
    "bansong.fetch_status returns, as its {status}",
)
STATUS_FROM_SERVICE: Final = Problem(
    "options.status_from_service",
    "{option} is for the engines that answer locally, not for {name}: there the service says the status",
)
CHOICE_UNKNOWN: Final = Problem("options.choice_unknown", "{option}: must be one of {listed}")
AGE_SAID_TWICE: Final = Problem("options.age_said_twice", "{option} is a field of {status}: say it there, as max_age")
NTS_KEY_UNPROTECTED: Final = Problem(
    "options.nts_key_unprotected", "{option} is a {kind}; give a bansong.NtsKey, which is never shown"
)

StatusSource = Literal["auto", "nts", "none"]
ENV_NTS_KEY: Final = "BANSONG_NTS_KEY"
ENV_NTS_KEY_FILE: Final = "BANSONG_NTS_KEY_FILE"
STATUS_SOURCES: Final[tuple[StatusSource, ...]] = ("auto", "nts", "none")


def _refuse_text_as_key(keywords: dict[str, Any]) -> None:
    """Refuse a ``key`` that is a text, and take it out of the keywords."""
    if keywords.get("key") is None:
        return
    from bansong.client.key import SecretKey

    if not isinstance(keywords["key"], SecretKey):
        kind = type(keywords.pop("key")).__name__
        raise UsageError(NTS_KEY_UNPROTECTED, option=Option("key"), kind=kind)


@hides_keys
@dataclass(frozen=True, slots=True, kw_only=True)
class StatusOptions(Options):
    """How statuses are fetched from the tax authority's open API; raises :class:`UsageError` for what cannot be.

    ``source``: ``nts`` asks, ``none`` does not, ``auto`` asks if a key is set in the environment. ``key`` (an
    ``NtsKey``) or ``key_file``, by default ``BANSONG_NTS_KEY`` or the file that ``BANSONG_NTS_KEY_FILE`` names.
    ``max_age``: days for which a status is not asked again. ``store``: the status store's path, by default
    ``BANSONG_STATUS_STORE``, else in the state directory. ``budget``: numbers that may be asked with the key on one
    day in Korea; without it, as many as the tax authority allows. ``base_url``: by default ``BANSONG_NTS_URL``, else
    the API's own. ``rate``: calls per second, of up to 100 numbers each; ``concurrency``: calls under way at once;
    ``timeout``: seconds to wait for a reply; ``patience``: seconds without any reply after which a run gives up;
    ``drain``: seconds that a run which ends early waits for what is under way.
    """

    source: StatusSource = option(
        "auto",
        flag="--status",
        parameter="status",
        choices=STATUS_SOURCES,
        job="status.source",
        help="Ask the tax authority's free API for statuses that are not stored: nts, none, or auto, with a key set.",
    )
    key: SecretKey | None = option(hide_key=_refuse_text_as_key)
    key_file: str | Path | None = option(
        flag="--nts-key-file",
        parameter="nts_key_file",
        job="status.key_file",
        help="A file that holds the tax authority's free key; by default the key is BANSONG_NTS_KEY. Never an "
        "argument.",
    )
    max_age: float = option(
        30.0,
        flag="--max-status-age DAYS",
        parameter="max_status_age",
        job="status.max_age",
        rule=SHARED_RULES["max_age"],
        help="How long a stored status is not asked again; default 30.",
    )
    store: str | Path | None = option(
        flag="--status-store",
        parameter="status_store",
        job="status.store",
        help="The file of fetched statuses; by default BANSONG_STATUS_STORE, else in the state directory.",
    )
    budget: int | None = option(
        flag="--status-budget N",
        parameter="status_budget",
        job="status.budget",
        rule=whole(0, gettext_noop("how many numbers a day, 0 or more")),
        help="Ask the tax authority for N numbers a day at most; by default as many as it allows.",
    )
    base_url: str | None = None
    rate: float = option(20.0, rule=above(0, gettext_noop("calls per second, above 0"), below=math.inf))
    concurrency: int = option(8, rule=SHARED_RULES["concurrency"])
    timeout: float = option(60.0, rule=SHARED_RULES["timeout"])
    patience: float = option(90.0, rule=SHARED_RULES["timeout"])
    drain: float = option(10.0, rule=SHARED_RULES["drain"])

    def __post_init__(self) -> None:
        if not isinstance(self.source, str) or self.source not in STATUS_SOURCES:
            raise UsageError(CHOICE_UNKNOWN, option=Option("status", self.source), listed=", ".join(STATUS_SOURCES))
        Options.__post_init__(self)

    @property
    def is_asking(self) -> bool:
        """Whether the tax authority is to be asked: ``auto`` does where a key is given or in the environment."""
        if self.source == "auto":
            in_environment = any((variable(name) or "").strip() for name in (ENV_NTS_KEY, ENV_NTS_KEY_FILE))
            return self.key is not None or self.key_file is not None or in_environment
        return self.source == "nts"


def status_options(
    status: StatusSource | StatusOptions, max_age: float | None, kind: EngineKind, *, given: bool
) -> StatusOptions | None:
    """Return how a call that takes ``status`` and ``max_status_age`` asks for statuses, ``None`` if it does not.

    ``kind``: the kind of its engine; ``given``: whether the caller made that. Raises :class:`UsageError` where it is
    said to ask, and the engine has no use for it.
    """
    if not isinstance(status, StatusOptions):
        status = StatusOptions(source=status, max_age=StatusOptions().max_age if max_age is None else max_age)
    elif max_age is not None:
        raise UsageError(AGE_SAID_TWICE, option=Option("max_status_age"), status=Option("status"))
    if status.source == "nts" and given:
        raise UsageError(
            ENGINE_GIVEN_READY, option=Option("status", "nts"), engine=Option("engine"), status=Option("status")
        )
    if status.source == "nts" and not kind.answers_locally:
        raise UsageError(STATUS_FROM_SERVICE, option=Option("status", "nts"), name=kind.name)
    return status if status.is_asking and kind.answers_locally and not given else None
