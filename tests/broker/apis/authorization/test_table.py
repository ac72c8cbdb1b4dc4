"""Every API before and after its caller may ask: errors, rights, and that none is left out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from trio.testing import MockClock

from minibroker.broker.apis.authorization.checks import place_of
from minibroker.broker.apis.authorization.special_checks import SPECIAL_CHECKS
from minibroker.broker.apis.base import SPECIAL, Special
from minibroker.broker.apis.registry import APIS
from minibroker.broker.security.acl import Operation, PatternType, Permission, Resource
from minibroker.runtime.stream import StreamClosed
from minibroker_protocol.messages import alter_configs as ac
from minibroker_protocol.messages import create_acls as ca
from minibroker_protocol.messages import delete_acls as da
from minibroker_protocol.messages import describe_configs as dc
from minibroker_protocol.messages import describe_share_group_offsets as dso
from minibroker_protocol.messages import fetch as f
from minibroker_protocol.messages import incremental_alter_configs as iac
from minibroker_protocol.messages import leader_and_isr as li
from minibroker_protocol.messages import list_offsets as lo
from minibroker_protocol.messages import metadata as m
from minibroker_protocol.messages import offset_commit as oc
from minibroker_protocol.messages import offset_delete as od
from minibroker_protocol.messages import offset_fetch as of
from minibroker_protocol.messages import produce as p
from minibroker_protocol.messages import stop_replica as sr
from minibroker_protocol.messages import write_txn_markers as wtm
from minibroker_protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    EntityData,
    OpData,
)
from minibroker_protocol.messages.alter_share_group_offsets import AlterShareGroupOffsetsRequest
from minibroker_protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from minibroker_protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from minibroker_protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from minibroker_protocol.messages.controlled_shutdown import ControlledShutdownRequest
from minibroker_protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from minibroker_protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from minibroker_protocol.messages.delete_groups import DeleteGroupsRequest
from minibroker_protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from minibroker_protocol.messages.delete_share_group_offsets import DeleteShareGroupOffsetsRequest
from minibroker_protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from minibroker_protocol.messages.describe_acls import DescribeAclsRequest
from minibroker_protocol.messages.describe_client_quotas import DescribeClientQuotasRequest
from minibroker_protocol.messages.describe_groups import DescribeGroupsRequest
from minibroker_protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from minibroker_protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
)
from minibroker_protocol.messages.find_coordinator import FindCoordinatorRequest
from minibroker_protocol.messages.heartbeat import HeartbeatRequest
from minibroker_protocol.messages.init_producer_id import InitProducerIdRequest
from minibroker_protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from minibroker_protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from minibroker_protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from minibroker_protocol.messages.share_acknowledge import ShareAcknowledgeRequest
from minibroker_protocol.messages.share_fetch import ShareFetchRequest
from minibroker_protocol.messages.share_group_describe import ShareGroupDescribeRequest
from minibroker_protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from minibroker_protocol.messages.streams_group_describe import StreamsGroupDescribeRequest
from minibroker_protocol.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    Subtopology,
    Topology,
)
from minibroker_protocol.messages.streams_group_topology_description_update import (
    StreamsGroupTopologyDescriptionUpdateRequest,
)
from minibroker_protocol.messages.sync_group import SyncGroupRequest
from minibroker_protocol.messages.update_metadata import UpdateMetadataRequest
from minibroker_protocol.records import Record, build_batch
from minibroker_protocol.registry import ApiKey, schema
from minibroker_protocol.schema import Struct
from tests.broker.apis.authorization.rows import (
    DENIALS,
    GROUP,
    NO_CLUSTER,
    NO_GROUP,
    NO_TOPIC,
    OPERATION_ROWS,
    TOPIC,
    Row,
    always,
    cluster,
    group,
    topic,
)
from tests.broker.network.secured import SecuredBroker, secured
from tests.simulation.client import SimulatedClient

ADMIN, NOBODY = "10.0.0.1", "10.0.0.2"
SETTINGS = (
    "principal.builder.class=tests.broker.network.secured:by_host",
    "authorizer.class.name=kafka.security.authorizer.AclAuthorizer",
    f"super.users=User:{ADMIN};User:somebody",
    "group.initial.rebalance.delay.ms=0",
)


def produce(version: int, topic_id: bytes) -> Any:
    data = p.PartitionProduceData(index=0, records=build_batch([Record(0, 0, None, b"v")]))
    return p.ProduceRequest(
        acks=1,
        topic_data=[p.TopicProduceData(name=TOPIC, topic_id=topic_id, partition_data=[data])],
    )


def fetch(version: int, topic_id: bytes) -> Any:
    asked = f.FetchPartition(partition=0, partition_max_bytes=1000)
    return f.FetchRequest(topics=[f.FetchTopic(topic=TOPIC, topic_id=topic_id, partitions=[asked])])


def list_offsets(version: int, topic_id: bytes) -> Any:
    asked = lo.ListOffsetsPartition(timestamp=-1)
    return lo.ListOffsetsRequest(topics=[lo.ListOffsetsTopic(name=TOPIC, partitions=[asked])])


def metadata(version: int, topic_id: bytes) -> Any:
    if version >= 12:
        asked = m.MetadataRequestTopic(name=None, topic_id=topic_id)
    else:
        asked = m.MetadataRequestTopic(name=TOPIC)
    return m.MetadataRequest(topics=[asked], allow_auto_topic_creation=False)


def leader_and_isr(version: int, topic_id: bytes) -> Any:
    state = li.LeaderAndIsrPartitionState(topic_name=TOPIC)
    if version < 2:
        return li.LeaderAndIsrRequest(ungrouped_partition_states=[state])
    asked = li.LeaderAndIsrTopicState(topic_name=TOPIC, partition_states=[state])
    return li.LeaderAndIsrRequest(topic_states=[asked])


def stop_replica(version: int, topic_id: bytes) -> Any:
    if version == 0:
        oldest = sr.StopReplicaPartitionV0(topic_name=TOPIC)
        return sr.StopReplicaRequest(ungrouped_partitions=[oldest])
    if version < 3:
        older = sr.StopReplicaTopicV1(name=TOPIC, partition_indexes=[0])
        return sr.StopReplicaRequest(topics=[older])
    asked = sr.StopReplicaTopicState(
        topic_name=TOPIC, partition_states=[sr.StopReplicaPartitionState()]
    )
    return sr.StopReplicaRequest(topic_states=[asked])


def write_txn_markers(version: int, topic_id: bytes) -> Any:
    asked = wtm.WritableTxnMarkerTopic(name=TOPIC, partition_indexes=[0])
    marker = wtm.WritableTxnMarker(producer_id=1, producer_epoch=0, topics=[asked])
    return wtm.WriteTxnMarkersRequest(markers=[marker])


def offset_commit(version: int, topic_id: bytes) -> Any:
    each = oc.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    asked = oc.OffsetCommitRequestTopic(name=TOPIC, topic_id=topic_id, partitions=[each])
    return oc.OffsetCommitRequest(group_id=GROUP, topics=[asked])


def offset_fetch(version: int, topic_id: bytes) -> Any:
    if version < 8:
        older = of.OffsetFetchRequestTopic(name=TOPIC, partition_indexes=[0])
        return of.OffsetFetchRequest(group_id=GROUP, topics=[older])
    asked = of.OffsetFetchRequestTopics(name=TOPIC, topic_id=topic_id, partition_indexes=[0])
    return of.OffsetFetchRequest(
        groups=[of.OffsetFetchRequestGroup(group_id=GROUP, topics=[asked])]
    )


def offset_delete(version: int, topic_id: bytes) -> Any:
    asked = od.OffsetDeleteRequestTopic(
        name=TOPIC, partitions=[od.OffsetDeleteRequestPartition(partition_index=0)]
    )
    return od.OffsetDeleteRequest(group_id=GROUP, topics=[asked])


def find_coordinator(version: int, topic_id: bytes) -> Any:
    if version >= 4:
        return FindCoordinatorRequest(coordinator_keys=[GROUP])
    return FindCoordinatorRequest(key=GROUP)


def join_group(version: int, topic_id: bytes) -> Any:
    protocol = JoinGroupRequestProtocol(name="range", metadata=b"")
    return JoinGroupRequest(
        group_id=GROUP, session_timeout_ms=10_000, protocol_type="consumer", protocols=[protocol]
    )


def sync_group(version: int, topic_id: bytes) -> Any:
    return SyncGroupRequest(group_id=GROUP, member_id="m", protocol_type="c", protocol_name="r")


def leave_group(version: int, topic_id: bytes) -> Any:
    if version < 3:
        return LeaveGroupRequest(group_id=GROUP, member_id="m")
    return LeaveGroupRequest(group_id=GROUP, members=[MemberIdentity(member_id="m")])


def delete_topics(version: int, topic_id: bytes) -> Any:
    if version < 6:
        return DeleteTopicsRequest(topic_names=[TOPIC])
    return DeleteTopicsRequest(topics=[DeleteTopicState(name=None, topic_id=topic_id)])


SHARE_STATES = {
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: "InitializeStateData",
    ApiKey.READ_SHARE_GROUP_STATE: "ReadStateData",
    ApiKey.WRITE_SHARE_GROUP_STATE: "WriteStateData",
    ApiKey.DELETE_SHARE_GROUP_STATE: "DeleteStateData",
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: "ReadStateSummaryData",
}


def share_state(key: ApiKey) -> Any:
    request: Any = schema(key).request
    messages = import_module(request.__module__)

    def make(version: int, topic_id: bytes) -> Any:
        topic = getattr(messages, SHARE_STATES[key])
        asked = topic(topic_id=topic_id, partitions=[messages.PartitionData(partition=0)])
        return request(group_id=GROUP, topics=[asked])

    return make


def create_acls(version: int, topic_id: bytes) -> Any:
    return ca.CreateAclsRequest(creations=[rule(Operation.READ, Resource.TOPIC, "other")])


def rule(operation: Operation, resource: Resource, name: str) -> ca.AclCreation:
    return ca.AclCreation(
        resource_type=resource,
        resource_name=name,
        resource_pattern_type=PatternType.LITERAL,
        principal=f"User:{NOBODY}",
        host="*",
        operation=operation,
        permission_type=Permission.ALLOW,
    )


ANY_RULE: dict[str, Any] = {
    "resource_name_filter": None,
    "pattern_type_filter": PatternType.ANY,
    "principal_filter": None,
    "host_filter": None,
    "operation": Operation.ANY,
    "permission_type": Permission.ANY,
}
QUOTA = AlterClientQuotasRequest(
    entries=[
        AlterClientQuotasRequestEntryData(
            entity=[EntityData(entity_type="user", entity_name="x")],
            ops=[OpData(key="producer_byte_rate", value=1000.0, remove=False)],
        )
    ]
)
DESCRIBE_PRODUCERS = DescribeProducersRequest(
    topics=[TopicRequest(name=TOPIC, partition_indexes=[0])]
)
CREDENTIAL = ScramCredentialUpsertion(
    name="x", mechanism=1, iterations=4096, salt=b"s", salted_password=b"p"
)


ROWS: dict[ApiKey, Row] = {
    ApiKey.PRODUCE: Row(produce, NO_TOPIC, topic(Operation.WRITE)),
    ApiKey.FETCH: Row(fetch, NO_TOPIC, topic(Operation.READ)),
    ApiKey.LIST_OFFSETS: Row(list_offsets, NO_TOPIC, topic(Operation.DESCRIBE)),
    ApiKey.METADATA: Row(metadata, NO_TOPIC, topic(Operation.DESCRIBE)),
    ApiKey.LEADER_AND_ISR: Row(leader_and_isr, NO_CLUSTER, cluster(Operation.CLUSTER_ACTION)),
    ApiKey.STOP_REPLICA: Row(stop_replica, NO_CLUSTER, cluster(Operation.CLUSTER_ACTION)),
    ApiKey.UPDATE_METADATA: Row(
        always(UpdateMetadataRequest()), NO_CLUSTER, cluster(Operation.CLUSTER_ACTION)
    ),
    ApiKey.CONTROLLED_SHUTDOWN: Row(
        always(ControlledShutdownRequest()), NO_CLUSTER, cluster(Operation.CLUSTER_ACTION)
    ),
    ApiKey.WRITE_TXN_MARKERS: Row(write_txn_markers, NO_CLUSTER, cluster(Operation.CLUSTER_ACTION)),
    ApiKey.DESCRIBE_PRODUCERS: Row(always(DESCRIBE_PRODUCERS), NO_TOPIC, topic(Operation.READ)),
    ApiKey.OFFSET_COMMIT: Row(
        offset_commit, NO_GROUP, (*group(Operation.READ), *topic(Operation.READ))
    ),
    ApiKey.OFFSET_FETCH: Row(
        offset_fetch, NO_GROUP, (*group(Operation.DESCRIBE), *topic(Operation.DESCRIBE))
    ),
    ApiKey.FIND_COORDINATOR: Row(find_coordinator, NO_GROUP, group(Operation.DESCRIBE)),
    ApiKey.JOIN_GROUP: Row(join_group, NO_GROUP, group(Operation.READ)),
    ApiKey.HEARTBEAT: Row(
        always(HeartbeatRequest(group_id=GROUP)), NO_GROUP, group(Operation.READ)
    ),
    ApiKey.LEAVE_GROUP: Row(leave_group, NO_GROUP, group(Operation.READ)),
    ApiKey.SYNC_GROUP: Row(sync_group, NO_GROUP, group(Operation.READ)),
    ApiKey.DESCRIBE_GROUPS: Row(
        always(DescribeGroupsRequest(groups=[GROUP])), NO_GROUP, group(Operation.DESCRIBE)
    ),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: Row(
        always(
            ConsumerGroupHeartbeatRequest(
                group_id=GROUP,
                member_id="m",
                rebalance_timeout_ms=1000,
                subscribed_topic_names=[TOPIC],
                topic_partitions=[],
            )
        ),
        NO_GROUP,
        (*group(Operation.READ), *topic(Operation.DESCRIBE)),
    ),
    ApiKey.CONSUMER_GROUP_DESCRIBE: Row(
        always(ConsumerGroupDescribeRequest(group_ids=[GROUP])),
        NO_GROUP,
        group(Operation.DESCRIBE),
    ),
    ApiKey.SHARE_GROUP_HEARTBEAT: Row(
        always(
            ShareGroupHeartbeatRequest(
                group_id=GROUP, member_id="m", subscribed_topic_names=[TOPIC]
            )
        ),
        NO_GROUP,
        (*group(Operation.READ), *topic(Operation.DESCRIBE)),
    ),
    ApiKey.SHARE_GROUP_DESCRIBE: Row(
        always(ShareGroupDescribeRequest(group_ids=[GROUP])), NO_GROUP, group(Operation.DESCRIBE)
    ),
    ApiKey.STREAMS_GROUP_HEARTBEAT: Row(
        always(
            StreamsGroupHeartbeatRequest(
                group_id=GROUP,
                member_id="m",
                topology=Topology(
                    epoch=0,
                    subtopologies=[Subtopology(subtopology_id="0", source_topics=[TOPIC])],
                ),
            )
        ),
        NO_GROUP,
        (*group(Operation.READ), *topic(Operation.DESCRIBE)),
    ),
    ApiKey.STREAMS_GROUP_DESCRIBE: Row(
        always(StreamsGroupDescribeRequest(group_ids=[GROUP])), NO_GROUP, group(Operation.DESCRIBE)
    ),
    ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE: Row(
        always(StreamsGroupTopologyDescriptionUpdateRequest(group_id=GROUP, member_id="m")),
        NO_GROUP,
        group(Operation.READ),
    ),
    ApiKey.SHARE_FETCH: Row(
        always(ShareFetchRequest(group_id=GROUP, member_id="m")), NO_GROUP, group(Operation.READ)
    ),
    ApiKey.SHARE_ACKNOWLEDGE: Row(
        always(ShareAcknowledgeRequest(group_id=GROUP, member_id="m", share_session_epoch=1)),
        NO_GROUP,
        group(Operation.READ),
    ),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: Row(
        always(
            dso.DescribeShareGroupOffsetsRequest(
                groups=[dso.DescribeShareGroupOffsetsRequestGroup(group_id=GROUP, topics=None)]
            )
        ),
        NO_GROUP,
        group(Operation.DESCRIBE),
    ),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: Row(
        always(AlterShareGroupOffsetsRequest(group_id=GROUP)), NO_GROUP, group(Operation.READ)
    ),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: Row(
        always(DeleteShareGroupOffsetsRequest(group_id=GROUP)), NO_GROUP, group(Operation.DELETE)
    ),
    **{
        key: Row(share_state(key), NO_CLUSTER, cluster(Operation.CLUSTER_ACTION))
        for key in SHARE_STATES
    },
    ApiKey.CREATE_TOPICS: Row(
        always(
            CreateTopicsRequest(
                topics=[CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1)]
            )
        ),
        NO_TOPIC,
        topic(Operation.CREATE, Operation.DESCRIBE_CONFIGS),
    ),
    ApiKey.DELETE_TOPICS: Row(delete_topics, NO_TOPIC, topic(Operation.DELETE)),
    ApiKey.DELETE_RECORDS: Row(
        always(
            DeleteRecordsRequest(
                topics=[DeleteRecordsTopic(name=TOPIC, partitions=[DeleteRecordsPartition()])]
            )
        ),
        NO_TOPIC,
        topic(Operation.DELETE),
    ),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Row(
        always(
            OffsetForLeaderEpochRequest(
                topics=[OffsetForLeaderTopic(topic=TOPIC, partitions=[OffsetForLeaderPartition()])]
            )
        ),
        NO_TOPIC,
        topic(Operation.DESCRIBE),
    ),
    ApiKey.INIT_PRODUCER_ID: Row(
        always(InitProducerIdRequest(transactional_id=None)),
        NO_CLUSTER,
        cluster(Operation.IDEMPOTENT_WRITE),
    ),
    ApiKey.DESCRIBE_ACLS: Row(
        always(DescribeAclsRequest(resource_type_filter=1, **ANY_RULE)),
        NO_CLUSTER,
        cluster(Operation.DESCRIBE),
    ),
    ApiKey.CREATE_ACLS: Row(create_acls, NO_CLUSTER, cluster(Operation.ALTER)),
    ApiKey.DELETE_ACLS: Row(
        always(
            da.DeleteAclsRequest(filters=[da.DeleteAclsFilter(resource_type_filter=3, **ANY_RULE)])
        ),
        NO_CLUSTER,
        cluster(Operation.ALTER),
    ),
    ApiKey.DESCRIBE_CONFIGS: Row(
        always(
            dc.DescribeConfigsRequest(
                resources=[dc.DescribeConfigsResource(resource_type=2, resource_name=TOPIC)]
            )
        ),
        NO_TOPIC,
        topic(Operation.DESCRIBE_CONFIGS),
    ),
    ApiKey.ALTER_CONFIGS: Row(
        always(
            ac.AlterConfigsRequest(
                resources=[ac.AlterConfigsResource(resource_type=2, resource_name=TOPIC)]
            )
        ),
        NO_TOPIC,
        topic(Operation.ALTER_CONFIGS),
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Row(
        always(
            iac.IncrementalAlterConfigsRequest(
                resources=[iac.AlterConfigsResource(resource_type=4, resource_name="")]
            )
        ),
        NO_CLUSTER,
        cluster(Operation.ALTER_CONFIGS),
    ),
    ApiKey.CREATE_PARTITIONS: Row(
        always(CreatePartitionsRequest(topics=[CreatePartitionsTopic(name=TOPIC, count=2)])),
        NO_TOPIC,
        topic(Operation.ALTER),
    ),
    ApiKey.DELETE_GROUPS: Row(
        always(DeleteGroupsRequest(groups_names=[GROUP])), NO_GROUP, group(Operation.DELETE)
    ),
    ApiKey.OFFSET_DELETE: Row(
        offset_delete, NO_GROUP, (*group(Operation.DELETE), *topic(Operation.READ))
    ),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: Row(
        always(DescribeClientQuotasRequest(components=[])),
        NO_CLUSTER,
        cluster(Operation.DESCRIBE_CONFIGS),
    ),
    ApiKey.ALTER_CLIENT_QUOTAS: Row(always(QUOTA), NO_CLUSTER, cluster(Operation.ALTER_CONFIGS)),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: Row(
        always(DescribeUserScramCredentialsRequest(users=None)),
        NO_CLUSTER,
        cluster(Operation.DESCRIBE),
    ),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: Row(
        always(AlterUserScramCredentialsRequest(upsertions=[CREDENTIAL])),
        NO_CLUSTER,
        cluster(Operation.ALTER),
    ),
    **OPERATION_ROWS,
}
DENIED_WITHOUT_ERROR = {(ApiKey.DESCRIBE_LOG_DIRS, 1), (ApiKey.DESCRIBE_LOG_DIRS, 2)}
"""Their responses have no field for the error, and are empty instead."""
SHOWN_IN_PART = {
    ApiKey.LIST_GROUPS,
    ApiKey.LIST_TRANSACTIONS,
    ApiKey.DESCRIBE_CLUSTER,
    ApiKey.CREATE_DELEGATION_TOKEN,
    ApiKey.DESCRIBE_DELEGATION_TOKEN,
}
"""Their responses depend on rights, but no client is rejected."""
OF_TWO_KINDS = {ApiKey.ADD_PARTITIONS_TO_TXN}
"""Clients and brokers send it, with different rights; see ``test_transactions``."""


def error_codes(part: Any) -> Iterator[int]:
    """All errors anywhere in a response."""
    if isinstance(part, list):
        for item in part:
            yield from error_codes(item)
    elif isinstance(part, Struct):
        for name in part.__slots__:
            value = getattr(part, name)
            if name.endswith("error_code"):
                yield value
            else:
                yield from error_codes(value)


@pytest.fixture
async def at(tmp_path: Path, autojump_clock: MockClock) -> AsyncIterator[SecuredBroker]:
    async with secured(tmp_path, autojump_clock, *SETTINGS) as made:
        yield made


async def caller(at: SecuredBroker, host: str) -> SimulatedClient:
    return SimulatedClient(await at.dial("PLAINTEXT", host))


async def topic_id(admin: SimulatedClient) -> bytes:
    """The topic's id; it is made if it is not there."""
    made = CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1)
    await admin.ask(CreateTopicsRequest(topics=[made]), 7)
    asked = m.MetadataRequest(topics=[m.MetadataRequestTopic(name=TOPIC)])
    found: bytes = (await admin.ask(asked, 10)).topics[0].topic_id
    return found


