"""A request that is refused while its body still comes in: the rest is read for a while, so that its sender reads why.

A connection that is closed on what was not read yet is reset, and the answer may be lost with it.
"""

from __future__ import annotations

from typing import Final

import anyio
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

LINGER_SECONDS: Final = 10.0


class Incoming:
    """The messages of a request, which knows whether more of the body is to come."""

    def __init__(self, receive: Receive, scope: Scope) -> None:
        self._receive = receive
        self._more = any(
            name == b"transfer-encoding" or (name == b"content-length" and value != b"0")
            for name, value in scope["headers"]
        )

    async def __call__(self) -> Message:
        """The next message."""
        message = await self._receive()
        self._more = message["type"] == "http.request" and message.get("more_body", False)
        return message

    async def answer(self, response: Response, scope: Scope, send: Send) -> None:
        """Send a response, and end it when the body has come in, the client is gone, or ten seconds have passed."""
        if not self._more:
            await response(scope, self, send)
            return

        async def lingering(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)
                return
            await send({**message, "more_body": True})
            with anyio.move_on_after(LINGER_SECONDS):
                while self._more:
                    await self()
            await send({"type": "http.response.body", "body": b""})

        await response(scope, self, lingering)
