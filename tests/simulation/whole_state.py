"""The whole state of a broker as clients see it, to compare two moments.

Owns which requests show the state. It must never know how a broker stores it. Invariant: two equal
states give equal values, whatever the order in which the broker lists things.
"""

from __future__ import annotations

from typing import Any

from minibroker_protocol.messages.describe_acls import DescribeAclsRequest
from minibroker_protocol.messages.describe_client_quotas import DescribeClientQuotasRequest
from minibroker_protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from minibroker_protocol.messages.describe_groups import DescribeGroupsRequest
from minibroker_protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from minibroker_protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from minibroker_protocol.messages.describe_transactions import DescribeTransactionsRequest
from minibroker_protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
)
from minibroker_protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from minibroker_protocol.messages.list_groups import ListGroupsRequest
from minibroker_protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from minibroker_protocol.messages.list_transactions import ListTransactionsRequest
from minibroker_protocol.messages.metadata import MetadataRequest
from minibroker_protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from minibroker_protocol.schema import Message, Struct
from tests.simulation.client import SimulatedClient

State = dict[str, Any]
TOPIC, BROKER = 2, 4
"""Resource types of DescribeConfigs."""
ANY = 1
"""Matches any resource type, pattern type, operation and permission."""
EARLIEST, LATEST, MAX_TIMESTAMP = -2, -1, -3


def plain(value: object) -> Any:
    """A value without order, which can be compared and printed."""
    if isinstance(value, Struct):
        fields = zip(type(value).__slots__, type(value).__values__(value), strict=False)
        return {name: plain(each) for name, each in fields}
    if isinstance(value, list):
        return sorted(map(plain, value), key=repr)
    return bytes(value) if isinstance(value, memoryview) else value


async def whole_state(client: SimulatedClient) -> State:
    """Ask for everything."""
    state: State = {}

    async def look(what: str, request: Message, version: int) -> Any:
        answer = await client.ask(request, version)
        state[what] = plain(answer)
        return answer

    metadata = await look("metadata", MetadataRequest(topics=None), 12)
    topics = {topic.name: len(topic.partitions) for topic in metadata.topics}
    await look("quotas", DescribeClientQuotasRequest(components=[], strict=False), 1)
    await look("users", DescribeUserScramCredentialsRequest(users=None), 0)
    await look("acls", _all_acls(), 3)
    resources = [(TOPIC, name) for name in topics] + [(BROKER, "0"), (BROKER, "")]
    await look("configs", _configs(resources), 4)
    for timestamp in (EARLIEST, LATEST, MAX_TIMESTAMP, 5):
        for isolation in (0, 1):
            request = _list_offsets(topics, timestamp, isolation)
            await look(f"offsets {timestamp} {isolation}", request, 7)
    await _sizes(client, state)
    producers = [TopicRequest(name=n, partition_indexes=list(range(c))) for n, c in topics.items()]
    await look("producers", DescribeProducersRequest(topics=producers), 0)
    listed = await look("transactions", ListTransactionsRequest(), 0)
    ids = sorted(each.transactional_id for each in listed.transaction_states)
    await look("transactional ids", DescribeTransactionsRequest(transactional_ids=ids), 0)
    await _groups(client, state)
    for name, count in topics.items():
        for index in range(count):
            for isolation in (0, 1):
                what = f"records {name}-{index} {isolation}"
                state[what] = await _records(client, state, name, index, isolation)
    return state


async def _sizes(client: SimulatedClient, state: State) -> None:
    """Sizes of logs, except for those whose deleted segments may still be there."""
    (directory,) = (await client.ask(DescribeLogDirsRequest(topics=None), 3)).results
    state["sizes"] = {
        (topic.name, each.partition_index): each.partition_size
        for topic in directory.topics
        for each in topic.partitions
        if not _earliest(state, topic.name, each.partition_index)
    }


async def _groups(client: SimulatedClient, state: State) -> None:
    """Groups with members or offsets: those without are not stored, so a coordinator forgets them
    when it loads its groups.
    """
    listed = (await client.ask(ListGroupsRequest(), 4)).groups
    names = sorted(group.group_id for group in listed)
    wanted = [OffsetFetchRequestGroup(group_id=name, topics=None) for name in names]
    request = OffsetFetchRequest(groups=wanted, require_stable=False)
    committed = {each.group_id: each for each in (await client.ask(request, 8)).groups}
    described = (await client.ask(DescribeGroupsRequest(groups=names), 5)).groups
    for found in described:
        if found.members or committed[found.group_id].topics:
            both = [found, committed[found.group_id]]
            (overview,) = [group for group in listed if group.group_id == found.group_id]
            state[f"group {found.group_id}"] = plain([overview, *both])


async def _records(
    client: SimulatedClient, state: State, name: str, index: int, isolation: int
) -> Any:
    """All records of a partition, and what else responses say about it."""
    found = []
    at = _earliest(state, name, index)
    while True:
        partition = FetchPartition(partition=index, fetch_offset=at, partition_max_bytes=1 << 24)
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1 << 24,
            isolation_level=isolation,
            topics=[FetchTopic(topic=name, partitions=[partition])],
            session_epoch=-1,
        )
        ((data,),) = [each.partitions for each in (await client.ask(request, 12)).responses]
        found.append(plain(data))
        if not data.records:
            return found
        at = _next_offset(bytes(data.records))


def _next_offset(records: bytes) -> int:
    at, position = 0, 0
    while position < len(records):
        size = int.from_bytes(records[position + 8 : position + 12], "big") + 12
        base = int.from_bytes(records[position : position + 8], "big")
        at = base + int.from_bytes(records[position + 23 : position + 27], "big") + 1
        position += size
    return at


def _earliest(state: State, name: str, index: int) -> int:
    (topic,) = [each for each in state[f"offsets {EARLIEST} 0"]["topics"] if each["name"] == name]
    (found,) = [each for each in topic["partitions"] if each["partition_index"] == index]
    return int(found["offset"])


def _all_acls() -> DescribeAclsRequest:
    return DescribeAclsRequest(
        resource_type_filter=ANY,
        resource_name_filter=None,
        pattern_type_filter=ANY,
        principal_filter=None,
        host_filter=None,
        operation=ANY,
        permission_type=ANY,
    )


def _configs(resources: list[tuple[int, str]]) -> DescribeConfigsRequest:
    return DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
            for kind, name in resources
        ],
        include_synonyms=True,
        include_documentation=False,
    )


def _list_offsets(topics: dict[str, int], timestamp: int, isolation: int) -> ListOffsetsRequest:
    return ListOffsetsRequest(
        isolation_level=isolation,
        topics=[
            ListOffsetsTopic(
                name=name,
                partitions=[
                    ListOffsetsPartition(partition_index=index, timestamp=timestamp)
                    for index in range(count)
                ],
            )
            for name, count in topics.items()
        ],
    )
