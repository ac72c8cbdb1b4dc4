"""Rule: a client authenticates again before its session expires.

Owns how a repeated authentication is recognized. It must never see credentials, which the journal
does not keep. Invariant: the broker's own reason for closing decides that a session expired.
KIP-368.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from minibroker.broker.metrics.definitions import CloseReason
from minibroker.lab.verdicts.situations import BehaviorRule, Severity, Situation
from minibroker.lab.verdicts.traffic import HANDSHAKE_APIS, ClientTraffic, ObservedConnection
from minibroker_protocol.registry import ApiKey


def _observe(traffic: ClientTraffic) -> Iterator[Situation]:
    for connection in traffic.connections:
        closed = connection.closed
        if closed is not None and closed.details.get("reason") == CloseReason.SESSION_EXPIRED:
            yield Situation(connection.sequences, "the session expired without authentication")
            continue
        if (again := _second_authentication(connection)) is not None:
            yield Situation((again,))


def _second_authentication(connection: ObservedConnection) -> int | None:
    """Return the entry of an authentication after the first one.

    A broker records the session's state, a proxy the requests, which follow others then.
    """
    for state in connection.states:
        details = state.details
        if details.get("what") == "session" and details.get("from") == details.get("to"):
            return state.sequence
    was_used = False
    for exchange in connection.exchanges:
        if exchange.key not in HANDSHAKE_APIS:
            was_used = True
        elif exchange.key is ApiKey.SASL_AUTHENTICATE and was_used:
            return exchange.sent.sequence
    return None


RULES: Final = (
    BehaviorRule(
        "reauthentication",
        "The client authenticates again before its session expires.",
        "KIP-368",
        Severity.ERROR,
        "a SASL session that was as long as connections.max.reauth.ms",
        _observe,
        "Note the session lifetime of SaslAuthenticate from version 1 on, and authenticate "
        "again on the open connection after 85 to 95 % of it.",
    ),
)
