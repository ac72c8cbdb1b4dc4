"""Real clients over TLS with each mechanism: a round trip of a record, and failed authentication.

Each library produces and consumes as its user. Every connection must reauthenticate after three
seconds, and these scenarios take longer, so clients reauthenticate on the way if they can.
"""

from __future__ import annotations

import asyncio
import gc
import json
import ssl
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import aiokafka
import kafka
import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from kafka.net.compat import KafkaNetClient

from system_tests.harness.waiting import PATIENCE_S, wait_until
from system_tests.security.conftest import PASSWORDS, Secured

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
USER, PASSWORD = "alice", PASSWORDS["alice"]
SLOW_S = 4.0
"""Longer than a proof is worth something."""

# kafka-python leaves a socket open if it is closed during a handshake. aiokafka does not wait until
# asyncio has closed a TLS connection, so its event loop may end first.
pytestmark = pytest.mark.filterwarnings(
    "ignore:unclosed <ssl.SSLSocket:ResourceWarning",
    "ignore:unclosed <socket.socket:ResourceWarning",
    "ignore:unclosed transport:ResourceWarning",
)


@pytest.fixture(autouse=True)
def collect() -> Iterator[None]:
    """Leaks are found here, where they belong, and not in a later test."""
    yield
    gc.collect()


@pytest.fixture(scope="module", autouse=True)
def scram_users(secured: Secured) -> None:
    """Alice's password for both kinds of SCRAM."""
    admin = AdminClient({"bootstrap.servers": secured.plaintext})
    wanted = [
        UserScramCredentialUpsertion(USER, ScramCredentialInfo(kind, 4096), PASSWORD.encode())
        for kind in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
    ]
    admin.alter_user_scram_credentials(wanted)[USER].result(10)


@pytest.fixture
def topic(secured: Secured) -> str:
    name = f"secured-{uuid.uuid4().hex[:8]}"
    AdminClient({"bootstrap.servers": secured.plaintext}).list_topics(name, timeout=PATIENCE_S)
    return name


