"""The blocking client, and raw responses."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Coroutine, Iterator, Mapping
from copy import copy
from threading import Lock
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar

from bansong.base.cancel import LoopThread, PortalTask
from bansong.base.errors import Problem, UsageError
from bansong.base.key import ApiKey
from bansong.client.address import BaseUrl
from bansong.client.arguments import job_id_of, whole_number
from bansong.client.client import Client, JobWatch, fetch_results
from bansong.client.request import Headers, ServiceRequest, Timeout, Verify, request_id_of
from bansong.client.responses import BatchCreated, BatchStatus, Result

if TYPE_CHECKING:
    from bansong.client.transport import EventHooks, HttpClient, ServiceResponse

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class RawResponse(Generic[T]):
    """A successful response: ``status``, ``headers`` (without cookies), ``content`` (bytes), and :meth:`parse`.

    ``request_id``: the id that the service gave the request, for its support; ``None`` without one.
    """

    def __init__(self, response: ServiceResponse, read: Callable[[ServiceResponse], T], key: ApiKey) -> None:
        self.status = response.status
        self.headers = Headers(response.headers, key)
        self.request_id = request_id_of(response.headers, key)
        self.content = response.body
        self._response = response
        self._read = read

    def parse(self) -> T:
        """Return what the method itself would return; raise :class:`ShapeError` if it cannot be read."""
        return self._read(self._response)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(status={self.status}, request_id={self.request_id!r})"


def copy_signature(method: Callable[..., Any], call: Callable[..., Any], owner: str, returns: str = "{}") -> None:
    """Give ``call``, a method of ``owner``, the name, parameters and docstring of ``method``, for ``help()``."""
    signature = inspect.signature(method)
    call.__name__, call.__doc__ = method.__name__, method.__doc__
    call.__qualname__ = f"{owner}.{method.__name__}"
    call.__signature__ = signature.replace(  # type: ignore[attr-defined]
        return_annotation=returns.format(signature.return_annotation)
    )


def _raw(
    method: Callable[Concatenate[Client, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[RawClient, P], Coroutine[Any, Any, RawResponse[R]]]:
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        return method(self, *args, **kwargs)  # the method calls `_send` of this class

    copy_signature(method, call, "RawClient", "RawResponse[{}]")
    return call


class RawClient:
    """The methods of a :class:`Client`, each returning a :class:`RawResponse`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    verify = _raw(Client.verify)
    create_batch = _raw(Client.create_batch)
    batch = _raw(Client.batch)
    label = _raw(Client.label)
    watch_add = _raw(Client.watch_add)
    watch_list = _raw(Client.watch_list)
    watch_remove = _raw(Client.watch_remove)
    watch_history = _raw(Client.watch_history)
    me = _raw(Client.me)

    async def _send(
        self,
        request: ServiceRequest[T],
        timeout: Timeout | None,
        max_retries: int | None,
        headers: Mapping[str, str] | None,
    ) -> RawResponse[T]:
        client = self._client
        response = await client._ask(request, timeout, max_retries, headers)
        return RawResponse(response, lambda one: client._read(one, request), client._key)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._client.origin!r})"


CLIENT_NOT_OPEN: Final = Problem(
    "service.blocking_client_not_open",
    "this {name} is not open: use it inside `with … as client`, or call `client.open()`",
)
CLIENT_WAS_FORKED: Final = Problem(
    "service.client_was_forked", "this {name} was opened in the process that this one was forked from: make one here"
)
CLIENT_ALREADY_OPEN: Final = Problem(
    "service.blocking_client_already_open", "this client is open already: use one `with` at a time"
)


