"""kafka-transactions.sh shows and ends the transactions of a broker, a hanging one included."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import zip_longest
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from minibroker.broker.log.config import LogConfig
from minibroker.broker.log.log import Log
from minibroker.broker.log.validation import prepare_batch
from minibroker_protocol.records import Record, build_batch
from system_tests.harness.brokers import RunningBroker, start_minibroker
from system_tests.harness.kafka_tools import Done, KafkaTools
from system_tests.harness.waiting import PATIENCE_S, wait_until
from system_tests.transactions.conftest import Reader

pytestmark = [pytest.mark.java, pytest.mark.minibroker]

TOPIC = "orders"
HANGING = "0"
"""The partition with a transaction that no coordinator knows."""
HANGING_PRODUCER = 4711
HANGING_FOR_MS = 3_600_000
OTHER = "1"


class Operated:
    """A broker and the program, with the columns of what it prints."""

    def __init__(self, broker: RunningBroker, tools: KafkaTools) -> None:
        self.servers = broker.bootstrap_servers
        self._tools = tools

    def run(self, command: str, *words: str) -> Done:
        program = "org.apache.kafka.tools.TransactionsCommand"
        return self._tools.run(program, "--bootstrap-server", self.servers, command, *words)

    def table(self, command: str, *words: str) -> list[dict[str, str]]:
        """The rows of a command that prints a table, by the names of its columns."""
        done = self.run(command, *words)
        assert done.code == 0, done.lines
        header, *rows = [[cell.strip() for cell in line.split("\t")] for line in done.lines]
        return [dict(zip_longest(header, row, fillvalue="")) for row in rows]

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until a condition on tables is true. The program leaves a client open each time."""
        wait_until(condition, what, within_s=30, pause_s=0.5)

    def begin(self, transactional_id: str, value: str) -> Producer:
        """Begin a transaction with one record."""
        producer = Producer(
            {"bootstrap.servers": self.servers, "transactional.id": transactional_id}
        )
        producer.init_transactions(PATIENCE_S)
        producer.begin_transaction()
        producer.produce(TOPIC, value, partition=int(OTHER))
        assert producer.flush(PATIENCE_S) == 0
        return producer

    def state(self, transactional_id: str) -> str:
        [row] = self.table("describe", "--transactional-id", transactional_id)
        return row["TransactionState"]


def append_hanging_transaction(directory: Path) -> None:
    """Append the batch of an old transaction to the log of a stopped broker.

    A running broker refuses it: each transaction is verified with its coordinator.
    """
    started_ms = int(time.time() * 1000) - HANGING_FOR_MS
    log = Log.open(directory, TOPIC, int(HANGING), LogConfig(), now_ms=started_ms)
    guard = log.producers.begin_verification(HANGING_PRODUCER, 3, 0, adds=True, now_ms=started_ms)
    batch = build_batch(
        [Record(timestamp=started_ms, value=b"hanging")],
        producer_id=HANGING_PRODUCER,
        producer_epoch=3,
        base_sequence=0,
        transactional=True,
    )
    prepared = prepare_batch(batch, log.config, now_ms=started_ms)
    log.append_prepared(prepared, now_ms=started_ms, guard=guard)
    log.close(now_ms=started_ms)


def produce(servers: str, value: str) -> None:
    producer = Producer({"bootstrap.servers": servers})
    producer.produce(TOPIC, value, partition=int(HANGING))
    assert producer.flush(PATIENCE_S) == 0


@pytest.fixture(scope="module")
def operated(
    kafka_tools: KafkaTools, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Operated]:
    """A broker whose partition 0 has a record, a hanging transaction, and another record."""
    directory = tmp_path_factory.mktemp("operated")
    with start_minibroker(data_dir=directory) as first:
        admin = AdminClient({"bootstrap.servers": first.bootstrap_servers, "log_level": 0})
        admin.create_topics([NewTopic(TOPIC, 2, 1)])[TOPIC].result(PATIENCE_S)
        produce(first.bootstrap_servers, "before")
    append_hanging_transaction(directory)
    with start_minibroker(data_dir=directory) as broker:
        produce(broker.bootstrap_servers, "after")
        yield Operated(broker, kafka_tools)


