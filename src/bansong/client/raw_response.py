"""Raw responses: :class:`RawResponse`, and :class:`RawClient`, whose methods return it.

``await client.with_raw_response.me()`` returns a :class:`RawResponse`; its ``parse()`` gives what ``client.me()`` does.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar

from bansong.client.client import Client
from bansong.client.network import Timeouts
from bansong.client.request import Headers, ServiceRequest, request_id_of

if TYPE_CHECKING:
    from bansong.client.key import ApiKey
    from bansong.client.transport import ServiceResponse

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class RawResponse(Generic[T]):
    """A successful response: ``status``, ``headers`` (without cookies), ``content`` (bytes), and :meth:`parse`.

    ``request_id``: the service's name of the request, for its support; ``None`` if it gives none.
    """

    def __init__(self, response: ServiceResponse, read: Callable[[ServiceResponse], T], key: ApiKey) -> None:
        self.status = response.status
        self.headers = Headers(response.headers, key)
        self.request_id = request_id_of(response.headers, key)
        self.content = response.body
        self._response = response
        self._read = read

    def parse(self) -> T:
        """Return what the method itself returns; raise :class:`ShapeError` if it cannot be read."""
        return self._read(self._response)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(status={self.status}, request_id={self.request_id!r})"


class UnparsedClient(Client):
    """An open client whose methods return a :class:`RawResponse`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def _send(  # type: ignore[override]
        self, request: ServiceRequest[T], timeout: float | Timeouts | None, max_retries: int | None
    ) -> RawResponse[T]:
        client = self._client
        response = await client._ask(request, timeout, max_retries)
        return RawResponse(response, lambda one: client._read(one, request), client._key)


def copy_signature(method: Callable[..., Any], call: Callable[..., Any], owner: str, returns: str = "{}") -> None:
    """Give ``call`` the name, parameters and docstring of ``method``, for ``help()`` and completion.

    ``owner``: the class with the method ``call``; ``returns``: its return type, with that of ``method`` for the braces.
    """
    signature = inspect.signature(method)
    call.__name__, call.__doc__ = method.__name__, method.__doc__
    call.__qualname__ = f"{owner}.{method.__name__}"
    call.__signature__ = signature.replace(  # type: ignore[attr-defined]
        return_annotation=returns.format(signature.return_annotation)
    )


def _raw(
    method: Callable[Concatenate[Client, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[RawClient, P], Coroutine[Any, Any, RawResponse[R]]]:
    async def call(self: RawClient, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        return await method(UnparsedClient(self._client), *args, **kwargs)

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

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._client.origin!r})"
