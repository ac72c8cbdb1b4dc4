"""Streams groups (KIP-1071): heartbeats, topologies, internal topics, fences and descriptions.

Kafka creates internal topics after it has answered, so they are waited for.
Assignments are not delayed, except where a config of the group says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, Final

from minibroker_protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from minibroker_protocol.messages.delete_groups import DeleteGroupsRequest
from minibroker_protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from minibroker_protocol.messages.describe_groups import DescribeGroupsRequest
from minibroker_protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from minibroker_protocol.messages.list_groups import ListGroupsRequest
from minibroker_protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from minibroker_protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from minibroker_protocol.messages.streams_group_describe import (
    StreamsGroupDescribeRequest,
    TopologyDescription,
    TopologyDescriptionGlobalStore,
    TopologyDescriptionNode,
    TopologyDescriptionSubtopology,
)
from minibroker_protocol.messages.streams_group_heartbeat import (
    CopartitionGroup,
    Endpoint,
    KeyValue,
    StreamsGroupHeartbeatRequest,
    Subtopology,
    TaskIds,
    TaskOffset,
    TopicInfo,
    Topology,
)
from minibroker_protocol.messages.streams_group_topology_description_update import (
    StreamsGroupTopologyDescriptionUpdateRequest,
)
from system_tests.peers import consumer_groups, share_groups
from system_tests.peers.conversation import SendRequest
from system_tests.peers.groups import commit, join
from system_tests.peers.topics import create, topic

MISSING_INTERNAL_TOPICS: Final = 3

SETTINGS: Final = {
    "group.streams.initial.rebalance.delay.ms": "0",
    "group.streams.assignment.interval.ms": "0",
}

WITH_DESCRIPTIONS: Final = {"group.streams.topology.description.plugin.class": "TopologyPlugin"}
"""The class is in `java/src`."""


def subtopology(name: str, *sources: str, **parts: Any) -> Subtopology:
    empty: dict[str, Any] = {
        "source_topic_regex": [],
        "state_changelog_topics": [],
        "repartition_sink_topics": [],
        "repartition_source_topics": [],
        "copartition_groups": [],
    }
    return Subtopology(subtopology_id=name, source_topics=list(sources), **{**empty, **parts})


def internal(name: str, partitions: int = 0, replicas: int = 0, **config: str) -> TopicInfo:
    configs = [KeyValue(key=key.replace("_", "."), value=text) for key, text in config.items()]
    return TopicInfo(
        name=name, partitions=partitions, replication_factor=replicas, topic_configs=configs
    )


def word_count(prefix: str, source: str, epoch: int = 0) -> Topology:
    """Two subtopologies with a repartition topic between them, and a state in the second."""
    between, state = internal_topics(prefix)
    writes = subtopology("0", source, repartition_sink_topics=[between])
    counts = subtopology(
        "1",
        repartition_source_topics=[internal(between, cleanup_policy="delete")],
        state_changelog_topics=[internal(state, cleanup_policy="compact")],
    )
    return Topology(epoch=epoch, subtopologies=[writes, counts])


def internal_topics(prefix: str) -> tuple[str, str]:
    """The names of the topics that ``word_count`` needs besides its source."""
    return f"{prefix}-r-repartition", f"{prefix}-c-changelog"


def beat(group: str, member: str, epoch: int, **fields: Any) -> StreamsGroupHeartbeatRequest:
    return StreamsGroupHeartbeatRequest(
        group_id=group, member_id=member, member_epoch=epoch, **fields
    )


def first(group: str, member: str, topology: Topology, **fields: Any) -> Any:
    joining: dict[str, Any] = {
        "rebalance_timeout_ms": 60_000,
        "topology": topology,
        "active_tasks": [],
        "standby_tasks": [],
        "warmup_tasks": [],
        "process_id": f"p-{member}",
        "client_tags": [],
    }
    return beat(group, member, 0, **{**joining, **fields})


def has_topics(response: Any) -> bool:
    """Whether the coordinator knows all internal topics of the group."""
    return all(each.status_code != MISSING_INTERNAL_TOPICS for each in response.status)


def owned(active: list[TaskIds], standby: list[TaskIds] | None = None) -> dict[str, list[TaskIds]]:
    return {"active_tasks": active, "standby_tasks": standby or [], "warmup_tasks": []}


def tasks(name: str, *partitions: int) -> TaskIds:
    return TaskIds(subtopology_id=name, partitions=list(partitions))


def describe(*groups: str) -> StreamsGroupDescribeRequest:
    return StreamsGroupDescribeRequest(group_ids=list(groups))


def configure(group: str, **configs: str) -> IncrementalAlterConfigsRequest:
    changes = [
        AlterableConfig(name=key.replace("_", "."), value=text) for key, text in configs.items()
    ]
    resource = AlterConfigsResource(resource_type=32, resource_name=group, configs=changes)
    return IncrementalAlterConfigsRequest(resources=[resource])


def life_of_a_streams_group(ask: SendRequest) -> None:
    """The topics of a topology are missing and made; two members share its tasks and leave."""
    group, topology = "st-1", word_count("st-1", "st-in")
    ask("without source", first(group, "a", topology), 1)
    ask("described without source", describe(group), 1)
    ask("not ready", beat(group, "a", 2), 1)
    ask("made", create(topic("st-in", 3)), 7)
    ask("without internal topics", beat(group, "a", 2), 1)
    epoch = ask.until(has_topics, "ready", beat(group, "a", 3), 1).member_epoch
    _internal_topics(ask, group)
    for number in range(-4, epoch + 3):
        if number not in (-1, 0):
            ask(f"epoch {number}", beat(group, "a", number), 1)
            ask(f"epoch {number} of version 0", beat(group, "a", number), 0)
    ask("other member", beat(group, "x", epoch), 1)
    everything = [tasks("0", 0, 1, 2), tasks("1", 0, 1, 2)]
    ask("owned", beat(group, "a", epoch, **owned(everything)), 1)
    ask("described alone", describe(group), 1)
    for number, wrong in enumerate((tasks("2", 0), tasks("0", 3), tasks("1", -1))):
        ask(f"wrong task {number}", beat(group, "a", epoch, **owned([wrong])), 1)
    _second_member(ask, group, topology, epoch)


def _internal_topics(ask: SendRequest, group: str) -> None:
    names = internal_topics(group)
    listed = [MetadataRequestTopic(name=name) for name in names]
    ask("internal topics", MetadataRequest(topics=listed), 12)
    for name in names:
        keys = ["cleanup.policy"]
        wanted = DescribeConfigsResource(
            resource_type=2, resource_name=name, configuration_keys=keys
        )
        ask(f"config of {name}", DescribeConfigsRequest(resources=[wanted]), 4)


def _second_member(ask: SendRequest, group: str, topology: Topology, epoch: int) -> None:
    second = ask("second joined", first(group, "b", topology), 1).member_epoch
    revoking = ask("revokes", beat(group, "a", epoch), 1)
    ask("described while revoking", describe(group), 1)
    ask("not revoked", beat(group, "a", epoch), 1)
    ask("second waits", beat(group, "b", second), 1)
    kept = owned(revoking.active_tasks)
    moved = ask("revoked", beat(group, "a", epoch, **kept), 1).member_epoch
    ask("answer lost", beat(group, "a", epoch, **kept), 1)
    more = owned([tasks("0", 0, 1, 2), tasks("1", 0, 1, 2)])
    ask("owns too much", beat(group, "a", epoch, **more), 1)
    ask("second gets them", beat(group, "b", second), 1)
    ask("described", describe(group, "st-none", ""), 0)
    ask("listed", ListGroupsRequest(types_filter=["streams"]), 5)
    ask("listed by state", ListGroupsRequest(states_filter=["Stable"]), 5)
    ask("in use", DeleteGroupsRequest(groups_names=[group]), 3)
    _other_kinds(ask, group)
    _offsets(ask, group, moved)
    ask("shuts down", beat(group, "a", moved, shutdown_application=True), 1)
    ask("second hears of it", beat(group, "b", moved), 1)
    ask("left", beat(group, "b", -1), 1)
    ask("left again", beat(group, "b", -1), 1)
    ask("gets all", beat(group, "a", moved), 1)
    ask("last left", beat(group, "a", -1), 1)
    ask("described empty", describe(group), 1)
    ask("joined the empty group", first(group, "c", topology), 1)
    ask("left it", beat(group, "c", -1), 1)
    ask("deleted", DeleteGroupsRequest(groups_names=[group]), 3)
    ask("described deleted", describe(group), 1)
    ask("beats of a deleted group", beat(group, "a", 5), 1)
    ask("leaves a deleted group", beat(group, "a", -1), 1)


def _other_kinds(ask: SendRequest, group: str) -> None:
    """Requests for groups of other types."""
    ask("classic description", DescribeGroupsRequest(groups=[group]), 6)
    ask("consumer description", ConsumerGroupDescribeRequest(group_ids=[group]), 1)
    ask("classic member", join(group), 9)
    ask("consumer", consumer_groups.first(group, "m"), 1)
    ask("consumer alive", consumer_groups.beat(group, "m", 1), 1)
    share = share_groups.beat("m", 0, group, subscribed_topic_names=["st-in"])
    ask("share consumer", share, 1)
    ask("consumer group", consumer_groups.first("st-other", "m"), 1)
    ask("streams in it", first("st-other", "a", word_count("x", "st-in")), 1)
    ask("streams alive in it", beat("st-other", "a", 1), 1)
    ask("described as streams", describe("st-other"), 1)
    ask("consumer left", consumer_groups.beat("st-other", "m", -1), 1)


def _offsets(ask: SendRequest, group: str, epoch: int) -> None:
    for member, number, version in product(("a", "x", ""), range(-1, epoch + 2), (8, 9)):
        options: dict[str, Any] = {"member_id": member, "generation_id_or_member_epoch": number}
        about = f"{member!r} in {number}, {version}"
        ask(f"committed by {about}", commit(group, "st-in", 3, **options), version)
    for reader, number in product((None, "a", "x"), (-1, epoch - 1, epoch, epoch + 1)):
        topics = [OffsetFetchRequestTopics(name="st-in", partition_indexes=[0])]
        wanted = OffsetFetchRequestGroup(
            group_id=group, member_id=reader, member_epoch=number, topics=topics
        )
        ask(f"fetched by {reader!r} in {number}", OffsetFetchRequest(groups=[wanted]), 9)


def malformed_streams(ask: SendRequest) -> None:
    """Each rule of validation, alone and with others."""
    valid: dict[str, Any] = {"group": "st-2", "member": "m"}
    for number, fields in enumerate(_malformed_fields()):
        given = {**valid, **fields}
        group, member, epoch = given.pop("group"), given.pop("member"), given.pop("epoch", 0)
        for version in (0, 1):
            ask(f"malformed {number}, {version}", beat(group, member, epoch, **given), version)


def _malformed_fields() -> Iterator[dict[str, Any]]:
    joins: dict[str, Any] = {
        "rebalance_timeout_ms": 1000,
        "topology": word_count("st-2", "none"),
        **owned([]),
        "process_id": "p",
        "client_tags": [],
    }
    for epoch in (-4, -3, -2, -1, 0, 1):
        for given in ({}, joins, {"instance_id": "i"}, owned([tasks("0", 0)])):
            yield {"epoch": epoch, **given}
        for blank in ("instance_id", "rack_id", "group", "member"):
            yield {"epoch": epoch, blank: ""}
            yield {"epoch": epoch, **joins, blank: " "}
    for missing in ("rebalance_timeout_ms", "topology", "active_tasks", "standby_tasks"):
        yield {name: value for name, value in joins.items() if name != missing}
    for role in owned([]):
        yield {**joins, role: [tasks("0", 0)]}
        yield {"epoch": 1, role: []}
    yield {**joins, "topology": word_count("st-2", "none", epoch=-1)}
    yield {**joins, "topology": None, "epoch": 3}
    for changed in _malformed_topologies():
        yield {**joins, "topology": Topology(epoch=0, subtopologies=changed)}


def _malformed_topologies() -> Iterator[list[Subtopology]]:
    yield [subtopology("0", "", "none")]
    yield [subtopology("0", "a/b")]
    yield [subtopology("0", "__consumer_offsets")]
    yield [subtopology("0", "none", state_changelog_topics=[internal("__transaction_state")])]
    yield [subtopology("0", "none", state_changelog_topics=[internal("c", 3)])]
    yield [subtopology("0", "none", source_topic_regex=["a.*"])]
    yield [subtopology("0", source_topic_regex=["a.*"])]
    yield [subtopology("0", "none"), subtopology("0", "none")]
    group = CopartitionGroup(source_topics=[1], source_topic_regex=[], repartition_source_topics=[])
    yield [subtopology("0", "none", copartition_groups=[group])]


def streams_topologies(ask: SendRequest) -> None:
    """Topologies that cannot work, or not with the topics that exist."""
    ask("made", create(topic("st-2a", 2), topic("st-2b", 2), topic("st-3", 3)), 7)
    joined = CopartitionGroup(
        source_topics=[0, 1], source_topic_regex=[], repartition_source_topics=[]
    )
    with_r = CopartitionGroup(
        source_topics=[0], source_topic_regex=[], repartition_source_topics=[0]
    )
    r, r5 = internal("r"), internal("r", 5)
    topologies: dict[str, list[Subtopology]] = {
        "nothing": [],
        "no sources": [subtopology("0")],
        "loop": [subtopology("0", repartition_source_topics=[r], repartition_sink_topics=["r"])],
        "never written": [subtopology("0", "st-3", repartition_source_topics=[r])],
        "negative": [subtopology("0", repartition_source_topics=[internal("r", -1)])],
        "twice": [subtopology("0", repartition_source_topics=[r5, r5])],
        "unequal": [subtopology("0", "st-2a", "st-3", copartition_groups=[joined])],
        "equal": [subtopology("0", "st-2a", "st-2b", copartition_groups=[joined])],
        "stated otherwise": [
            subtopology("0", "st-3", repartition_source_topics=[r5], copartition_groups=[with_r])
        ],
        "wrong internal topic": [
            subtopology("0", "st-3", state_changelog_topics=[internal("st-2a")])
        ],
        "not joined": [subtopology("0", "st-2a", "st-3")],
        "many missing": [subtopology("0", *(f"st-gone-{n}" for n in range(5)))],
        "several": [subtopology("0", "st-2a"), subtopology("1", "st-3")],
    }
    for name, parts in topologies.items():
        group = f"st-{name}"
        made = Topology(epoch=0, subtopologies=parts)
        ask(name, first(group, "a", made), 1)
        ask(f"{name}, described", describe(group), 1)
        ask(f"{name}, left", beat(group, "a", -1), 1)
    group, again = "st-several", topologies["several"]
    ask("later epoch", first(group, "a", Topology(epoch=1, subtopologies=again)), 1)
    ask("rejoined", first(group, "a", Topology(epoch=0, subtopologies=again[::-1])), 1)
    ask("other topology", first(group, "b", Topology(epoch=0, subtopologies=again[:1])), 1)


def static_streams_members(ask: SendRequest) -> None:
    """A static member leaves for a while and for ever, and is replaced and fenced."""
    group = "st-4"
    ask("made", create(topic("st-4", 2)), 7)
    topology = Topology(epoch=0, subtopologies=[subtopology("0", "st-4")])
    epoch = ask("joined", first(group, "a", topology, instance_id="s"), 1).member_epoch
    ask("unreleased", first(group, "b", topology, instance_id="s"), 1)
    ask("rejoined", first(group, "a", topology, instance_id="s"), 1)
    ask("fenced", beat(group, "b", epoch, instance_id="s"), 1)
    ask("unknown instance", beat(group, "b", epoch, instance_id="other"), 1)
    ask("without its instance", beat(group, "a", epoch), 1)
    ask("another's leave", beat(group, "b", -2, instance_id="s"), 1)
    ask("away", beat(group, "a", -2, instance_id="s"), 1)
    ask("described away", describe(group), 1)
    back = ask("back", first(group, "b", topology, instance_id="s"), 1)
    ask("former id", beat(group, "a", epoch, instance_id="s"), 1)
    ask("alive", beat(group, "b", back.member_epoch, instance_id="s"), 1)
    ask("left for ever", beat(group, "b", -1, instance_id="s"), 1)
    ask("described left", describe(group), 1)


def streams_standbys(ask: SendRequest) -> None:
    """Standby tasks, endpoints, offsets of tasks, tags, and assignments that are delayed."""
    group = "st-5"
    ask("made", create(topic("st-5", 2)), 7)
    configs = {"streams_num_standby_replicas": "1", "streams_rack_aware_assignment_tags": "zone"}
    ask("configured", configure(group, **configs), 1)
    topology = word_count(group, "st-5")
    endpoint = Endpoint(host="a.example", port=1234)
    ask("joined", first(group, "a", topology, user_endpoint=endpoint), 1)
    ready = ask.until(has_topics, "ready", beat(group, "a", 2), 1).member_epoch
    tags = [KeyValue(key="zone", value="z")]
    ask("second joined", first(group, "b", topology, client_tags=tags), 1)
    mine = ask("revokes", beat(group, "a", ready), 1)
    offsets = [TaskOffset(subtopology_id="1", partition=0, offset=7)]
    kept = owned(mine.active_tasks or [])
    epoch = ask("revoked", beat(group, "a", ready, task_offsets=offsets, **kept), 1).member_epoch
    ask("without tag in version 0", beat(group, "a", epoch), 0)
    ask("second gets tasks", beat(group, "b", epoch, task_end_offsets=offsets), 1)
    ask("same offset twice", beat(group, "a", epoch, task_offsets=offsets * 2), 1)
    for known in range(4):
        ask(
            f"endpoints since {known}", beat(group, "b", epoch, endpoint_information_epoch=known), 1
        )
    ask("described", describe(group), 1)
    ask("delayed", configure(group, streams_assignment_interval_ms="15000"), 1)
    ask("third joined", first(group, "c", topology), 1)
    ask("assigning", beat(group, "a", epoch), 1)
    ask("described assigning", describe(group), 0)
    for name, text in (
        ("streams_num_standby_replicas", "-1"),
        ("streams_num_standby_replicas", "9"),
        ("streams_assignment_interval_ms", "-1"),
        ("streams_session_timeout_ms", "1"),
        ("streams_heartbeat_interval_ms", "1"),
        ("streams_initial_rebalance_delay_ms", "-1"),
        ("streams_task_offset_interval_ms", "1"),
        ("streams_acceptable_recovery_lag", "-1"),
    ):
        ask(f"{name}={text}", configure(group, **{name: text}), 1)


def described_topologies(ask: SendRequest) -> None:
    """A member is asked once for the description of its topology, and sends it."""
    group = "st-6"
    ask("made", create(topic(group, 2)), 7)
    plain = Topology(epoch=3, subtopologies=[subtopology("0", group)])
    joined = ask("asked", first(group, "a", plain), 1)
    ask("not asked again", beat(group, "a", joined.member_epoch), 1)
    shown = StreamsGroupDescribeRequest(group_ids=[group], include_topology_description=True)
    ask("not stored", shown, 1)
    source = node("s", 1, source_topics=[group, group], successors=["p", "p"], stores=["x"])
    processor = node("p", 2, stores=["x", "x"], sink_topic="t")
    sink = node("k", 3, sink_topic="t", source_topics=["u"])
    valid = [source, processor, sink]
    for number, (nodes, store) in enumerate(
        (
            ([node("s", 0)], None),
            ([node("s", 4)], None),
            (valid, (processor, source)),
            (valid, (source, sink)),
        )
    ):
        ask(f"malformed {number}", description(group, "a", 3, nodes, store), 0)
    for name, (about, member, epoch) in {
        "other member": (group, "x", 3),
        "no member": (group, "", 3),
        "no group": ("", "a", 3),
        "other group": ("st-none", "a", 3),
        "former epoch": (group, "a", 2),
        "later epoch": (group, "a", 4),
    }.items():
        ask(name, description(about, member, epoch, valid), 0)
    ask("consumer group", consumer_groups.first("st-6c", "m"), 1)
    ask("of a consumer group", description("st-6c", "m", 3, valid), 0)
    ask("sent", description(group, "a", 3, valid, (source, processor)), 0)
    ask("stored", shown, 1)
    ask("not included", describe(group), 1)
    ask("sent again", description(group, "a", 3, [source]), 0)
    ask("stored again", shown, 1)
    ask("second joined", first(group, "b", plain), 1)
    ask("asked in version 0", first("st-6b", "a", plain), 0)
    ask("asked in version 1", first("st-6b", "b", plain), 1)


def node(name: str, kind: int, **fields: Any) -> TopologyDescriptionNode:
    return TopologyDescriptionNode(name=name, node_type=kind, **fields)


def description(
    group: str,
    member: str,
    epoch: int,
    nodes: list[TopologyDescriptionNode],
    store: tuple[TopologyDescriptionNode, TopologyDescriptionNode] | None = None,
) -> StreamsGroupTopologyDescriptionUpdateRequest:
    stores = [] if store is None else [store]
    return StreamsGroupTopologyDescriptionUpdateRequest(
        group_id=group,
        member_id=member,
        topology_epoch=epoch,
        topology_description=TopologyDescription(
            subtopologies=[TopologyDescriptionSubtopology(subtopology_id="0", nodes=nodes)],
            global_stores=[
                TopologyDescriptionGlobalStore(source=source, processor=processor)
                for source, processor in stores
            ],
        ),
    )


CONVERSATIONS: Final = (
    described_topologies,
    life_of_a_streams_group,
    malformed_streams,
    streams_topologies,
    static_streams_members,
    streams_standbys,
)
