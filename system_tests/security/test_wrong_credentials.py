"""Wrong and renewed certificates and tokens, as clients of a running broker see them."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, get_args

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from minibroker.client.connection import ClientSecurity
from minibroker.client.errors import BrokerError
from minibroker.client.kafka_client import KafkaClient
from minibroker.client.security import oauthbearer
from minibroker.testing import MiniBroker
from minibroker.token_issuer import TokenKind
from system_tests.harness.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.minibroker

API_VERSIONS = b"\0\0\0\x0a\0\x12\0\0\0\0\0\x07\xff\xff"
"""ApiVersions, version 0, of a client that gives no name."""

REASONS = {
    "expired": "certificate has expired",
    "not_yet_valid": "not yet valid",
    "wrong_host": "certificate is not valid for",
    "untrusted": "unable to get local issuer certificate",
}


@pytest.fixture(scope="module")
def broker() -> Iterator[MiniBroker]:
    with MiniBroker(tls=True, sasl="oauth") as made:
        yield made


@contextmanager
def connection(broker: MiniBroker) -> Iterator[ssl.SSLSocket]:
    context = ssl.create_default_context(cafile=broker.client_config()["ssl.ca.location"])
    host, _, port = broker.bootstrap_servers.partition(":")
    with (
        socket.create_connection((host, int(port)), PATIENCE_S) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as wrapped,
    ):
        yield wrapped


def serial(broker: MiniBroker) -> str:
    with connection(broker) as connected:
        shown = connected.getpeercert()
        assert shown is not None
        return str(shown["serialNumber"])


def sent(config: dict[str, Any]) -> bool:
    """Whether a new producer can send a record within seconds."""
    producer = Producer({**config, "message.timeout.ms": 3000, "log_level": 0})
    failed: list[bool] = []
    # An error of this library can't be compared with None.
    producer.produce("wrong", b"one", on_delivery=lambda error, _: failed.append(error is not None))
    producer.flush(PATIENCE_S)
    return failed == [False]


@pytest.mark.parametrize("kind", REASONS)
def test_new_connections_see_the_wrong_certificate_and_open_ones_go_on(
    broker: MiniBroker, kind: Any
) -> None:
    with connection(broker) as old:
        broker.certificates.present(kind)
        try:
            with (
                pytest.raises(ssl.SSLCertVerificationError, match=REASONS[kind]),
                connection(broker),
            ):
                pass
            old.sendall(API_VERSIONS)
            assert old.recv(8)[4:] == API_VERSIONS[8:12]
        finally:
            broker.certificates.renew()
    serial(broker)


def test_renewed_certificate_is_another_one_of_the_same_authority(broker: MiniBroker) -> None:
    before = serial(broker)
    assert broker.certificates.renew() == {"kind": "valid", "listeners": ["SASL_SSL"]}
    assert serial(broker) != before


def test_client_reports_the_certificate_and_recovers(broker: MiniBroker) -> None:
    errors: list[KafkaError] = []
    broker.certificates.present("expired")
    try:
        config = {**broker.client_config(), "error_cb": errors.append, "log_level": 0}
        producer = Producer(config)
        producer.produce("recovered", b"one")

        def has_failed() -> bool:
            producer.poll(0.1)
            return any("certificate verify failed" in error.str() for error in errors)

        wait_until(has_failed, "the client reports the certificate")
    finally:
        broker.certificates.renew()
    assert producer.flush(PATIENCE_S) == 0


CLIENT_REASONS = {
    "valid": "",
    "expired": "alert certificate expired",
    "not_yet_valid": "alert bad certificate",
    "untrusted": "alert unknown ca",
}
USERS_ONLY = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "ssl.principal.mapping.rules": "RULE:^.*CN=([^,]*).*$/$1/",
    "super.users": "User:test",
}


@pytest.fixture(scope="module")
def mutual() -> Iterator[MiniBroker]:
    with MiniBroker(tls="mutual", settings=USERS_ONLY) as made:
        yield made


def outcome_with(broker: MiniBroker, file: str) -> str:
    """How librdkafka fares with a client's certificate: the first error, or "" if it can send."""
    config = {**broker.client_config(), "ssl.certificate.location": file, "ssl.key.location": file}
    found: list[str] = []
    producer = Producer(
        {**config, "error_cb": lambda error: found.append(error.str()), "log_level": 0}
    )
    producer.produce(
        "certified", b"one", on_delivery=lambda error, _: found.append(error.str() if error else "")
    )

    def has_outcome() -> bool:
        producer.poll(0.1)
        return bool(found)

    wait_until(has_outcome, "the client can send, or reports an error")
    producer.purge()
    producer.flush(PATIENCE_S)
    return found[0]


