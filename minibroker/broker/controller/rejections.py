"""Describes rejected connections in a sentence.

Owns one sentence for each reason: what was rejected, the limit with its value and the name of its
setting, and what to do. It must never know how a connection is rejected. Invariant: a sentence
names only the limit that was exceeded; of an override or a quota also the address. Kafka only logs.
"""

from __future__ import annotations

from typing import Final

from minibroker.broker.admission.connection_events import ConnectionEvent, ExceededLimit, Rejection
from minibroker.broker.connections.address import client_ip
from minibroker.broker.metrics.definitions import CloseReason
from minibroker.broker.process.environment import PROCESSOR, role_name
from minibroker.broker.quotas.values import limit_text
from minibroker.broker.settings.dynamic import DEFAULT_NAME


def sentence(rejection: Rejection) -> str:
    """Describe why a connection was rejected or closed."""
    event, limit, why = rejection
    host = client_ip(event.host)
    if limit is None:
        return _security_text(event, why) or _resource_text(event)
    match event.reason:
        case CloseReason.DROPPED:
            return (
                f"{host} was rejected: the broker had {_connections_text(limit)}, the most that "
                f"{_setting_text(limit)} allows; close some, or raise the limit."
            )
        case CloseReason.MAX_CONNECTIONS:
            return (
                f"{host} was disconnected: the broker had more connections than "
                f"{_setting_text(limit)} allows, and this one was the least recently "
                "used; close some, or raise the limit."
            )
        case CloseReason.IP_RATE if limit.value == 0:
            text = f"{_quota_text(limit)} allows no connection; raise or remove it."
            return f"{host} was rejected: {text}"
        case CloseReason.IP_RATE:
            return (
                f"{host} was rejected: its connection rate exceeded {_quota_text(limit)}; keep "
                f"connections open, or raise the quota."
            )
        case _:
            return (
                f"{host} was rejected: it had {_connections_text(limit)}, the most that "
                f"{_setting_text(limit)} allows; close some, or raise the limit."
            )


def _connections_text(limit: ExceededLimit) -> str:
    if limit.value == 0:
        return "no connection"
    return "1 connection" if limit.value == 1 else f"{limit.value} connections"


def _setting_text(limit: ExceededLimit) -> str:
    """Format the setting as configured; of an override only the entry of this host."""
    entry = str(limit.value) if limit.whose is None else f"{limit.whose}:{limit.value}"
    return f"{limit.setting}={entry}"


def _quota_text(limit: ExceededLimit) -> str:
    whose = "of all addresses" if limit.whose == DEFAULT_NAME else f"of the ip {limit.whose}"
    return f"the quota {limit.setting}={limit_text(limit.value)} {whose}"


_SECURITY_TEXTS: Final = {
    CloseReason.TLS_FAILED: (
        "the TLS handshake failed",
        "check that the client speaks TLS, trusts the broker's certificate and has one if it must.",
    ),
    CloseReason.AUTHENTICATION_FAILED: (
        "authentication failed",
        "check the client's mechanism, user name and secret.",
    ),
    CloseReason.SESSION_EXPIRED: (
        "its session had expired",
        "check that the client can authenticate again (connections.max.reauth.ms).",
    ),
}


def _security_text(event: ConnectionEvent, why: str) -> str:
    for reason, (what, advice) in _SECURITY_TEXTS.items():
        if reason == event.reason:
            # The client chose this text, so it may contain terminal escapes.
            plain = "".join(character if character.isprintable() else "?" for character in why)
            return f"{client_ip(event.host)} was rejected: {what} ({plain}); {advice}"
    return ""


def _resource_text(event: ConnectionEvent) -> str:
    process = role_name(PROCESSOR, event.processor or 0)
    if event.reason == CloseReason.PROCESS_DIED:
        return (
            f"{client_ip(event.host)} lost its connection: {process} died before it was "
            f"served; connect again."
        )
    return (
        f"{client_ip(event.host)} was rejected: {process} has no descriptors left; close "
        f"connections, or raise the system's limit (ulimit -n)."
    )
