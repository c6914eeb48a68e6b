"""Options of reading, buying and fetching statuses; the kinds of engines."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from inspect import Parameter, signature
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, TypeVar

from bansong.base.errors import InputError, OutputError, Problem, UsageError
from bansong.base.files import variable
from bansong.base.messages import Listed, Option, Phrase, gettext, gettext_noop
from bansong.base.option import (
    Inputs,
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
from bansong.base.schema import INPUT_FORMATS

if TYPE_CHECKING:
    from bansong.base.key import ApiKey, SecretKey

PARAMETER_UNKNOWN: Final = Problem("options.parameter_unknown", "{function}() has no parameter {name!r}; {remedy}")
Function = TypeVar("Function", bound=Callable[..., object])

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


def parse_rate(text: str) -> float:
    """Parse ``50`` or ``50/s``; raise ``ValueError``."""
    try:
        return float(text.removesuffix("/s"))
    except ValueError:
        raise ValueError(gettext("{value!r} is no rate; give requests per second, as 50 or 50/s", value=text)) from None


def parse_band(text: str) -> tuple[float, float]:
    """Parse ``0.08-0.5``; raise ``ValueError``."""
    low, _, high = text.partition("-")
    try:
        return float(low), float(high)
    except ValueError:
        said = gettext("{value!r} is no band; give two probabilities, the lower first, as 0.08-0.5", value=text)
        raise ValueError(said) from None


def _is_band(value: Any) -> bool:
    low, high = value
    return bool(0 <= low <= high <= 1)


def hide_key(options: Any) -> None:
    """Replace an ``api_key`` given as text by an ``ApiKey``, since tracebacks may show variables."""
    if options.get("api_key") is None:
        return
    from bansong.base.key import ApiKey

    if not isinstance(options["api_key"], ApiKey):
        options["api_key"] = ApiKey(options.pop("api_key"))


@hides_keys
@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions(Options):
    """How a run buys from the hosted service, and how much; raises :class:`UsageError` for invalid values.

    ``base_url``: the service (default: ``BANSONG_BASE_URL``); plain ``http`` beyond this machine needs ``allow_http``.
    ``api_key`` or ``key_file``: the key (default: ``BANSONG_API_KEY``, ``BANSONG_API_KEY_FILE``). ``known_as``: the
    service's former base URL, which the ledger knows; nothing is sent there. ``ledger``: its path (default:
    ``BANSONG_LEDGER``, else in the state directory); its answers are reused for ``max_age`` days. ``budget``: lookups
    this run may buy at most; the rows with the largest value in the column ``priority`` come first, or else those that
    the local engine is least sure of. ``buy_suspect``: also buy numbers with a wrong check digit. ``rate``: requests
    per second; ``concurrency``: requests under way at once. ``offline`` and ``paid`` are passed to ``/batch`` as given.
    ``band``: the probabilities between which the hybrid engine buys. ``chunk``: rows per upload; ``jobs``: uploads
    under way at once; ``poll``: seconds between two polls of a job; ``timeout``: seconds to wait for a reply;
    ``drain``: seconds that an interrupted run waits for replies. ``retry_trial``: try once more to buy from a service
    that has answered nothing so far.
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
        """Return the given API key, else that of ``key_file`` or the environment; raise :class:`UsageError`."""
        from bansong.base.key import ApiKey

        return self.api_key if isinstance(self.api_key, ApiKey) else ApiKey.load(self.key_file)

    def check_kind(self, kind: EngineKind) -> None:
        refuse_foreign(kind, differing_fields(self))


def shows_keywords(kind: Any, declared: Iterable[type[Options]]) -> Callable[[Function], Function]:
    """Decorate a function whose ``**options`` are a TypedDict ``kind``: ``help()`` and notebooks show each by name.

    ``declared``: the classes that declare the defaults, in the order shown; the first with a field counts.
    """
    hints, defaults = kind.__annotations__, dict[str, Any]()
    for spec in chain.from_iterable(map(specs_of, declared)):
        defaults.setdefault(spec.name, spec.default)

    def show(function: Function) -> Function:
        own = [one for one in signature(function).parameters.values() if one.kind is not Parameter.VAR_KEYWORD]
        named = [
            Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=hints[name].__forward_arg__)
            for name, default in defaults.items()
            if name in hints
        ]
        shown = signature(function).replace(parameters=[*own, *named])
        function.__signature__ = shown  # type: ignore[attr-defined]
        return function

    return show


def check_keywords(function: Callable[..., object], keywords: Any) -> dict[str, Any]:
    """Hide the key among a public function's ``keywords``, copy them; raise :class:`UsageError` for unknown ones."""
    hide_key(keywords)
    known = [name for name, one in signature(function).parameters.items() if one.kind is not Parameter.VAR_KEYWORD]
    for name in sorted(set(keywords) - set(known)):
        close = [*get_close_matches(name, known, n=1), *([_RENAMED[name]] if name in _RENAMED else [])]
        meant = Phrase("did you mean {option}?", option=Option(close[-1])) if close else None
        remedy = meant or Phrase("it takes {listed}", listed=", ".join(sorted(known)))
        raise UsageError(PARAMETER_UNKNOWN, function=function.__name__, name=name, remedy=remedy)
    return {**keywords}


