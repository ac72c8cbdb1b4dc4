"""Records: allowed topics are served beside denied ones."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.broker.apis.base import CloseConnection
from minibroker.broker.metadata.topics import NewTopic
from minibroker.broker.security.acl import Operation, Permission, Resource
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ReplicaState,
)
from minibroker_protocol.messages.init_producer_id import InitProducerIdRequest
from minibroker_protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tests.broker.apis.authorization.callers import ALICE, SETTINGS, ask_as, grant
from tests.broker.apis.conftest import ApisMaker

REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


@pytest.fixture
async def apis(make_apis: ApisMaker) -> Any:
    made = await make_apis(*SETTINGS)
    outcome = await made.cluster.create_topics([NewTopic("hidden")])
    await made.controller.publish(outcome.updates)
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


async def produced(apis: Any, request: ProduceRequest) -> dict[str, int]:
    response = await ask_as(apis, ALICE, request, 9)
    return {one.name: one.partition_responses[0].error_code for one in response.responses}


async def test_produce_is_authorized_for_each_topic(apis: Any) -> None:
    assert await produced(apis, produce("hidden", "absent", "nowhere")) == {
        "hidden": REFUSED,
        "absent": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "nowhere": REFUSED,
    }
    assert apis.asked == {}


async def test_transactional_id_is_authorized_before_topics(apis: Any) -> None:
    no_id = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert await produced(apis, produce("absent", transactional_id="tx")) == {"absent": no_id}
    response = await ask_as(apis, ALICE, InitProducerIdRequest(transactional_id="tx"), 4)
    assert (response.error_code, response.producer_id) == (no_id, -1)


async def test_unauthorized_produce_with_acks_0_closes_connection(apis: Any) -> None:
    with pytest.raises(CloseConnection, match="were denied"):
        await ask_as(apis, ALICE, produce("hidden", acks=0), 9)


@pytest.mark.parametrize("version", [14, 15])
async def test_follower_fetch_requires_cluster_action(apis: Any, version: int) -> None:
    topic_id = apis.cluster.image.topics["hidden"].topic_id
    asked = FetchTopic(topic="hidden", topic_id=topic_id, partitions=[FetchPartition()])
    request = FetchRequest(topics=[asked], max_wait_ms=30_000)
    if version < 15:
        request.replica_id = 2
    else:
        request.replica_state = ReplicaState(replica_id=2)
    await grant(apis, Resource.TOPIC, "hidden", Operation.READ)
    response = await ask_as(apis, ALICE, request, version)
    [found] = response.responses
    assert found.partitions[0].error_code == REFUSED


async def test_init_producer_id_requires_write_to_any_topic(apis: Any) -> None:
    request = InitProducerIdRequest(transactional_id=None)
    assert apis.workers == {}
    apis.principal = ALICE
    ctx = apis.context(22, 4)
    assert ctx.allows_any(Operation.WRITE, Resource.TOPIC)
    await grant(apis, Resource.TOPIC, "*", Operation.WRITE, permission=Permission.DENY)
    response = await ask_as(apis, ALICE, request, 4)
    assert response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
