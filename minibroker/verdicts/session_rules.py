"""Rule: a client authenticates again before its session expires.

Owns how a repeated authentication is recognized. It must never see credentials, which the journal
does not keep. Invariant: the broker's own reason for closing decides that a session expired.
KIP-368.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from minibroker.observability.close_reason import CloseReason
from minibroker.verdicts.situations import BehaviorRule, Severity, Situation
from minibroker.verdicts.traffic import HANDSHAKE_APIS, ClientTraffic
from protocol.registry import ApiKey


def _observe(traffic: ClientTraffic) -> Iterator[Situation]:
    for connection in traffic.connections:
        closed = connection.closed
        if closed is not None and closed.details.get("reason") == CloseReason.SESSION_EXPIRED:
            yield Situation(connection.sequences, "the session expired without authentication")
            continue
        was_used = False
        for exchange in connection.exchanges:
            if exchange.key not in HANDSHAKE_APIS:
                was_used = True
            elif exchange.key is ApiKey.SASL_AUTHENTICATE and was_used:
                yield Situation((exchange.sent.sequence,))
                break


RULES: Final = (
    BehaviorRule(
        "reauthentication",
        "The client authenticates again before its session expires.",
        "KIP-368",
        Severity.ERROR,
        "a SASL session that was as long as connections.max.reauth.ms",
        _observe,
    ),
)