def test_transactions_are_listed_and_described(operated: Operated) -> None:
    done = operated.begin("done", "x")
    done.commit_transaction(PATIENCE_S)
    open_one = operated.begin("open", "y")
    operated.wait(lambda: operated.state("done") == "CompleteCommit", "the markers")
    listed = operated.table("list")
    states = {row["TransactionalId"]: row["TransactionState"] for row in listed}
    assert (states["done"], states["open"]) == ("CompleteCommit", "Ongoing")
    assert {row["Coordinator"] for row in listed} == {"1"}
    long_ones = operated.table("list", "--duration-filter", "3600000")
    assert "open" not in {row["TransactionalId"] for row in long_ones}
    [row] = operated.table("describe", "--transactional-id", "open")
    assert row["TopicPartitions"] == f"{TOPIC}-{OTHER}"
    assert row["TransactionTimeoutMs"] == "60000"
    assert int(row["TransactionDurationMs"]) < 60_000
    open_one.abort_transaction(PATIENCE_S)
    unknown = operated.run("describe", "--transactional-id", "unknown")
    assert unknown.code == 1
    assert "the ID could not be found" in unknown.lines[0]


def test_producers_of_partition_are_described(operated: Operated) -> None:
    open_one = operated.begin("described", "z")
    [described] = operated.table("describe", "--transactional-id", "described")
    words = ("describe-producers", "--topic", TOPIC, "--partition", OTHER)
    rows = {row["ProducerId"]: row for row in operated.table(*words)}
    row = rows[described["ProducerId"]]
    assert row["ProducerEpoch"] == described["ProducerEpoch"]
    assert (row["LastSequence"], row["LatestCoordinatorEpoch"]) == ("0", "-1")
    assert row["CurrentTransactionStartOffset"].isdigit()
    open_one.commit_transaction(PATIENCE_S)

    def has_ended() -> bool:
        rows = {row["ProducerId"]: row for row in operated.table(*words)}
        return rows[described["ProducerId"]]["CurrentTransactionStartOffset"] == "None"

    operated.wait(has_ended, "the marker")


def test_hanging_transaction_is_found_and_aborted(operated: Operated) -> None:
    running = operated.begin("running", "v")
    [found] = operated.table("find-hanging", "--broker-id", "1")
    assert (found["Topic"], found["Partition"]) == (TOPIC, HANGING)
    assert (found["ProducerId"], found["ProducerEpoch"]) == (str(HANGING_PRODUCER), "3")
    assert found["StartOffset"] == "1"
    assert int(found["Duration(min)"]) == HANGING_FOR_MS // 60_000
    place = ("--topic", TOPIC, "--partition", HANGING)
    assert operated.run("abort", *place, "--start-offset", "1").code == 0
    assert operated.table("find-hanging", "--topic", TOPIC) == []
    produce(operated.servers, "end")
    reader = Reader(operated.servers)
    assert reader.values(TOPIC, until="end") == ["before", "after"]
    everything = reader.values(TOPIC, committed=False, until="end")
    assert everything == ["before", "hanging", "after"]
    running.abort_transaction(PATIENCE_S)


def test_transaction_of_id_is_terminated(operated: Operated) -> None:
    stuck = operated.begin("stuck", "w")
    done = operated.run("forceTerminateTransaction", "--transactionalId", "stuck")
    assert done.code == 0, done.lines
    # The program asks for a new epoch until the transaction is aborted and it gets one.
    assert operated.state("stuck") == "Empty"
    with pytest.raises(KafkaException):
        stuck.commit_transaction(PATIENCE_S)
