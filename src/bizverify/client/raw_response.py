"""A reply as it came, before it is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

from bizverify.client.headers import Headers, request_id_of

if TYPE_CHECKING:
    from bizverify.client.key import ApiKey
    from bizverify.client.transport import Reply

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
