"""Options of a run: how it reads, writes and spends, checked when they are made; and which kinds of engines exist."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, TypeVar

from bizverify.errors import UsageError, parameter
from bizverify.schema import Lang
from bizverify.translation import gettext, gettext_noop

if TYPE_CHECKING:
    from bizverify.client import ApiKey
    from bizverify.client.key import SecretKey

Options = TypeVar("Options")

EngineName = Literal["local", "verify", "batch", "hybrid"]


@dataclass(frozen=True, slots=True)
class EngineKind:
    """What all engines of one name have in common.

    ``answers_locally``: whether the local engine answers every row; ``buys``: whether lookups are paid for;
    ``uploads``: whether they are bought in uploads instead of a request each; ``has_jobs``: whether rows may belong to
    jobs of the service; ``own_options``: fields of :class:`ServiceOptions` that engines of no other name take.
    """

    name: str
    answers_locally: bool = False
    buys: bool = True
    uploads: bool = False
    has_jobs: bool = False
    own_options: frozenset[str] = frozenset()


ENGINE_KINDS: Final[Mapping[str, EngineKind]] = {
    kind.name: kind
    for kind in (
        EngineKind("local", answers_locally=True, buys=False),
        EngineKind("verify"),
        EngineKind("batch", uploads=True, has_jobs=True, own_options=frozenset({"offline", "paid"})),
        EngineKind("hybrid", answers_locally=True, has_jobs=True, own_options=frozenset({"band"})),
    )
}
"""The kinds of engines by their names: nowhere else is an engine known by its name."""


def engine_kind(name: str) -> EngineKind:
    """Return the kind of engine of that name; raise :class:`UsageError` where there is none."""
    if name not in ENGINE_KINDS:
        raise UsageError(gettext("unknown engine {name!r}; use {listed}", name=name, listed=" or ".join(ENGINE_KINDS)))
    return ENGINE_KINDS[name]


ALL_SHEETS: Final = "*"
"""Instead of a sheet's name: every sheet that holds business numbers."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How an input file is read; see :func:`bizverify.enrich` for each field.

    Several names of sheets, or :data:`ALL_SHEETS`, are for inputs that are given in a list. ``input_format``: that of
    standard input, where its content leaves it open.
    """

    columns: Mapping[str, str | Sequence[str]] | None = None
    sheet: str | Sequence[str] | None = None
    encoding: str | None = None
    json_path: str | None = None
    has_header: bool = True
    input_format: str | None = None


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How an output file is written; see :func:`bizverify.enrich` for each field."""

    output_encoding: str | None = None
    in_place: bool = False
    backup: bool = True
    select: Sequence[str] | None = None
    prefix: str = ""
    summary: bool = False
    with_outcomes: bool = False
    manifest: str | Path | None = None
    extra_columns: Sequence[str] = ()
    split: str | None = None
    letters: str | Path | None = None
    letter_cost: float | None = None
    report: str | Path | None = None
    unmask: bool = False
    review: str | Path | None = None
    headers: Lang | None = None


def choose_options(name: str, given: Options | None, flat: Options) -> Options:
    """Return ``given``, the options in one value, or else those given as keywords of their own.

    ``name``: the parameter of the former. Raises :class:`UsageError` where both say something.
    """
    if given is None:
        return flat
    if not isinstance(given, type(flat)):
        raise UsageError(
            gettext(
                "{option} is a {given}; give a bizverify.{wanted}",
                option=parameter(name),
                given=type(given).__name__,
                wanted=type(flat).__name__,
            )
        )
    if twice := _differing(flat):
        raise UsageError(
            gettext(
                "{option} is a field of {option2}, which is given as well; say it there",
                option=parameter(twice[0]),
                option2=parameter(name),
            )
        )
    return given


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
        _check(self, _RULES)

    def load_key(self) -> ApiKey:
        """Return the API key: the one given, else from ``key_file`` or the environment; raise :class:`UsageError`."""
        from bizverify.client.key import ApiKey

        return self.api_key if isinstance(self.api_key, ApiKey) else ApiKey.load(self.key_file)

    def check_kind(self, kind: EngineKind) -> None:
        """Raise :class:`UsageError` for an option that is for another kind of engine."""
        _refuse_foreign(kind, _differing(self))


