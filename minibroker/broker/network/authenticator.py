"""Authenticates connections: TLS, SASL and the principal, before the first request.

Owns the order of the steps, their deadlines, and the delay of failures. TLS and SASL themselves are
in ``tls`` and ``sasl``, which are loaded only if a listener needs them. It must never know the
requests that follow. Invariant: a connection that failed here executed no request, and one whose
session has expired executes no further one. Kafka's ``KafkaChannel.prepare``, KIP-306 and KIP-368.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

import trio

from minibroker.broker.metrics.definitions import CloseReason
from minibroker.broker.network.client_connection import ClientConnection, IdleConnections
from minibroker.broker.settings import (
    CONNECTION_FAILED_AUTHENTICATION_DELAY_MS,
    PRINCIPAL_BUILDER_CLASS,
    SASL_SERVER_MAX_RECEIVE_SIZE,
    Settings,
)
from minibroker.broker.settings.listeners import has_sasl, has_tls
from minibroker.runtime.clock import Clock
from minibroker.runtime.stream import StreamClosed
from minibroker_protocol.registry import ApiKey

if TYPE_CHECKING:
    from collections.abc import Callable
    from ssl import SSLContext

    from minibroker.broker.metadata.image import Image
    from minibroker.broker.network.client_connection import RequestReader
    from minibroker.broker.network.principal_builder import PrincipalBuilder
    from minibroker.broker.network.request_handler import RequestHandler
    from minibroker.broker.network.sasl import SaslAuthenticator
    from minibroker.broker.network.tls import SslContexts
    from minibroker.runtime.arena import Block
    from minibroker.runtime.clock import ControlledClock


class ConnectionNotAuthenticated(Exception):
    """A connection is closed because it is not, or no longer, authenticated; the text is logged."""

    def __init__(self, reason: CloseReason, text: str) -> None:
        super().__init__(text)
        self.reason = reason


def check_authentication(settings: Settings) -> None:
    """Read what listeners need, above all keys. Raises ``ConfigError``."""
    ssl_contexts(settings)
    _create_principal_builder(settings)
    for name, protocol in _protocols(settings).items():
        if has_sasl(protocol):
            from minibroker.broker.network.sasl import token_rules

            token_rules(settings, name)


def ssl_contexts(settings: Settings) -> SslContexts | None:
    """Return the TLS contexts of listeners, or None if none uses TLS. Raises ``ConfigError``."""
    if not any(map(has_tls, _protocols(settings).values())):
        return None
    from minibroker.broker.network.tls import SslContexts

    return SslContexts(settings)


def _protocols(settings: Settings) -> dict[str, str]:
    return {one.name: settings.security_protocol(one.name) for one in settings.client_listeners}


def _create_principal_builder(settings: Settings) -> PrincipalBuilder | None:
    """Return None if every client is ANONYMOUS."""
    has_authentication = any(protocol != "PLAINTEXT" for protocol in _protocols(settings).values())
    if not has_authentication and settings[PRINCIPAL_BUILDER_CLASS] is None:
        return None
    from minibroker.broker.network.principal_builder import PrincipalBuilder

    return PrincipalBuilder(settings)


class Authenticator:
    """Authenticates the connections of one processor.

    ``secret`` is the same in all processors of a broker, and known to no other process.
    """

    def __init__(
        self,
        settings: Settings,
        clock: ControlledClock,
        image: Callable[[], Image],
        handler: RequestHandler,
        *,
        secret: bytes,
    ) -> None:
        """Create the contexts of all listeners. Raises ``ConfigError`` for unusable keys."""
        self._settings = settings
        self._clock = clock
        self._handler = handler
        self._ssl_contexts = ssl_contexts(settings)
        self._handshakes = tls_handshakes(clock)
        self._authentications = authentications(clock)
        self._sasl_authenticators: dict[str, SaslAuthenticator] = {}
        self._builder = _create_principal_builder(settings)
        protocols = _protocols(settings)
        if any(map(has_sasl, protocols.values())):
            from minibroker.broker.network.sasl import SaslAuthenticator

            self._sasl_authenticators = {
                name: SaslAuthenticator(settings, name, clock=clock, image=image, secret=secret)
                for name, protocol in protocols.items()
                if has_sasl(protocol)
            }

    def on_image(self, after: Image) -> None:
        """Use renewed keys and certificates for new connections."""
        if self._ssl_contexts is not None:
            self._ssl_contexts.follow(after.configs)

    async def close_overdue(self) -> None:
        """Close connections whose authentication takes too long. Runs until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._handshakes.close_overdue)
            nursery.start_soon(self._authentications.close_overdue)

    def has_steps(self, listener: str) -> bool:
        """Whether connections of a listener are authenticated before their first request."""
        return (
            self._builder is not None
            or listener in self._sasl_authenticators
            or (self._ssl_contexts is not None and self._ssl_contexts.context(listener) is not None)
        )

    async def begin(self, client: ClientConnection) -> None:
        """Do all that precedes the first request.

        Raises ``ConnectionNotAuthenticated`` or ``StreamClosed``.
        """
        if self._ssl_contexts is not None:
            context = self._ssl_contexts.context(client.caller.listener)
            if context is not None:
                await self._handshake_tls(client, context)

    async def authenticate(self, client: ClientConnection, reader: RequestReader) -> bool:
        """Authenticate the client and set its principal; return False if it disconnected."""
        sasl = self._sasl_authenticators.get(client.caller.listener)
        if sasl is not None:
            client.authentication = sasl.begin()
            with self._authentications.track(client):
                if not await self._authenticate_sasl(client, reader, sasl):
                    return False
        if self._builder is not None:
            await self._set_principal(client, self._builder)
        return True

    async def reauthenticate(
        self, client: ClientConnection, reader: RequestReader, block: Block
    ) -> bool:
        """Handle a request if it is a step of a reauthentication; return whether it was one.

        If so, the block is released. Raises ``ConnectionNotAuthenticated`` if the session has
        expired.
        """
        if client.session_expires_at is None:
            return False
        authentication, now = client.authentication, self._clock.now()
        assert authentication is not None
        key = int.from_bytes(block.view[:2], "big")
        if key != ApiKey.SASL_HANDSHAKE or not authentication.may_reauthenticate(now):
            if now < client.session_expires_at:
                return False
            block.release()
            text = "the client did not reauthenticate in time"
            raise ConnectionNotAuthenticated(CloseReason.SESSION_EXPIRED, text)
        sasl = self._sasl_authenticators[client.caller.listener]
        await self._handle_sasl_request(client, sasl, block)
        await self._authenticate_sasl(client, reader, sasl)
        return True

    async def _authenticate_sasl(
        self, client: ClientConnection, reader: RequestReader, sasl: SaslAuthenticator
    ) -> bool:
        from minibroker.broker.security.authentication import AuthenticationState

        authentication = client.authentication
        assert authentication is not None
        size = self._settings.at_listener(client.caller.listener, SASL_SERVER_MAX_RECEIVE_SIZE)
        with reader.bounded(size, SASL_SERVER_MAX_RECEIVE_SIZE.name):
            while authentication.state is not AuthenticationState.COMPLETE:
                block = await reader.next()
                if block is None:
                    return False
                await self._handle_sasl_request(client, sasl, block)
        return True

    async def _set_principal(self, client: ClientConnection, builder: PrincipalBuilder) -> None:
        from minibroker.broker.network.principal_builder import PrincipalNotBuilt

        listener, host = client.caller.listener, client.caller.client_host
        user = None if client.authentication is None else client.authentication.user
        subject = None
        if self._ssl_contexts is not None and self._ssl_contexts.context(listener) is not None:
            from minibroker.broker.network.tls import TlsStream

            assert isinstance(client.stream, TlsStream)
            subject = client.stream.subject()
        try:
            principal = builder.principal(listener, host, user, subject)
        except PrincipalNotBuilt as error:
            await self._delay_failure()
            raise ConnectionNotAuthenticated(
                CloseReason.AUTHENTICATION_FAILED, str(error)
            ) from None
        by_token = client.authentication is not None and client.authentication.by_token
        client.caller = client.caller._replace(principal=principal, by_token=by_token)

    async def _handle_sasl_request(
        self, client: ClientConnection, sasl: SaslAuthenticator, block: Block
    ) -> None:
        from minibroker.broker.network.sasl import SaslFailed

        try:
            await sasl.step(client, block, self._handler)
            return
        except SaslFailed as why:
            failure = why
            self._authentications.ended(client)
        finally:
            block.release()
        await self._delay_failure()
        if failure.answering is not None:
            failure.answering()
        with suppress(StreamClosed):  # The client may have disconnected already.
            await client.stream.send_all(failure.response)
        raise ConnectionNotAuthenticated(CloseReason.AUTHENTICATION_FAILED, str(failure))

    async def _handshake_tls(self, client: ClientConnection, context: SSLContext) -> None:
        from minibroker.broker.network.tls import TlsHandshakeFailed, TlsStream

        stream = TlsStream(client.stream, context)
        client.stream = stream
        try:
            with self._handshakes.track(client):
                await stream.handshake()
        except TlsHandshakeFailed as failure:
            await self._delay_failure()
            raise ConnectionNotAuthenticated(CloseReason.TLS_FAILED, str(failure)) from None

    async def _delay_failure(self) -> None:
        """Wait in real time before a failure is answered, which slows down guessing (KIP-306)."""
        delay_ms = self._settings[CONNECTION_FAILED_AUTHENTICATION_DELAY_MS]
        await self._clock.sleep_real(delay_ms / 1000)


