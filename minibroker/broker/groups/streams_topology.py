"""The topology of a streams application, and the topics that it needs.

Owns what follows from a topology and the topics that exist: the tasks of each subtopology, the
internal topics to create, and what keeps the application from starting. A subtopology has a task
for each partition of its largest source topic. Internal topics are *repartition topics*, which one
subtopology writes and another reads, and *changelogs*, which keep the state of a subtopology. The
number of partitions of a repartition topic is stated, or follows from the subtopologies that write
it; the topics of a copartition group must have equal numbers. It must never know a group's members
or create a topic. Invariant: a configured topology without a problem has all its topics, and the
result is the one that Kafka computes. Kafka's ``InternalTopicManager`` and ``StreamsTopology``
(4.4).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, NamedTuple

from minibroker.broker.groups.assignors import java_order
from minibroker_protocol.errors import ErrorCode

MISSING_SOURCE_TOPICS: Final = 1
INCORRECTLY_PARTITIONED_TOPICS: Final = 2
MISSING_INTERNAL_TOPICS: Final = 3

NAMES_SHOWN: Final = 3
"""Topics that a status names; of further ones it gives the number."""

TopicCounts = Mapping[str, int]
"""Numbers of partitions of topics by name."""


class InvalidTopology(ValueError):
    """No topics can make this topology work."""

    def __init__(self, text: str, error: ErrorCode = ErrorCode.STREAMS_INVALID_TOPOLOGY) -> None:
        super().__init__(text)
        self.text = text
        self.error = error


class StreamsStatus(NamedTuple):
    """What keeps a streams group, or one member, from working; the code is Kafka's."""

    code: int
    detail: str


class _Unready(Exception):
    """Topics are not as the topology needs them."""

    def __init__(self, code: int, detail: str) -> None:
        self.status = StreamsStatus(code, detail)


@dataclass(frozen=True, slots=True)
class InternalTopic:
    """A topic that the coordinator creates; 0 partitions are to be computed, 0 replicas default."""

    name: str
    partitions: int = 0
    replication_factor: int = 0
    config: Mapping[str, str] = field(default_factory=dict)


class CopartitionGroup(NamedTuple):
    """Topics of a subtopology with equal numbers of partitions, by their places in its lists."""

    source_topics: tuple[int, ...] = ()
    source_topic_regex: tuple[int, ...] = ()
    repartition_sources: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Subtopology:
    """A part of a topology that runs in one task for each partition."""

    subtopology_id: str
    source_topics: tuple[str, ...] = ()
    source_topic_regex: tuple[str, ...] = ()
    repartition_sinks: tuple[str, ...] = ()
    repartition_sources: tuple[InternalTopic, ...] = ()
    changelogs: tuple[InternalTopic, ...] = ()
    copartition_groups: tuple[CopartitionGroup, ...] = ()

    @property
    def all_sources(self) -> list[str]:
        """The topics whose partitions make the tasks."""
        return [*self.source_topics, *(each.name for each in self.repartition_sources)]

    @property
    def is_stateful(self) -> bool:
        """Whether its tasks have state, so that standby tasks make sense."""
        return bool(self.changelogs)


@dataclass(frozen=True)
class StreamsTopology:
    """A topology, with its subtopologies in the order of their ids."""

    epoch: int
    subtopologies: tuple[Subtopology, ...]

    @cached_property
    def source_topics(self) -> dict[str, str]:
        """The subtopology that reads a topic, by topic."""
        return {
            topic: each.subtopology_id for each in self.java_order for topic in each.all_sources
        }

    @cached_property
    def required_topics(self) -> tuple[str, ...]:
        """The topics that must exist, each once."""
        return tuple(
            dict.fromkeys(
                name
                for each in self.java_order
                for name in (*each.all_sources, *(topic.name for topic in each.changelogs))
            )
        )

    @cached_property
    def java_order(self) -> tuple[Subtopology, ...]:
        """The subtopologies as a map of Java returns them, on which some results depend."""
        by_id = {each.subtopology_id: each for each in self.subtopologies}
        return tuple(by_id[each] for each in java_order(by_id))


