"""A client that keeps every rule, simulated with drawn events into a written journal.

Owns a producer, a consumer of a group and their connections. It must never break a rule, whatever
the broker does: errors, throttles, lost connections, refused connections and rebalances.
"""

from __future__ import annotations

from functools import partial
from random import Random

from minibroker.lab.verdicts.consumer_group_rules import FENCES
from minibroker.lab.verdicts.share_group_rules import SESSION_ERRORS
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from minibroker_protocol.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from minibroker_protocol.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from minibroker_protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from minibroker_protocol.registry import ApiKey
from tests.lab.verdicts.consumer_messages import get_committed, validate
from tests.lab.verdicts.group_messages import (
    SESSION_MS,
    beat,
    beat_848,
    commit,
    get_metadata,
    join,
    leave,
)
from tests.lab.verdicts.share_messages import acknowledge, beat_share, fetch_share
from tests.lab.verdicts.written import WrittenJournal, batch

VERSIONS = {
    ApiKey.API_VERSIONS: (0, 4),
    ApiKey.PRODUCE: (3, 9),
    ApiKey.FETCH: (4, 12),
    ApiKey.METADATA: (0, 12),
    ApiKey.OFFSET_COMMIT: (2, 8),
    ApiKey.FIND_COORDINATOR: (0, 4),
    ApiKey.JOIN_GROUP: (0, 7),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: (0, 1),
    ApiKey.SYNC_GROUP: (0, 5),
    ApiKey.HEARTBEAT: (0, 4),
    ApiKey.LEAVE_GROUP: (0, 5),
    ApiKey.INIT_PRODUCER_ID: (0, 4),
    ApiKey.OFFSET_FETCH: (1, 8),
    ApiKey.SHARE_GROUP_HEARTBEAT: (1, 1),
    ApiKey.SHARE_FETCH: (1, 2),
    ApiKey.SHARE_ACKNOWLEDGE: (1, 2),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (2, 4),
}
PARTITIONS = 4
RETRIES_MAX = 10


