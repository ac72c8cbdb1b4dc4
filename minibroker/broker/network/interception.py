"""What may change, delay or replace the requests of a processor, and their responses.

Owns the places in the way of a request at which an interceptor is called. It must never know what
it does, or why. Invariant: a processor has at most one, and none by default; then a request only
checks that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from minibroker.broker.metadata.image import Image
    from minibroker.broker.network.client_connection import ClientConnection
    from minibroker.runtime.arena import Block
    from minibroker_protocol.wire import RequestHeader


class InterceptorDisconnect(Exception):
    """The interceptor closes the connection; the text says why."""


class Interception(Protocol):
    """What an interceptor does with the response of one request."""

    @property
    def sets_throttle_time(self) -> bool:
        """Whether it has set the throttle time of the response."""

    @property
    def changes_response(self) -> bool:
        """Whether it has changed more of the response than its throttle time."""

    def damaged(self, frame: bytes) -> bytes:
        """The response as ``send`` sends it."""

    async def send(self, frame: bytes) -> int:
        """Send the response with its length; return the number of bytes.

        Raises ``InterceptorDisconnect``.
        """

    async def mute(self) -> None:
        """Wait until the next request may be read."""


class Interceptor(Protocol):
    """Changes, delays or replaces requests and responses."""

    @property
    def forbids_fetch_sessions(self) -> bool:
        """Whether fetches must name all their partitions."""

    def concerns(self, body: bytes | Block) -> bool:
        """Whether it may have to do with a request."""

    async def execute(
        self,
        client: ClientConnection,
        header: RequestHeader,
        request: Any,
        image: Image,
        run: Callable[[], Awaitable[Any]],
    ) -> tuple[Any, Interception | None]:
        """Return the response to a request, which ``run`` executes, and how to send it.

        Raises ``InterceptorDisconnect``, or ``CloseConnection`` for an error without a response.
        """

    async def meet(self, client: ClientConnection) -> None:
        """Meet a new connection. Raises ``InterceptorDisconnect``."""
