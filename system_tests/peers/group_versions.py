"""Classic groups and their offsets, and the names of clients, in every version of the APIs."""

from __future__ import annotations

from typing import Final

from minibroker_protocol.messages.api_versions import ApiVersionsRequest
from minibroker_protocol.messages.delete_groups import DeleteGroupsRequest
from minibroker_protocol.messages.describe_cluster import DescribeClusterRequest
from minibroker_protocol.messages.describe_groups import DescribeGroupsRequest
from minibroker_protocol.messages.find_coordinator import FindCoordinatorRequest
from minibroker_protocol.messages.list_groups import ListGroupsRequest
from minibroker_protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from minibroker_protocol.registry import ApiKey
from system_tests.peers.conversation import DISCONNECTED, SendRequest
from system_tests.peers.groups import commit, heartbeat, join, leave, sync
from system_tests.peers.topics import create, topic
from system_tests.peers.versions import versions_of

MEMBER_ID_REQUIRED_SINCE: Final = 4
SEVERAL_GROUPS_SINCE: Final = 8
TOPIC_IDS_SINCE: Final = 10


def lives_of_groups(ask: SendRequest) -> None:
    """One member joins, synchronizes, commits and leaves, in each version of JoinGroup."""
    ask("made", create(topic("gv", 2)), 7)
    for version in versions_of(ApiKey.JOIN_GROUP):
        group = f"gv-{version}"
        others = min(version, 4)
        made = ask(f"joined, {version}", join(group), version)
        member = made.member_id
        if version >= MEMBER_ID_REQUIRED_SINCE:
            made = ask(f"joined with its id, {version}", join(group, member), version)
        generation = made.generation_id
        ask(f"early, {version}", heartbeat(group, member, generation), others)
        ask(f"synchronized, {version}", sync(group, member, generation), min(version, 5))
        ask(f"alive, {version}", heartbeat(group, member, generation), others)
        ask(f"old generation, {version}", heartbeat(group, member, generation - 1), others)
        options = {"member_id": member, "generation_id_or_member_epoch": generation}
        old = {**options, "generation_id_or_member_epoch": generation + 1}
        ask(f"committed, {version}", commit(group, "gv", 3, **options), max(2, version))
        ask(f"committed later, {version}", commit(group, "gv", 3, **old), max(2, version))
        ask(f"committed by none, {version}", commit(group, "gv", 3), max(2, version))
        described = DescribeGroupsRequest(groups=[group], include_authorized_operations=True)
        ask(f"described, {version}", described, min(version, 6))
        ask(f"in use, {version}", DeleteGroupsRequest(groups_names=[group]), min(version, 3))
        ask(f"left, {version}", leave(group, (member, None)), min(version, 5))
        ask(f"left again, {version}", leave(group, (member, None)), min(version, 5))
        ask(f"empty, {version}", DescribeGroupsRequest(groups=[group]), min(version, 6))
        _fetch(ask, group, version + 1)
        ask(f"deleted, {version}", DeleteGroupsRequest(groups_names=[group]), min(version, 3))
        ask(f"gone, {version}", DescribeGroupsRequest(groups=[group]), min(version, 6))


def _fetch(ask: SendRequest, group: str, version: int) -> None:
    """Fetch what was committed, of known and unknown partitions, by names of topics."""
    if version >= TOPIC_IDS_SINCE:
        version = TOPIC_IDS_SINCE - 1
    for index in (0, 1, 7):
        if version >= SEVERAL_GROUPS_SINCE:
            topics = [OffsetFetchRequestTopics(name="gv", partition_indexes=[index])]
            wanted = OffsetFetchRequestGroup(group_id=group, topics=topics)
            request = OffsetFetchRequest(groups=[wanted])
        else:
            older = [OffsetFetchRequestTopic(name="gv", partition_indexes=[index])]
            request = OffsetFetchRequest(group_id=group, topics=older)
        ask(f"offset of {index}, {group}", request, version)


def listed_in_every_version(ask: SendRequest) -> None:
    """Filters that find nothing, as other conversations have left groups behind."""
    for version in versions_of(ApiKey.LIST_GROUPS):
        for states in (["Dead"], ["no such state"], ["dead"]):
            if version >= 4:
                ask(f"{states}, {version}", ListGroupsRequest(states_filter=states), version)
    for version in range(4):
        response = ask(f"all, {version}", ListGroupsRequest(), version)
        ask.answers[f"all, {version}"] = response.error_code
    for types in (["share"], ["streams"], ["CONSUMER"], [""], ["consumer", "no such type"]):
        ask(f"{types}", ListGroupsRequest(types_filter=types), 5)


def coordinators(ask: SendRequest) -> None:
    for version in versions_of(ApiKey.FIND_COORDINATOR):
        for kind in (0, 1, 3, -1):
            for key in ("gv", "", "é" * 100):
                request = FindCoordinatorRequest(key=key, key_type=kind)
                if version >= 4:
                    request = FindCoordinatorRequest(coordinator_keys=[key, key], key_type=kind)
                if version or not kind:
                    ask(f"{key[:3]!r} of type {kind}, {version}", request, version)


def clients_and_clusters(ask: SendRequest) -> None:
    cluster_id = ask("cluster", DescribeClusterRequest(), 2).cluster_id
    for version in versions_of(ApiKey.API_VERSIONS):
        for name, software in (("peers", "1"), ("", "1"), ("p", ""), ("-p", "1"), ("p", "1 2")):
            request = ApiVersionsRequest(
                client_software_name=name, client_software_version=software
            )
            ask(f"{name!r} {software!r}, {version}", request, version)
    for label, cluster, node in (
        ("right", cluster_id, 1),
        ("another node", cluster_id, 2),
        ("no node", cluster_id, -1),
        ("negative node", cluster_id, -2),
        ("another cluster", "another", 1),
        ("cluster without a name", "", 1),
        ("no cluster", None, 1),
        ("neither", None, -1),
    ):
        request = ApiVersionsRequest(
            client_software_name="peers",
            client_software_version="1",
            cluster_id=cluster,
            node_id=node,
        )
        assert ask(label, request, 5) != DISCONNECTED
    for version in versions_of(ApiKey.DESCRIBE_CLUSTER):
        for kind in (1, 2, 0, -1):
            for rights in (False, True):
                described = DescribeClusterRequest(
                    endpoint_type=kind, include_cluster_authorized_operations=rights
                )
                ask(f"endpoints {kind}, rights {rights}, {version}", described, version)


CONVERSATIONS: Final = (
    lives_of_groups,
    listed_in_every_version,
    coordinators,
    clients_and_clusters,
)
