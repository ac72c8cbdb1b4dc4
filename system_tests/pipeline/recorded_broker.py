"""A broker with activity, quotas of every type at every level, and busy clients.

Owns the broker, its quotas and the work of clients; the expectations belong to the tests.
Invariant: the quotas are those of the file from the first request of a client that they apply to
until the last, so that a replay with the same file may be compared with the decisions.
"""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from minibroker_protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from minibroker_protocol.records import Record, build_batch
from system_tests.connections.dialling import Client
from system_tests.harness.brokers import RunningBroker, start_minibroker
from system_tests.quotas import saturating_clients
from system_tests.quotas.quota_requests import VERSION
from system_tests.quotas.saturating_clients import (
    ANONYMOUS,
    FILLED_TOPIC,
    PATIENCE_S,
    TOPIC,
    ClientRun,
    Work,
)

JAAS: Final = "org.apache.kafka.common.security.plain.PlainLoginModule required"
USERS: Final = ("alice", "bob", "carol", "dave")
FAST_IP: Final = "127.0.0.9"
FILLED_TOPIC_RECORDS: Final = 400
VALUE: Final = bytes(10_000)
SMALL: Final = bytes(10)
SETTINGS: Final = {
    "activity.enable": "true",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": JAAS
    + "".join(f' user_{name}="{name}"' for name in USERS)
    + ";",
}

QUOTAS: Final = f"""
# Producers: a quota at each level, and quotas of lower precedence, which must not apply.
--alter --entity-type users --entity-name alice --add-config producer_byte_rate=154000
--alter --entity-type clients --entity-name small --add-config producer_byte_rate=20000000
--alter --entity-type users --entity-name bob --entity-type clients --entity-name mine --add-config producer_byte_rate=90000,request_percentage=2
# Consumers.
--alter --entity-type users --entity-name carol --entity-type clients --entity-default --add-config consumer_byte_rate=250000
--alter --entity-type users --entity-name dave --add-config consumer_byte_rate=120000,request_percentage=40
# Clients that use request time, and clients that change topics.
--alter --entity-type clients --entity-name small --add-config request_percentage=1.5
--alter --entity-type clients --entity-name changes --add-config controller_mutation_rate=2
--alter --entity-type clients --entity-name strictly --add-config controller_mutation_rate=2
# An address that connects repeatedly, and all other clients.
--alter --entity-type ips --entity-name {FAST_IP} --add-config connection_creation_rate=1
--alter --entity-type clients --entity-default --add-config producer_byte_rate=100000000
"""  # noqa: E501 (a line is an alteration)


class Case(NamedTuple):
    """A client, and the size of its requests or fetches."""

    work: Work
    user: str
    client_id: str
    value: bytes


CASES: Final = (
    Case(saturating_clients.produce_with_librdkafka, "alice", "any", VALUE),
    Case(saturating_clients.produce_with_aiokafka, "bob", "mine", VALUE),
    Case(saturating_clients.consume_with_librdkafka, "carol", "hers", VALUE),
    Case(saturating_clients.consume_with_kafka_python, "dave", "his", VALUE),
    Case(saturating_clients.produce_with_kafka_python, ANONYMOUS, "small", SMALL),
)


@contextmanager
def recording(folder: Path) -> Iterator[RunningBroker]:
    """A broker with activity recording, topics, and records to fetch."""
    broker = start_minibroker(
        data_dir=folder / "data",
        settings=SETTINGS,
        listener="PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
    )
    try:
        with Client(broker.address, client_id="feeder") as client:
            topics = [CreatableTopic(name=TOPIC, num_partitions=3, replication_factor=1)]
            topics += [CreatableTopic(name=FILLED_TOPIC, num_partitions=1, replication_factor=1)]
            client.ask(CreateTopicsRequest(topics=topics, timeout_ms=5000), 5)
            batch = build_batch([Record(value=VALUE)])
            data = [PartitionProduceData(index=0, records=batch)]
            request = ProduceRequest(
                acks=1, topic_data=[TopicProduceData(name=FILLED_TOPIC, partition_data=data)]
            )
            for _ in range(FILLED_TOPIC_RECORDS):
                client.ask(request, VERSION)
        yield broker
        assert broker.stop() == 0
        assert "Traceback" not in broker.printed(), broker.printed()
    finally:
        broker.forget()


def apply(broker: RunningBroker, file: Path) -> None:
    """Apply all quotas of a file to the broker."""
    words = [*("configs", "-b", broker.bootstrap_servers.split(",")[0]), "--alter"]
    subprocess.run(
        [sys.executable, "-m", "minibroker", *words, "--quota-file", str(file)],
        check=True,
        timeout=PATIENCE_S,
    )


def run_all_clients(broker: RunningBroker, seconds: float) -> None:
    """Run all clients at the same time for ``seconds``."""
    plain, with_sasl = broker.bootstrap_servers.split(",")
    ends = time.monotonic() + seconds
    with ProcessPoolExecutor(len(CASES), multiprocessing.get_context("spawn")) as clients:
        works = [
            clients.submit(
                saturating_clients.run_client,
                case.work,
                ClientRun(
                    plain if case.user == ANONYMOUS else with_sasl, ends, case.user, case.client_id
                ),
                case.value,
            )
            for case in CASES
        ]
        change_topics(broker, "changes", 5, 12)
        change_topics(broker, "strictly", 7, 25)
        connect_often(broker, 14)
        for work in works:
            assert work.result(PATIENCE_S), "a client that got nothing through"


def change_topics(broker: RunningBroker, client_id: str, version: int, times: int) -> None:
    """Topics of three partitions, one after the other, refused or not; a version above 5 may be."""
    with Client(broker.address, client_id=client_id) as client:
        for number in range(times):
            topic = CreatableTopic(
                name=f"{client_id}-{number}", num_partitions=3, replication_factor=1
            )
            answer = client.ask(CreateTopicsRequest(topics=[topic], timeout_ms=5000), version)
            codes = {each.error_code for each in answer.topics}
            assert codes <= {ErrorCode.NONE, ErrorCode.THROTTLING_QUOTA_EXCEEDED}


def connect_often(broker: RunningBroker, times: int) -> None:
    """Connect repeatedly from a rate-limited address; some connections are closed after a delay."""
    with ExitStack() as opened:
        clients = [
            opened.enter_context(Client(broker.address, FAST_IP, "hasty")) for _ in range(times)
        ]
        answered = [client.answered() for client in clients]
    assert any(answered)
    assert not all(answered)
