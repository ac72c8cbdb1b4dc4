"""Rights that transactions require, on transactional ids, topics, groups and the cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from minibroker.broker.metadata.placement import TRANSACTION_STATE_TOPIC
from minibroker.broker.metadata.topics import NewTopic
from minibroker.broker.security.acl import CLUSTER_NAME, Operation, Resource
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from minibroker_protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from minibroker_protocol.messages.describe_transactions import DescribeTransactionsRequest
from minibroker_protocol.messages.end_txn import EndTxnRequest
from minibroker_protocol.messages.list_transactions import ListTransactionsRequest
from tests.broker.apis.authorization.callers import ALICE, ROOT, SETTINGS, ask_as, grant
from tests.broker.apis.transacting import WORKERS, TransactionWorker, begin

NO_ID = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
NO_TOPIC = ErrorCode.TOPIC_AUTHORIZATION_FAILED
NO_GROUP = ErrorCode.GROUP_AUTHORIZATION_FAILED
NOT_ATTEMPTED = ErrorCode.OPERATION_NOT_ATTEMPTED


@pytest.fixture
async def apis(make_apis: Any, tmp_path: Path) -> Any:
    """APIs with an authorizer and the transactional ids ``mine`` and ``theirs`` of root."""
    made = await make_apis(*SETTINGS)
    topics = [NewTopic("mine", 1), NewTopic("theirs", 1), NewTopic(TRANSACTION_STATE_TOPIC)]
    outcome = await made.cluster.create_topics(topics)
    await made.controller.publish(outcome.updates)
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


async def test_add_partitions_requires_write_on_id_and_every_topic(apis: Any) -> None:
    denied = await ask_as(apis, ALICE, add("mine", "mine", "theirs"), 3)
    assert errors(denied) == {"mine": NO_ID, "theirs": NO_ID}
    await grant(apis, Resource.TRANSACTIONAL_ID, "mine", Operation.WRITE)
    await grant(apis, Resource.TOPIC, "mine", Operation.WRITE)
    denied = await ask_as(apis, ALICE, add("mine", "mine", "theirs", "no"), 3)
    assert errors(denied) == {"mine": NOT_ATTEMPTED, "theirs": NO_TOPIC, "no": NO_TOPIC}
    attempted = await ask_as(apis, ALICE, add("mine", "mine"), 3)
    assert errors(attempted) == {"mine": ErrorCode.INVALID_PRODUCER_ID_MAPPING}


async def test_several_transactions_require_cluster_action(apis: Any) -> None:
    transaction = AddPartitionsToTxnTransaction(
        transactional_id="mine", topics=[AddPartitionsToTxnTopic(name="mine", partitions=[0])]
    )
    request = AddPartitionsToTxnRequest(transactions=[transaction])
    denied = await ask_as(apis, ALICE, request, 4)
    assert denied.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    await grant(apis, Resource.CLUSTER, CLUSTER_NAME, Operation.CLUSTER_ACTION)
    assert (await ask_as(apis, ALICE, request, 4)).error_code == ErrorCode.NONE


async def test_end_and_offsets_require_write_on_id_and_read_on_group(apis: Any) -> None:
    end = EndTxnRequest(transactional_id="mine", producer_id=1)
    offsets = AddOffsetsToTxnRequest(transactional_id="mine", producer_id=1, group_id="g")
    assert (await ask_as(apis, ALICE, end, 4)).error_code == NO_ID
    assert (await ask_as(apis, ALICE, offsets, 4)).error_code == NO_ID
    await grant(apis, Resource.TRANSACTIONAL_ID, "mine", Operation.WRITE)
    unknown = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert (await ask_as(apis, ALICE, end, 4)).error_code == unknown
    assert (await ask_as(apis, ALICE, offsets, 4)).error_code == NO_GROUP
    await grant(apis, Resource.GROUP, "g", Operation.READ)
    assert (await ask_as(apis, ALICE, offsets, 4)).error_code == unknown


async def test_only_ids_and_topics_with_describe_are_shown(apis: Any) -> None:
    await grant(apis, Resource.TRANSACTIONAL_ID, "mine", Operation.DESCRIBE)
    await grant(apis, Resource.TOPIC, "mine", Operation.DESCRIBE)
    request = DescribeTransactionsRequest(transactional_ids=["theirs", "mine"])
    found = (await ask_as(apis, ALICE, request, 0)).transaction_states
    assert [(each.transactional_id, each.error_code) for each in found] == [
        ("mine", ErrorCode.NONE),
        ("theirs", NO_ID),
    ]
    assert [topic.topic for topic in found[0].topics] == ["mine"]
    listed = await ask_as(apis, ALICE, ListTransactionsRequest(), 1)
    assert [each.transactional_id for each in listed.transaction_states] == ["mine"]
