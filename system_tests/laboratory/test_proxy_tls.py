"""The proxy in front of a broker that requires TLS, and clients that use TLS with the proxy."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Literal

import aiokafka
import kafka
import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from minibroker.testing import MiniBroker, MiniProxy
from minibroker.testing.proxy import ProxyNotStarted
from system_tests.harness.waiting import PATIENCE_S
from system_tests.security.conftest import PASSWORDS, Secured, securing

pytestmark = pytest.mark.minibroker


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with securing(tmp_path_factory.mktemp("secured")) as running:
        yield running


def round_trip(servers: str, topic: str, **security: str) -> bytes | None:
    """Create a topic, produce a record to it, and return the value that is consumed."""
    client: dict[str, object] = {"bootstrap.servers": servers, **security}
    admin = AdminClient(client)
    admin.create_topics([NewTopic(topic, 1)])[topic].result(PATIENCE_S)
    producer = Producer({**client, "enable.idempotence": True})
    producer.produce(topic, b"through")
    assert producer.flush(PATIENCE_S) == 0
    consumer = Consumer({**client, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    try:
        message = consumer.poll(PATIENCE_S)
    finally:
        consumer.close()
    assert message is not None
    assert message.error() is None
    value: bytes | None = message.value()
    return value


def test_client_without_tls_uses_a_broker_that_requires_a_certificate(
    secured: Secured, tmp_path: Path, fresh: Callable[[str], str]
) -> None:
    """The broker sees the proxy's certificate, which is a super user's."""
    keystore = f"ssl.keystore.location={secured.folder}/carol.pem"
    config = secured.proven(tmp_path, "security.protocol=SSL", keystore)
    with MiniProxy(secured.ssl, command_config=config) as proxy:
        with proxy.faults as faults:
            faults.add("error", api="Produce", error="NOT_LEADER_OR_FOLLOWER", first=1)
            assert round_trip(proxy.bootstrap_servers, fresh("tls")) == b"through"
        assert "Traceback" not in proxy.log()


def test_sasl_of_the_client_passes_to_a_broker_with_tls(
    secured: Secured, tmp_path: Path, fresh: Callable[[str], str]
) -> None:
    config = secured.proven(tmp_path, "security.protocol=SASL_SSL")
    security = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "alice",
        "sasl.password": PASSWORDS["alice"],
    }
    with MiniProxy(secured.sasl_ssl, command_config=config) as proxy:
        assert round_trip(proxy.bootstrap_servers, fresh("sasl"), **security) == b"through"
        assert "Traceback" not in proxy.log()


def test_broker_that_is_not_trusted_is_named(secured: Secured, tmp_path: Path) -> None:
    config = tmp_path / "client.properties"
    config.write_text("security.protocol=SSL\n")
    with pytest.raises(ProxyNotStarted, match=r"not trusted .* check ssl\.truststore\.location"):
        MiniProxy(secured.ssl, command_config=config).start()


# Clients that use TLS with the proxy --------------------------------------------------------------


@pytest.mark.parametrize("tls", [True, "mutual"])
def test_clients_use_tls_with_a_proxy_of_a_cluster_without(
    tls: bool | Literal["mutual"], fresh: Callable[[str], str]
) -> None:
    topic = fresh("orders")
    with MiniBroker() as broker, MiniProxy(broker.bootstrap_servers, tls=tls) as proxy:
        with proxy.journal as journal, proxy.faults as faults:
            faults.add("error", api="Produce", error="NOT_LEADER_OR_FOLLOWER", first=1)
            config = proxy.client_config()
            assert round_trip(config.pop("bootstrap.servers"), topic, **config) == b"through"
            journal.assert_happened(kind="request", api="Produce", topic=topic)
        reader = kafka.KafkaConsumer(
            topic, auto_offset_reset="earliest", **proxy.client_config("kafka-python")
        )
        with closing(reader):
            assert next(reader).value == b"through"

        async def read() -> bytes:
            config = proxy.client_config("aiokafka")
            async with aiokafka.AIOKafkaConsumer(
                topic, auto_offset_reset="earliest", **config
            ) as reader:
                return bytes((await reader.getone()).value)

        assert asyncio.run(asyncio.wait_for(read(), PATIENCE_S)) == b"through"
        assert "Traceback" not in proxy.log()


def test_sasl_of_clients_with_tls_passes_to_a_broker_without(fresh: Callable[[str], str]) -> None:
    with (
        MiniBroker(sasl="scram-sha-512") as broker,
        MiniProxy(broker.bootstrap_servers, tls=True) as proxy,
    ):
        config = broker.client_config() | proxy.client_config()
        config["security.protocol"] = "SASL_SSL"
        assert round_trip(config.pop("bootstrap.servers"), fresh("sasl"), **config) == b"through"


def test_client_without_tls_is_disconnected_with_a_reason() -> None:
    with MiniBroker() as broker, MiniProxy(broker.bootstrap_servers, tls=True) as proxy:
        with proxy.journal as journal:
            admin = AdminClient({"bootstrap.servers": proxy.bootstrap_servers, "log_level": 0})
            with pytest.raises(KafkaException):
                admin.list_topics(timeout=1)
            closed = journal.wait_for(kind="connection_closed", details={"reason": "tls_failed"})
        assert "the client does not use TLS" in closed["details"]["text"]


def test_proxy_on_the_command_line_has_a_certificate_in_one_line(
    tmp_path: Path, fresh: Callable[[str], str]
) -> None:
    folder = ("--security-dir", str(tmp_path / "security"))
    with MiniBroker() as broker:
        words = ["proxy", "--upstream", broker.bootstrap_servers, "--listener", "127.0.0.1:0"]
        with running_proxy([*words, "--tls", *folder, "--json"]) as ready:
            properties = dict(
                line.split("=", 1) for line in Path(ready["client_properties"]).read_text().split()
            )
            assert properties["security.protocol"] == "SSL"
            security = {
                "security.protocol": "SSL",
                "ssl.ca.location": properties["ssl.truststore.location"],
            }
            servers = ready["bootstrap_servers"]
            assert round_trip(servers, fresh("line"), **security) == b"through"


@contextmanager
def running_proxy(words: list[str]) -> Iterator[dict[str, Any]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "minibroker", *words], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()
