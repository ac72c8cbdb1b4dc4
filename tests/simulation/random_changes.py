"""Random changes of a broker by one client: of topics, records, groups, transactions and settings.

Owns which requests change the state. It must never check a response: a change that is rejected
changes nothing, which is a state too. Invariant: the changes follow from the random source alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random

from minibroker_protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from minibroker_protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    EntityData,
    OpData,
)
from minibroker_protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from minibroker_protocol.messages.create_acls import AclCreation, CreateAclsRequest
from minibroker_protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from minibroker_protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from minibroker_protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from minibroker_protocol.messages.delete_groups import DeleteGroupsRequest
from minibroker_protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from minibroker_protocol.messages.delete_topics import DeleteTopicsRequest
from minibroker_protocol.messages.end_txn import EndTxnRequest
from minibroker_protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from minibroker_protocol.messages.init_producer_id import InitProducerIdRequest
from minibroker_protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from minibroker_protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from minibroker_protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from minibroker_protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from minibroker_protocol.records import Record, build_batch
from tests.simulation.client import SimulatedClient

TOPICS = ("a", "b", "c")
PARTITIONS_MAX = 3
TIMEOUT_MS = 3_600_000


class RandomChanges:
    """Changes by one client, which forgets its producers after each round."""

    def __init__(self, client: SimulatedClient, random: Random, wall_ms: Callable[[], int]) -> None:
        self._client = client
        self._random = random
        self._wall_ms = wall_ms
        self._changes: tuple[Callable[[], Awaitable[object]], ...] = (
            *(self._create_topic, self._delete_topic, self._add_partitions),
            *[self._produce] * 6,
            *[self._transaction] * 4,
            *(self._delete_records, self._commit, self._commit, self._join, self._delete_group),
            *(self._alter_config, self._alter_quota, self._alter_user, self._acl, self._no_acl),
        )

    async def make(self, count: int) -> None:
        """Make so many changes."""
        for _ in range(count):
            await self._random.choice(self._changes)()

    def _topic(self) -> str:
        return self._random.choice(TOPICS)

    def _name(self, kind: str) -> str:
        return f"{kind}-{self._random.randrange(3)}"

    def _partition(self) -> int:
        return self._random.randrange(PARTITIONS_MAX)

    async def _create_topic(self) -> None:
        topic = CreatableTopic(
            name=self._topic(),
            num_partitions=self._random.randint(1, PARTITIONS_MAX),
            replication_factor=1,
        )
        await self._client.ask(CreateTopicsRequest(topics=[topic]), 7)

    async def _delete_topic(self) -> None:
        await self._client.ask(DeleteTopicsRequest(topic_names=[self._topic()]), 4)

    async def _add_partitions(self) -> None:
        topic = CreatePartitionsTopic(name=self._topic(), count=PARTITIONS_MAX, assignments=None)
        request = CreatePartitionsRequest(topics=[topic], timeout_ms=1000, validate_only=False)
        await self._client.ask(request, 3)

    async def _produce(self, producer: tuple[str, int, int] | None = None) -> None:
        name, producer_id, epoch = producer or ("", -1, -1)
        count = self._random.randint(1, 5)
        value = self._random.randbytes(self._random.randint(1, 900))
        records = [Record(0, self._wall_ms() + n, None, value) for n in range(count)]
        batch = build_batch(
            records,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=0 if producer else -1,
            transactional=bool(name),
        )
        data = PartitionProduceData(index=self._partition(), records=batch)
        topic = TopicProduceData(name=self._topic(), partition_data=[data])
        request = ProduceRequest(transactional_id=name or None, acks=-1, topic_data=[topic])
        await self._client.ask(request, 11)

    async def _transaction(self) -> None:
        name = self._name("transaction")
        start = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=TIMEOUT_MS)
        answer = await self._client.ask(start, 4)
        if answer.error_code:
            return
        producer_id, epoch = answer.producer_id, answer.producer_epoch
        topics = [
            AddPartitionsToTxnTopic(name=topic, partitions=[0, 1, 2][: self._partition() + 1])
            for topic in self._random.sample(TOPICS, 2)
        ]
        added = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=topics,
        )
        await self._client.ask(added, 3)
        for _ in range(self._random.randrange(4)):
            await self._produce((name, producer_id, epoch))
        if self._random.random() < 0.6:  # Otherwise it stays open.
            end = EndTxnRequest(
                transactional_id=name,
                producer_id=producer_id,
                producer_epoch=epoch,
                committed=self._random.random() < 0.5,
            )
            await self._client.ask(end, 4)

    async def _delete_records(self) -> None:
        partition = DeleteRecordsPartition(
            partition_index=self._partition(), offset=self._random.randrange(5)
        )
        topic = DeleteRecordsTopic(name=self._topic(), partitions=[partition])
        await self._client.ask(DeleteRecordsRequest(topics=[topic], timeout_ms=1000), 2)

    async def _commit(self) -> None:
        partition = OffsetCommitRequestPartition(
            partition_index=self._partition(),
            committed_offset=self._random.randrange(10),
            committed_metadata=self._name("metadata"),
        )
        request = OffsetCommitRequest(
            group_id=self._name("group"),
            generation_id_or_member_epoch=-1,
            topics=[OffsetCommitRequestTopic(name=self._topic(), partitions=[partition])],
        )
        await self._client.ask(request, 8)

    async def _join(self) -> None:
        """A group of one member, which stays in it."""
        group = self._name("members")
        request = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=1_800_000,
            rebalance_timeout_ms=1,
            member_id="",
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        )
        joined = await self._client.ask(request, 3)
        if joined.error_code:
            return
        assignment = SyncGroupRequestAssignment(
            member_id=joined.member_id, assignment=self._random.randbytes(5)
        )
        sync = SyncGroupRequest(
            group_id=group,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            assignments=[assignment],
        )
        await self._client.ask(sync, 3)

    async def _delete_group(self) -> None:
        request = DeleteGroupsRequest(groups_names=[self._name("group")])
        await self._client.ask(request, 2)

    async def _alter_config(self) -> None:
        topic, value = self._topic(), str(self._random.randint(1000, 100_000))
        kind, name, key = self._random.choice([
            (2, topic, "max.message.bytes"),
            (2, topic, "segment.bytes"),
            (4, "", "log.cleaner.backoff.ms"),
            (4, "0", "message.max.bytes"),
        ])  # fmt: skip
        config = AlterableConfig(name=key, config_operation=0, value=value)
        resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=[config])
        request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
        await self._client.ask(request, 1)

    async def _alter_quota(self) -> None:
        entry = AlterClientQuotasRequestEntryData(
            entity=[EntityData(entity_type="user", entity_name=self._name("user"))],
            ops=[OpData(key="producer_byte_rate", value=1e9, remove=self._random.random() < 0.3)],
        )
        await self._client.ask(AlterClientQuotasRequest(entries=[entry], validate_only=False), 1)

    async def _alter_user(self) -> None:
        user = ScramCredentialUpsertion(
            name=self._name("user"),
            mechanism=1,
            iterations=self._random.randint(4096, 5000),
            salt=self._random.randbytes(8),
            salted_password=self._random.randbytes(32),
        )
        await self._client.ask(AlterUserScramCredentialsRequest(deletions=[], upsertions=[user]), 0)

    async def _acl(self) -> None:
        acl = AclCreation(
            resource_type=2,
            resource_name=self._name("other"),
            resource_pattern_type=3,
            principal=f"User:{self._name('user')}",
            host="*",
            operation=3,
            permission_type=3,
        )
        await self._client.ask(CreateAclsRequest(creations=[acl]), 3)

    async def _no_acl(self) -> None:
        pattern = DeleteAclsFilter(
            resource_type_filter=1,
            resource_name_filter=self._name("other"),
            pattern_type_filter=1,
            principal_filter=None,
            host_filter=None,
            operation=1,
            permission_type=1,
        )
        await self._client.ask(DeleteAclsRequest(filters=[pattern]), 3)
