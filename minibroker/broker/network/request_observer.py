"""What may watch the requests of a processor, or change them.

Owns the moments in the life of a connection and a request at which others are called. It must never
know who watches, or why. Invariant: a processor without observers calls nothing; an observer never
waits and never changes a request, which an interceptor may (``Interceptor``). A broker's own
figures and quotas are not observers: they belong to each request. mitmproxy calls its addons at
such moments.

The life of a request:

``received``
    Its bytes are there, and nothing of them was executed.
``detained``
    It is not completed in this step: it waits, is executed in other processes, may be changed by
    the interceptor, or only a part of its response could be sent at once.
``answering``
    The response is known, and its first byte is not sent. If only a part of it could be sent at
    once, this comes again after ``detained``.
``sent``
    The response was sent, and everything is recorded, or there is none.
``failed``
    The connection is closed instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from minibroker.broker.metadata.image import Image
    from minibroker.broker.network.client_connection import ClientConnection
    from minibroker.broker.network.quota_stage import RequestCost
    from minibroker.runtime.arena import Block
    from minibroker_protocol.headers import RequestHeader


class RequestObserver:
    """Watches connections and requests; each method here does nothing."""

    def opened(self, client: ClientConnection) -> None:
        """Called with a new connection."""

    def authentication_received(
        self, client: ClientConnection, frame: memoryview, *, is_token: bool
    ) -> None:
        """Called with a request that authenticates; ``is_token``: a token without a header."""

    def authentication_answering(
        self, client: ClientConnection, header: RequestHeader | None, size: int, response: Any
    ) -> None:
        """Called before its response is sent; ``header`` is None for a token without one.

        ``size`` is that of the frame without its length. The version in the header is that of the
        response, which is a message, or None for a token.
        """

    def authenticated(self, client: ClientConnection, *, is_first: bool) -> None:
        """Called when a client has authenticated, for the first time or again (KIP-368)."""

    def closed(self, client: ClientConnection) -> None:
        """Called when a connection was closed, for its ``close_reason``."""

    def received(self, request: RequestCost, body: bytes | Block) -> None:
        """Called with a request that was received."""

    def detained(self, request: RequestCost) -> None:
        """Called when a request cannot be completed in this step; perhaps more than once."""

    def answering(self, request: RequestCost, frame: bytes | None, size: int) -> None:
        """Called before a response is sent; ``frame`` and ``size`` include the length.

        ``frame`` is None if the response is not in memory.
        """

    def sent(self, request: RequestCost, frame: bytes | None) -> None:
        """Called after a response was sent; ``frame`` is None unless it was sent at once."""

    def failed(self, request: RequestCost) -> None:
        """Called when a request ends without a complete response."""


# --------------------------------------------------------------------------------------------------
# What may change, delay or replace the requests of a processor, and their responses.
#
# Owns the places in the way of a request at which an interceptor is called. It must never know what
# it does, or why. Invariant: a processor has at most one, and none by default; then a request only
# checks that.


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
