"""A client without rights learns no name and changes nothing, whatever it requests.

Well-formed random requests of every API and version, and damaged ones, are sent by a client without
any right. No response may contain a name that was not in its request, and afterwards the cluster is
unchanged.
"""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from random import Random

import pytest
import trio
from trio.testing import MockClock

from minibroker.broker.apis.registry import APIS
from minibroker.broker.security.acl import Operation, Resource
from minibroker.runtime.stream import StreamClosed
from minibroker_protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
)
from minibroker_protocol.messages.create_acls import CreateAclsRequest
from minibroker_protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from minibroker_protocol.messages.describe_acls import DescribeAclsRequest
from minibroker_protocol.messages.describe_client_quotas import DescribeClientQuotasRequest
from minibroker_protocol.messages.list_groups import ListGroupsRequest
from minibroker_protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from minibroker_protocol.messages.metadata import MetadataRequest
from minibroker_protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from minibroker_protocol.records import Record, build_batch
from minibroker_protocol.registry import schema
from tests.broker.apis.authorization.test_special_checks import commit
from tests.broker.apis.authorization.test_table import (
    ADMIN,
    ANY_RULE,
    CREDENTIAL,
    NOBODY,
    QUOTA,
    SETTINGS,
    caller,
    rule,
)
from tests.broker.network.secured import SecuredBroker, secured
from tests.fuzz.test_network import attacks
from tests.simulation.client import SimulatedClient
from tests.simulation.world import logged_errors

HIDDEN = "veiled-topic"
GROUP = "veiled-group"
SECRETS = (b"veiled", b"hidden-record")
CASES_PER_VERSION = 2


async def furnish(admin: SimulatedClient) -> None:
    """Something of every kind that is to be hidden."""
    made = CreatableTopic(name=HIDDEN, num_partitions=1, replication_factor=1)
    await admin.ask(CreateTopicsRequest(topics=[made]), 7)
    records = build_batch([Record(0, 0, None, b"hidden-record")])
    data = [TopicProduceData(name=HIDDEN, partition_data=[PartitionProduceData(records=records)])]
    await admin.ask(ProduceRequest(acks=1, topic_data=data), 9)
    offsets = commit(GROUP)
    offsets.topics = offsets.topics[:1]
    offsets.topics[0].name = HIDDEN
    await admin.ask(offsets, 9)
    hidden_rule = rule(Operation.READ, Resource.TOPIC, HIDDEN)
    hidden_rule.principal = "User:veiled"
    await admin.ask(CreateAclsRequest(creations=[hidden_rule]), 3)
    credential, quota = deepcopy(CREDENTIAL), deepcopy(QUOTA)
    credential.name = quota.entries[0].entity[0].entity_name = "veiled"
    await admin.ask(AlterUserScramCredentialsRequest(upsertions=[credential]), 0)
    await admin.ask(quota, 1)


async def state(admin: SimulatedClient) -> list[object]:
    """Return everything that the client could have changed."""
    end = ListOffsetsRequest(
        topics=[ListOffsetsTopic(name=HIDDEN, partitions=[ListOffsetsPartition(timestamp=-1)])]
    )
    return [
        {topic.name for topic in (await admin.ask(MetadataRequest(topics=None), 9)).topics},
        {group.group_id for group in (await admin.ask(ListGroupsRequest(), 4)).groups},
        (await admin.ask(DescribeAclsRequest(resource_type_filter=1, **ANY_RULE), 3)).resources,
        (await admin.ask(DescribeClientQuotasRequest(components=[]), 1)).entries,
        (await admin.ask(end, 5)).topics,
    ]


async def send(at: SecuredBroker, data: bytes) -> bytes:
    client = await caller(at, NOBODY)
    answer = b""
    with trio.move_on_after(5):
        try:
            await client.stream.send_all(data)
            client.end_sending()
        except StreamClosed:
            pass
        answer = await client.wait_closed()
    client.close()
    return answer


@pytest.mark.parametrize("seed", range(2))
async def test_unauthorized_requests_reveal_and_change_nothing(
    tmp_path: Path, autojump_clock: MockClock, seed: int
) -> None:
    random = Random(seed)
    with logged_errors() as errors:
        async with secured(tmp_path, autojump_clock, *SETTINGS) as at:
            admin = await caller(at, ADMIN)
            await furnish(admin)
            before = await state(admin)
            for key, api in sorted(APIS.items()):
                lowest = max(api.versions[0], schema(key).valid_versions.low)
                for version in range(lowest, api.versions[1] + 1):
                    for _ in range(CASES_PER_VERSION):
                        for data in attacks(key, version, random):
                            answer = await send(at, data)
                            leaked = [secret for secret in SECRETS if secret in answer]
                            assert not leaked, (api.key.name, version, data)
            assert await state(admin) == before
    assert errors == []
