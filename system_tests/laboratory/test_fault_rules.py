"""What real clients do when a fault rule fires."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer

from minibroker.testing import MiniBroker
from system_tests.clients.adapters.java import JavaClient
from system_tests.clients.model import Record
from system_tests.conftest import without_toolchain
from system_tests.harness.jars import ToolchainMissing
from system_tests.laboratory.clients import CLIENTS, ConfluentKafka, PythonClient

pytestmark = pytest.mark.minibroker

VALUES = [b"one", b"two", b"three"]
GROUP_APIS = {
    "FindCoordinator": "COORDINATOR_NOT_AVAILABLE",
    "JoinGroup": "NOT_COORDINATOR",
    "SyncGroup": "NOT_COORDINATOR",
    "OffsetFetch": "COORDINATOR_LOAD_IN_PROGRESS",  # librdkafka does not retry NOT_COORDINATOR.
    "OffsetCommit": "NOT_COORDINATOR",
}
"""APIs that a consumer needs until it has committed offsets, with an error that it retries."""


@pytest.fixture(scope="module")
def lab() -> Iterator[MiniBroker]:
    """A broker that these tests share."""
    settings = {"group.initial.rebalance.delay.ms": 0, "auto.create.topics.enable": False}
    with MiniBroker(settings=settings) as broker:
        yield broker


@pytest.fixture(params=CLIENTS, ids=lambda kind: kind.name)
def client(request: pytest.FixtureRequest, lab: MiniBroker) -> PythonClient:
    kind: type[PythonClient] = request.param
    return kind(lab.bootstrap_servers)


@pytest.fixture
def topic(lab: MiniBroker, fresh: Callable[[str], str]) -> str:
    return lab.create_topic(fresh("faults"))


def stored(lab: MiniBroker, topic: str) -> int:
    """The number of records in a topic."""
    (partition,) = lab.control.get("v1", "topics", topic)["partitions"]
    return int(partition["log_end_offset"])


@pytest.mark.parametrize("action", ["disconnect", "error"])
def test_lost_acknowledgement_is_not_doubled_with_idempotence(
    lab: MiniBroker, client: PythonClient, topic: str, action: str
) -> None:
    fields = {"error": "REQUEST_TIMED_OUT"} if action == "error" else {}
    with lab.faults as faults:
        lost = faults.add(action, api="Produce", topic=topic, at="after", nth=2, **fields)
        client.produce(topic, VALUES, idempotent=True)
        assert (lost.matches, lost.hits) == (4, 1)
    assert stored(lab, topic) == 3
    assert client.consume(topic, 3) == VALUES


def test_lost_acknowledgement_is_doubled_without_idempotence(
    lab: MiniBroker, client: PythonClient, topic: str
) -> None:
    with lab.faults as faults:
        faults.add("disconnect", api="Produce", topic=topic, at="after", nth=2)
        client.produce(topic, VALUES, idempotent=False)
    assert stored(lab, topic) == 4
    assert client.consume(topic, 4) == [b"one", b"two", b"two", b"three"]


def test_disconnect_in_the_middle_of_a_fetch_response_loses_no_record(
    lab: MiniBroker, client: PythonClient, topic: str
) -> None:
    client.produce(topic, VALUES, idempotent=True)
    with lab.faults as faults:
        faults.add("disconnect", api="Fetch", topic=topic, at="middle", first=2)
        assert [each for each in client.consume(topic, 3) if isinstance(each, bytes)] == VALUES


def test_wrong_checksum_is_reported_by_the_client(
    lab: MiniBroker, client: PythonClient, topic: str
) -> None:
    client.produce(topic, VALUES, idempotent=True)
    with lab.faults as faults:
        faults.add("corrupt", part="crc", topic=topic, first=1)
        found = client.consume(topic, 3)
    errors = [each.lower() for each in found if isinstance(each, str)]
    assert errors
    assert all("crc" in error or "corrupt" in error for error in errors)
    if len(errors) < client.errors_max:
        assert [each for each in found if isinstance(each, bytes)] == VALUES


def test_error_in_every_group_api_is_retried(
    lab: MiniBroker, client: PythonClient, topic: str, fresh: Callable[[str], str]
) -> None:
    client.produce(topic, VALUES, idempotent=True)
    group = fresh("group")
    with lab.faults as faults:
        for api, error in GROUP_APIS.items():
            faults.add("error", api=api, group=group, error=error, first=1)
        found = client.consume(topic, 3, group)
    assert [each for each in found if isinstance(each, bytes)] == VALUES
    (committed,) = lab.control.get("v1", "groups", group)["offsets"]
    assert committed["offset"] == 3


def test_transaction_survives_concurrent_transactions_for_ten_seconds_of_the_clock(
    topic: str, lab: MiniBroker, fresh: Callable[[str], str]
) -> None:
    transactional_id = fresh("tx")
    producer = Producer(
        {
            "bootstrap.servers": lab.bootstrap_servers,
            "transactional.id": transactional_id,
            "retry.backoff.ms": 20,
            "log_level": 0,
        }
    )
    producer.init_transactions(30)
    with lab.faults as faults:
        busy = faults.add(
            "error",
            api="AddPartitionsToTxn",
            transactional_id=transactional_id,
            error="CONCURRENT_TRANSACTIONS",
            until_ms=10_000,
        )
        lab.freeze()
        producer.begin_transaction()
        producer.produce(topic, b"one", partition=0)
        busy.wait(3)
        assert stored(lab, topic) == 0
        lab.advance(10_000)
        producer.commit_transaction(30)
        assert busy.matches == busy.hits
    lab.freeze(False)
    assert ConfluentKafka(lab.bootstrap_servers).consume(topic, 1) == [b"one"]


@pytest.fixture(scope="module")
def java(lab: MiniBroker) -> Iterator[JavaClient]:
    try:
        client = JavaClient(lab.bootstrap_servers)
    except ToolchainMissing as missing:
        without_toolchain(missing)
        raise
    yield client
    client.close()


@pytest.mark.java
def test_java_client_survives_lost_acknowledgements_and_cut_responses(
    lab: MiniBroker, java: JavaClient, topic: str
) -> None:
    with lab.faults as faults:
        faults.add("disconnect", api="Produce", topic=topic, at="after", first=1)
        faults.add("error", api="Produce", topic=topic, error="NOT_LEADER_OR_FOLLOWER", first=1)
        faults.add("disconnect", api="Fetch", topic=topic, at="middle", first=1)
        faults.add("error", api="Fetch", topic=topic, error="NOT_LEADER_OR_FOLLOWER", first=1)
        java.produce(topic, [Record(None, value) for value in VALUES], idempotent=True)
        assert [each.value for each in java.read(topic, 0, 0, 3)] == VALUES
    assert stored(lab, topic) == 3
