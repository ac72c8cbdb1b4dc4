"""As much of an I/O worker as the APIs of transactions ask for.

Markers are collected and answered at once, unless a test holds them back.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import trio

from minibroker.broker.apis.transactions import (
    ADD_PARTITIONS_TO_TXN,
    DESCRIBE_TRANSACTIONS,
    INIT_PRODUCER_ID,
)
from minibroker.broker.log.config import LogConfig
from minibroker.broker.log.log import Log
from minibroker.broker.log.producers import TransactionMarker
from minibroker.broker.log.replica_manager import Partition
from minibroker.broker.metadata.features import TRANSACTION_VERSION, level
from minibroker.broker.metadata.image import TRANSACTION_STATE_TOPIC, Image, partition_owner
from minibroker.broker.settings import TRANSACTION_STATE_LOG_NUM_PARTITIONS
from minibroker.broker.transactions.service import (
    MarkersReply,
    TransactionEnvironment,
    TransactionLimits,
    TransactionService,
)
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from minibroker_protocol.messages.describe_transactions import DescribeTransactionsRequest
from minibroker_protocol.messages.init_producer_id import InitProducerIdRequest

T = TypeVar("T")
WORKERS = 2
PRODUCER_IDS = count(1000)


class TransactionWorker:
    """A worker that coordinates transactions."""

    def __init__(self, apis: Any, index: int, directory: Path) -> None:
        self.index = index
        self.settings = apis.settings
        self.markers: list[TransactionMarker] = []
        self.markers_held = trio.Event()
        self.markers_held.set()
        self.logs: dict[int, Log] = {}
        self.time_ms = 1_700_000_000_000
        self._apis = apis
        self._directory = directory
        self.transactions = TransactionService(
            TransactionLimits.from_settings(apis.settings),
            partitions=apis.settings[TRANSACTION_STATE_LOG_NUM_PARTITIONS],
            environment=TransactionEnvironment(
                worker=index,
                coordinates=self._coordinates,
                open_partition=self._open,
                transaction_version=lambda: level(self.image.features, TRANSACTION_VERSION),
                new_producer_id=self.next_producer_id,
                owner_of=self.partition_owner,
                write_markers=self._write_markers,
                wall_ms=self.wall_ms,
                sleep_real=trio.sleep,
            ),
        )

    @property
    def image(self) -> Image:
        image: Image = self._apis.controller.image
        return image

    def wall_ms(self) -> int:
        return self.time_ms

    async def run_in_thread(self, work: Callable[[], T]) -> T:
        return await trio.to_thread.run_sync(work)

    async def next_producer_id(self) -> int | None:
        return next(PRODUCER_IDS)

    def partition_owner(self, topic: str, partition: int) -> int:
        return partition_owner(topic, partition, WORKERS)

    def _coordinates(self, index: int) -> bool:
        exists = self.image.partition(TRANSACTION_STATE_TOPIC, index) is not None
        return exists and self.partition_owner(TRANSACTION_STATE_TOPIC, index) == self.index

    def _open(self, index: int) -> Partition:
        log = Log.open(self._directory, TRANSACTION_STATE_TOPIC, index, LogConfig(), now_ms=0)
        self.logs[index] = log
        return Partition(log, bytes(16), broker_id=1, leader_id=1, leader_epoch=4)

    async def _write_markers(
        self, _owner: int, markers: tuple[TransactionMarker, ...]
    ) -> MarkersReply:
        await self.markers_held.wait()
        self.markers += markers
        return {
            marker.producer_id: dict.fromkeys(marker.partitions, ErrorCode.NONE)
            for marker in markers
        }


async def begin(
    apis: Any, transactional_id: str, topics: dict[str, list[int]], version: int = 3
) -> tuple[int, int]:
    """Initialize a producer and add partitions; its id and epoch."""
    made = await apis.ask(
        INIT_PRODUCER_ID,
        InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000),
        4,
    )
    assert made.error_code == ErrorCode.NONE
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=made.producer_id,
        v3_and_below_producer_epoch=made.producer_epoch,
        v3_and_below_topics=[
            AddPartitionsToTxnTopic(name=name, partitions=numbers)
            for name, numbers in topics.items()
        ],
    )
    added = await apis.ask(ADD_PARTITIONS_TO_TXN, request, version)
    for topic in added.results_by_topic_v3_and_below:
        for each in topic.results_by_partition:
            assert each.partition_error_code == ErrorCode.NONE
    return made.producer_id, made.producer_epoch


async def describe(apis: Any, transactional_id: str) -> Any:
    """The only transactional id in the response."""
    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    [state] = (await apis.ask(DESCRIBE_TRANSACTIONS, request, 0)).transaction_states
    return state
