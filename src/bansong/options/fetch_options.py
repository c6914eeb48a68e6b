"""How statuses are fetched from the tax authority's open API."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from bansong.environment import variable
from bansong.errors import Problem, UsageError
from bansong.options.engine_kinds import EngineKind
from bansong.options.option_rules import SHARED_RULES, Rule, check_fields, is_whole
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusOptions:
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

    source: StatusSource = "auto"
    key: SecretKey | None = None
    key_file: str | Path | None = None
    max_age: float = 30.0
    store: str | Path | None = None
    budget: int | None = None
    base_url: str | None = None
    rate: float = 20.0
    concurrency: int = 8
    timeout: float = 60.0
    patience: float = 90.0
    drain: float = 10.0

    def __post_init__(self) -> None:
        if not isinstance(self.source, str) or self.source not in STATUS_SOURCES:
            raise UsageError(CHOICE_UNKNOWN, option=Option("status", self.source), listed=", ".join(STATUS_SOURCES))
        check_fields(self, _STATUS_RULES, max_age="max_status_age", budget="status_budget")

    @property
    def is_asking(self) -> bool:
        """Whether the tax authority is to be asked: ``auto`` does where a key is given or in the environment."""
        if self.source == "auto":
            in_environment = any((variable(name) or "").strip() for name in (ENV_NTS_KEY, ENV_NTS_KEY_FILE))
            return self.key is not None or self.key_file is not None or in_environment
        return self.source == "nts"


def _refuse_text_as_key(construct: Callable[..., None]) -> Callable[..., None]:
    """Wrap a constructor so that a ``key`` which is a text is refused, and is in no frame of what is raised."""

    @wraps(construct)
    def construct_without_text(self: StatusOptions, **keywords: Any) -> None:
        if keywords.get("key") is not None:
            from bansong.client.key import SecretKey

            if not isinstance(keywords["key"], SecretKey):
                kind = type(keywords.pop("key")).__name__
                raise UsageError(NTS_KEY_UNPROTECTED, option=Option("key"), kind=kind)
        construct(self, **keywords)

    return construct_without_text


StatusOptions.__init__ = _refuse_text_as_key(StatusOptions.__init__)  # type: ignore[method-assign]


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


_STATUS_RULES: Final[dict[str, Rule]] = {
    "budget": (lambda value: value is None or is_whole(value, 0), gettext_noop("how many numbers a day, 0 or more")),
    "rate": (lambda value: 0 < value < math.inf, gettext_noop("calls per second, above 0")),
    "patience": SHARED_RULES["timeout"],
    **SHARED_RULES,
}
