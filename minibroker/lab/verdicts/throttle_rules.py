"""Rule: a client that is throttled sends nothing on the connection until the time has passed.

Owns the proof that a request was sent after the response that throttled its client; the schema
says from which versions on clients throttle themselves. It must never judge a client whose
connection the broker muted: the broker does not read then, so nobody can see when a request was
sent. Invariant: a request that may have been on its way before the response is never held against
the client. KIP-219.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from minibroker.lab.verdicts.exchanges import ObservedExchange
from minibroker.lab.verdicts.situations import BehaviorRule, Severity, Situation, duration
from minibroker.lab.verdicts.traffic import ClientTraffic, ObservedConnection
from minibroker_protocol.registry import ApiKey, obeyed_throttle_versions

TIMER_MS: Final = 20
"""How much earlier than the end of a throttle a timer of a client may fire."""
IDLE_MS: Final = 100
"""A request that arrives after a pause of this length was not sent before the pause."""

JAVA_SOFTWARE: Final = "apache-kafka-java"
"""The name of Kafka's own client in ApiVersions (KIP-511)."""
JAVA_THROTTLES_ALL_FROM: Final = (4, 4)
"""Version of Kafka's client that throttles itself after every response (KAFKA-20828)."""
_JAVA_THROTTLES: Final = frozenset(
    {
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.OFFSET_DELETE,
        ApiKey.CREATE_DELEGATION_TOKEN,
        ApiKey.RENEW_DELEGATION_TOKEN,
        ApiKey.EXPIRE_DELEGATION_TOKEN,
        ApiKey.DESCRIBE_DELEGATION_TOKEN,
    }
)
"""APIs of later Kafka versions after whose responses its older clients throttle themselves, too."""


def _observe(traffic: ClientTraffic) -> Iterator[Situation]:
    for connection in traffic.connections:
        is_older_java = _is_older_java(connection)
        for position, exchange in enumerate(connection.exchanges):
            if is_older_java and not _does_older_java_throttle(exchange.key):
                continue
            if _throttles_client(exchange):
                yield from _after(traffic, connection, position)


def _is_older_java(connection: ObservedConnection) -> bool:
    """Whether Kafka's own client named itself, in a version before the one that obeys all."""
    for exchange in connection.exchanges:
        request = exchange.request if exchange.key is ApiKey.API_VERSIONS else None
        if request is not None and request.get("client_software_name") == JAVA_SOFTWARE:
            parts = request["client_software_version"].split(".")[:2]
            numbers = [int(part) for part in parts if part.isdecimal()]
            return tuple(numbers) < JAVA_THROTTLES_ALL_FROM
    return False


def _does_older_java_throttle(key: ApiKey | None) -> bool:
    """Whether the class of the API in Kafka's client defines ``shouldClientThrottle``.

    These are the APIs that are older than KIP-219, and a few others.
    """
    return key is not None and (key in _JAVA_THROTTLES or obeyed_throttle_versions(key).low > 0)


def _throttles_client(exchange: ObservedExchange) -> bool:
    if exchange.answer is None or not exchange.answer.throttle_time_ms or exchange.key is None:
        return False
    return obeyed_throttle_versions(exchange.key).has(exchange.version)


def _after(
    traffic: ClientTraffic, connection: ObservedConnection, position: int
) -> Iterator[Situation]:
    throttled = connection.exchanges[position]
    assert throttled.answer is not None
    throttle_ms = throttled.answer.throttle_time_ms or 0
    end_ms = throttled.last_ms + throttle_ms
    was_read = False
    for later in range(position + 1, len(connection.exchanges)):
        exchange = connection.exchanges[later]
        evidence = (throttled.answer.sequence, exchange.sent.sequence)
        if not traffic.is_steady(*evidence):
            return
        if exchange.sent_ms >= end_ms - TIMER_MS:
            if was_read or _is_unmuted(connection, throttled):
                yield Situation(evidence)
            return
        was_read = True  # So the broker did not mute the connection.
        if _was_sent_later(throttled, connection.exchanges[later - 1], exchange):
            yield Situation(
                evidence,
                f"sent {exchange.title} {duration(exchange.sent_ms - throttled.last_ms)} after a "
                f"response to {throttled.title} that throttled it for {duration(throttle_ms)}; "
                "the broker did not mute the connection",
            )
            return


def _is_unmuted(connection: ObservedConnection, throttled: ObservedExchange) -> bool:
    """Whether a fault rule throttled the request without muting the connection."""
    return any(
        fault.correlation_id == throttled.sent.correlation_id
        and fault.details.get("action") == "throttle"
        and fault.details.get("mute") is False
        for fault in connection.faults
    )


def _was_sent_later(
    throttled: ObservedExchange, previous: ObservedExchange, exchange: ObservedExchange
) -> bool:
    """Whether a request was certainly sent after the throttled response.

    Clients send these APIs only after the response to the last one; only a Produce may be one of
    several in flight. Any request was, if the connection was idle before it.
    """
    if exchange.key is throttled.key is ApiKey.FETCH:
        return True
    return exchange.sent_ms - previous.last_ms >= IDLE_MS


RULES: Final = (
    BehaviorRule(
        "obeys-throttle",
        "After a response with a throttle time, the client sends nothing on the connection until "
        "that time has passed.",
        "KIP-219",
        Severity.WARNING,
        "a response with a throttle time on a connection that the broker did not mute",
        _observe,
        "From the versions of KIP-219 on, send nothing on the connection until the throttle "
        "time has passed; a muting broker would let the request wait anyway.",
    ),
)
