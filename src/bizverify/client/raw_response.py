"""Methods of :class:`Client` on other classes: the same name, parameters and text, another way of calling.

---
A reply as it came, before it is read.

---
The client's methods with the reply as it came: ``client.with_raw_response.me()``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from bizverify.client.client import Client
from bizverify.client.network import Timeouts
from bizverify.client.request import Headers, Request, request_id_of

if TYPE_CHECKING:
    from bizverify.client.key import ApiKey
    from bizverify.client.transport import Reply


def twin_of(method: Callable[..., Any], call: Callable[..., Any], returns: str = "{}") -> Callable[..., Any]:
    """Return ``call`` with the name, signature and docstring of ``method``, for ``help()`` and completion.

    ``returns`` is what the twin returns, the method's own result in its braces.
    """
    assert isinstance(call, FunctionType)  # noqa: S101
    signature = inspect.signature(method)
    call.__name__, call.__doc__ = method.__name__, method.__doc__
    call.__signature__ = signature.replace(  # type: ignore[attr-defined]
        return_annotation=returns.format(signature.return_annotation)
    )
    return call


T = TypeVar("T")


class RawResponse(Generic[T]):
    """A reply of success: ``status``, ``headers`` (cookies left out), ``content`` (bytes), and :meth:`parse`.

    ``request_id`` is the service's own name of the request, which its support asks for; ``None`` where it gives none.
    """

    def __init__(self, reply: Reply, read: Callable[[Reply], T], key: ApiKey) -> None:
        self.status = reply.status
        self.headers = Headers(reply.headers, key)
        self.request_id = request_id_of(reply.headers, key)
        self.content = reply.body
        self._reply = reply
        self._read = read

    def parse(self) -> T:
        """Return what the method itself returns. Raises :class:`ShapeError` for what cannot be read."""
        return self._read(self._reply)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(status={self.status}, request_id={self.request_id!r})"


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
