"""On which terms a run may spend: what the user allows, checked before anything is asked."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict

from bizverify.errors import UsageError, parameter

if TYPE_CHECKING:
    from bizverify.client import ApiKey

PAYING: Final = ("verify", "batch", "hybrid")
"""The engines that buy."""


class ServiceKeywords(TypedDict, total=False):
    """What :func:`bizverify.enrich` and its kin take for the engines that buy.

    ``base_url`` (or ``BIZVERIFY_BASE_URL``) and ``api_key`` or ``key_file`` (or ``BIZVERIFY_API_KEY``,
    ``BIZVERIFY_API_KEY_FILE``) say where and as whom; plain ``http`` beyond this machine needs ``allow_http``.
    ``known_as``: the base URL under which the ledger knows the service, where its address was another one then; nothing
    is sent there.
    ``ledger``: its path, by default ``BIZVERIFY_LEDGER``, else in the state directory; its answers are used again for
    ``max_age`` days. ``budget``: lookups this run may buy at most; with it, the rows with the largest value in the
    column ``priority`` come first, or else those that the local engine is least sure of. ``buy_suspect`` buys numbers
    with a wrong check digit, too. ``rate``: requests per second; ``concurrency``: requests under way at once.
    ``offline`` and ``paid`` are passed to ``/batch`` as given. ``band``: the probabilities between which the hybrid
    engine buys. ``chunk``: rows of an upload; ``jobs``: uploads under way at once; ``poll``: seconds between two
    looks at a job; ``timeout``: seconds to wait for a reply; ``drain``: seconds that an interrupted run waits for
    what is under way. ``retry_trial`` tries once more to buy from a service that has answered nothing so far.
    """

    base_url: str | None
    api_key: ApiKey | str | None
    key_file: str | Path | None
    allow_http: bool
    known_as: str | None
    ledger: str | Path | None
    max_age: float
    budget: int | None
    priority: str | None
    buy_suspect: bool
    rate: float
    concurrency: int
    offline: bool | None
    paid: bool | None
    band: tuple[float, float]
    chunk: int
    jobs: int
    poll: float
    timeout: float
    drain: float
    retry_trial: bool


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """The options of :class:`ServiceKeywords` with their defaults."""

    base_url: str | None = None
    api_key: ApiKey | None = None
    key_file: str | Path | None = None
    allow_http: bool = False
    known_as: str | None = None
    ledger: str | Path | None = None
    max_age: float = 30.0
    budget: int | None = None
    priority: str | None = None
    buy_suspect: bool = False
    rate: float = 50.0
    concurrency: int = 16
    offline: bool | None = None
    paid: bool | None = None
    band: tuple[float, float] = (0.08, 0.5)
    chunk: int = 5000
    jobs: int = 4
    poll: float = 1.0
    timeout: float = 30.0
    drain: float = 10.0
    retry_trial: bool = False


def hide_key(options: Any) -> None:
    """Put an ``ApiKey`` in the place of an ``api_key`` that is a text, in the options themselves.

    Each public function does it first of all: what is raised later may be shown with the variables of its frames.
    Raises :class:`UsageError` for what cannot be a key.
    """
    if options.get("api_key") is None:
        return
    from bizverify.client.key import ApiKey

    if not isinstance(options["api_key"], ApiKey):
        options["api_key"] = ApiKey(options.pop("api_key"))


def service_options(engine: str, options: ServiceKeywords) -> ServiceOptions:
    """Return the terms of a run; raise :class:`UsageError` for what makes no sense or is for another engine."""
    known = {field.name for field in fields(ServiceOptions)}
    if unknown := sorted(set(options) - known):
        raise UsageError(f"unknown option {unknown[0]!r}; known are {', '.join(sorted(known))}")
    if engine not in PAYING and options:
        raise UsageError(f"{parameter(next(iter(options)))} is for the engines {', '.join(PAYING)}, not for {engine}")
    hide_key(options)
    terms = ServiceOptions(**options)  # type: ignore[arg-type]  # the key is no text any more
    for name, engines in (("offline", ("batch",)), ("paid", ("batch",)), ("band", ("hybrid",))):
        if name in options and engine not in engines and getattr(terms, name) is not None:
            raise UsageError(f"{parameter(name)} is for {parameter('engine', ' and '.join(engines))}, not for {engine}")
    _check(terms)
    return terms


def _check(terms: ServiceOptions) -> None:
    for name, (is_right, wanted) in _RULES.items():
        value = getattr(terms, name)
        try:
            right = is_right(value)
        except (TypeError, ValueError):  # a text, say
            right = False
        if not right:
            raise UsageError(f"{parameter(name, value)}: must be {wanted}")


def _is_whole(value: Any, least: int, most: float = math.inf) -> bool:
    return isinstance(value, int) and least <= value <= most


def _is_band(value: Any) -> bool:
    low, high = value
    return bool(0 <= low <= high <= 1)


_RULES: Final[dict[str, tuple[Callable[[Any], bool], str]]] = {
    "budget": (lambda value: value is None or _is_whole(value, 0), "a number of lookups, 0 or more"),
    "max_age": (lambda value: value >= 0, "a number of days, 0 or more"),
    "rate": (lambda value: 0 < value < math.inf, "requests per second, above 0"),
    "concurrency": (lambda value: _is_whole(value, 1, 1000), "from 1 to 1000"),
    "chunk": (lambda value: _is_whole(value, 1), "a number of rows, 1 or more"),
    "jobs": (lambda value: _is_whole(value, 1, 100), "from 1 to 100"),
    "poll": (lambda value: value > 0, "seconds, above 0"),
    "timeout": (lambda value: value > 0, "seconds, above 0"),
    "drain": (lambda value: value >= 0, "seconds, 0 or more"),
    "band": (_is_band, "two probabilities, the lower first, as 0.08-0.5"),
}
