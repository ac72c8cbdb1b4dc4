"""Jepsen's torn transaction, with raw requests: a delayed EndTxn ends the next transaction.

Run ``python -m system_tests.histories.torn_transaction`` to see it at transaction version 1, found
by the checker, and not at version 2. ``--bootstrap-server HOST:PORT`` takes another broker, at the
transaction version that it has.

Owns one scenario. It must never wait for a time to pass: the delay is a request that is sent later.
Invariant: the producer does only what a correct client does: it commits, receives no answer,
reconnects and commits again. Until KIP-890 nothing distinguishes the first of these requests from
one that ends the next transaction, because all transactions of a producer have the same epoch.
"""

from __future__ import annotations

import argparse
import time
import uuid
from typing import Any, Final

from minibroker.lab.checker.checking import CheckReport, check_lines
from minibroker.lab.checker.history import HistorySettings, header_line
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from minibroker_protocol.messages.api_versions import ApiVersionsRequest
from minibroker_protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from minibroker_protocol.messages.end_txn import EndTxnRequest
from minibroker_protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from minibroker_protocol.messages.find_coordinator import FindCoordinatorRequest
from minibroker_protocol.messages.init_producer_id import InitProducerIdRequest
from minibroker_protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from minibroker_protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from minibroker_protocol.records import (
    Record,
    build_batch,
    iter_batches,
    iter_records,
    parse_batch_header,
)
from system_tests.connections.dialling import Client
from system_tests.harness.brokers import start_minibroker
from system_tests.harness.waiting import wait_until

Address = tuple[str, int]
Line = dict[str, Any]

FEATURE: Final = "transaction.version"
UPGRADE: Final = 1
SAFE_DOWNGRADE: Final = 2
READ_COMMITTED: Final = 1
PARTITIONS: Final = 2
FETCH_BYTES: Final = 1_000_000
RETRIED: Final = (
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)


class RawProducer:
    """A transactional producer of one transaction version, request by request."""

    def __init__(self, address: Address, topic: str, transaction_version: int) -> None:
        self.address = address
        self.topic = topic
        self.transaction_version = transaction_version
        self.name = f"torn-{uuid.uuid4().hex[:8]}"
        self._sequences = [0] * PARTITIONS
        self.connection = Client(address)
        self._ask(FindCoordinatorRequest(key=self.name, key_type=1), 3)
        made = self._ask(
            InitProducerIdRequest(transactional_id=self.name, transaction_timeout_ms=60_000), 4
        )
        self.producer_id, self.epoch = made.producer_id, made.producer_epoch
        self._added: set[int] = set()

    def _ask(self, request: Any, version: int) -> Any:
        """Return the answer; ask again while the coordinator is busy."""
        answers: list[Any] = []

        def answered() -> bool:
            answers.append(self.connection.ask(request, version))
            return answers[-1].error_code not in RETRIED

        wait_until(answered, "the transaction coordinator to be ready")
        assert answers[-1].error_code == ErrorCode.NONE, answers[-1]
        return answers[-1]

    def send(self, partition: int, value: int) -> int:
        """Send a record of the transaction, and return its offset."""
        if self.transaction_version < 2 and partition not in self._added:
            self._add(partition)
        records = build_batch(
            [Record(value=str(value).encode(), timestamp=int(time.time() * 1000))],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=self._sequences[partition],
            transactional=True,
        )
        request = ProduceRequest(
            transactional_id=self.name,
            acks=-1,
            timeout_ms=10_000,
            topic_data=[
                TopicProduceData(
                    name=self.topic,
                    partition_data=[PartitionProduceData(index=partition, records=records)],
                )
            ],
        )
        # From version 12 on, a partition is added to the transaction by the first Produce.
        version = 11 if self.transaction_version < 2 else 12
        found: list[Any] = []

        def appended() -> bool:
            [topic] = self.connection.ask(request, version).responses
            found[:] = topic.partition_responses
            return found[0].error_code not in RETRIED

        wait_until(appended, "the record to be appended")
        assert found[0].error_code == ErrorCode.NONE, found
        self._sequences[partition] += 1
        offset: int = found[0].base_offset
        return offset

    def _add(self, partition: int) -> None:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=self.topic, partitions=[partition])],
        )

        def added() -> bool:
            [topic] = self.connection.ask(request, 3).results_by_topic_v3_and_below
            code = topic.results_by_partition[0].partition_error_code
            assert code in (ErrorCode.NONE, *RETRIED), ErrorCode(code)
            return bool(code == ErrorCode.NONE)

        wait_until(added, "the partition to be added")
        self._added.add(partition)

    def end_request(self, *, committed: bool) -> tuple[EndTxnRequest, int]:
        """Return the request that ends the transaction, and its version."""
        request = EndTxnRequest(
            transactional_id=self.name,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=committed,
        )
        return request, 4 if self.transaction_version < 2 else 5

    def end(self, *, committed: bool) -> None:
        """End the transaction; from version 2 on, the producer gets a new epoch."""
        answer = self._ask(*self.end_request(committed=committed))
        if self.transaction_version >= 2:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        self._sequences = [0] * PARTITIONS if self.transaction_version >= 2 else self._sequences
        self._added.clear()

    def reconnect(self) -> Client:
        """Open a new connection, and return the old one, whose request is still on its way."""
        old, self.connection = self.connection, Client(self.address)
        return old