class ShortTraceback:
    """A block from which an error that the caller can mend is raised without our inner calls in its traceback."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: TracebackType | None) -> None:
        if isinstance(error, InputError | UsageError | OutputError) and traceback is not None:
            traceback.tb_next = None


_RENAMED: Final = {"brake": "cancel"}


def refuse_foreign(kind: EngineKind, names: Iterable[str]) -> None:
    """Raise :class:`UsageError` if one of the given options (``names``) is for other engines only."""
    owners = {spec.name: spec.engines for spec in specs_of(ServiceOptions) if spec.engines}
    for name in names:
        if name in owners and name not in kind.own_options:
            engines = Option("engine", Listed(owners[name], gettext_noop(" and ")))
            raise UsageError(OTHER_ENGINE_ONLY, option=Option(name), engines=engines, name=kind.name)


BUYING_ENGINES_ONLY: Final = Problem(
    "options.buying_engines_only", "{option} is for the engines {buying}, not for {engine}"
)
ENGINE_UNKNOWN: Final = Problem("options.engine_unknown", "unknown engine {name!r}; use {listed}")

EngineName = Literal["local", "verify", "batch", "hybrid"]


@dataclass(frozen=True, slots=True)
class EngineKind:
    """The properties that all engines of one name share.

    ``answers_locally``: whether the local engine answers every row; ``buys``: whether lookups are paid for;
    ``uploads``: whether they are bought in uploads instead of a request each; ``has_jobs``: whether rows may belong to
    jobs of the service; ``own_options``: fields of :class:`ServiceOptions` that no other engine takes.
    """

    name: str
    answers_locally: bool = False
    buys: bool = True
    uploads: bool = False
    has_jobs: bool = False
    own_options: frozenset[str] = frozenset()


def _options_of(engine: str) -> frozenset[str]:
    return frozenset(spec.name for spec in specs_of(ServiceOptions) if engine in spec.engines)


ENGINE_KINDS: Final[Mapping[str, EngineKind]] = {
    kind.name: kind
    for kind in (
        EngineKind("local", answers_locally=True, buys=False),
        EngineKind("verify"),
        EngineKind("batch", uploads=True, has_jobs=True, own_options=_options_of("batch")),
        EngineKind("hybrid", answers_locally=True, has_jobs=True, own_options=_options_of("hybrid")),
    )
}  # other code reads these properties; it does not compare names


def engine_kind(name: str) -> EngineKind:
    """Return the engine of that name; raise :class:`UsageError` for an unknown name."""
    if name not in ENGINE_KINDS:
        raise UsageError(ENGINE_UNKNOWN, name=name, listed=" or ".join(ENGINE_KINDS))
    return ENGINE_KINDS[name]


def service_options(engine: str, keywords: ServiceKeywords) -> ServiceOptions:
    """Return the options of a run that buys; raise :class:`UsageError` for another engine's options."""
    kind = engine_kind(engine)
    if keywords and not kind.buys:
        buying = ", ".join(one.name for one in ENGINE_KINDS.values() if one.buys)
        raise UsageError(BUYING_ENGINES_ONLY, option=Option(next(iter(keywords))), buying=buying, engine=engine)
    hide_key(keywords)
    refuse_foreign(kind, [name for name, value in keywords.items() if value is not None])
    return ServiceOptions(**keywords)


ALL_SHEETS: Final = "*"  # a sheet's name that means every sheet with business numbers


def _names_headers(value: object) -> bool:
    return is_text(value) or (isinstance(value, Sequence) and all(isinstance(one, str) for one in value))


def is_text(value: object) -> bool:
    """Return whether a value is a text."""
    return isinstance(value, str)


def is_list_of_texts(value: object) -> bool:
    """Return whether a value is a list of texts; a single text is none."""
    return not is_text(value) and _names_headers(value)


def _names_columns(value: object) -> bool:
    return isinstance(value, Mapping) and all(map(_names_headers, value.values()))


class ReadKeywords(TypedDict, total=False):
    """The fields of :class:`ReadOptions`, except ``columns``, as keywords of a function."""

    sheet: str | Sequence[str] | None
    encoding: str | None
    json_path: str | None
    has_header: bool
    input_format: str | None
    delimiter: str | None


_CSV_FILES: Final = Inputs(("csv",), gettext_noop("CSV files"))