@pytest.mark.parametrize("key", ROWS, ids=lambda key: key.name)
async def test_api_requires_its_permissions(
    at: SecuredBroker, key: ApiKey, autojump_clock: MockClock
) -> None:
    row, api = ROWS[key], APIS[key]
    admin, nobody = await caller(at, ADMIN), await caller(at, NOBODY)
    versions = range(api.served_from or api.versions[0], api.versions[1] + 1)
    for version in versions:
        refused = await nobody.ask(row.make(version, await topic_id(admin)), version)
        if (key, version) not in DENIED_WITHOUT_ERROR:
            assert set(error_codes(refused)) - {0} == {row.error}, version
        granted = [rule(*right) for right in row.rights]
        response = await admin.ask(ca.CreateAclsRequest(creations=granted), 3)
        assert set(error_codes(response)) == {0}
        served = await nobody.ask(row.make(version, await topic_id(admin)), version)
        assert not DENIALS & set(error_codes(served)), version
        everything = da.DeleteAclsFilter(resource_type_filter=1, **ANY_RULE)
        gone = await admin.ask(da.DeleteAclsRequest(filters=[everything]), 3)
        assert len(gone.filter_results[0].matching_acls) >= len(granted)


@pytest.mark.parametrize("key", [ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH, ApiKey.OFFSET_DELETE])
async def test_group_permission_without_topic_permission_is_rejected(
    at: SecuredBroker, key: ApiKey, autojump_clock: MockClock
) -> None:
    row, api = ROWS[key], APIS[key]
    admin, nobody = await caller(at, ADMIN), await caller(at, NOBODY)
    if key == ApiKey.OFFSET_DELETE:  # of a group that is there
        await admin.ask(offset_commit(9, await topic_id(admin)), 9)
    await admin.ask(ca.CreateAclsRequest(creations=[rule(*row.rights[0])]), 3)
    for version in range(api.versions[0], api.versions[1] + 1):
        answer = await nobody.ask(row.make(version, await topic_id(admin)), version)
        assert set(error_codes(answer)) - {0} == {NO_TOPIC}, version