class WellBehavedClient:
    """Draws what happens next, and reacts as the rules say."""

    def __init__(self, seed: int) -> None:
        self.journal = WrittenJournal()
        self._random = Random(seed)
        self._connections = 0
        self._sequence = self._epoch = 0
        self._generation = self._failed_fetches = 0
        self._owned: list[int] = []
        self._heartbeat_ms = 0.0
        self._data = self._connect()
        self._group = self._connect()
        self._init_producer()
        self._join()

    def run(self, steps: int) -> None:
        """Do some steps, and close."""
        actions = (
            self._produce,
            self._fetch,
            self._commit,
            self._rebalance,
            self._lose_membership,
            self._lose_coordinator,
            self._lose_connection,
            self._pause,
            self._new_epoch,
            self._lose_producer_state,
            self._fail_offset_fetch,
            self._validate,
            self._use_consumer_group,
            self._use_share_group,
        )
        for _ in range(steps):
            self._stay_alive()
            self._random.choice(actions)()
        self._stay_alive()
        leave(self.journal, self._group)
        self.journal.close(self._group)
        self.journal.close(self._data)

    # Time -------------------------------------------------------------------------------------

    def _wait(self, ms: float) -> None:
        """Wait, and send heartbeats while waiting."""
        end = self.journal.now + ms
        while end - self._heartbeat_ms > SESSION_MS / 3:
            self.journal.now = max(self.journal.now, self._heartbeat_ms + SESSION_MS / 3)
            self._beat()
        self.journal.now = max(self.journal.now, end)

    def _stay_alive(self) -> None:
        self._wait(self._random.uniform(1, 50))

    def _pause(self) -> None:
        self._wait(self._random.uniform(0, 3 * SESSION_MS))

    def _back_off(self, failures: int) -> None:
        wait = min(100 * 2**failures, 1000) * self._random.uniform(0.8, 1.2)
        self._wait(wait)

    # Connections ------------------------------------------------------------------------------

    def _connect(self) -> str:
        self._connections += 1
        name = str(self._connections)
        self.journal.open(name)
        self.journal.ask_versions(name, VERSIONS)
        return name

    def _lose_connection(self) -> None:
        self.journal.close(self._data, "fault_rule")
        for failures in range(self._random.randrange(RETRIES_MAX)):
            self._back_off(failures)
            self._connections += 1
            self.journal.refuse(str(self._connections))
        self._back_off(0)
        self._data = self._connect()

    def _throttle_ms(self) -> int:
        return self._random.choice([0, 0, 0, 0, 500, 2000])

    def _obey(self, throttle_ms: int) -> None:
        if throttle_ms:
            self.journal.fault(self._data, action="throttle", mute=False)
            self._wait(throttle_ms)

    # Records ----------------------------------------------------------------------------------

    def _init_producer(self) -> None:
        response = InitProducerIdResponse(producer_id=7, producer_epoch=self._epoch)
        self.journal.ask(self._data, InitProducerIdRequest(transactional_id=None), 4, response)

    def _new_epoch(self) -> None:
        self._epoch += 1
        self._sequence = 0
        self._init_producer()

    def _produce(self) -> None:
        count = self._random.randint(1, 5)
        records = batch(
            b"x", producer_id=7, epoch=self._epoch, sequence=self._sequence, count=count
        )
        failures = self._random.choice([0, 0, 0, self._random.randrange(RETRIES_MAX)])
        errors = [self._random.choice(RETRIABLE) for _ in range(failures)]
        for number, error in enumerate([*errors, ErrorCode.NONE]):
            throttle_ms = self._throttle_ms()
            self._send_batch(records, error, throttle_ms)
            self._obey(throttle_ms)
            if error is ErrorCode.NOT_LEADER_OR_FOLLOWER:
                self.journal.ask_metadata(self._data)
            if error is not ErrorCode.NONE:
                self._back_off(number)
        self._sequence += count

    def _lose_producer_state(self) -> None:
        lost = self._random.choice(
            [ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER]
        )
        records = batch(b"y", producer_id=7, epoch=self._epoch, sequence=self._sequence)
        self._send_batch(records, lost, 0)
        self._new_epoch()

    def _send_batch(self, records: bytes, error: ErrorCode, throttle_ms: int) -> None:
        data = [PartitionProduceData(index=0, records=records)]
        done = [PartitionProduceResponse(index=0, error_code=error)]
        self.journal.ask(
            self._data,
            ProduceRequest(acks=-1, topic_data=[TopicProduceData(name="t", partition_data=data)]),
            9,
            ProduceResponse(
                responses=[TopicProduceResponse(name="t", partition_responses=done)],
                throttle_time_ms=throttle_ms,
            ),
        )

    def _fetch(self) -> None:
        error = self._random.choice([ErrorCode.NONE, *RETRIABLE])
        throttle_ms = self._throttle_ms()
        data = PartitionData(partition_index=0, error_code=error, high_watermark=3, records=None)
        self.journal.ask(
            self._data,
            FetchRequest(topics=[FetchTopic(topic="t", partitions=[FetchPartition(partition=0)])]),
            12,
            FetchResponse(
                responses=[FetchableTopicResponse(topic="t", partitions=[data])],
                throttle_time_ms=throttle_ms,
            ),
            ms=self._random.uniform(1, 500),
        )
        self._obey(throttle_ms)
        if error is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            self.journal.ask_metadata(self._data)
        if error is ErrorCode.NONE:
            self._failed_fetches = 0
        else:
            self._back_off(self._failed_fetches)
            self._failed_fetches += 1

    def _fail_offset_fetch(self) -> None:
        for _ in range(self._random.randrange(3)):
            get_committed(self.journal, self._group, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            self._back_off(0)
        get_committed(self.journal, self._group)

    def _validate(self) -> None:
        validate(self.journal, self._data)
        self._fetch()

    # Group ------------------------------------------------------------------------------------

    def _join(self) -> None:
        self._generation += 1
        self._owned = sorted(
            self._random.sample(range(PARTITIONS), self._random.randint(1, PARTITIONS))
        )
        join(self.journal, self._group, *self._owned, generation=self._generation)
        self._heartbeat_ms = self.journal.now

    def _beat(self, error: ErrorCode = ErrorCode.NONE) -> None:
        beat(self.journal, self._group, self._generation, error)
        self._heartbeat_ms = self.journal.now

    def _commit(self) -> None:
        commit(self.journal, self._group, *self._owned, generation=self._generation)

    def _rebalance(self) -> None:
        self._beat(ErrorCode.REBALANCE_IN_PROGRESS)
        self._commit()
        self._join()

    def _lose_membership(self) -> None:
        self._beat(ErrorCode.UNKNOWN_MEMBER_ID)
        self._join()

    def _lose_coordinator(self) -> None:
        self._beat(ErrorCode.NOT_COORDINATOR)
        request = FindCoordinatorRequest(coordinator_keys=["g"])
        self.journal.ask(self._data, request, 4, FindCoordinatorResponse())
        self._beat()

    def _use_consumer_group(self) -> None:
        """Be a member of a consumer group (KIP-848) for a moment."""
        get_metadata(self.journal, self._data)
        send = partial(beat_848, self.journal, self._group, member="n")
        send(epoch=0, owned=[], assigned=[0, 1], timeout_ms=60_000)
        if self._random.random() < 0.5:
            send(error_code=self._random.choice([*FENCES]))
            send(epoch=0, owned=[], assigned=[0, 1], timeout_ms=60_000)
        send(owned=[0, 1], assigned=[0])
        send(owned=[0])
        send(epoch=-1)

    def _use_share_group(self) -> None:
        """Be a member of a share group (KIP-932) for a moment."""
        beat_share(self.journal, self._group, epoch=0)
        if self._random.random() < 0.5:
            beat_share(self.journal, self._group, error_code=self._random.choice([*FENCES]))
            beat_share(self.journal, self._group, epoch=0)
        fetch_share(self.journal, self._data, (0, 9), epoch=0)
        acknowledge(self.journal, self._data, (0, 3, 1), (4, 9, 4), epoch=1)
        if self._random.random() < 0.5:
            error = self._random.choice([*SESSION_ERRORS])
            fetch_share(self.journal, self._data, epoch=2, error_code=error)
            fetch_share(self.journal, self._data, (4, 9), epoch=0)
        fetch_share(self.journal, self._data, epoch=1, batches=[(4, 9, 1)])
        acknowledge(self.journal, self._data, epoch=-1)
        beat_share(self.journal, self._group, epoch=-1)


RETRIABLE = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.KAFKA_STORAGE_ERROR,
)