@dataclass(frozen=True)
class ConfiguredTopology:
    """A topology with the topics that exist. Without a problem its tasks may be assigned."""

    subtopologies: Mapping[str, Subtopology]
    """By id, in order; their internal topics have numbers of partitions. Empty if they have none
    because other topics are missing or wrong."""
    task_counts: Mapping[str, int]
    missing_topics: tuple[InternalTopic, ...] = ()
    """Internal topics that are to be created."""
    problem: StreamsStatus | None = None

    @property
    def stateful(self) -> frozenset[str]:
        """The subtopologies whose tasks have state."""
        return frozenset(key for key, each in self.subtopologies.items() if each.is_stateful)


def configure(topology: StreamsTopology, counts: TopicCounts) -> ConfiguredTopology:
    """Compare a topology with the topics that exist. Raises InvalidTopology."""
    _check_copartition_groups(topology)
    try:
        missing = sorted({n for s in topology.subtopologies for n in s.source_topics} - set(counts))
        if missing:
            detail = f"Source topics {_summary(missing)} are missing."
            raise _Unready(MISSING_SOURCE_TOPICS, detail)
        decided = _decided_counts(topology, counts)
        configured = {
            each.subtopology_id: _with_counts(each, decided) for each in topology.subtopologies
        }
        to_create = _missing_topics(topology, configured, counts)
    except _Unready as unready:
        return ConfiguredTopology({}, {}, problem=unready.status)
    sizes = {**decided, **counts}
    tasks = {key: max(sizes[name] for name in each.all_sources) for key, each in configured.items()}
    if not to_create:
        return ConfiguredTopology(configured, tasks)
    names = [each.name for each in to_create]
    problem = StreamsStatus(
        MISSING_INTERNAL_TOPICS, f"Internal topics are missing: {_summary(names)}"
    )
    return ConfiguredTopology(configured, tasks, to_create, problem)


def _check_copartition_groups(topology: StreamsTopology) -> None:
    """Check that the topics of the groups exist. Raises InvalidTopology."""
    for each in topology.subtopologies:
        for group in each.copartition_groups:
            for places, topics in (
                (group.source_topics, each.source_topics),
                (group.repartition_sources, each.repartition_sources),
            ):
                if any(not 0 <= place < len(topics) for place in places):
                    raise _misformed("A copartition group has a topic that does not exist.")


def _misformed(text: str) -> InvalidTopology:
    """What no client sends, and Kafka meets only as an internal error."""
    return InvalidTopology(text, ErrorCode.UNKNOWN_SERVER_ERROR)


# Numbers of partitions ----------------------------------------------------------------------------


def _decided_counts(topology: StreamsTopology, counts: TopicCounts) -> dict[str, int]:
    """The numbers of partitions of the internal topics. Raises InvalidTopology, _Unready."""
    decided = _repartition_counts(topology, counts)
    for each in topology.java_order:
        if any(topic.name not in decided for topic in each.repartition_sources):
            raise InvalidTopology(
                "Failed to compute number of partitions for all repartition topics, because a "
                "repartition source topic is never used as a sink topic."
            )
    sources = [topic for each in topology.java_order for topic in each.repartition_sources]
    fixed = {topic.name for topic in sources if topic.partitions}
    flexible = {topic.name for topic in sources if not topic.partitions}
    for each in topology.java_order:
        for group in each.copartition_groups:
            names = {each.source_topics[place] for place in group.source_topics}
            names |= {each.repartition_sources[place].name for place in group.repartition_sources}
            _copartition(names, fixed, flexible, counts, decided)
    for each in topology.java_order:
        sizes = [counts.get(name, decided.get(name, 0)) for name in each.all_sources]
        if not sizes:
            raise InvalidTopology(f"No source topics found for subtopology {each.subtopology_id}")
        decided.update((topic.name, max(sizes)) for topic in each.changelogs)
    return decided


