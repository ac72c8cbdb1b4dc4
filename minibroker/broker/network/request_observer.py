"""What may watch the requests of a processor.

Owns the moments in the life of a connection and a request at which others are called. It must never
know who watches, or why. Invariant: a processor without observers calls nothing; an observer never
waits and never changes a request, which an interceptor may (``interception``). A broker's own
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

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minibroker.broker.network.client_connection import ClientConnection
    from minibroker.broker.network.quota_stage import RequestCost
    from minibroker.runtime.arena import Block
    from minibroker_protocol.wire import RequestHeader


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