def tear(address: Address, transaction_version: int) -> CheckReport:
    """Run the scenario, and check its history."""
    topic = f"torn-{uuid.uuid4().hex[:8]}"
    with Client(address) as client:
        wanted = CreatableTopic(name=topic, num_partitions=PARTITIONS, replication_factor=1)
        client.ask(CreateTopicsRequest(topics=[wanted], timeout_ms=10_000), 5)
    producer = RawProducer(address, topic, transaction_version)
    first, second = (f"{topic}-{partition}" for partition in range(PARTITIONS))
    lines = [header_line(HistorySettings("torn-transaction", final_polls=True))]

    lines.append(_txn("invoke", _sent(first, 1)))
    offset = producer.send(0, 1)
    delayed, version = producer.end_request(committed=True)
    old = producer.reconnect()  # The commit is delayed; its client gives up and tries again.
    producer.end(committed=True)
    lines.append(_txn("ok", _sent(first, 1, offset)))

    sends = [_sent(first, 2), _sent(second, 3)]
    lines.append(_txn("invoke", *sends))
    producer.send(0, 2)
    with old:
        answer = old.ask(delayed, version)  # It arrives now.
    print(f"the delayed EndTxn is answered with {ErrorCode(answer.error_code).name}")
    producer.send(1, 3)
    producer.end(committed=False)
    producer.connection.close()
    lines.append(_txn("fail", *sends))

    lines.append({**_POLL, "type": "invoke", "steps": [{"poll": {}}]})
    polled = {f"{topic}-{number}": _poll(address, topic, number) for number in range(PARTITIONS)}
    lines.append({**_POLL, "type": "ok", "steps": [{"poll": polled}]})
    return check_lines(lines)


_POLL: Final[Line] = {"process": 1, "operation": "poll"}


def _txn(type_: str, *steps: Line) -> Line:
    return {"process": 0, "type": type_, "operation": "txn", "steps": list(steps)}


def _sent(key: str, value: int, offset: int | None = None) -> Line:
    step: Line = {"send": key, "value": value}
    return step if offset is None else {**step, "offset": offset}


def _poll(address: Address, topic: str, partition: int) -> list[list[int]]:
    """Return the committed records of a partition, once no transaction is open on it."""
    part = FetchPartition(partition=partition, fetch_offset=0, partition_max_bytes=FETCH_BYTES)
    request = FetchRequest(
        max_wait_ms=100,
        min_bytes=1,
        max_bytes=FETCH_BYTES,
        isolation_level=READ_COMMITTED,
        topics=[FetchTopic(topic=topic, partitions=[part])],
    )
    found: list[Any] = []
    with Client(address) as client:

        def is_stable() -> bool:
            [answered] = client.ask(request, 11).responses
            found[:] = answered.partitions
            return bool(found[0].last_stable_offset == found[0].high_watermark)

        wait_until(is_stable, "all transactions to end")
    aborted = {each.producer_id: each.first_offset for each in found[0].aborted_transactions or []}
    return _committed(bytes(found[0].records or b""), aborted)


def _committed(records: bytes, aborted: dict[int, int]) -> list[list[int]]:
    """Return offset and value of records that a consumer at read_committed returns.

    There is at most one aborted transaction, and it is the last one.
    """
    committed = []
    for at, header in iter_batches(records):
        is_aborted = header.base_offset >= aborted.get(header.producer_id, header.next_offset)
        if not header.is_control and not is_aborted:
            batch = records[at : at + parse_batch_header(records, at).size]
            committed += [[each.offset, int(each.value or b"")] for each in iter_records(batch)]
    return committed


def finalized_version(address: Address) -> int:
    """Return the transaction version of a broker."""
    with Client(address) as client:
        answer = client.ask(
            ApiVersionsRequest(client_software_name="torn", client_software_version="1"), 3
        )
    levels = {each.name: each.max_version_level for each in answer.finalized_features or []}
    return int(levels.get(FEATURE, 0))


def set_version(address: Address, version: int) -> None:
    """Finalize a transaction version."""
    kind = UPGRADE if version > finalized_version(address) else SAFE_DOWNGRADE
    change = FeatureUpdateKey(feature=FEATURE, max_version_level=version, upgrade_type=kind)
    with Client(address) as client:
        answer = client.ask(UpdateFeaturesRequest(feature_updates=[change]), 1)
    assert answer.error_code == ErrorCode.NONE, answer


def show(address: Address) -> CheckReport:
    """Run the scenario at a broker's transaction version, and print the report."""
    version = finalized_version(address)
    print(f"transaction version {version}:")
    report = tear(address, version)
    print(f"{report}\n")
    return report


def main() -> None:
    """Run the scenario of the command line."""
    parser = argparse.ArgumentParser(prog="python -m system_tests.histories.torn_transaction")
    parser.add_argument("--bootstrap-server", metavar="HOST:PORT")
    given = parser.parse_args().bootstrap_server
    if given is not None:
        host, _, port = given.rpartition(":")
        show((host, int(port)))
        return
    broker = start_minibroker()
    try:
        for version in (1, 2):
            if finalized_version(broker.address) != version:
                set_version(broker.address, version)
            show(broker.address)
    finally:
        broker.kill()
        broker.forget()


if __name__ == "__main__":
    main()
