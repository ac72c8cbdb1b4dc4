"""What a processor knows of one connection: who it is, and what is in flight.

Owns facts for the exchange, the console and the log, and the connection's state machine; never
its bytes. Invariant: everything in it that a client chose is bounded in length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import trio

from minibroker.admission.acceptor_messages import AcceptedConnection
from minibroker.apis.base import Caller
from minibroker.connections.address import client_ip
from minibroker.network.connection_state import ChannelEvent, ConnectionState
from minibroker.network.request_reader import RequestReader
from minibroker.observability.definitions import CloseReason
from minibroker.runtime.stream import ByteStream
from minibroker.runtime.worktime import Account

if TYPE_CHECKING:
    from minibroker.activity.events import ActivityClient
    from minibroker.security.authentication import Authentication

SHOWN_MAX: Final = 200
"""Characters of a client's own words that are kept for people to see."""


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
        "activity_client",
        "authentication",
        "caller",
        "client_id",
        "close_reason",
        "close_text",
        "in_flight",
        "interruptible",
        "is_sampled",
        "opened",
        "proof_ends",
        "reader",
        "scope",
        "software",
        "state",
        "stream",
        "throttle_over",
    )

    def __init__(self, accepted: AcceptedConnection, stream: ByteStream, now: float) -> None:
        host, port = accepted.peer
        self.accepted = accepted
        # One spelling, as rules for hosts and whoever makes names of addresses go by it.
        self.caller = Caller(accepted.connection_id, accepted.listener, client_ip(host), port)
        self.stream = stream
        self.opened = now
        self.state = ConnectionState()
        self.account = Account()
        self.accounted_ns = 0
        """Its worked time up to the end of the last request."""
        self.scope = trio.CancelScope()
        self.reader: RequestReader | None = None
        self.authentication: Authentication | None = None
        self.proof_ends: float | None = None
        """When the client must have proven again who it is; None if it need not."""
        self.client_id: str | None = None
        self.software: tuple[str, str] | None = None
        self.in_flight: int | None = None
        self.throttle_over: trio.Event | None = None
        """Set when the throttle ends that was started last."""
        self.interruptible = True
        """Whether closing now would cut off nothing but a wait."""
        self.is_sampled = False
        """Whether the recorder is told of its requests."""
        self.activity_client: ActivityClient | None = None
        """As whom it is told of: made once for as many requests as it fits."""
        self.close_reason = CloseReason.CLIENT_CLOSED
        self.close_text = ""

    @property
    def number(self) -> int:
        """What acceptor and processors call it."""
        return self.accepted.number

    def introduce(self, name: str, version: str) -> None:
        """Keeps what the client says it is (ApiVersions, KIP-511)."""
        self.software = (name[:SHOWN_MAX], version[:SHOWN_MAX])

    def throttle(self) -> None:
        """It is not to be read until `throttle_ended`."""
        self.state.on(ChannelEvent.THROTTLE_STARTED)
        self.throttle_over = trio.Event()

    def throttle_ended(self) -> None:
        """The time has come."""
        assert self.throttle_over is not None
        self.state.on(ChannelEvent.THROTTLE_ENDED)
        self.throttle_over.set()

    def close(self, reason: CloseReason, text: str = "") -> None:
        """Ends the connection for a reason of ours; whatever waits for it is cancelled."""
        self.close_reason = reason
        self.close_text = text
        self.scope.cancel()

    def view(self, used: float) -> ConnectionReport:
        """The facts to show; it was last used at ``used``."""
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
