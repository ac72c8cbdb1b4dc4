"""State of one client connection: its client, and the request in flight.

Owns the facts that request handling, console and log need, and the state machine of the connection.
It must never read or write bytes. Invariant: everything that a client chose is bounded in length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import trio

from minibroker.broker.admission.acceptor_messages import AcceptedConnection
from minibroker.broker.apis.base import Caller
from minibroker.broker.connections.address import client_ip
from minibroker.broker.metrics.definitions import CloseReason
from minibroker.broker.network.connection_state import ChannelEvent, ConnectionState
from minibroker.broker.network.request_reader import RequestReader
from minibroker.runtime.stream import ByteStream
from minibroker.runtime.worktime import Account

if TYPE_CHECKING:
    from collections.abc import Callable

    from minibroker.broker.security.authentication import Authentication

SHOWN_MAX: Final = 200
"""Characters kept of texts that a client chooses."""


class ConnectionReport(NamedTuple):
    """A connection as the control API shows it; times in seconds of the broker's clock."""

    number: int
    connection_id: str
    listener: str
    host: str
    port: int
    principal: str
    client_id: str | None
    software_name: str | None
    software_version: str | None
    opened: float
    used: float
    state: str
    in_flight: int | None


class ClientConnection:
    """One open connection."""

    __slots__ = (
        "accepted",
        "account",
        "accounted_ns",
        "authentication",
        "caller",
        "client_id",
        "close_reason",
        "close_text",
        "in_flight",
        "interruptible",
        "is_new",
        "needs_checks",
        "opened",
        "reader",
        "scope",
        "session_expires_at",
        "software",
        "start_task",
        "state",
        "stream",
        "throttle_end",
    )

    def __init__(self, accepted: AcceptedConnection, stream: ByteStream, now: float) -> None:
        host, port = accepted.peer
        self.accepted = accepted
        # Canonical form of the address, which host rules and principals compare.
        self.caller = Caller(accepted.connection_id, accepted.listener, client_ip(host), port)
        self.stream = stream
        self.opened = now
        self.state = ConnectionState()
        self.account = Account()
        self.accounted_ns = 0
        """Worked time up to the end of the last request."""
        self.scope = trio.CancelScope()
        self.start_task: Callable[[ClientConnection], None] | None = None
        """Starts the connection's task; None if it has one, or has ended."""
        self.is_new = True
        """Whether no request of the connection was received yet."""
        self.reader: RequestReader | None = None
        self.authentication: Authentication | None = None
        self.session_expires_at: float | None = None
        """Time by which the client must have reauthenticated, or None if it need not."""
        self.client_id: str | None = None
        self.software: tuple[str, str] | None = None
        self.in_flight: int | None = None
        self.throttle_end: trio.Event | None = None
        """Set when the current throttle ends."""
        self.interruptible = True
        """Whether closing the connection now would interrupt nothing but a wait."""
        self.needs_checks = False
        """Whether an observer needs the results of its quota checks."""
        self.close_reason = CloseReason.CLIENT_CLOSED
        self.close_text = ""

    @property
    def number(self) -> int:
        """Number that identifies the connection in all processes."""
        return self.accepted.number

    def set_software(self, name: str, version: str) -> None:
        """Keep the client software's name and version (ApiVersions, KIP-511)."""
        self.software = (name[:SHOWN_MAX], version[:SHOWN_MAX])
        self.caller = self.caller._replace(software=self.software)

    def throttle(self) -> None:
        """Mute the connection until `end_throttle`."""
        self.state.on(ChannelEvent.THROTTLE_STARTED)
        self.throttle_end = trio.Event()

    def end_throttle(self) -> None:
        """End the throttle."""
        assert self.throttle_end is not None
        self.state.on(ChannelEvent.THROTTLE_ENDED)
        self.throttle_end.set()

    def close(self, reason: CloseReason, text: str = "") -> None:
        """Close the connection for a reason of the broker; its tasks are cancelled."""
        self.close_reason = reason
        self.close_text = text
        self.scope.cancel()
        if self.start_task is not None:
            self.start_task(self)  # It closes the connection and records that.

    def view(self, used: float) -> ConnectionReport:
        """Return the facts to show; the connection was last used at ``used``."""
        name, version = self.software or (None, None)
        shown = None if self.client_id is None else self.client_id[:SHOWN_MAX]
        return ConnectionReport(
            self.number,
            self.caller.connection_id,
            self.caller.listener,
            self.caller.client_host,
            self.caller.client_port,
            str(self.caller.principal)[:SHOWN_MAX],
            shown,
            name,
            version,
            self.opened,
            used,
            self.state.state.value,
            self.in_flight,
        )