async def test_offset_for_leader_epoch_with_cluster_action_needs_no_topic_acl(
    at: SecuredBroker, autojump_clock: MockClock
) -> None:
    admin, follower = await caller(at, ADMIN), await caller(at, NOBODY)
    made = await topic_id(admin)
    granted = [rule(*right) for right in cluster(Operation.CLUSTER_ACTION)]
    await admin.ask(ca.CreateAclsRequest(creations=granted), 3)
    row = ROWS[ApiKey.OFFSET_FOR_LEADER_EPOCH]
    assert set(error_codes(await follower.ask(row.make(4, made), 4))) == {0}


def test_every_api_has_an_authorization_check() -> None:
    open_ones = {api.key for api in APIS.values() if api.requires == ()}
    assert {api.key for api in APIS.values() if api.requires is SPECIAL} == set(SPECIAL_CHECKS)
    assert {ApiKey(key) for key in APIS} == set(ROWS) | open_ones | SHOWN_IN_PART | OF_TWO_KINDS
    assert open_ones == {
        ApiKey.API_VERSIONS,
        ApiKey.SASL_HANDSHAKE,
        ApiKey.SASL_AUTHENTICATE,
        ApiKey.RENEW_DELEGATION_TOKEN,  # only its owner and renewers may
        ApiKey.EXPIRE_DELEGATION_TOKEN,
        ApiKey.GET_TELEMETRY_SUBSCRIPTIONS,
        ApiKey.PUSH_TELEMETRY,
    }


@pytest.mark.parametrize("key", APIS, ids=lambda key: ApiKey(key).name)
def test_requests_of_every_version_name_what_their_api_requires(key: int) -> None:
    api, request = APIS[key], schema(key).request
    if isinstance(api.requires, Special):
        return
    for version in range(api.served_from or api.versions[0], api.versions[1] + 1):
        for required in api.requires:
            place_of(request, version, required.on)


async def test_unauthorized_produce_with_acks_0_closes_connection(
    at: SecuredBroker, autojump_clock: MockClock
) -> None:
    admin, nobody = await caller(at, ADMIN), await caller(at, NOBODY)
    request = produce(9, await topic_id(admin))
    request.acks = 0
    await nobody.send_request(request, 9)
    with pytest.raises(StreamClosed):
        await nobody.receive_frame()