def _blocking(
    method: Callable[Concatenate[Client, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[BlockingClient, P], R]:
    def call(self: BlockingClient, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.run(lambda: method(self.client, *args, **kwargs))

    copy_signature(method, call, "BlockingClient")
    return call


def _blocking_raw(
    method: Callable[Concatenate[Client, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[BlockingRawClient, P], RawResponse[R]]:
    def call(self: BlockingRawClient, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        raw: Any = self._client.client.with_raw_response
        return self._client.run(lambda: method(raw, *args, **kwargs))

    copy_signature(method, call, "BlockingRawClient", "RawResponse[{}]")
    return call


class BlockingClient:
    """The hosted service for scripts and notebooks::

        with BlockingClient("https://api.example.com", "your API key") as client:
            verified = client.verify("124-81-00998", "삼성전자")

    In a notebook's cells: ``client = BlockingClient().open()``, and ``client.close()``. It works inside a running event
    loop, too: a thread runs another loop until the client is closed.
    """

    def __init__(
        self,
        base_url: str | BaseUrl | None = None,
        api_key: str | ApiKey | None = None,
        *,
        concurrency: int = 16,
        timeout: Timeout = 30.0,
        max_retries: int = 2,
        allow_http: bool = False,
        verify: Verify = True,
        http_client: HttpClient | None = None,
        app: object | None = None,
        proxy: str | None = None,
        event_hooks: EventHooks | None = None,
    ) -> None:
        try:
            key = api_key if api_key is None or isinstance(api_key, ApiKey) else ApiKey(api_key)
        finally:
            del api_key  # a traceback may be shown with its variables
        self.client = Client(
            base_url,
            key,
            concurrency=concurrency,
            timeout=timeout,
            max_retries=max_retries,
            allow_http=allow_http,
            verify=verify,
            http_client=http_client,
            app=app,
            proxy=proxy,
            event_hooks=event_hooks,
        )
        self._loop: LoopThread | None = None
        self._original: BlockingClient | None = None  # of a copy: has the loop
        self._opening = Lock()
        self._forgotten: weakref.finalize[[str], BlockingClient] | None = None

    __init__.__doc__ = Client.__init__.__doc__

    @property
    def origin(self) -> str:
        """The service's name in the ledger: its base URL in canonical form."""
        return self.client.origin

    @property
    def with_raw_response(self) -> BlockingRawClient:
        """The same methods, each returning the raw response: status, headers, request id, ``parse()``."""
        return BlockingRawClient(self)

    def with_options(
        self,
        *,
        timeout: Timeout | None = None,
        max_retries: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Self:
        made = copy(self)
        made._original, made._loop, made._forgotten = self._original or self, None, None
        made.client = self.client.with_options(timeout=timeout, max_retries=max_retries, headers=headers)
        return made

    with_options.__doc__ = Client.with_options.__doc__

    verify = _blocking(Client.verify)
    create_batch = _blocking(Client.create_batch)
    batch = _blocking(Client.batch)
    label = _blocking(Client.label)
    watch_add = _blocking(Client.watch_add)
    watch_list = _blocking(Client.watch_list)
    watch_remove = _blocking(Client.watch_remove)
    watch_history = _blocking(Client.watch_history)
    me = _blocking(Client.me)

    def wait(
        self,
        job: str | BatchCreated,
        *,
        timeout: float | None = None,
        poll: float = 1.0,
        progress: Callable[[BatchStatus], object] | None = None,
    ) -> BatchStatus:
        """Wait until a job has ended. ``progress`` is called in the waiting thread."""
        watch = JobWatch(self.client, job, timeout, poll)
        while True:
            status = self.run(watch.look)
            if progress is not None:
                progress(status)
            if status.state != "working":
                return status

    def results(self, job: str | BatchCreated, *, total: int | None = None) -> Iterator[Result]:
        """Iterate over all results of a job that has ended, in the order of the service."""
        job_id_of(job)
        rows = None if total is None else whole_number("total", total, 0)
        return self._results(job, rows)

    def _results(self, job: str | BatchCreated, total: int | None) -> Iterator[Result]:
        yield from self.run(lambda: fetch_results(self.client, job, total))

    wait.__doc__ = f"{Client.wait.__doc__}\n        ``progress`` is called in the thread that waits."
    results.__doc__ = (Client.results.__doc__ or "").replace(" (``async for``)", "")

    def run(self, call: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """Run a coroutine function in this client's event loop and return its result."""
        task = PortalTask(self._loop_thread().portal, call)
        try:
            return task.wait()
        except KeyboardInterrupt:
            task.cancel()
            raise

    def _loop_thread(self) -> LoopThread:
        loop = (self._original or self)._loop
        if loop is None:
            raise UsageError(CLIENT_NOT_OPEN, name=type(self).__name__)
        if not loop.is_of_this_process:
            raise UsageError(CLIENT_WAS_FORKED, name=type(self).__name__)
        return loop

    def open(self) -> Self:
        """Open the client without ``with``; :meth:`close` ends that. Opening it twice does nothing.

        An unclosed client ends with the interpreter or when it is collected, with a ``ResourceWarning``.
        """
        if self._original is not None:
            self._loop_thread()
            return self
        with self._opening:
            if self._loop is None:
                loop = LoopThread("bansong-client", self.client)
                self._forgotten = weakref.finalize(self, loop.abandon, repr(self))
                self._loop = loop
        return self

    def close(self) -> None:
        """Close all connections and end the thread. Closing twice does nothing; the client may be opened again."""
        loop, self._loop = self._loop, None
        if self._forgotten is not None:
            self._forgotten.detach()
        if loop is not None:
            loop.close()

    def __enter__(self) -> Self:
        if self._loop is not None:
            raise UsageError(CLIENT_ALREADY_OPEN)
        return self.open()

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.origin!r})"


class BlockingRawClient:
    """The methods of a :class:`BlockingClient`, each returning a :class:`RawResponse`."""

    def __init__(self, client: BlockingClient) -> None:
        self._client = client

    verify = _blocking_raw(Client.verify)
    create_batch = _blocking_raw(Client.create_batch)
    batch = _blocking_raw(Client.batch)
    label = _blocking_raw(Client.label)
    watch_add = _blocking_raw(Client.watch_add)
    watch_list = _blocking_raw(Client.watch_list)
    watch_remove = _blocking_raw(Client.watch_remove)
    watch_history = _blocking_raw(Client.watch_history)
    me = _blocking_raw(Client.me)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._client.origin!r})"
