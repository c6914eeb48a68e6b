"""One request on its way through the fake."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from bizverify.testing.answers import Lookup
from bizverify.testing.asgi import ClientGoneError, Receive, RefusedError, Scope

if TYPE_CHECKING:
    from bizverify.testing.app import FakeService
    from bizverify.testing.responses import ResultsEdit


@dataclass(slots=True)
class Asked:
    """A request: its kind, the identifier in its path, how often this job was polled; and what acts want of its reply.

    ``answered_record`` says whose record is answered in the place of the one that was asked about.

    ``releases`` is how often the faults had been let go when it came, ``last`` the job that may be forgotten once the
    reply is out, ``whole`` whether all of the body has been read, ``parts`` what is kept of it.
    """

    kind: str
    target: str
    scope: Scope
    receive: Receive
    service: FakeService
    releases: int
    polls: int = 0
    edits: list[ResultsEdit] = field(default_factory=list)
    word: str | None = None
    answered_record: Callable[[Lookup], Lookup] | None = None
    last: str | None = None
    whole: bool = False
    parts: list[bytes] = field(default_factory=list)

    @property
    def released(self) -> bool:
        """Whether what holds it up was told to let go since it came."""
        return self.service.faults.releases != self.releases

    def query(self) -> dict[str, str]:
        """The query parameters. Raises :class:`RefusedError` (422) for one that is given twice."""
        pairs = parse_qsl(self.scope["query_string"].decode("ascii", "replace"), keep_blank_values=True)
        if len(pairs) != len(dict(pairs)):
            raise RefusedError(422, "a query parameter is given twice")
        return dict(pairs)

    async def body(self, most: int | None = None) -> bytes:
        """The body, once it is whole; it is kept, so it may be asked for again.

        Raises :class:`ClientGoneError` when the client leaves before; :class:`RefusedError` (413) when it has more than
        ``most`` bytes.
        """
        while not self.whole:
            self.parts.append(await self._part())
            self._limit(most)
        self._limit(most)
        return b"".join(self.parts)

    async def rest(self) -> None:
        """Read what has not been read, and let it go."""
        while not self.whole:
            await self._part()

    async def _part(self) -> bytes:
        message = await self.receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        self.whole = not message.get("more_body", False)
        return bytes(message.get("body", b""))

    def _limit(self, most: int | None) -> None:
        if most is not None and sum(map(len, self.parts)) > most:
            raise RefusedError(413, f"more than {most} bytes")
