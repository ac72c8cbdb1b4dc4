"""Members of a share group: they fetch, and accept, release, reject, renew or forget records.

Owns one member's part in the protocol, and the client that watches the group. Invariant: a member
acknowledges only what it has acquired in its session, and has a new session and none of its records
when a response is lost.
"""

from __future__ import annotations

from typing import Any, Final

import trio

from minibroker.broker.shares.share_partition import AcknowledgeType
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages import share_acknowledge as acknowledging
from minibroker_protocol.messages import share_fetch as fetching
from minibroker_protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
)
from minibroker_protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from minibroker_protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from minibroker_protocol.types import uuid_text
from tests.simulation.actors import Actor, Admin, Producer, values
from tests.simulation.history import Partition
from tests.simulation.rare_paths import KILLED_AT_ACKNOWLEDGEMENT, LATE_ACKNOWLEDGEMENT
from tests.simulation.share_history import Delivery, Record, by_partition, ranges
from tests.simulation.surroundings import World

SHARE_GROUP: Final = "s"
LOCK_S: Final = 1.0
SESSION_S: Final = 1.0
GROUP_RESOURCE: Final = 32
FENCES: Final = {ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID}
EXPECTED: Final = FENCES | {
    ErrorCode.SHARE_SESSION_NOT_FOUND,
    ErrorCode.INVALID_SHARE_SESSION_EPOCH,
    ErrorCode.INVALID_RECORD_STATE,
    ErrorCode.INVALID_REQUEST,
}
"""Errors that are part of a member's life, in addition to the retriable ones. A record that a
killed owner has forgotten is past those that were acquired: INVALID_REQUEST.
"""
CHOICES: Final = {
    AcknowledgeType.ACCEPT: 70,
    AcknowledgeType.RELEASE: 10,
    AcknowledgeType.REJECT: 5,
    AcknowledgeType.RENEW: 5,
    None: 10,
}
"""Weights of what becomes of a record; a member forgets some until their locks expire."""

_Kinds = dict[Record, AcknowledgeType]


async def read_from_start(maker: Admin) -> None:
    """Let the group start at the start of partitions."""
    config = AlterableConfig(name="share.auto.offset.reset", value="earliest")
    resource = AlterConfigsResource(
        resource_type=GROUP_RESOURCE, resource_name=SHARE_GROUP, configs=[config]
    )
    request = IncrementalAlterConfigsRequest(resources=[resource])

    async def attempt() -> bool | None:
        response = await maker.ask(request, (1, 1))
        return True if response and not response.responses[0].error_code else None

    await maker.until(attempt)