def with_confluent(at: Secured, mechanism: str, password: str, topic: str) -> bytes:
    config = {
        "bootstrap.servers": at.sasl_ssl,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(at.authority),
        "sasl.mechanism": mechanism,
        "sasl.username": USER,
        "sasl.password": password,
        "log_level": 0,
    }
    errors: list[Any] = []
    producer = Producer({**config, "error_cb": errors.append})
    producer.produce(topic, b"first")
    if producer.flush(2 if password != PASSWORD else PATIENCE_S):
        raise KafkaException(errors[0])
    consumer = Consumer({**config, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    try:
        for _ in range(int(SLOW_S)):
            consumer.poll(1.0)
        producer.produce(topic, b"second")
        assert producer.flush(PATIENCE_S) == 0
        found: list[bytes] = []

        def read() -> bool:
            message = consumer.poll(1.0)
            if message is not None and message.error() is None:
                found.append(message.value())
            return b"second" in found

        wait_until(read, "the second record", within_s=PATIENCE_S)
        return found[-1]
    finally:
        consumer.close()


@contextmanager
def _closed_although_unmade() -> Iterator[Callable[..., KafkaNetClient]]:
    """Close the network client of a kafka-python producer that raised before it could be closed.

    Its sockets would be found unclosed at some later test's garbage collection.
    """
    made = []

    def make(**config: Any) -> KafkaNetClient:
        made.append(KafkaNetClient(**config))
        return made[-1]

    try:
        yield make
    except BaseException:
        for each in made:
            each.close()
        raise


def with_kafka_python(at: Secured, mechanism: str, password: str, topic: str) -> bytes:
    config = {
        "bootstrap_servers": at.sasl_ssl,
        "security_protocol": "SASL_SSL",
        "ssl_cafile": str(at.authority),
        "sasl_mechanism": mechanism,
        "sasl_plain_username": USER,
        "sasl_plain_password": password,
    }
    with _closed_although_unmade() as made:
        producer = kafka.KafkaProducer(**config, kafka_client=made, bootstrap_timeout_ms=5_000)
    try:
        producer.send(topic, b"second").get(PATIENCE_S)
    finally:
        producer.close(timeout=1)
    consumer = kafka.KafkaConsumer(
        topic, group_id=topic, auto_offset_reset="earliest", consumer_timeout_ms=15_000, **config
    )
    # Version 3.0.12 assigns nothing, for minutes, if it joins a group before it has metadata.
    consumer.partitions_for_topic(topic)
    try:
        value: bytes = next(consumer).value
        return value
    finally:
        consumer.close()


def with_aiokafka(at: Secured, mechanism: str, password: str, topic: str) -> bytes:
    config = {
        "bootstrap_servers": at.sasl_ssl,
        "security_protocol": "SASL_SSL",
        "ssl_context": ssl.create_default_context(cafile=str(at.authority)),
        "sasl_mechanism": mechanism,
        "sasl_plain_username": USER,
        "sasl_plain_password": password,
    }

    async def run() -> bytes:
        producer = aiokafka.AIOKafkaProducer(**config)
        try:
            await producer.start()
            await producer.send_and_wait(topic, b"second")
        finally:
            await producer.stop()
        consumer = aiokafka.AIOKafkaConsumer(topic, auto_offset_reset="earliest", **config)
        await consumer.start()
        try:
            message = await asyncio.wait_for(consumer.getone(), PATIENCE_S)
            value: bytes = message.value
            return value
        finally:
            await consumer.stop()

    return asyncio.run(run())


CLIENTS = [with_confluent, with_kafka_python, with_aiokafka]
Client = Callable[[Secured, str, str, str], bytes]


@pytest.mark.minibroker
@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.__name__)
def test_authenticated_record_round_trip_succeeds(
    secured: Secured, client: Client, mechanism: str, topic: str
) -> None:
    assert client(secured, mechanism, PASSWORD, topic) == b"second"


@pytest.mark.minibroker
@pytest.mark.parametrize(("client", "mechanism"), list(zip(CLIENTS, MECHANISMS, strict=True)))
def test_wrong_password_is_rejected(
    secured: Secured, client: Client, mechanism: str, topic: str
) -> None:
    with pytest.raises(Exception, match=r"(?i)auth|unable to bootstrap|no.*broker"):
        client(secured, mechanism, "not it", topic)


@pytest.mark.minibroker
def test_unsigned_token_is_accepted_without_keys(secured: Secured, topic: str) -> None:
    config = {
        "bootstrap.servers": secured.sasl_ssl,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(secured.authority),
        "sasl.mechanism": "OAUTHBEARER",
        "enable.sasl.oauthbearer.unsecure.jwt": "true",
        "sasl.oauthbearer.config": "principal=alice lifeSeconds=60",
    }
    producer = Producer(config)
    producer.produce(topic, b"first")
    assert producer.flush(PATIENCE_S) == 0


@pytest.mark.minibroker
def test_connections_api_reports_principal(secured: Secured) -> None:
    config = {
        "bootstrap.servers": secured.sasl_ssl,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(secured.authority),
        "sasl.mechanism": "PLAIN",
        "sasl.username": USER,
        "sasl.password": PASSWORD,
        "client.id": "reported",
    }
    admin = AdminClient(config)
    admin.list_topics(timeout=PATIENCE_S)
    url = f"{(secured.broker.control_url or '').rstrip('/')}/v1/connections"

    def principals() -> set[str]:
        with urllib.request.urlopen(url) as answered:
            found = [
                one for each in json.load(answered)["processors"] for one in each["connections"]
            ]
        return {one["principal"] for one in found if one["client_id"] == "reported"}

    # A client that reauthenticates too late is disconnected, and is missing until it is back.
    wait_until(lambda: principals() == {f"User:{USER}"}, "the client's connections to be shown")


@pytest.mark.minibroker
def test_certificate_is_a_name(secured: Secured, topic: str) -> None:
    config = {
        "bootstrap.servers": secured.ssl,
        "security.protocol": "SSL",
        "ssl.ca.location": str(secured.authority),
        "ssl.certificate.location": f"{secured.folder}/carol.pem",
        "ssl.key.location": f"{secured.folder}/carol.pem",
    }
    assert topic in AdminClient(config).list_topics(timeout=PATIENCE_S).topics
