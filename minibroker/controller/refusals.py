"""Why somebody was turned away, in words.

Owns one sentence for every reason: what was refused, by which limit with its value and the name
under which it is set, and what to do. Pure; never who decides. Invariant: a sentence names the
limit that was met and no other, an override or a quota with the address that it is for. Kafka
leaves its clients without a word.
"""

from __future__ import annotations

from typing import Final

from minibroker.config.dynamic import DEFAULT_NAME
from minibroker.connections.address import client_ip
from minibroker.network.happenings import Happening, Limit, Refusal
from minibroker.observability.definitions import CloseReason
from minibroker.quotas.values import limit_text
from minibroker.roles.environment import PROCESSOR, role_name


def sentence(refusal: Refusal) -> str:
    """Why a connection was turned away or sent away."""
    happening, limit, why = refusal
    host = client_ip(happening.host)
    if limit is None:
        return _distrusted(happening, why) or _without_limit(happening)
    match happening.reason:
        case CloseReason.DROPPED:
            return (
                f"{host} was turned away: the broker had {_connections(limit)}, the most that "
                f"{_given(limit)} allows; close some, or raise the limit."
            )
        case CloseReason.MAX_CONNECTIONS:
            return (
                f"{host} was sent away: the broker had more connections than {_given(limit)} "
                f"allows, and this one was the least recently used; close some, or raise the limit."
            )
        case CloseReason.IP_RATE if limit.value == 0:
            return f"{host} was turned away: {_quota(limit)} lets nobody in; raise or remove it."
        case CloseReason.IP_RATE:
            return (
                f"{host} was turned away: it connected more often in a second than {_quota(limit)} "
                f"allows; keep connections open, or raise the quota."
            )
        case _:
            return (
                f"{host} was turned away: it had {_connections(limit)}, the most that "
                f"{_given(limit)} allows; close some, or raise the limit."
            )


def _connections(limit: Limit) -> str:
    if limit.value == 0:
        return "no connection"
    return "1 connection" if limit.value == 1 else f"{limit.value} connections"


def _given(limit: Limit) -> str:
    """As it was set: ``host:number`` is one entry of several."""
    entry = str(limit.value) if limit.whose is None else f"{limit.whose}:{limit.value}"
    return f"{limit.setting}={entry}"


def _quota(limit: Limit) -> str:
    whose = "of all addresses" if limit.whose == DEFAULT_NAME else f"of the ip {limit.whose}"
    return f"the quota {limit.setting}={limit_text(limit.value)} {whose}"


_DISTRUSTED: Final = {
    CloseReason.TLS_FAILED: (
        "TLS was not agreed on",
        "check that the client speaks TLS, trusts the broker's certificate and has one if it must.",
    ),
    CloseReason.AUTHENTICATION_FAILED: (
        "it did not prove who it is",
        "check the client's mechanism, user name and secret.",
    ),
    CloseReason.SESSION_EXPIRED: (
        "its proof of who it is had expired",
        "check that the client can authenticate again (connections.max.reauth.ms).",
    ),
}


def _distrusted(happening: Happening, why: str) -> str:
    for reason, (what, advice) in _DISTRUSTED.items():
        if reason == happening.reason:
            # What a client chose may hold anything, such as escapes of a terminal.
            plain = "".join(character if character.isprintable() else "?" for character in why)
            return f"{client_ip(happening.host)} was turned away: {what} ({plain}); {advice}"
    return ""


def _without_limit(happening: Happening) -> str:
    process = role_name(PROCESSOR, happening.processor or 0)
    if happening.reason == CloseReason.PROCESS_DIED:
        return (
            f"{client_ip(happening.host)} lost its connection: {process} died before it was "
            f"served; connect again."
        )
    return (
        f"{client_ip(happening.host)} was turned away: {process} may open no more files; close "
        f"connections, or raise the system's limit (ulimit -n)."
    )