@dataclass(frozen=True, slots=True)
class ReadOptions(Options):
    """How to read an input file; see :func:`bansong.enrich` for each field.

    Several names of sheets, or :data:`ALL_SHEETS`, are for inputs that are given in a list. ``input_format``: the
    format of standard input, if its content leaves that open.
    """

    columns: Mapping[str, str | Sequence[str]] | None = option(
        flag="--columns",
        job="inputs.columns",
        rule=Rule(
            _names_columns,
            gettext_noop('roles with headers, all texts, as {"b_no": "사업자번호", "address": ["주소", "상세주소"]}'),
        ),
        help="Which header has which role; by default found from the headers. #3 means the third column; several "
        "headers with + between are one value: address=기본주소+상세주소; with | between, each row takes the first "
        "that is filled: 'address=도로명주소|지번주소'.",
    )
    sheet: str | Sequence[str] | None = option(
        flag="--sheet NAME",
        job="inputs.sheet",
        rule=Rule(_names_headers, gettext_noop("the name of a sheet, or a list")),
        help="The sheet of a workbook; by default the one that holds the number column. Several may be given; '*' is "
        "every sheet with business numbers.",
        inputs=Inputs(("xlsx", "xls", "xlsb", "ods", "html"), gettext_noop("workbooks")),
    )
    encoding: str | None = option(
        flag="--encoding NAME",
        job="inputs.encoding",
        help="The encoding of CSV inputs; by default it is detected.",
        inputs=replace(_CSV_FILES, formats=("csv", "html")),
    )
    json_path: str | None = option(
        flag="--json-path PATH",
        job="inputs.json_path",
        help="Where the list is in a JSON document, as in data.items; by default it is found.",
        inputs=Inputs(("json",), gettext_noop("JSON documents")),
    )
    has_header: bool = option(
        True,
        off="--no-header",
        job="inputs.has_header",
        help="The first row of a CSV file or workbook is a row of the list: columns are called #1, #2, …",
        inputs=Inputs(("csv", "xlsx", "xls", "xlsb", "ods"), gettext_noop("CSV files and workbooks")),
    )
    input_format: str | None = option(
        flag="--input-format",
        choices=INPUT_FORMATS,
        help="Of standard input (-), where its content leaves the format open.",
    )
    delimiter: str | None = option(
        flag="--delimiter CHAR",
        job="inputs.delimiter",
        help=r"What stands between the cells of CSV inputs, such as ^ or \t or \x01; by default it is detected.",
        inputs=_CSV_FILES,
    )


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
    if keywords.get("key") is None:
        return
    from bansong.base.key import SecretKey

    if not isinstance(keywords["key"], SecretKey):
        kind = type(keywords.pop("key")).__name__
        raise UsageError(NTS_KEY_UNPROTECTED, option=Option("key"), kind=kind)


@hides_keys
@dataclass(frozen=True, slots=True, kw_only=True)
class StatusOptions(Options):
    """How statuses are fetched from the tax authority's open API; raises :class:`UsageError` for invalid values.

    ``source``: ``nts`` asks the API, ``none`` does not, ``auto`` does if the environment has a key. ``key`` (an
    ``NtsKey``) or ``key_file``, by default ``BANSONG_NTS_KEY`` or the file that ``BANSONG_NTS_KEY_FILE`` names.
    ``max_age``: days for which a status is not asked again. ``store``: the status store's path, by default
    ``BANSONG_STATUS_STORE``, else in the state directory. ``budget``: numbers that may be asked with the key on one
    day in Korea; without it, as many as the tax authority allows. ``base_url``: by default ``BANSONG_NTS_URL``, else
    the API's own. ``rate``: calls per second, of up to 100 numbers each; ``concurrency``: calls under way at once;
    ``timeout``: seconds to wait for a reply; ``patience``: seconds without any reply after which a run gives up;
    ``drain``: seconds that an interrupted run waits for replies.
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
        configurable=True,
        variables=(ENV_NTS_KEY, ENV_NTS_KEY_FILE),
        help="A file that holds the tax authority's free key; by default the key is BANSONG_NTS_KEY. Never an "
        "argument.",
    )
    max_age: float = option(
        30.0,
        flag="--max-status-age DAYS",
        parameter="max_status_age",
        job="status.max_age",
        configurable=True,
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
        configurable=True,
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
        # ``auto`` asks if a key is given or in the environment
        if self.source == "auto":
            in_environment = any((variable(name) or "").strip() for name in (ENV_NTS_KEY, ENV_NTS_KEY_FILE))
            return self.key is not None or self.key_file is not None or in_environment
        return self.source != "none"


def status_options(
    status: StatusSource | StatusOptions, max_age: float | None, kind: EngineKind, *, given: bool
) -> StatusOptions | None:
    """Return the options for fetching statuses, ``None`` if none are to be fetched."""
    # ``given``: the caller passed an engine object, which has its own statuses
    if not isinstance(status, StatusOptions):
        status = StatusOptions(source=status, max_age=StatusOptions().max_age if max_age is None else max_age)
    elif max_age is not None:
        raise UsageError(AGE_SAID_TWICE, option=Option("max_status_age"), status=Option("status"))
    asked = Option("status", status.source)
    is_named = status.source not in ("auto", "none")
    if is_named and given:
        raise UsageError(ENGINE_GIVEN_READY, option=asked, engine=Option("engine"), status=Option("status"))
    if is_named and not kind.answers_locally:
        raise UsageError(STATUS_FROM_SERVICE, option=asked, name=kind.name)
    return status if status.is_asking and kind.answers_locally and not given else None
