"""The client's methods with the reply as it came: ``client.with_raw_response.me()``."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from bizverify.client.client import Client
from bizverify.client.raw_response import RawResponse
from bizverify.client.request import Request
from bizverify.client.timeouts import Timeouts
from bizverify.client.twin import twin_of

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Unparsed(Client):
    """An open client whose methods return the reply instead of what it says."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def _send(  # type: ignore[override]
        self, request: Request[T], timeout: float | Timeouts | None, max_retries: int | None
    ) -> RawResponse[T]:
        client = self._client
        reply = await client._ask(request, timeout, max_retries)
        return RawResponse(reply, lambda answer: client._read(answer, request), client._key)


class _Raw(Generic[P, R]):
    """A coroutine method of :class:`Client` as one that returns the reply."""

    def __init__(self, method: Callable[Concatenate[Client, P], Coroutine[Any, Any, R]]) -> None:
        async def call(self: RawClient, /, *args: Any, **kwargs: Any) -> Any:
            return await method(Unparsed(self._client), *args, **kwargs)

        self._call = twin_of(method, call, "RawResponse[{}]")

    def __set_name__(self, owner: type[RawClient], name: str) -> None:
        self._call.__qualname__ = f"{owner.__qualname__}.{name}"

    @overload
    def __get__(self, instance: None, owner: type[RawClient]) -> Self: ...
    @overload
    def __get__(
        self, instance: RawClient, owner: type[RawClient]
    ) -> Callable[P, Coroutine[Any, Any, RawResponse[R]]]: ...
    def __get__(self, instance: RawClient | None, owner: type[RawClient]) -> Any:
        return self._call if instance is None else MethodType(self._call, instance)


class RawClient:
    """The methods of a :class:`Client`, each of which returns a :class:`RawResponse`; errors are raised as ever."""

    def __init__(self, client: Client) -> None:
        self._client = client

    verify = _Raw(Client.verify)
    create_batch = _Raw(Client.create_batch)
    batch = _Raw(Client.batch)
    label = _Raw(Client.label)
    watch_add = _Raw(Client.watch_add)
    watch_list = _Raw(Client.watch_list)
    watch_remove = _Raw(Client.watch_remove)
    watch_history = _Raw(Client.watch_history)
    me = _Raw(Client.me)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._client.origin!r})"
