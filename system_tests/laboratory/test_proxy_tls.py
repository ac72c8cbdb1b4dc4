"""The proxy in front of a broker that requires TLS, client certificates or SASL over TLS."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from minibroker.testing import MiniProxy
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