class ShareGroupMember(Actor):
    """One member, in all of its memberships."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.member_id = ""
        self.epoch = 0
        self._owned: set[Partition] = set()
        self._session_epoch = 0
        self._in_session: set[Partition] = set()
        self._held: set[Record] = set()
        self._states_all = True

    async def run(self) -> None:
        self.ids = {topic: await self.topic_id(topic) for topic in self.world.topics}
        self._names = {topic_id: topic for topic, topic_id in self.ids.items()}
        while not self.world.may_end:
            await self._live()
            if not self.world.faults_ended:
                await self._part()

    async def _live(self) -> None:
        """One membership."""
        self._end_session()
        self.member_id = uuid_text(self.random.randbytes(16))
        self._give_up()
        rounds = self.random.randint(3, 30)
        while (rounds > 0 or self.world.faults_ended) and not self.world.may_end:
            rounds -= 1
            await self._beat()
            if self._owned or self._held:
                await self._consume()
            await self.pause()

    def _give_up(self) -> None:
        """Own nothing, and join with the next heartbeat."""
        self.epoch, self._states_all = 0, True
        self._owned.clear()

    def _end_session(self) -> None:
        """Forget the session and the records, which the broker releases, or their locks expire."""
        self.world.shares.let_go(self.member_id)
        self._session_epoch = 0
        self._in_session.clear()
        self._held.clear()

    def _failed(self, api: str, code: int) -> bool:
        """Whether a response has an error; it must be one that may be."""
        error = ErrorCode(code)
        if error is ErrorCode.NONE:
            return False
        if not (error.retriable or error in EXPECTED or self.is_tolerated(api, error)):
            self.world.history.wrong("refused", f"{error.name} of {api} for {self.name}")
        return True

    # Heartbeats -----------------------------------------------------------------------------------

    async def _beat(self) -> None:
        names = list(self.world.topics) if self._states_all else None
        response = await self._send_heartbeat(self.epoch, names)
        if response is None:
            self._states_all = True
            self._end_session()
        elif self._failed("ShareGroupHeartbeat", response.error_code):
            self._states_all = True
            if response.error_code in FENCES:
                self._give_up()
        else:
            self._states_all = False
            self.epoch = response.member_epoch
            if response.assignment is not None:
                self._owned = {
                    (self._names[topic.topic_id], at)
                    for topic in response.assignment.topic_partitions
                    for at in topic.partitions
                }

    async def _send_heartbeat(self, epoch: int, names: list[str] | None) -> Any:
        request = ShareGroupHeartbeatRequest(
            group_id=SHARE_GROUP,
            member_id=self.member_id,
            member_epoch=epoch,
            subscribed_topic_names=names,
        )
        return await self.ask(request, (1, 1))

    # Records --------------------------------------------------------------------------------------

    async def _consume(self) -> None:
        """Acknowledge what was acquired, with a fetch or before it, and fetch."""
        if self._held and not self.world.faults_ended and self.random.random() < 0.1:
            self.world.counts[LATE_ACKNOWLEDGEMENT] += 1
            await trio.sleep(self.random.choice((LOCK_S - 0.01, LOCK_S, LOCK_S + 0.3)))
        kinds = self._choose()
        if self._session_epoch and (AcknowledgeType.RENEW in kinds.values() or self._is_even()):
            await self._acknowledge(kinds)
            kinds = {}
        if self._owned or kinds:
            await self._fetch(kinds)

    def _is_even(self) -> bool:
        return self.random.random() < 0.5

    def _choose(self) -> _Kinds:
        """Choose what becomes of records, which are not held afterwards."""
        kinds: _Kinds = {}
        for record in sorted(self._held):
            kind: AcknowledgeType | None = AcknowledgeType.ACCEPT
            if not self.world.faults_ended:
                [kind] = self.random.choices(tuple(CHOICES), tuple(CHOICES.values()))
            if kind is not None:
                kinds[record] = kind
            if kind is not AcknowledgeType.RENEW:
                self._held.discard(record)
        return kinds

    def _report(self, kinds: _Kinds) -> None:
        """Report acknowledgements before they are sent."""
        for partition, offsets in by_partition(kinds).items():
            for kind in AcknowledgeType:
                chosen = [each for each in offsets if kinds[partition, each] is kind]
                if chosen and kind is not AcknowledgeType.RENEW:
                    finishes = kind is not AcknowledgeType.RELEASE
                    self.world.shares.acknowledge(partition, chosen, finishes=finishes)
        if kinds and self.random.random() < 0.3:
            self.world.reach_moment(KILLED_AT_ACKNOWLEDGEMENT)

    async def _acknowledge(self, kinds: _Kinds) -> None:
        self._report(kinds)
        request = acknowledging.ShareAcknowledgeRequest(
            group_id=SHARE_GROUP,
            member_id=self.member_id,
            share_session_epoch=self._session_epoch,
            is_renew_ack=AcknowledgeType.RENEW in kinds.values(),
            topics=[
                acknowledging.AcknowledgeTopic(
                    topic_id=self.ids[topic],
                    partitions=[
                        acknowledging.AcknowledgePartition(
                            partition_index=index,
                            acknowledgement_batches=_batches(
                                acknowledging.AcknowledgementBatch, kinds, (topic, index)
                            ),
                        )
                    ],
                )
                for topic, index in by_partition(kinds)
            ],
        )
        lowest = 2 if request.is_renew_ack else 1
        response = await self.ask(request, (lowest, 2))
        if response is None or self._failed("ShareAcknowledge", response.error_code):
            self._end_session()
            return
        self._session_epoch += 1
        for topic in response.responses:
            for result in topic.partitions:
                partition = self._names[topic.topic_id], result.partition_index
                self._note_result("ShareAcknowledge", partition, result.error_code, kinds)

    def _note_result(self, api: str, partition: Partition, code: int, kinds: _Kinds) -> None:
        if self._failed(api, code):
            self._held -= {each for each in self._held if each[0] == partition}
            return
        finished = [
            offset
            for (each, offset), kind in kinds.items()
            if each == partition and kind in (AcknowledgeType.ACCEPT, AcknowledgeType.REJECT)
        ]
        self.world.shares.finish(partition, finished, trio.current_time())

    async def _fetch(self, kinds: _Kinds) -> None:
        if not self._session_epoch:
            kinds = {}
        self._report(kinds)
        request = self._fetch_request(kinds)
        requested, kills = trio.current_time(), self.world.shares.kills
        response = await self.ask(request, (2 if request.share_acquire_mode else 1, 2))
        if response is None or self._failed("ShareFetch", response.error_code):
            self.world.shares.lost_fetches += 1
            self._end_session()
            return
        self._session_epoch += 1
        self._in_session = set(self._owned)
        acknowledged = by_partition(kinds).keys()
        for topic in response.responses:
            for found in topic.partitions:
                partition = self._names[topic.topic_id], found.partition_index
                if partition in acknowledged:
                    self._note_result("ShareFetch", partition, found.acknowledge_error_code, kinds)
                if self._failed("ShareFetch", found.error_code):
                    self.world.shares.lost_fetches += 1
                else:
                    self._note_acquired(partition, found, requested, kills)

    def _fetch_request(self, kinds: _Kinds) -> fetching.ShareFetchRequest:
        added = self._owned - self._in_session | by_partition(kinds).keys()
        wait_ms, bytes_min = self.random.choice(((0, 1), (0, 1), (200, 1), (300, 200)))
        return fetching.ShareFetchRequest(
            group_id=SHARE_GROUP,
            member_id=self.member_id,
            share_session_epoch=self._session_epoch,
            max_wait_ms=wait_ms,
            min_bytes=bytes_min,
            max_records=self.random.choice((1, 3, 500)),
            batch_size=self.random.choice((1, 500)),
            share_acquire_mode=self.random.choice((0, 1)),
            topics=[
                fetching.FetchTopic(
                    topic_id=self.ids[topic],
                    partitions=[
                        fetching.FetchPartition(
                            partition_index=index,
                            acknowledgement_batches=_batches(
                                fetching.AcknowledgementBatch, kinds, (topic, index)
                            ),
                        )
                    ],
                )
                for topic, index in sorted(added)
            ],
            forgotten_topics_data=[
                fetching.ForgottenTopic(topic_id=self.ids[topic], partitions=[index])
                for topic, index in sorted(self._in_session - self._owned)
            ],
        )

    def _note_acquired(
        self, partition: Partition, found: Any, requested: float, kills: int
    ) -> None:
        records = dict(values(found.records))
        counts = {
            offset: acquired.delivery_count
            for acquired in found.acquired_records
            for offset in range(acquired.first_offset, acquired.last_offset + 1)
        }
        if missing := counts.keys() - records.keys():
            self.world.history.wrong("absent", f"{partition} was acquired without {missing}")
        delivered = {
            offset: (records[offset], count)
            for offset, count in counts.items()
            if offset in records
        }
        now = trio.current_time()
        self.world.shares.deliver(
            Delivery(self.member_id, partition, requested, now, LOCK_S, kills, delivered)
        )
        self._held |= {(partition, offset) for offset in delivered}

    # The end of a membership ----------------------------------------------------------------------

    async def _part(self) -> None:
        """Leave as it should, or fall silent until the session is over, or just join again."""
        how = self.random.choice(("leave", "vanish", "rejoin"))
        if how == "leave":
            await self._send_heartbeat(-1, None)
        elif how == "vanish":
            self._end_session()
            self.disconnect()
            await trio.sleep(self.random.choice((SESSION_S / 2, SESSION_S + 1)))


def _batches(batch: Any, kinds: _Kinds, partition: Partition) -> list[Any]:
    """The acknowledgements of a partition, each with one type for all of its records."""
    offsets = by_partition(kinds).get(partition, [])
    found = [
        (first, last, kind)
        for kind in AcknowledgeType
        for first, last in ranges(each for each in offsets if kinds[partition, each] is kind)
    ]
    return [
        batch(first_offset=first, last_offset=last, acknowledge_types=[kind])
        for first, last, kind in sorted(found)
    ]


class ShareGroupWatcher(Actor):
    """Looks at a share group until it has finished all records."""

    def __init__(self, world: World, name: str, producers: list[Producer]) -> None:
        super().__init__(world, name)
        self._producers = producers

    async def run(self) -> None:
        while not (self.world.faults_ended and await self._is_complete()):
            await self.pause(12)

    async def _is_complete(self) -> bool:
        """Whether no record will be delivered again."""
        if not all(producer.has_ended for producer in self._producers):
            return False
        group = DescribeShareGroupOffsetsRequestGroup(group_id=SHARE_GROUP, topics=None)
        response = await self.ask(DescribeShareGroupOffsetsRequest(groups=[group]), (1, 1))
        if response is None:
            return False
        lags = {
            (topic.topic_name, each.partition_index): each.lag
            for topic in response.groups[0].topics
            for each in topic.partitions
        }
        known_end = self.world.history.known_end
        written = [each for each in self.world.partitions if known_end(each)]
        return all(lags.get(each) == 0 for each in written)
