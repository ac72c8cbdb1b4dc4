"""How a connection begins: what must be agreed before its first request is looked at.

Owns the order of the steps, their deadline, and how late a failure is told; what TLS is it leaves
to ``tls``, which is loaded only where a listener needs it.  It must never know what a client asks
for afterwards.  The invariant: a connection that failed here gave no request to any API.  Echoes
Kafka's ``KafkaChannel.prepare`` and KIP-306.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from minibroker.config import CONNECTION_FAILED_AUTHENTICATION_DELAY_MS, Settings
from minibroker.config.listeners import has_tls
from minibroker.observability.definitions import CloseReason

if TYPE_CHECKING:
    from ssl import SSLContext

    from minibroker.network.client import Client

HANDSHAKE_S: Final = 10.0
"""How long a client may take until TLS is agreed."""


class Unidentified(Exception):
    """A connection ends before it could ask for anything, or again later; the text is logged."""

    def __init__(self, reason: CloseReason, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class Identities:
    """What one processor needs for the beginnings of its connections."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._contexts: dict[str, SSLContext] = {}
        protocols = [settings.security_protocol(one.name) for one in settings.client_listeners]
        if any(map(has_tls, protocols)):
            from minibroker.network.tls import server_contexts

            self._contexts = server_contexts(settings)

    async def begin(self, client: Client) -> None:
        """Everything before the first request. Raises ``Unidentified``, or ``StreamClosed``."""
        context = self._contexts.get(client.caller.listener)
        if context is not None:
            await self._agree_on_tls(client, context)

    async def _agree_on_tls(self, client: Client, context: SSLContext) -> None:
        from minibroker.network.tls import TlsFailed, TlsStream

        stream = TlsStream(client.stream, context)
        client.stream = stream
        with trio.move_on_after(HANDSHAKE_S):
            try:
                await stream.handshake()
            except TlsFailed as failure:
                await self.delay_failure()
                raise Unidentified(CloseReason.TLS_FAILED, str(failure)) from None
            return
        text = f"TLS was not agreed within {HANDSHAKE_S:g} s"
        raise Unidentified(CloseReason.TLS_FAILED, text)

    async def delay_failure(self) -> None:
        """Waits before a failure is told, so that trying many secrets takes long (KIP-306)."""
        await trio.sleep(self._settings[CONNECTION_FAILED_AUTHENTICATION_DELAY_MS] / 1000)
