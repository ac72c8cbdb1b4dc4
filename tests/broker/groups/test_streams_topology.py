"""A topology is ready when its topics are; its internal topics follow from its sources."""

from __future__ import annotations

import pytest

from minibroker.broker.groups.streams_topology import (
    INCORRECTLY_PARTITIONED_TOPICS,
    MISSING_INTERNAL_TOPICS,
    MISSING_SOURCE_TOPICS,
    CopartitionGroup,
    InternalTopic,
    InvalidTopology,
    StreamsStatus,
    StreamsTopology,
    Subtopology,
    configure,
)
from minibroker_protocol.errors import ErrorCode

READS = Subtopology("0", ("in",), repartition_sinks=("r",))
COUNTS = Subtopology(
    "1", repartition_sources=(InternalTopic("r"),), changelogs=(InternalTopic("c"),)
)


def topology(*subtopologies: Subtopology) -> StreamsTopology:
    return StreamsTopology(0, subtopologies)


def problem(wanted: StreamsTopology, **counts: int) -> StreamsStatus | None:
    return configure(wanted, counts).problem


def test_internal_topics_get_the_partitions_of_the_sources() -> None:
    configured = configure(topology(READS, COUNTS), {"in": 3})
    assert configured.missing_topics == (InternalTopic("r", 3), InternalTopic("c", 3))
    detail = "Internal topics are missing: r, c"
    assert configured.problem == StreamsStatus(MISSING_INTERNAL_TOPICS, detail)
    assert configured.task_counts == {"0": 3, "1": 3}


def test_a_topology_is_ready_when_all_topics_exist() -> None:
    configured = configure(topology(READS, COUNTS), {"in": 3, "r": 3, "c": 3})
    assert configured.problem is None
    assert not configured.missing_topics
    assert configured.task_counts == {"0": 3, "1": 3}
    assert configured.stateful == {"1"}


def test_a_subtopology_has_a_task_for_each_partition_of_its_largest_topic() -> None:
    assert configure(topology(Subtopology("0", ("a", "b"))), {"a": 2, "b": 5}).task_counts == {
        "0": 5
    }


def test_missing_source_topics_are_named_up_to_three() -> None:
    status = problem(topology(Subtopology("0", ("d", "b", "a", "c"))))
    detail = "Source topics a, b, c and 1 additional topics are missing."
    assert status == StreamsStatus(MISSING_SOURCE_TOPICS, detail)


def test_stated_partitions_of_a_repartition_topic_are_kept() -> None:
    stated = Subtopology(
        "1", repartition_sources=(InternalTopic("r", 7, 2, {"cleanup.policy": "delete"}),)
    )
    configured = configure(topology(READS, stated), {"in": 3})
    assert configured.missing_topics == stated.repartition_sources
    assert configured.task_counts["1"] == 7


def test_an_existing_internal_topic_must_have_the_partitions() -> None:
    status = problem(topology(READS, COUNTS), **{"in": 3, "r": 3, "c": 4})
    assert status == StreamsStatus(
        INCORRECTLY_PARTITIONED_TOPICS,
        "Existing topic c has different number of partitions: expected 3, found 4",
    )


def joined(*sources: InternalTopic) -> StreamsTopology:
    """Topics a and b are joined with repartition topics, which another subtopology writes."""
    names = tuple(each.name for each in sources)
    group = CopartitionGroup((0, 1), (), tuple(range(len(sources))))
    return topology(
        Subtopology("0", ("in",), repartition_sinks=names),
        Subtopology("1", ("a", "b"), repartition_sources=sources, copartition_groups=(group,)),
    )


def test_copartitioned_sources_must_have_equal_partitions() -> None:
    status = problem(joined(), **{"in": 1, "a": 2, "b": 3})
    assert status == StreamsStatus(
        INCORRECTLY_PARTITIONED_TOPICS,
        "Following topics do not have the same number of partitions: [{a=2, b=3}]",
    )


def test_a_copartitioned_repartition_topic_follows_the_sources() -> None:
    configured = configure(joined(InternalTopic("r")), {"in": 1, "a": 2, "b": 2})
    assert configured.missing_topics == (InternalTopic("r", 2),)


def test_stated_partitions_must_be_those_of_copartitioned_sources() -> None:
    status = problem(joined(InternalTopic("r", 5)), **{"in": 1, "a": 2, "b": 2})
    assert status == StreamsStatus(
        INCORRECTLY_PARTITIONED_TOPICS,
        "Number of partitions [5] of repartition topic [r] doesn't match number of partitions [2] "
        "of the source topic.",
    )


NEVER_WRITTEN = Subtopology("0", ("in",), repartition_sources=(InternalTopic("r"),))
LOOP = Subtopology("0", repartition_sinks=("r",), repartition_sources=(InternalTopic("r"),))


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        (topology(NEVER_WRITTEN), "never used as a sink topic"),
        (topology(LOOP), "There may be loops"),
        (topology(Subtopology("0")), "No source topics found for subtopology 0"),
    ],
)
def test_a_topology_that_cannot_work_is_invalid(wanted: StreamsTopology, text: str) -> None:
    with pytest.raises(InvalidTopology, match=text) as caught:
        configure(wanted, {"in": 1})
    assert caught.value.error is ErrorCode.STREAMS_INVALID_TOPOLOGY


@pytest.mark.parametrize(
    "wanted",
    [
        topology(Subtopology("0", ("in",), copartition_groups=(CopartitionGroup((1,)),))),
        topology(Subtopology("0", repartition_sources=(InternalTopic("r", -1),))),
        topology(Subtopology("0", repartition_sources=(InternalTopic("r", 1),) * 2)),
    ],
)
def test_what_no_client_sends_is_an_internal_error_as_in_kafka(wanted: StreamsTopology) -> None:
    with pytest.raises(InvalidTopology) as caught:
        configure(wanted, {"in": 1})
    assert caught.value.error is ErrorCode.UNKNOWN_SERVER_ERROR


def test_a_topology_knows_its_topics() -> None:
    both = topology(READS, COUNTS)
    assert both.source_topics == {"in": "0", "r": "1"}
    assert both.required_topics == ("in", "r", "c")
