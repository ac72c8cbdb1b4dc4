"""Kafka's assignor of streams groups and ours compute the same targets; topologies need the same.

Kafka's classes are called by `StreamsGroups.java`, one group a line. Groups have several members a
process, earlier tasks that fit the topology more or less, and offsets of tasks. Topologies have
missing and unequal topics, cycles, and parts that no client would send.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from random import Random
from typing import Any, Final, NamedTuple

import pytest

from minibroker.broker.groups.streams_assignor import MemberTasks, TargetTasks, Task, assign_tasks
from minibroker.broker.groups.streams_topology import (
    CopartitionGroup,
    InternalTopic,
    InvalidTopology,
    StreamsTopology,
    Subtopology,
    configure,
)
from minibroker_protocol.errors import ErrorCode
from system_tests.harness.jars import java_answers

pytestmark = [pytest.mark.minibroker, pytest.mark.java]

GROUPS: Final = 1_500
TOPOLOGIES: Final = 3_000


# Targets ------------------------------------------------------------------------------------------


class GeneratedGroup(NamedTuple):
    """What the assignor is given."""

    members: dict[str, MemberTasks]
    task_counts: dict[str, int]
    stateful: frozenset[str]
    standby_replicas: int


def generate_group(random: Random) -> GeneratedGroup:
    subtopologies = sorted(map(str, range(random.choice((1, 2, 3, 12)))))
    counts = {each: random.choice((1, 2, 3, 6, 17, 40)) for each in subtopologies}
    tasks = [(each, at) for each, count in counts.items() for at in range(count)]
    tasks += [("gone", 0), (subtopologies[0], 50)]
    unowned = random.sample(tasks, len(tasks))
    processes = [f"{random.getrandbits(64):x}" for _ in range(random.choice((1, 2, 3, 7, 20)))]
    members = {}
    for _ in range(random.choice((1, 2, 3, 5, 10, 30))):
        active = [unowned.pop() for _ in range(min(len(unowned), random.choice((0, 0, 1, 4, 20))))]
        standby = some_of(random, tasks, (0, 0, 1, 4, 20))
        offsets = {
            each: random.choice((0, 5, random.randrange(2**40)))
            for each in some_of(random, tasks, (0, 0, 0, 1, 4, 20))
        }
        member_id = f"{random.getrandbits(64):x}"
        members[member_id] = MemberTasks(random.choice(processes), active, standby, offsets)
    stateful = frozenset(each for each in subtopologies if random.random() < 0.7)
    return GeneratedGroup(members, counts, stateful, random.choice((0, 1, 1, 2, 4)))


def some_of(random: Random, tasks: list[Task], sizes: tuple[int, ...]) -> list[Task]:
    return random.sample(tasks, min(len(tasks), random.choice(sizes)))


def group_line(group: GeneratedGroup) -> str:
    members = [
        {
            "id": member_id,
            "process": each.process_id,
            "active": list(each.active),
            "standby": list(each.standby),
            "offsets": [(*task, offset) for task, offset in each.offsets.items()],
        }
        for member_id, each in group.members.items()
    ]
    return json.dumps(
        {
            "members": members,
            "tasks": group.task_counts,
            "stateful": sorted(group.stateful),
            "standby_replicas": group.standby_replicas,
        }
    )


def shown(target: TargetTasks) -> dict[str, dict[str, list[int]]]:
    roles: dict[str, dict[str, list[int]]] = {"active": {}, "standby": {}}
    for role, tasks in zip(roles.values(), target, strict=True):
        for subtopology, partition in sorted(tasks):
            role.setdefault(subtopology, []).append(partition)
    return roles


def test_targets_are_those_of_kafka() -> None:
    random = Random(1071)
    groups = [generate_group(random) for _ in range(GROUPS)]
    theirs = java_answers("StreamsGroups", map(group_line, groups))
    for number, (group, target) in enumerate(zip(groups, theirs, strict=True)):
        ours = {name: shown(each) for name, each in assign_tasks(*group).items()}
        assert ours == target, number


# Topologies ---------------------------------------------------------------------------------------


class GeneratedTopology(NamedTuple):
    """A topology, and the topics that exist."""

    topology: StreamsTopology
    counts: dict[str, int]


def generate_topology(random: Random) -> GeneratedTopology:
    """A topology that may work; one of three is then spoiled."""
    counts = {f"t{n}": random.choice((1, 2, 2, 2, 200)) for n in range(9)}
    repartitions = [f"app-r{n}-repartition" for n in range(random.choice((0, 1, 2, 4)))]
    size = random.choice((1, 2, 3, 12))
    owners = {each: random.randrange(size) for each in repartitions}
    subtopologies = []
    for number in range(size):
        own = [
            each
            for each in repartitions
            if owners.setdefault(each, random.randrange(size)) == number
        ]
        topics = random.sample(sorted(counts), random.choice((0, 1, 1, 1, 2, 3) if own else (1, 2)))
        sources = tuple(
            InternalTopic(each, random.choice((0, 0, 0, 2, 200)), random.choice((0, 3)), {"a": "b"})
            for each in own
        )
        changelogs = tuple(
            InternalTopic(f"app-s{number}-{n}-changelog", config={"cleanup.policy": "compact"})
            for n in range(random.choice((0, 1, 2, 4)))
        )
        sinks = tuple(each for each in repartitions if random.random() < 0.5)
        groups = tuple(
            CopartitionGroup(some_places(random, topics), (), some_places(random, sources))
            for _ in range(random.choice((0, 0, 1, 2)))
        )
        subtopologies.append(
            Subtopology(str(number), tuple(topics), (), sinks, sources, changelogs, groups)
        )
    for each in subtopologies:
        for topic in (*each.repartition_sources, *each.changelogs):
            if random.random() < 0.1:
                counts[topic.name] = topic.partitions or random.choice((1, 2, 200))
    if random.random() < 0.3:
        spoil(random, subtopologies, counts)
    subtopologies.sort(key=lambda each: each.subtopology_id)
    return GeneratedTopology(StreamsTopology(0, tuple(subtopologies)), counts)


def some_places(random: Random, topics: Any) -> tuple[int, ...]:
    return tuple(random.sample(range(len(topics)), random.randint(0, len(topics))))


def spoil(random: Random, subtopologies: list[Subtopology], counts: dict[str, int]) -> None:
    """Make a topology one that does not work, or that no client would send."""
    victim = asdict(subtopologies[0])
    kind = random.randrange(5)
    if kind == 0:
        for name in random.sample(sorted(counts), random.randint(1, len(counts))):
            del counts[name]
    elif kind == 1:
        groups = (CopartitionGroup((random.choice((-1, 50)),), (), ()),)
        subtopologies[0] = Subtopology(victim["subtopology_id"], ("t0",), copartition_groups=groups)
    elif kind == 2:
        subtopologies[0] = Subtopology(victim["subtopology_id"])
    elif kind == 3:
        topics = (InternalTopic("r", random.choice((-1, 2))),) * random.choice((1, 2))
        subtopologies[0] = Subtopology(victim["subtopology_id"], repartition_sources=topics)
    else:
        subtopologies[0] = Subtopology(victim["subtopology_id"], ("t0",), (), ("r",), (), ())


def topology_line(generated: GeneratedTopology) -> str:
    def listed(topics: tuple[InternalTopic, ...]) -> list[dict[str, Any]]:
        return [
            {
                "name": each.name,
                "partitions": each.partitions,
                "replicationFactor": each.replication_factor,
                "topicConfigs": [{"key": key, "value": text} for key, text in each.config.items()],
            }
            for each in topics
        ]

    subtopologies = [
        {
            "subtopologyId": each.subtopology_id,
            "sourceTopics": each.source_topics,
            "sourceTopicRegex": [],
            "stateChangelogTopics": listed(each.changelogs),
            "repartitionSinkTopics": each.repartition_sinks,
            "repartitionSourceTopics": listed(each.repartition_sources),
            "copartitionGroups": [
                {
                    "sourceTopics": group.source_topics,
                    "sourceTopicRegex": [],
                    "repartitionSourceTopics": group.repartition_sources,
                }
                for group in each.copartition_groups
            ],
        }
        for each in generated.topology.subtopologies
    ]
    request = {
        "groupId": "g",
        "memberId": "m",
        "memberEpoch": 0,
        "endpointInformationEpoch": 0,
        "instanceId": None,
        "rackId": None,
        "rebalanceTimeoutMs": 1,
        "topology": {"epoch": 0, "subtopologies": subtopologies},
        "activeTasks": None,
        "standbyTasks": None,
        "warmupTasks": None,
        "processId": "p",
        "userEndpoint": None,
        "clientTags": None,
        "taskOffsets": None,
        "taskEndOffsets": None,
        "shutdownApplication": False,
    }
    return json.dumps({"request": request, "topics": generated.counts})


def ours(generated: GeneratedTopology) -> dict[str, Any]:
    topology, counts = generated
    try:
        configured = configure(topology, counts)
    except InvalidTopology as invalid:
        is_hidden = invalid.error is ErrorCode.UNKNOWN_SERVER_ERROR
        return {"error": invalid.error} | ({} if is_hidden else {"text": invalid.text})
    result: dict[str, Any] = {"sources": topology.source_topics}
    if configured.problem is not None:
        result |= {"status": configured.problem.code, "detail": configured.problem.detail}
    result["missing"] = [each.name for each in configured.missing_topics]
    result["tasks"] = configured.task_counts
    result["internal"] = {
        topic.name: {
            "partitions": topic.partitions,
            "replication_factor": topic.replication_factor,
            "config": topic.config,
        }
        for each in configured.subtopologies.values()
        for topic in (*each.repartition_sources, *each.changelogs)
    }
    return {name: value for name, value in result.items() if value or name == "status"}


def test_topologies_need_what_kafka_says() -> None:
    random = Random(1071)
    generated = [generate_topology(random) for _ in range(TOPOLOGIES)]
    theirs = java_answers("StreamsGroups", map(topology_line, generated))
    for number, (each, answer) in enumerate(zip(generated, theirs, strict=True)):
        assert ours(each) == answer, number
    statuses = [answer.get("status", answer.get("error", "ready")) for answer in theirs]
    errors = (ErrorCode.STREAMS_INVALID_TOPOLOGY, ErrorCode.UNKNOWN_SERVER_ERROR)
    assert all(statuses.count(each) > 20 for each in (1, 2, 3, "ready", *errors)), statuses
