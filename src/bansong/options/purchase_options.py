"""How a run buys from the hosted service, and how much."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict

from bansong.errors import Problem, UsageError
from bansong.options.option_rules import (
    Options,
    Rule,
    above,
    at_least,
    differing_fields,
    hides_keys,
    option,
    specs_of,
    whole,
)
from bansong.translation import Listed, Option, Phrase, gettext, gettext_noop

if TYPE_CHECKING:
    from bansong.client import ApiKey
    from bansong.options.engine_kinds import EngineKind

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


SHARED_RULES: Final[dict[str, Rule]] = {
    "max_age": at_least(0, gettext_noop("a number of days, 0 or more")),
    "concurrency": whole(1, gettext_noop("from 1 to 1000"), 1000),
    "timeout": above(0, gettext_noop("seconds, above 0")),
    "drain": at_least(0, gettext_noop("seconds, 0 or more")),
}
"""Rules of fields that buying and fetching have alike."""


def parse_rate(text: str) -> float:
    """Read ``50`` or ``50/s``; raise ``ValueError``."""
    try:
        return float(text.removesuffix("/s"))
    except ValueError:
        raise ValueError(gettext("{value!r} is no rate; give requests per second, as 50 or 50/s", value=text)) from None


def parse_band(text: str) -> tuple[float, float]:
    """Read ``0.08-0.5``; raise ``ValueError``."""
    low, _, high = text.partition("-")
    try:
        return float(low), float(high)
    except ValueError:
        raise ValueError(
            gettext("{value!r} is no band; give two probabilities, the lower first, as 0.08-0.5", value=text)
        ) from None


def _is_band(value: Any) -> bool:
    low, high = value
    return bool(0 <= low <= high <= 1)


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


@hides_keys
@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions(Options):
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

    base_url: str | None = option(
        flag="--base-url URL", job="engine.base_url", help="The service's address; by default BANSONG_BASE_URL."
    )
    api_key: ApiKey | str | None = option(hide_key=hide_key)
    key_file: str | Path | None = option(
        flag="--key-file",
        job="engine.key_file",
        help="A file that holds the API key; by default the key is BANSONG_API_KEY. It is never an argument.",
    )
    allow_http: bool = option(
        False, flag="--allow-http", help="Allow plain http to another machine: the key can be read on its way."
    )
    known_as: str | None = option(
        flag="--known-as URL",
        help="The address under which the ledger knows the service, where it was another one then. Nothing is sent "
        "there.",
    )
    ledger: str | Path | None = option(
        flag="--ledger",
        job="engine.ledger",
        help="The file that records what was paid; by default BANSONG_LEDGER, else in the state directory.",
    )
    max_age: float = option(
        30.0,
        flag="--max-age DAYS",
        job="engine.max_age",
        rule=SHARED_RULES["max_age"],
        help="How long a paid answer is used again; default 30.",
    )
    budget: int | None = option(
        flag="--budget N",
        job="engine.budget",
        rule=whole(0, gettext_noop("a number of lookups, 0 or more")),
        help="Buy N lookups at most, the most useful first.",
    )
    priority: str | None = option(
        flag="--priority COLUMN",
        job="engine.priority",
        help="With a budget: the rows with the largest value here come first. Default: those least sure.",
    )
    buy_suspect: bool = option(
        False, flag="--buy-suspect", job="engine.buy_suspect", help="Buy numbers whose check digit is wrong, too."
    )
    rate: float = option(
        50.0,
        flag="--rate N/s",
        parse=parse_rate,
        job="engine.rate",
        rule=above(0, gettext_noop("requests per second, above 0"), below=math.inf),
        help="Requests per second; default 50.",
    )
    concurrency: int = option(
        16,
        flag="--concurrency N",
        job="engine.concurrency",
        rule=SHARED_RULES["concurrency"],
        help="Requests under way at once; default 16.",
    )
    offline: bool | None = option(
        flag="--offline/--no-offline",
        engines=("batch",),
        job="engine.offline",
        help="batch: passed on to the service as given.",
    )
    paid: bool | None = option(
        flag="--paid/--no-paid", engines=("batch",), job="engine.paid", help="batch: passed on to the service as given."
    )
    band: tuple[float, float] = option(
        (0.08, 0.5),
        flag="--band LOW-HIGH",
        parse=parse_band,
        engines=("hybrid",),
        rule=Rule(_is_band, gettext_noop("two probabilities, the lower first, as 0.08-0.5")),
        help="hybrid: buy where the local probability lies here; default 0.08-0.5.",
    )
    chunk: int = option(5000, rule=whole(1, gettext_noop("a number of rows, 1 or more")))
    jobs: int = option(4, rule=whole(1, gettext_noop("from 1 to 100"), 100))
    poll: float = option(1.0, rule=above(0, gettext_noop("seconds, above 0")))
    timeout: float = option(30.0, rule=SHARED_RULES["timeout"])
    drain: float = option(10.0, rule=SHARED_RULES["drain"])
    retry_trial: bool = option(
        False,
        flag="--retry-trial",
        help="Try once more to buy from a service that has answered nothing: one more upload of 100 rows.",
    )

    def load_key(self) -> ApiKey:
        """Return the API key: the one given, else from ``key_file`` or the environment; raise :class:`UsageError`."""
        from bansong.client.key import ApiKey

        return self.api_key if isinstance(self.api_key, ApiKey) else ApiKey.load(self.key_file)

    def check_kind(self, kind: EngineKind) -> None:
        """Raise :class:`UsageError` for an option that is for another kind of engine."""
        refuse_foreign(kind, differing_fields(self))


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


def refuse_foreign(kind: EngineKind, names: Iterable[str]) -> None:
    """Raise :class:`UsageError` for an option that only other engines take; ``names``: the options that are given."""
    owners = {spec.name: spec.engines for spec in specs_of(ServiceOptions) if spec.engines}
    for name in names:
        if name in owners and name not in kind.own_options:
            engines = Option("engine", Listed(owners[name], gettext_noop(" and ")))
            raise UsageError(OTHER_ENGINE_ONLY, option=Option(name), engines=engines, name=kind.name)
