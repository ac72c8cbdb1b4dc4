"""A producer of each client library, and readers at both isolation levels."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition

from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from system_tests.conftest import without_toolchain
from system_tests.connections.dialling import Client
from system_tests.harness.brokers import RunningBroker, start_minibroker
from system_tests.harness.jars import ToolchainMissing
from system_tests.harness.waiting import PATIENCE_S
from system_tests.transactions.producers import PRODUCERS, Consumes, TransactionalProducer

MakeProducer = Callable[..., TransactionalProducer]

SAFE_DOWNGRADE = 2


@pytest.fixture(scope="session", params=[2, 1], ids=["version 2", "version 1"])
def transaction_version(request: pytest.FixtureRequest) -> int:
    """The transaction version of the broker."""
    version: int = request.param
    return version


@pytest.fixture(scope="session")
def broker(request: pytest.FixtureRequest, transaction_version: int) -> Iterator[RunningBroker]:
    """A broker for each transaction version: the shared one, and one of a lower version."""
    if transaction_version == 2:
        # Not as an argument, which would start it for the other version, too.
        yield request.getfixturevalue("broker")
        return
    if request.config.getoption("--broker") != "minibroker":
        pytest.skip("the other version is tested with minibroker only")
    change = FeatureUpdateKey(
        feature="transaction.version", max_version_level=1, upgrade_type=SAFE_DOWNGRADE
    )
    with start_minibroker() as lowered:
        with Client(lowered.address) as client:
            response = client.ask(UpdateFeaturesRequest(feature_updates=[change]), 1)
            assert response.error_code == ErrorCode.NONE
        yield lowered


@pytest.fixture(params=[pytest.param(kind, id=kind.name, marks=kind.marks) for kind in PRODUCERS])
def make_producer(request: pytest.FixtureRequest, broker: RunningBroker) -> Iterator[MakeProducer]:
    """Create producers of one library: `make_producer("id", timeout_ms=2000)`."""
    made: list[TransactionalProducer] = []

    def make(
        transactional_id: str, timeout_ms: int = 60_000, consumes: Consumes | None = None
    ) -> TransactionalProducer:
        servers = broker.bootstrap_servers
        try:
            made.append(request.param(servers, transactional_id, timeout_ms, consumes))
        except ToolchainMissing as missing:
            without_toolchain(missing)
        return made[-1]

    yield make
    for producer in made:
        producer.close()


class Reader:
    """Reads partitions and committed offsets with librdkafka."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._bootstrap_servers = bootstrap_servers

    def values(
        self, topic: str, *, committed: bool = True, until: str, partition: int = 0
    ) -> list[str]:
        """Values of a partition from its start, until and without the value ``until``."""
        consumer = Consumer({
            "bootstrap.servers": self._bootstrap_servers,
            "group.id": f"{topic}-reader",
            "enable.auto.commit": False,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
        })  # fmt: skip
        consumer.assign([TopicPartition(topic, partition, 0)])
        seen: list[str] = []
        deadline = time.monotonic() + PATIENCE_S
        try:
            while time.monotonic() < deadline:
                message = consumer.poll(0.1)
                if message is None:
                    continue
                assert message.error() is None, message.error()
                value = (message.value() or b"").decode()
                if value == until:
                    return seen
                seen.append(value)
        finally:
            consumer.close()
        raise AssertionError(f"{until!r} does not follow {seen}")

    def committed(self, group: str, topic: str, partition: int = 0) -> int:
        """The committed offset of a group, once no open transaction may change it."""
        consumer = Consumer({"bootstrap.servers": self._bootstrap_servers, "group.id": group})
        try:
            [found] = consumer.committed([TopicPartition(topic, partition)], PATIENCE_S)
            offset: int = found.offset
            return offset
        finally:
            consumer.close()


@pytest.fixture
def reader(broker: RunningBroker) -> Reader:
    return Reader(broker.bootstrap_servers)
