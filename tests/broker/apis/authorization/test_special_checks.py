"""Checks that depend on more than the names in a request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from trio.testing import MockClock

from minibroker.broker.apis.base import CloseConnection
from minibroker.broker.metadata.image import TRANSACTION_STATE_TOPIC
from minibroker.broker.metadata.topics import NewTopic
from minibroker.broker.security.acl import (
    CLUSTER_NAME,
    OPERATIONS_NOT_ASKED,
    Operation,
    Permission,
    Resource,
)
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from minibroker_protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from minibroker_protocol.messages.create_acls import CreateAclsRequest
from minibroker_protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from minibroker_protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from minibroker_protocol.messages.delete_groups import DeleteGroupsRequest
from minibroker_protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from minibroker_protocol.messages.describe_groups import DescribeGroupsRequest
from minibroker_protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from minibroker_protocol.messages.describe_transactions import DescribeTransactionsRequest
from minibroker_protocol.messages.end_txn import EndTxnRequest
from minibroker_protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ReplicaState,
)
from minibroker_protocol.messages.find_coordinator import FindCoordinatorRequest
from minibroker_protocol.messages.init_producer_id import InitProducerIdRequest
from minibroker_protocol.messages.join_group import JoinGroupRequest
from minibroker_protocol.messages.list_groups import ListGroupsRequest
from minibroker_protocol.messages.list_transactions import ListTransactionsRequest
from minibroker_protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from minibroker_protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from minibroker_protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from minibroker_protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tests.broker.apis import tokens
from tests.broker.apis.authorization.callers import ALICE, ROOT, SETTINGS, ask_as, grant
from tests.broker.apis.authorization.callers import SETTINGS as AUTHORIZED
from tests.broker.apis.authorization.test_table import ADMIN, NOBODY, caller, rule
from tests.broker.apis.authorization.test_table import SETTINGS as TABLE_SETTINGS
from tests.broker.apis.conftest import ApisMaker
from tests.broker.apis.transacting import WORKERS, TransactionWorker, begin
from tests.broker.network.secured import secured

REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.fixture
async def apis(make_apis: ApisMaker) -> Any:
    """Of four names there are two topics, and of each pair Alice may see one."""
    made = await make_apis(*SETTINGS)
    await made.create_topics([NewTopic("seen"), NewTopic("hidden")])
    await grant(made, Resource.TOPIC, "seen", Operation.DESCRIBE)
    await grant(made, Resource.TOPIC, "absent", Operation.DESCRIBE)
    return made


def asked(*names: str, create: bool = False, **fields: Any) -> MetadataRequest:
    topics = [MetadataRequestTopic(name=name) for name in names]
    return MetadataRequest(topics=topics, allow_auto_topic_creation=create, **fields)


async def names(apis: Any, request: MetadataRequest, version: int = 9) -> dict[Any, int]:
    response = await ask_as(apis, ALICE, request, version)
    return {topic.name: topic.error_code for topic in response.topics}


async def test_metadata_error_of_unauthorized_topic_does_not_reveal_existence(apis: Any) -> None:
    found = await names(apis, asked("seen", "hidden", "absent", "nowhere"))
    assert found == {"seen": 0, "hidden": REFUSED, "absent": UNKNOWN, "nowhere": REFUSED}


@pytest.mark.parametrize("version", [0, 1, 13])
async def test_metadata_of_all_topics_omits_unauthorized_topics(apis: Any, version: int) -> None:
    every = MetadataRequest(topics=[] if version == 0 else None)
    assert await names(apis, every, version) == {"seen": 0}
    assert await names(apis, asked("hidden"), min(version, 11)) == {"hidden": REFUSED}


async def test_metadata_by_id_does_not_reveal_name_of_unauthorized_topic(apis: Any) -> None:
    ids = {name: topic.topic_id for name, topic in apis.cluster.image.topics.items()}
    topics = [
        MetadataRequestTopic(name=None, topic_id=ids["seen"]),
        MetadataRequestTopic(name=None, topic_id=ids["hidden"]),
        MetadataRequestTopic(name=None, topic_id=b"x" * 16),
    ]
    response = await ask_as(apis, ALICE, MetadataRequest(topics=topics), 13)
    assert {(one.name, one.error_code) for one in response.topics} == {
        ("seen", 0),
        (None, REFUSED),
        (None, ErrorCode.UNKNOWN_TOPIC_ID),
    }


async def test_auto_topic_creation_requires_create_permission(apis: Any) -> None:
    assert await names(apis, asked("absent", create=True)) == {"absent": REFUSED}
    assert "absent" not in apis.cluster.image.topics
    await grant(apis, Resource.TOPIC, "absent", Operation.CREATE)
    assert await names(apis, asked("absent", create=True)) == {"absent": 0}


async def test_authorized_operations_are_those_of_the_principal(apis: Any) -> None:
    fields = {
        "include_topic_authorized_operations": True,
        "include_cluster_authorized_operations": True,
    }
    response = await ask_as(apis, ALICE, asked("seen", "absent", "hidden", **fields), 9)
    found = {topic.name: topic.topic_authorized_operations for topic in response.topics}
    may = 1 << Operation.DESCRIBE
    assert found == {"seen": may, "absent": may, "hidden": OPERATIONS_NOT_ASKED}
    assert response.cluster_authorized_operations == 0


@pytest.mark.parametrize("whole", [False, True])
async def test_create_topics_requires_create_on_topic_or_cluster(apis: Any, whole: bool) -> None:
    if whole:
        await grant(apis, Resource.CLUSTER, "kafka-cluster", Operation.CREATE)
    else:
        await grant(apis, Resource.TOPIC, "mine", Operation.CREATE)
    await grant(apis, Resource.TOPIC, "mine", Operation.DESCRIBE_CONFIGS)
    topics = [
        CreatableTopic(name=name, num_partitions=1, replication_factor=1)
        for name in ("mine", "theirs")
    ]
    response = await ask_as(apis, ALICE, CreateTopicsRequest(topics=topics), 7)
    results = {result.name: result for result in response.topics}
    assert results["mine"].error_code == 0
    assert results["mine"].configs
    theirs = results["theirs"]
    assert theirs.error_code == (0 if whole else REFUSED)
    if whole:
        assert theirs.topic_config_error_code == REFUSED
        assert (theirs.num_partitions, theirs.configs) == (-1, [])


async def test_duplicate_topics_are_rejected_before_authorization(apis: Any) -> None:
    made = [CreatableTopic(name="hidden", num_partitions=1, replication_factor=1)] * 2
    grown = [CreatePartitionsTopic(name="hidden", count=2)] * 2
    gone = [DeleteTopicState(name="hidden")] * 2
    for who in (ALICE, ROOT):
        created = await ask_as(apis, who, CreateTopicsRequest(topics=made), 7)
        enlarged = await ask_as(apis, who, CreatePartitionsRequest(topics=grown), 3)
        deleted = await ask_as(apis, who, DeleteTopicsRequest(topics=gone), 6)
        older = await ask_as(apis, who, DeleteTopicsRequest(topic_names=["hidden"] * 2), 5)
        answers = [created.topics, enlarged.results, deleted.responses, older.responses]
        found = [[(each.name, each.error_code) for each in one] for one in answers]
        assert found == [[("hidden", ErrorCode.INVALID_REQUEST)]] * 4


async def test_duplicate_unauthorized_topic_is_listed_once(apis: Any) -> None:
    response = await ask_as(apis, ALICE, asked("hidden", "hidden"), 9)
    assert [topic.name for topic in response.topics] == ["hidden"]


async def test_delete_of_unknown_topic_is_revealed_only_with_describe(apis: Any) -> None:
    topics = [DeleteTopicState(name=name) for name in ("seen", "hidden", "absent", "nowhere")]
    response = await ask_as(apis, ALICE, DeleteTopicsRequest(topics=topics), 6)
    found = {result.name: result.error_code for result in response.responses}
    assert found == {"seen": REFUSED, "hidden": REFUSED, "absent": UNKNOWN, "nowhere": REFUSED}


async def test_delete_on_cluster_allows_delete_of_every_topic(apis: Any) -> None:
    await grant(apis, Resource.CLUSTER, "kafka-cluster", Operation.DELETE)
    topics = [DeleteTopicState(name="hidden")]
    response = await ask_as(apis, ALICE, DeleteTopicsRequest(topics=topics), 6)
    assert [result.error_code for result in response.responses] == [0]


async def test_delete_by_name_and_id_at_once_is_rejected(apis: Any) -> None:
    hidden = apis.cluster.image.topics["hidden"]
    topics = [DeleteTopicState(name="hidden", topic_id=hidden.topic_id)]
    for who in (ALICE, ROOT):
        response = await ask_as(apis, who, DeleteTopicsRequest(topics=topics), 6)
        assert [one.error_code for one in response.responses] == [ErrorCode.INVALID_REQUEST]


async def test_delete_by_id_does_not_reveal_name_of_unauthorized_topic(apis: Any) -> None:
    ids = {name: topic.topic_id for name, topic in apis.cluster.image.topics.items()}
    topics = [DeleteTopicState(name=None, topic_id=ids[name]) for name in ("seen", "hidden")]
    response = await ask_as(apis, ALICE, DeleteTopicsRequest(topics=topics), 6)
    found = [(result.name, result.error_code) for result in response.responses]
    assert found == [("seen", REFUSED), (None, REFUSED)]
    response = await ask_as(apis, ROOT, DeleteTopicsRequest(topics=topics), 6)
    assert {result.error_code for result in response.responses} == {0}


async def pages(apis: Any, *names: str, at: str | None = None) -> dict[Any, int]:
    request = DescribeTopicPartitionsRequest(
        topics=[TopicRequest(name=name) for name in names],
        cursor=None if at is None else Cursor(topic_name=at, partition_index=0),
    )
    response = await ask_as(apis, ALICE, request, 0)
    return {topic.name: topic.error_code for topic in response.topics}


async def test_partitions_of_unauthorized_topics_are_not_described(apis: Any) -> None:
    found = await pages(apis, "seen", "hidden", "absent", "nowhere")
    assert found == {"seen": 0, "hidden": REFUSED, "absent": UNKNOWN, "nowhere": REFUSED}
    assert await pages(apis, "hidden") == {"hidden": REFUSED}


async def test_partitions_of_all_topics_omit_unauthorized_topics(apis: Any) -> None:
    assert await pages(apis) == {"seen": 0}
    assert await pages(apis, at="t") == {}


async def test_cursor_at_an_unauthorized_topic_continues_after_it(apis: Any) -> None:
    assert await pages(apis, "seen", "hidden", "absent", at="hidden") == {
        "seen": 0,
        "hidden": REFUSED,
    }


async def test_invalid_cursor_is_rejected_before_authorization(apis: Any) -> None:
    assert await pages(apis, "hidden", at="seen") == {"hidden": ErrorCode.INVALID_REQUEST}


async def test_partitions_show_the_operations_of_the_caller(apis: Any) -> None:
    request = DescribeTopicPartitionsRequest(topics=[TopicRequest(name="seen")])
    [topic] = (await ask_as(apis, ALICE, request, 0)).topics
    assert topic.topic_authorized_operations == 1 << Operation.DESCRIBE


# Records ------------------------------------------------------------------------------------------


@pytest.fixture
async def record_apis(make_apis: ApisMaker) -> Any:
    made = await make_apis(*SETTINGS)
    await made.create_topics([NewTopic("hidden")])
    await grant(made, Resource.TOPIC, "absent", Operation.ALL)
    return made


def produce(*names: str, acks: int = 1, transactional_id: str | None = None) -> ProduceRequest:
    return ProduceRequest(
        acks=acks,
        transactional_id=transactional_id,
        topic_data=[
            TopicProduceData(name=name, partition_data=[PartitionProduceData(records=None)])
            for name in names
        ],
    )


async def produced(record_apis: Any, request: ProduceRequest) -> dict[str, int]:
    response = await ask_as(record_apis, ALICE, request, 9)
    return {one.name: one.partition_responses[0].error_code for one in response.responses}


async def test_produce_is_authorized_for_each_topic(record_apis: Any) -> None:
    assert await produced(record_apis, produce("hidden", "absent", "nowhere")) == {
        "hidden": REFUSED,
        "absent": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "nowhere": REFUSED,
    }
    assert record_apis.asked == {}


async def test_transactional_id_is_authorized_before_topics(record_apis: Any) -> None:
    no_id = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert await produced(record_apis, produce("absent", transactional_id="tx")) == {
        "absent": no_id
    }
    response = await ask_as(record_apis, ALICE, InitProducerIdRequest(transactional_id="tx"), 4)
    assert (response.error_code, response.producer_id) == (no_id, -1)


async def test_unauthorized_produce_with_acks_0_closes_connection(record_apis: Any) -> None:
    with pytest.raises(CloseConnection, match="were denied"):
        await ask_as(record_apis, ALICE, produce("hidden", acks=0), 9)


@pytest.mark.parametrize("version", [14, 15])
async def test_follower_fetch_requires_cluster_action(record_apis: Any, version: int) -> None:
    topic_id = record_apis.cluster.image.topics["hidden"].topic_id
    asked = FetchTopic(topic="hidden", topic_id=topic_id, partitions=[FetchPartition()])
    request = FetchRequest(topics=[asked], max_wait_ms=30_000)
    if version < 15:
        request.replica_id = 2
    else:
        request.replica_state = ReplicaState(replica_id=2)
    await grant(record_apis, Resource.TOPIC, "hidden", Operation.READ)
    response = await ask_as(record_apis, ALICE, request, version)
    [found] = response.responses
    assert found.partitions[0].error_code == REFUSED


async def test_init_producer_id_requires_write_to_any_topic(record_apis: Any) -> None:
    request = InitProducerIdRequest(transactional_id=None)
    assert record_apis.workers == {}
    record_apis.principal = ALICE
    ctx = record_apis.context(22, 4)
    assert ctx.allows_any(Operation.WRITE, Resource.TOPIC)
    await grant(record_apis, Resource.TOPIC, "*", Operation.WRITE, permission=Permission.DENY)
    response = await ask_as(record_apis, ALICE, request, 4)
    assert response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


# Groups -------------------------------------------------------------------------------------------


REFUSED_GROUPS = ErrorCode.GROUP_AUTHORIZATION_FAILED
TOPICS = ("seen", "hidden")
GROUPS = ("mine", "theirs")


def commit(group: str) -> OffsetCommitRequest:
    each = OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    topics = [OffsetCommitRequestTopic(name=name, partitions=[each]) for name in TOPICS]
    return OffsetCommitRequest(group_id=group, topics=topics)


async def test_authorized_groups_are_returned_and_others_rejected(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with secured(tmp_path, autojump_clock, *TABLE_SETTINGS) as at:
        admin, alice = await caller(at, ADMIN), await caller(at, NOBODY)
        made = [
            CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in TOPICS
        ]
        await admin.ask(CreateTopicsRequest(topics=made), 7)
        for group in GROUPS:
            await admin.ask(commit(group), 9)
        rules = [
            rule(Operation.DESCRIBE, Resource.GROUP, "mine"),
            rule(Operation.DESCRIBE, Resource.TOPIC, "seen"),
        ]
        await admin.ask(CreateAclsRequest(creations=rules), 3)

        async def listed() -> set[str]:
            found = await alice.ask(ListGroupsRequest(), 4)
            return {group.group_id for group in found.groups}

        assert await listed() == {"mine"}
        described = await alice.ask(
            DescribeGroupsRequest(groups=[*GROUPS], include_authorized_operations=True), 5
        )
        found = {
            one.group_id: (one.error_code, one.authorized_operations) for one in described.groups
        }
        assert found == {
            "mine": (0, 1 << Operation.DESCRIBE),
            "theirs": (REFUSED_GROUPS, -0x80000000),
        }

        asked: list[Any] = [
            OffsetFetchRequestGroup(group_id=group, topics=None) for group in GROUPS
        ]
        fetched = await alice.ask(OffsetFetchRequest(groups=asked), 9)
        assert [(one.group_id, one.error_code) for one in fetched.groups] == [
            ("mine", 0),
            ("theirs", REFUSED_GROUPS),
        ]
        assert [topic.name for topic in fetched.groups[0].topics] == ["seen"]
        older = await alice.ask(OffsetFetchRequest(group_id="mine", topics=None), 7)
        assert [topic.name for topic in older.topics] == ["seen"]

        coordinators = await alice.ask(FindCoordinatorRequest(coordinator_keys=[*GROUPS]), 4)
        errors = {one.key: one.error_code for one in coordinators.coordinators}
        assert errors == {"mine": 0, "theirs": REFUSED_GROUPS}
        transactions = FindCoordinatorRequest(key="tx", key_type=1)
        answer = await alice.ask(transactions, 3)
        assert answer.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED

        deleted = await alice.ask(DeleteGroupsRequest(groups_names=[*GROUPS]), 2)
        assert {one.error_code for one in deleted.results} == {REFUSED_GROUPS}
        whole = [rule(Operation.DESCRIBE, Resource.CLUSTER, CLUSTER_NAME)]
        await admin.ask(CreateAclsRequest(creations=whole), 3)
        assert await listed() == set(GROUPS)


async def test_authorization_error_response_depends_on_version_and_key_type(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with secured(tmp_path, autojump_clock, *TABLE_SETTINGS) as at:
        alice = await caller(at, NOBODY)
        shared = await alice.ask(FindCoordinatorRequest(key="s", key_type=2), 3)
        assert shared.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        strange = await alice.ask(FindCoordinatorRequest(key="s", key_type=9), 3)
        assert strange.error_code == ErrorCode.INVALID_REQUEST
        for version, name in ((6, ""), (7, None)):
            joined = await alice.ask(JoinGroupRequest(group_id="theirs"), version)
            assert (joined.error_code, joined.protocol_name) == (REFUSED_GROUPS, name)


# Transactions -------------------------------------------------------------------------------------


NO_ID = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
NO_TOPIC = ErrorCode.TOPIC_AUTHORIZATION_FAILED
NO_GROUP = ErrorCode.GROUP_AUTHORIZATION_FAILED
NOT_ATTEMPTED = ErrorCode.OPERATION_NOT_ATTEMPTED


@pytest.fixture
async def mine_and_theirs(make_apis: Any, tmp_path: Path) -> Any:
    """APIs with an authorizer and the transactional ids ``mine`` and ``theirs`` of root."""
    made = await make_apis(*SETTINGS)
    topics = [NewTopic("mine", 1), NewTopic("theirs", 1), NewTopic(TRANSACTION_STATE_TOPIC)]
    await made.create_topics(topics)
    made.workers = {each: TransactionWorker(made, each, tmp_path) for each in range(WORKERS)}
    made.principal = ROOT
    for name in ("mine", "theirs"):
        await begin(made, name, {"mine": [0], "theirs": [0]})
    return made


def add(transactional_id: str, *topics: str) -> AddPartitionsToTxnRequest:
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_topics=[AddPartitionsToTxnTopic(name=name, partitions=[0]) for name in topics],
    )


def errors(response: Any) -> dict[str, int]:
    return {
        topic.name: topic.results_by_partition[0].partition_error_code
        for topic in response.results_by_topic_v3_and_below
    }


async def test_add_partitions_requires_write_on_id_and_every_topic(mine_and_theirs: Any) -> None:
    denied = await ask_as(mine_and_theirs, ALICE, add("mine", "mine", "theirs"), 3)
    assert errors(denied) == {"mine": NO_ID, "theirs": NO_ID}
    await grant(mine_and_theirs, Resource.TRANSACTIONAL_ID, "mine", Operation.WRITE)
    await grant(mine_and_theirs, Resource.TOPIC, "mine", Operation.WRITE)
    denied = await ask_as(mine_and_theirs, ALICE, add("mine", "mine", "theirs", "no"), 3)
    assert errors(denied) == {"mine": NOT_ATTEMPTED, "theirs": NO_TOPIC, "no": NO_TOPIC}
    attempted = await ask_as(mine_and_theirs, ALICE, add("mine", "mine"), 3)
    assert errors(attempted) == {"mine": ErrorCode.INVALID_PRODUCER_ID_MAPPING}


async def test_several_transactions_require_cluster_action(mine_and_theirs: Any) -> None:
    transaction = AddPartitionsToTxnTransaction(
        transactional_id="mine", topics=[AddPartitionsToTxnTopic(name="mine", partitions=[0])]
    )
    request = AddPartitionsToTxnRequest(transactions=[transaction])
    denied = await ask_as(mine_and_theirs, ALICE, request, 4)
    assert denied.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    await grant(mine_and_theirs, Resource.CLUSTER, CLUSTER_NAME, Operation.CLUSTER_ACTION)
    assert (await ask_as(mine_and_theirs, ALICE, request, 4)).error_code == ErrorCode.NONE


async def test_end_and_offsets_require_write_on_id_and_read_on_group(
    mine_and_theirs: Any,
) -> None:
    end = EndTxnRequest(transactional_id="mine", producer_id=1)
    offsets = AddOffsetsToTxnRequest(transactional_id="mine", producer_id=1, group_id="g")
    assert (await ask_as(mine_and_theirs, ALICE, end, 4)).error_code == NO_ID
    assert (await ask_as(mine_and_theirs, ALICE, offsets, 4)).error_code == NO_ID
    await grant(mine_and_theirs, Resource.TRANSACTIONAL_ID, "mine", Operation.WRITE)
    unknown = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert (await ask_as(mine_and_theirs, ALICE, end, 4)).error_code == unknown
    assert (await ask_as(mine_and_theirs, ALICE, offsets, 4)).error_code == NO_GROUP
    await grant(mine_and_theirs, Resource.GROUP, "g", Operation.READ)
    assert (await ask_as(mine_and_theirs, ALICE, offsets, 4)).error_code == unknown


async def test_only_ids_and_topics_with_describe_are_shown(mine_and_theirs: Any) -> None:
    await grant(mine_and_theirs, Resource.TRANSACTIONAL_ID, "mine", Operation.DESCRIBE)
    await grant(mine_and_theirs, Resource.TOPIC, "mine", Operation.DESCRIBE)
    request = DescribeTransactionsRequest(transactional_ids=["theirs", "mine"])
    found = (await ask_as(mine_and_theirs, ALICE, request, 0)).transaction_states
    assert [(each.transactional_id, each.error_code) for each in found] == [
        ("mine", ErrorCode.NONE),
        ("theirs", NO_ID),
    ]
    assert [topic.topic for topic in found[0].topics] == ["mine"]
    listed = await ask_as(mine_and_theirs, ALICE, ListTransactionsRequest(), 1)
    assert [each.transactional_id for each in listed.transaction_states] == ["mine"]


# Delegation tokens --------------------------------------------------------------------------------


BOB = tokens.BOB


@pytest.fixture
async def token_apis(make_apis: ApisMaker) -> Any:
    return await make_apis(*tokens.SETTINGS, *AUTHORIZED, tokens.KEY)


async def test_token_for_another_owner_needs_create_tokens(token_apis: Any) -> None:
    response = await tokens.create(token_apis, owner=BOB)
    assert response.error_code == ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    assert (response.principal_name, response.token_requester_principal_name) == ("bob", "alice")
    assert (await tokens.create(token_apis)).error_code == ErrorCode.NONE
    await grant(token_apis, Resource.USER, str(BOB), Operation.CREATE_TOKENS)
    assert (await tokens.create(token_apis, owner=BOB)).error_code == ErrorCode.NONE


async def seen(token_apis: Any, principal: Any) -> set[str]:
    return {token.token_id for token in (await tokens.describe(token_apis, principal)).tokens}


async def test_tokens_of_others_need_a_right(token_apis: Any) -> None:
    await grant(token_apis, Resource.USER, str(BOB), Operation.CREATE_TOKENS)
    own = (await tokens.create(token_apis, BOB)).token_id
    others = (await tokens.create(token_apis, owner=BOB)).token_id
    assert await seen(token_apis, ALICE) == {own}
    assert await seen(token_apis, BOB) == await seen(token_apis, ROOT) == {own, others}
    assert await seen(token_apis, tokens.EVE) == set()
    await grant(token_apis, Resource.DELEGATION_TOKEN, others, Operation.DESCRIBE)
    assert await seen(token_apis, ALICE) == {own, others}


async def test_describe_tokens_shows_all_tokens_of_an_owner(token_apis: Any) -> None:
    await grant(
        token_apis, Resource.USER, str(BOB), Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS
    )
    others = (await tokens.create(token_apis, owner=BOB)).token_id
    assert await seen(token_apis, ALICE) == {others}