@pytest.mark.parametrize("kind", CLIENT_REASONS)
def test_client_certificate_is_rejected_for_its_reason(mutual: MiniBroker, kind: Any) -> None:
    outcome = outcome_with(mutual, mutual.certificates.create(kind))
    reason = CLIENT_REASONS[kind]
    assert reason in outcome if reason else outcome == ""


def test_certificate_of_another_user_has_the_rights_of_that_user(mutual: MiniBroker) -> None:
    other = mutual.certificates.create(user="alice")
    assert outcome_with(mutual, other) == "Broker: Topic authorization failed"


def user_can_connect(broker: MiniBroker, token: str) -> bool:
    """Whether the broker accepts a token."""
    tls = ssl.create_default_context(cafile=broker.client_config()["ssl.ca.location"])
    security = ClientSecurity(tls, "OAUTHBEARER", lambda: oauthbearer(token))
    try:
        with KafkaClient(broker.bootstrap_servers, security) as client:
            return bool(client.metadata([]).brokers)
    except BrokerError as error:
        if "SASL_AUTHENTICATION_FAILED" not in str(error):
            raise
        return False


@pytest.mark.parametrize("kind", sorted(get_args(TokenKind)))
def test_broker_accepts_the_valid_token_only(broker: MiniBroker, kind: TokenKind) -> None:
    assert user_can_connect(broker, broker.tokens.create(kind)) == (kind == "valid")


def test_client_gets_what_the_endpoint_issues_and_recovers(broker: MiniBroker) -> None:
    assert sent(broker.client_config())
    broker.tokens.issue("wrong_audience")
    try:
        assert not sent(broker.client_config())
        broker.tokens.issue("unavailable")
        assert not sent(broker.client_config())
    finally:
        broker.tokens.issue("valid")
    assert sent(broker.client_config())


def test_session_goes_on_while_keys_rotate_and_old_tokens_are_rejected(broker: MiniBroker) -> None:
    config = broker.client_config()
    topic = broker.create_topic("rotated")
    producer = Producer(config)
    producer.produce(topic, b"before")
    assert producer.flush(PATIENCE_S) == 0
    old = broker.tokens.create()
    keys = broker.tokens.rotate_keys(keep_old=False, algorithm="RS256")["keys"]
    assert len(keys) == 1
    producer.produce(topic, b"after")
    assert producer.flush(PATIENCE_S) == 0
    consumer = Consumer({**config, "group.id": "none"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert [message.value() for message in consumer.consume(2, PATIENCE_S)] == [b"before", b"after"]
    consumer.close()
    assert not user_can_connect(broker, old)
    assert user_can_connect(broker, broker.tokens.create())


def test_token_that_expires_ends_the_session() -> None:
    """The broker's clock decides, so a test needs no patience."""
    with MiniBroker(sasl="oauth") as other:
        other.tokens.issue("valid", lifetime_s=600)
        consumer = Consumer({**other.client_config(), "group.id": "none", "log_level": 0})
        assert consumer.list_topics(timeout=PATIENCE_S).brokers
        issued = other.tokens.issuer()["issued"]
        other.tokens.issue("denied")
        other.advance(700_000)
        with pytest.raises(KafkaException):
            consumer.list_topics(timeout=2)
        assert other.tokens.issuer()["issued"] == issued
        consumer.close()
