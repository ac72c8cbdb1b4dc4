"""Every reason has its sentence, with the limit that was met."""

from __future__ import annotations

import pytest

from minibroker.broker.admission.connection_events import ConnectionEvent, ExceededLimit, Rejection
from minibroker.broker.controller.rejections import sentence


def distrusted(reason: str, why: str) -> Rejection:
    return Rejection(refusal(reason, kind="closed").event, None, why)


def refusal(reason: str, *limit: object, kind: str = "refused") -> Rejection:
    happening = ConnectionEvent(1, 1.0, kind, "A", "10.0.0.7", 5, 1, reason)  # type: ignore[arg-type]
    return Rejection(happening, ExceededLimit(*limit) if limit else None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rejection", "text"),
    [
        (
            refusal("kafka_connections_max", "kafka_connections_max", 20),
            (
                "10.0.0.7 was rejected: the broker had 20 connections, the most that "
                "kafka_connections_max=20 allows; close some, or raise the limit."
            ),
        ),
        (
            refusal("kafka_connections_max_per_ip", "kafka_connections_max_per_ip", 1),
            (
                "10.0.0.7 was rejected: it had 1 connection, the most that "
                "kafka_connections_max_per_ip=1 allows; close some, or raise the limit."
            ),
        ),
        (
            refusal(
                "kafka_connections_max_per_ip", "kafka_connections_max_overrides", 0, "10.0.0.7"
            ),
            (
                "10.0.0.7 was rejected: it had no connection, the most that "
                "kafka_connections_max_overrides=10.0.0.7:0 allows; close some, or raise the limit."
            ),
        ),
        (
            refusal("max_connections_per_ip", "max.connections.per.ip", 2),
            (
                "10.0.0.7 was rejected: it had 2 connections, the most that "
                "max.connections.per.ip=2 allows; close some, or raise the limit."
            ),
        ),
        (
            refusal("ip_connection_creation_rate", "connection_creation_rate", 2.5, "10.0.0.7"),
            (
                "10.0.0.7 was rejected: its connection rate exceeded the quota "
                "connection_creation_rate=2.5 of the ip 10.0.0.7; keep connections open, or raise "
                "the quota."
            ),
        ),
        (
            refusal("ip_connection_creation_rate", "connection_creation_rate", 0, "<default>"),
            (
                "10.0.0.7 was rejected: the quota connection_creation_rate=0 of all addresses "
                "allows no connection; raise or remove it."
            ),
        ),
        (
            refusal("max_connections", "max.connections", 4, kind="closed"),
            (
                "10.0.0.7 was disconnected: the broker had more connections than max.connections=4 "
                "allows, and this one was the least recently used; close some, or raise the limit."
            ),
        ),
        (
            distrusted("tls_failed", "HTTP_REQUEST"),
            (
                "10.0.0.7 was rejected: the TLS handshake failed (HTTP_REQUEST); check that the "
                "client speaks TLS, trusts the broker's certificate and has one if it must."
            ),
        ),
        (
            distrusted("authentication_failed", "no user \x1b[2J\n"),
            (
                "10.0.0.7 was rejected: authentication failed (no user ?[2J?); check the "
                "client's mechanism, user name and secret."
            ),
        ),
        (
            distrusted("session_expired", "too late"),
            (
                "10.0.0.7 was rejected: its session had expired (too late); check "
                "that the client can authenticate again (connections.max.reauth.ms)."
            ),
        ),
        (
            refusal("process_died"),
            "10.0.0.7 lost its connection: processor-1 died before it was served; connect again.",
        ),
        (
            refusal("limit"),
            (
                "10.0.0.7 was rejected: processor-1 has no descriptors left; close connections, "
                "or raise the system's limit (ulimit -n)."
            ),
        ),
    ],
    ids=lambda each: each.event.reason if isinstance(each, Rejection) else "",
)
def test_malformed_event_has_explained_reason(rejection: Rejection, text: str) -> None:
    assert sentence(rejection) == text


def test_rejection_shows_mapped_ipv6_address_as_ipv4() -> None:
    happening = ConnectionEvent(
        1, 1.0, "refused", "A", "::ffff:10.0.0.7", 5, 1, "max_connections_per_ip"
    )
    rejection = Rejection(happening, ExceededLimit("max.connections.per.ip", 2))
    assert sentence(rejection).startswith("10.0.0.7 was rejected: ")