# --------------------------------------------------------------------------------------------------
# Close connections whose TLS handshake or authentication takes too long.
#
# Real time counts: on a frozen clock a half-open handshake would stay forever, and an advance of
# the clock would end those of honest clients.

TLS_S: Final = 10.0
"""How long the TLS handshake may take, in real seconds."""

SASL_S: Final = 30.0
"""How long SASL authentication may take, in real seconds."""


class Handshakes:
    """Handshakes of one kind in progress in one processor."""

    def __init__(self, clock: Clock, limit_s: float, reason: CloseReason, text: str) -> None:
        """A late connection is closed for ``reason``, which ``text`` explains in the log."""
        self._clock = clock
        self._limit_s = limit_s
        self._reason = reason
        self._text = text
        self._started: IdleConnections[ClientConnection] = IdleConnections()
        self._has_handshakes = trio.Event()

    @contextmanager
    def track(self, client: ClientConnection) -> Iterator[None]:
        """Context in which the handshake of a client must complete."""
        self._started.use(client, self._clock.real_s())
        self._has_handshakes.set()
        try:
            yield
        finally:
            self.ended(client)

    def ended(self, client: ClientConnection) -> None:
        """Note that the handshake has ended."""
        self._started.forget(client)

    async def close_overdue(self) -> None:
        """Close overdue connections. Run until cancelled."""
        while True:
            oldest = self._started.oldest_use()
            if oldest is None:
                self._has_handshakes = trio.Event()
                await self._has_handshakes.wait()
                continue
            await self._clock.sleep_real(oldest + self._limit_s - self._clock.real_s())
            for client in self._started.idle_since(oldest):
                client.close(self._reason, self._text)
                self.ended(client)


def tls_handshakes(clock: Clock) -> Handshakes:
    """Return the tracker of TLS handshakes, with their time limit."""
    text = f"the TLS handshake was not completed within {TLS_S:g} s"
    return Handshakes(clock, TLS_S, CloseReason.TLS_FAILED, text)


def authentications(clock: Clock) -> Handshakes:
    """Return the tracker of SASL authentications, with their time limit."""
    text = f"the client was not authenticated within {SASL_S:g} s"
    return Handshakes(clock, SASL_S, CloseReason.AUTHENTICATION_FAILED, text)
