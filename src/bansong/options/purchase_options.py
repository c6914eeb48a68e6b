"""How a run buys from the hosted service, and how much."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict

from bansong.errors import Problem, UsageError
from bansong.options.engine_kinds import ENGINE_KINDS, EngineKind, engine_kind
from bansong.options.option_rules import SHARED_RULES, Rule, check_fields, differing_fields, is_whole
from bansong.translation import Listed, Option, Phrase, gettext_noop

if TYPE_CHECKING:
    from bansong.client import ApiKey

BUYING_ENGINES_ONLY: Final = Problem(
    "options.buying_engines_only", "{option} is for the engines {buying}, not for {engine}"
)
PARAMETER_UNKNOWN: Final = Problem(
    "options.parameter_unknown", "{function}() has no parameter {name!r}{meant}; it takes {listed}"
)
OTHER_ENGINE_ONLY: Final = Problem("options.other_engine_only", "{option} is for {engines}, not for {name}")


class ServiceKeywords(TypedDict, total=False):
    """The fields of :class:`ServiceOptions` as keywords of a function."""

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


def _hide_key_first(construct: Callable[..., None]) -> Callable[..., None]:
    """Wrap a constructor so that no frame of it has a key that is a text: see :func:`hide_key`."""

    @wraps(construct)
    def construct_without_key(self: ServiceOptions, **keywords: Any) -> None:
        hide_key(keywords)
        construct(self, **keywords)

    return construct_without_key


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """How a run buys from the hosted service, and how much; raises :class:`UsageError` for values that cannot be.

    ``base_url`` (or ``BANSONG_BASE_URL``) and ``api_key`` or ``key_file`` (or ``BANSONG_API_KEY``,
    ``BANSONG_API_KEY_FILE``) say where and as whom; plain ``http`` beyond this machine needs ``allow_http``.
    ``known_as``: the base URL under which the ledger knows the service, where its address was another one then; nothing
    is sent there.
    ``ledger``: its path, by default ``BANSONG_LEDGER``, else in the state directory; its answers are used again for
    ``max_age`` days. ``budget``: lookups this run may buy at most; with it, the rows with the largest value in the
    column ``priority`` come first, or else those that the local engine is least sure of. ``buy_suspect`` buys numbers
    with a wrong check digit, too. ``rate``: requests per second; ``concurrency``: requests under way at once.
    ``offline`` and ``paid`` are passed to ``/batch`` as given. ``band``: the probabilities between which the hybrid
    engine buys. ``chunk``: rows of an upload; ``jobs``: uploads under way at once; ``poll``: seconds between two
    looks at a job; ``timeout``: seconds to wait for a reply; ``drain``: seconds that an interrupted run waits for
    what is under way. ``retry_trial`` tries once more to buy from a service that has answered nothing so far.
    """

    base_url: str | None = None
    api_key: ApiKey | str | None = None
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

    def __post_init__(self) -> None:
        check_fields(self, _RULES)

    def load_key(self) -> ApiKey:
        """Return the API key: the one given, else from ``key_file`` or the environment; raise :class:`UsageError`."""
        from bansong.client.key import ApiKey

        return self.api_key if isinstance(self.api_key, ApiKey) else ApiKey.load(self.key_file)

    def check_kind(self, kind: EngineKind) -> None:
        """Raise :class:`UsageError` for an option that is for another kind of engine."""
        _refuse_foreign(kind, differing_fields(self))


ServiceOptions.__init__ = _hide_key_first(ServiceOptions.__init__)  # type: ignore[method-assign]


def hide_key(options: Any) -> None:
    """Put an ``ApiKey`` in the place of an ``api_key`` that is a text, in the options themselves.

    Each public function does it first (:func:`check_keywords`): a later error may be shown with its frames' variables.
    Raises :class:`UsageError` for what cannot be a key.
    """
    if options.get("api_key") is None:
        return
    from bansong.client.key import ApiKey

    if not isinstance(options["api_key"], ApiKey):
        options["api_key"] = ApiKey(options.pop("api_key"))


def service_options(engine: str, keywords: ServiceKeywords) -> ServiceOptions:
    """Return the options of a run; raise :class:`UsageError` for what makes no sense or is for another engine."""
    kind = engine_kind(engine)
    if keywords and not kind.buys:
        buying = ", ".join(one.name for one in ENGINE_KINDS.values() if one.buys)
        raise UsageError(BUYING_ENGINES_ONLY, option=Option(next(iter(keywords))), buying=buying, engine=engine)
    hide_key(keywords)
    _refuse_foreign(kind, [name for name, value in keywords.items() if value is not None])
    return ServiceOptions(**keywords)


def check_keywords(
    function: Callable[..., object], keywords: Any, kind: type[ServiceKeywords] | Any = ServiceKeywords
) -> None:
    """Hide the key among the ``keywords`` of a public function; refuse a keyword that the function does not take.

    ``kind``: the ``TypedDict`` of the keywords that its ``**`` parameter takes. Raises :class:`UsageError`, which
    lists the function's own parameters and names the closest one.
    """
    hide_key(keywords)
    own = [name for name, one in signature(function).parameters.items() if one.kind is Parameter.KEYWORD_ONLY]
    known = [*own, *kind.__annotations__]
    for name in sorted(set(keywords) - set(known)):
        close = [*get_close_matches(name, known, n=1), *([_RENAMED[name]] if name in _RENAMED else [])]
        meant = Phrase("; did you mean {option}?", option=Option(close[-1])) if close else ""
        raise UsageError(
            PARAMETER_UNKNOWN, function=function.__name__, name=name, meant=meant, listed=", ".join(sorted(known))
        )


_RENAMED: Final = {"brake": "cancel"}


def _refuse_foreign(kind: EngineKind, names: Iterable[str]) -> None:
    for name in names:
        owners = [one.name for one in ENGINE_KINDS.values() if name in one.own_options]
        if owners and name not in kind.own_options:
            raise UsageError(
                OTHER_ENGINE_ONLY,
                option=Option(name),
                engines=Option("engine", Listed(owners, gettext_noop(" and "))),
                name=kind.name,
            )


def _is_band(value: Any) -> bool:
    low, high = value
    return bool(0 <= low <= high <= 1)


_RULES: Final[dict[str, Rule]] = {
    **SHARED_RULES,
    "budget": (lambda value: value is None or is_whole(value, 0), gettext_noop("a number of lookups, 0 or more")),
    "rate": (lambda value: 0 < value < math.inf, gettext_noop("requests per second, above 0")),
    "chunk": (lambda value: is_whole(value, 1), gettext_noop("a number of rows, 1 or more")),
    "jobs": (lambda value: is_whole(value, 1, 100), gettext_noop("from 1 to 100")),
    "poll": (lambda value: value > 0, gettext_noop("seconds, above 0")),
    "band": (_is_band, gettext_noop("two probabilities, the lower first, as 0.08-0.5")),
}