ServiceOptions.__init__ = _hide_key_first(ServiceOptions.__init__)  # type: ignore[method-assign]


StatusSource = Literal["auto", "nts", "none"]
ENV_NTS_KEY: Final = "BIZVERIFY_NTS_KEY"
ENV_NTS_KEY_FILE: Final = "BIZVERIFY_NTS_KEY_FILE"
STATUS_SOURCES: Final[tuple[StatusSource, ...]] = ("auto", "nts", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusOptions:
    """How statuses are fetched from the tax authority's open API; raises :class:`UsageError` for what cannot be.

    ``source``: ``nts`` asks, ``none`` does not, ``auto`` asks if a key is set in the environment. ``key`` (an
    ``NtsKey``) or ``key_file``, by default ``BIZVERIFY_NTS_KEY`` or the file that ``BIZVERIFY_NTS_KEY_FILE`` names.
    ``max_age``: days for which a status is not asked again. ``store``: the status store's path, by default
    ``BIZVERIFY_STATUS_STORE``, else in the state directory. ``budget``: numbers that may be asked with the key on one
    day in Korea; without it, as many as the tax authority allows. ``base_url``: by default ``BIZVERIFY_NTS_URL``, else
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
            raise UsageError(
                gettext(
                    "{option}: must be one of {listed}",
                    option=parameter("status", self.source),
                    listed=", ".join(STATUS_SOURCES),
                )
            )
        _check(self, _STATUS_RULES, max_age="max_status_age", budget="status_budget")

    @property
    def is_asking(self) -> bool:
        """Whether the tax authority is to be asked: ``auto`` does where a key is given or in the environment."""
        if self.source == "auto":
            in_environment = any(os.environ.get(name, "").strip() for name in (ENV_NTS_KEY, ENV_NTS_KEY_FILE))
            return self.key is not None or self.key_file is not None or in_environment
        return self.source == "nts"


def _refuse_text_as_key(construct: Callable[..., None]) -> Callable[..., None]:
    """Wrap a constructor so that a ``key`` which is a text is refused, and is in no frame of what is raised."""

    @wraps(construct)
    def construct_without_text(self: StatusOptions, **keywords: Any) -> None:
        if keywords.get("key") is not None:
            from bizverify.client.key import SecretKey

            if not isinstance(keywords["key"], SecretKey):
                kind = type(keywords.pop("key")).__name__
                raise UsageError(
                    gettext(
                        "{option} is a {kind}; give a bizverify.NtsKey, which is never shown",
                        option=parameter("key"),
                        kind=kind,
                    )
                )
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
        raise UsageError(
            gettext(
                "{option} is a field of {option2}: say it there, as max_age",
                option=parameter("max_status_age"),
                option2=parameter("status"),
            )
        )
    if status.source == "nts" and given:
        raise UsageError(
            gettext(
                "{option} is for engines that are named; give the one that is given as {option2} what "
                "bizverify.fetch_status returns, as its {option3}",
                option=parameter("status", "nts"),
                option2=parameter("engine"),
                option3=parameter("status"),
            )
        )
    if status.source == "nts" and not kind.answers_locally:
        raise UsageError(
            gettext(
                "{option} is for the engines that answer locally, not for {name}: there the service says the status",
                option=parameter("status", "nts"),
                name=kind.name,
            )
        )
    return status if status.is_asking and kind.answers_locally and not given else None


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


def service_options(engine: str, keywords: ServiceKeywords) -> ServiceOptions:
    """Return the options of a run; raise :class:`UsageError` for what makes no sense or is for another engine."""
    kind = engine_kind(engine)
    refuse_unknown(keywords)
    if keywords and not kind.buys:
        buying = ", ".join(one.name for one in ENGINE_KINDS.values() if one.buys)
        raise UsageError(
            gettext(
                "{option} is for the engines {buying}, not for {engine}",
                option=parameter(next(iter(keywords))),
                buying=buying,
                engine=engine,
            )
        )
    hide_key(keywords)
    _refuse_foreign(kind, [name for name, value in keywords.items() if value is not None])
    return ServiceOptions(**keywords)


def refuse_unknown(keywords: ServiceKeywords) -> None:
    """Raise :class:`UsageError` for a keyword that is no field of :class:`ServiceOptions`."""
    known = sorted(field.name for field in fields(ServiceOptions))
    if unknown := sorted(set(keywords) - set(known)):
        renamed = (
            gettext("; {option} is now {option2}", option=parameter("brake"), option2=parameter("cancel"))
            if unknown[0] == "brake"
            else ""
        )
        raise UsageError(
            gettext(
                "unknown option {unknown!r}{renamed}; known are {listed}",
                unknown=unknown[0],
                renamed=renamed,
                listed=", ".join(known),
            )
        )


def _refuse_foreign(kind: EngineKind, names: Iterable[str]) -> None:
    for name in names:
        owners = [one.name for one in ENGINE_KINDS.values() if name in one.own_options]
        if owners and name not in kind.own_options:
            raise UsageError(
                gettext(
                    "{option} is for {option2}, not for {name}",
                    option=parameter(name),
                    option2=parameter("engine", gettext(" and ").join(owners)),
                    name=kind.name,
                )
            )


def _differing(options: Any) -> list[str]:
    """The fields that are not at their defaults."""
    return [field.name for field in fields(options) if getattr(options, field.name) != field.default]


def _check(options: object, rules: Mapping[str, _Rule], **called: str) -> None:
    """Raise :class:`UsageError` for a field that its rule does not allow.

    ``called``: parameters of functions that have another name than the field.
    """
    for name, (is_right, wanted) in rules.items():
        value = getattr(options, name)
        try:
            right = is_right(value)
        except (TypeError, ValueError):  # a text, say
            right = False
        if not right:
            raise UsageError(
                gettext(
                    "{option}: must be {wanted}",
                    option=parameter(called.get(name, name), value),
                    wanted=gettext(wanted),
                )
            )


def _is_whole(value: Any, least: int, most: float = math.inf) -> bool:
    return isinstance(value, int) and least <= value <= most


def _is_band(value: Any) -> bool:
    low, high = value
    return bool(0 <= low <= high <= 1)


_Rule = tuple[Callable[[Any], bool], str]

_RULES: Final[dict[str, _Rule]] = {
    "budget": (lambda value: value is None or _is_whole(value, 0), gettext_noop("a number of lookups, 0 or more")),
    "max_age": (lambda value: value >= 0, gettext_noop("a number of days, 0 or more")),
    "rate": (lambda value: 0 < value < math.inf, gettext_noop("requests per second, above 0")),
    "concurrency": (lambda value: _is_whole(value, 1, 1000), gettext_noop("from 1 to 1000")),
    "chunk": (lambda value: _is_whole(value, 1), gettext_noop("a number of rows, 1 or more")),
    "jobs": (lambda value: _is_whole(value, 1, 100), gettext_noop("from 1 to 100")),
    "poll": (lambda value: value > 0, gettext_noop("seconds, above 0")),
    "timeout": (lambda value: value > 0, gettext_noop("seconds, above 0")),
    "drain": (lambda value: value >= 0, gettext_noop("seconds, 0 or more")),
    "band": (_is_band, gettext_noop("two probabilities, the lower first, as 0.08-0.5")),
}

_STATUS_RULES: Final[dict[str, _Rule]] = {
    "budget": (lambda value: value is None or _is_whole(value, 0), gettext_noop("how many numbers a day, 0 or more")),
    "rate": (lambda value: 0 < value < math.inf, gettext_noop("calls per second, above 0")),
    "patience": _RULES["timeout"],
    **{name: _RULES[name] for name in ("max_age", "concurrency", "timeout", "drain")},
}
