"""The client for code that is not async: the same methods, through a door into an event loop of their own."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Coroutine, Iterator
from threading import Lock
from types import MethodType, TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from bizverify.cancellation import PortalTask
from bizverify.client.arguments import job_id_of, whole_number
from bizverify.client.base_url import BaseUrl
from bizverify.client.client import Client
from bizverify.client.job_waiting import JobWatch, fetch_results
from bizverify.client.key import ApiKey
from bizverify.client.loop_thread import LoopThread
from bizverify.client.network import HttpTransport, Verify
from bizverify.client.raw_client import Unparsed
from bizverify.client.raw_response import RawResponse
from bizverify.client.responses import BatchCreated, BatchStatus, Result
from bizverify.client.timeouts import Timeouts
from bizverify.client.twin import twin_of
from bizverify.errors import UsageError

P = ParamSpec("P")
R = TypeVar("R")


class _Blocking(Generic[P, R]):
    """A coroutine method of :class:`Client` as one that blocks: same parameters, same result, same words."""

    def __init__(self, method: Callable[Concatenate[Client, P], Coroutine[Any, Any, R]]) -> None:
        def call(self: BlockingClient, /, *args: Any, **kwargs: Any) -> Any:
            return self.run(lambda: method(self.client, *args, **kwargs))

        self._call = twin_of(method, call)

    def __set_name__(self, owner: type[BlockingClient], name: str) -> None:
        self._call.__qualname__ = f"{owner.__qualname__}.{name}"

    @overload
    def __get__(self, instance: None, owner: type[BlockingClient]) -> Self: ...
    @overload
    def __get__(self, instance: BlockingClient, owner: type[BlockingClient]) -> Callable[P, R]: ...
    def __get__(self, instance: BlockingClient | None, owner: type[BlockingClient]) -> Any:
        return self._call if instance is None else MethodType(self._call, instance)


class _BlockingRaw(Generic[P, R]):
    """A coroutine method of :class:`Client` as one that blocks and returns the reply."""

    def __init__(self, method: Callable[Concatenate[Client, P], Coroutine[Any, Any, R]]) -> None:
        def call(self: BlockingRawClient, /, *args: Any, **kwargs: Any) -> Any:
            client = self._client
            return client.run(lambda: method(Unparsed(client.client), *args, **kwargs))

        self._call = twin_of(method, call, "RawResponse[{}]")

    def __set_name__(self, owner: type[BlockingRawClient], name: str) -> None:
        self._call.__qualname__ = f"{owner.__qualname__}.{name}"

    @overload
    def __get__(self, instance: None, owner: type[BlockingRawClient]) -> Self: ...
    @overload
    def __get__(self, instance: BlockingRawClient, owner: type[BlockingRawClient]) -> Callable[P, RawResponse[R]]: ...
    def __get__(self, instance: BlockingRawClient | None, owner: type[BlockingRawClient]) -> Any:
        return self._call if instance is None else MethodType(self._call, instance)


class BlockingClient:
    """The hosted service for scripts and notebooks::

        with BlockingClient("https://api.example.com", "your API key") as client:
            verified = client.verify("124-81-00998", "삼성전자")

    Where a block does not fit, in a notebook's cells: ``client = BlockingClient().open()``, and ``client.close()``. It
    works inside a running event loop too (a notebook's): its own loop runs in a thread, which ends when it is closed.
    """

    def __init__(
        self,
        base_url: str | BaseUrl | None = None,
        api_key: str | ApiKey | None = None,
        *,
        concurrency: int = 16,
        timeout: float | Timeouts = 30.0,
        max_retries: int = 2,
        allow_http: bool = False,
        verify: Verify = True,
        http: HttpTransport | None = None,
        app: object | None = None,
    ) -> None:
        try:
            key = api_key if api_key is None or isinstance(api_key, ApiKey) else ApiKey(api_key)
        finally:
            del api_key  # what is raised may be shown with the variables of its frames
        self.client = Client(
            base_url,
            key,
            concurrency=concurrency,
            timeout=timeout,
            max_retries=max_retries,
            allow_http=allow_http,
            verify=verify,
            http=http,
            app=app,
        )
        self._loop: LoopThread | None = None
        self._opening = Lock()
        self._forgotten: weakref.finalize[[str], BlockingClient] | None = None

    __init__.__doc__ = Client.__init__.__doc__

    @property
    def origin(self) -> str:
        """The service's name in the ledger: its base URL in canonical form."""
        return self.client.origin

    @property
    def with_raw_response(self) -> BlockingRawClient:
        """The same methods, each of which returns the reply as it came: status, headers, request id, ``parse()``."""
        return BlockingRawClient(self)

    verify = _Blocking(Client.verify)
    create_batch = _Blocking(Client.create_batch)
    batch = _Blocking(Client.batch)
    label = _Blocking(Client.label)
    watch_add = _Blocking(Client.watch_add)
    watch_list = _Blocking(Client.watch_list)
    watch_remove = _Blocking(Client.watch_remove)
    watch_history = _Blocking(Client.watch_history)
    me = _Blocking(Client.me)

    def wait(
        self,
        job: str | BatchCreated,
        *,
        timeout: float | None = None,
        poll: float = 1.0,
        progress: Callable[[BatchStatus], object] | None = None,
    ) -> BatchStatus:
        """Wait until a job has ended; ``progress`` is called in the thread that waits."""
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
        if self._loop is None:
            raise UsageError(
                f"this {type(self).__name__} is not open: use it inside `with … as client`, or call `client.open()`"
            )
        if not self._loop.is_of_this_process:
            raise UsageError(
                f"this {type(self).__name__} was opened in the process that this one was forked from: make one here"
            )
        task = PortalTask(self._loop.portal, call)
        try:
            return task.wait()
        except KeyboardInterrupt:  # nobody waits for the answer any more
            task.cancel()
            raise

    def open(self) -> Self:
        """Make the client ready for use without ``with``; :meth:`close` ends that. Again, it does nothing.

        One that nobody closes ends with the interpreter or when it is collected, with a ``ResourceWarning``.
        """
        with self._opening:
            if self._loop is None:
                loop = LoopThread(self.client)
                self._forgotten = weakref.finalize(self, loop.abandon, repr(self))
                self._loop = loop
        return self

    def close(self) -> None:
        """Close all connections and end the thread. Again, it does nothing; the client may be opened once more."""
        loop, self._loop = self._loop, None
        if self._forgotten is not None:
            self._forgotten.detach()
        if loop is not None:
            loop.close()

    def __enter__(self) -> Self:
        if self._loop is not None:
            raise UsageError("this client is open already: use one `with` at a time")
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.origin!r})"


class BlockingRawClient:
    """The methods of a :class:`BlockingClient`, each of which returns a :class:`RawResponse`."""

    def __init__(self, client: BlockingClient) -> None:
        self._client = client

    verify = _BlockingRaw(Client.verify)
    create_batch = _BlockingRaw(Client.create_batch)
    batch = _BlockingRaw(Client.batch)
    label = _BlockingRaw(Client.label)
    watch_add = _BlockingRaw(Client.watch_add)
    watch_list = _BlockingRaw(Client.watch_list)
    watch_remove = _BlockingRaw(Client.watch_remove)
    watch_history = _BlockingRaw(Client.watch_history)
    me = _BlockingRaw(Client.me)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._client.origin!r})"