def _repartition_counts(topology: StreamsTopology, counts: TopicCounts) -> dict[str, int]:
    """The stated numbers, and those that follow from the subtopologies that write a topic."""
    decided = {
        topic.name: topic.partitions
        for each in topology.java_order
        for topic in each.repartition_sources
        if topic.partitions
    }
    unknown = True
    while unknown:
        unknown = progress = False
        for each in topology.java_order:
            for sink in each.repartition_sinks:
                if sink in decided:
                    continue
                known = [
                    *(decided[t.name] for t in each.repartition_sources if t.name in decided),
                    *(counts[name] for name in each.source_topics),
                ]
                if known:
                    decided[sink] = max(known)
                    progress = True
                else:
                    unknown = True
        if unknown and not progress:
            raise InvalidTopology(
                "Failed to compute number of partitions for all repartition topics. There may be "
                "loops in the topology that cannot be resolved."
            )
    return decided


def _copartition(
    names: set[str],
    fixed: set[str],
    flexible: set[str],
    counts: TopicCounts,
    decided: dict[str, int],
) -> None:
    """Give the repartition topics of a copartition group equal numbers of partitions."""
    if not names:
        return
    sizes = {name: counts.get(name, decided.get(name, 0)) for name in java_order(sorted(names))}
    repartitions = {name: size for name, size in sizes.items() if name in fixed | flexible}
    others = {name: size for name, size in sizes.items() if name not in repartitions}
    if others:
        wanted = _equal_count(others, others)
    elif fixed:
        # As in Kafka, stated numbers outside the group are compared too.
        stated = {name: counts.get(name, decided[name]) for name in fixed}
        wanted = _equal_count(stated, repartitions)
    else:
        wanted = max(repartitions.values())
    for name, size in repartitions.items():
        if name in fixed and size != wanted:
            raise _Unready(
                INCORRECTLY_PARTITIONED_TOPICS,
                f"Number of partitions [{size}] of repartition topic [{name}] doesn't match number "
                f"of partitions [{wanted}] of the source topic.",
            )
        decided[name] = wanted


def _equal_count(counts: TopicCounts, shown: TopicCounts) -> int:
    """The one number of partitions of all topics."""
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name}={shown[name]}" for name in sorted(shown))
        raise _Unready(
            INCORRECTLY_PARTITIONED_TOPICS,
            f"Following topics do not have the same number of partitions: [{{{listed}}}]",
        )
    return next(iter(counts.values()))


def _with_counts(subtopology: Subtopology, decided: TopicCounts) -> Subtopology:
    """The subtopology whose internal topics have numbers. Raises InvalidTopology."""

    def counted(topics: tuple[InternalTopic, ...]) -> tuple[InternalTopic, ...]:
        if any(topic.partitions < 0 for topic in topics):
            raise _misformed("Number of partitions must be at least 1.")
        if len({topic.name for topic in topics}) < len(topics):
            raise _misformed("Two topics of a subtopology have the same name.")
        return tuple(
            each if each.partitions else replace(each, partitions=decided[each.name])
            for each in topics
        )

    return replace(
        subtopology,
        repartition_sources=counted(subtopology.repartition_sources),
        changelogs=counted(subtopology.changelogs),
    )


# Internal topics to create ------------------------------------------------------------------------


def _missing_topics(
    topology: StreamsTopology, configured: Mapping[str, Subtopology], counts: TopicCounts
) -> tuple[InternalTopic, ...]:
    """The internal topics that do not exist. Raises _Unready if one exists with another number."""
    internal: dict[str, InternalTopic] = {}
    for each in configured.values():
        for topics in (each.repartition_sources, each.changelogs):
            by_name = {topic.name: topic for topic in topics}
            internal.update((name, by_name[name]) for name in java_order(by_name))
    for name in java_order(topology.required_topics):
        if name in counts and name in internal and counts[name] != internal[name].partitions:
            raise _Unready(
                INCORRECTLY_PARTITIONED_TOPICS,
                f"Existing topic {name} has different number of partitions: expected "
                f"{internal[name].partitions}, found {counts[name]}",
            )
    return tuple(internal[name] for name in java_order(internal) if name not in counts)


def _summary(names: list[str]) -> str:
    shown = ", ".join(names[:NAMES_SHOWN])
    more = len(names) - NAMES_SHOWN
    return f"{shown} and {more} additional topics" if more > 0 else shown
