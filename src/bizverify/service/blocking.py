"""The client for code that is not async: the same methods, through a door into an event loop of their own."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from functools import update_wrapper
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from anyio.from_thread import BlockingPortal

from bizverify.errors import UsageError
from bizverify.service.address import BaseUrl
from bizverify.service.client import Client
from bizverify.service.key import ApiKey
from bizverify.service.timeouts import Timeouts
from bizverify.waiting import Task, own_loop

P = ParamSpec("P")
R = TypeVar("R")


class _Blocking(Generic[P, R]):
    """A coroutine method of :class:`Client` as one that blocks: same parameters, same result, same words."""

    def __init__(self, method: Callable[Concatenate[Client, P], Coroutine[Any, Any, R]]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    @overload
    def __get__(self, instance: None, owner: type[BlockingClient]) -> Self: ...
    @overload
    def __get__(self, instance: BlockingClient, owner: type[BlockingClient]) -> Callable[P, R]: ...
    def __get__(self, instance: BlockingClient | None, owner: type[BlockingClient]) -> Self | Callable[P, R]:
        if instance is None:
            return self
        method, client = self._method, instance

        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            return client.run(lambda: method(client.client, *args, **kwargs))

        return update_wrapper(call, method)


class BlockingClient:
    """The hosted service for scripts and notebooks::

        with BlockingClient("https://api.example.com", ApiKey.load()) as client:
            verified = client.verify("124-81-00998", "삼성전자")

    The arguments are :class:`Client`'s. It works inside a running event loop too (a notebook's): its own loop runs
    in a thread, which ends with the ``with`` block.
    """

    def __init__(
        self,
        base_url: str | BaseUrl | None = None,
        api_key: str | ApiKey | None = None,
        *,
        concurrency: int = 16,
        timeout: float | Timeouts = 30.0,
        allow_http: bool = False,
        app: object | None = None,
    ) -> None:
        key = ApiKey(api_key) if isinstance(api_key, str) else api_key
        del api_key
        self.client = Client(base_url, key, concurrency=concurrency, timeout=timeout, allow_http=allow_http, app=app)
        self._portal: BlockingPortal | None = None
        self._stack = ExitStack()

    @property
    def origin(self) -> str:
        """The service's name in the ledger: its base URL in canonical form."""
        return self.client.origin

    verify = _Blocking(Client.verify)
    create_batch = _Blocking(Client.create_batch)
    batch = _Blocking(Client.batch)
    label = _Blocking(Client.label)
    watch_add = _Blocking(Client.watch_add)
    watch_list = _Blocking(Client.watch_list)
    watch_remove = _Blocking(Client.watch_remove)
    watch_history = _Blocking(Client.watch_history)
    me = _Blocking(Client.me)

    def run(self, call: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """Run a coroutine function in this client's event loop and return its result."""
        if self._portal is None:
            raise UsageError(f"this {type(self).__name__} is not open: use it inside `with … as client`")
        task = Task(self._portal, call)
        try:
            return task.wait()
        except KeyboardInterrupt:  # nobody waits for the answer any more
            task.cancel()
            raise

    def __enter__(self) -> Self:
        if self._portal is not None:
            raise UsageError("this client is open already: use one `with` at a time")
        with ExitStack() as stack:
            portal = stack.enter_context(own_loop())
            stack.enter_context(portal.wrap_async_context_manager(self.client))
            self._stack = stack.pop_all()
        self._portal = portal
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._portal = None
        self._stack.__exit__(kind, error, traceback)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.origin!r})"
