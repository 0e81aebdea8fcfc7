"""A request's body → the same, bounded: it is read before anyone has signed in."""

from http import HTTPStatus

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LARGEST_BODY = 2**20  # bytes; a run's settings with 64 sites are a few kilobytes


class Bounded:
    """413 for a body that is too long, however it is sent: its bytes are counted as they come."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and count what is read of it."""
        taken = 0

        async def counted() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > LARGEST_BODY:
                raise HTTPException(
                    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                    f"the body is longer than {LARGEST_BODY} bytes",
                    {"Connection": "close"},  # so that the rest of it is not read either
                )
            return message

        await self.app(scope, counted, send)
