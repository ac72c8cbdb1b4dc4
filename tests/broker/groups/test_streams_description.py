"""A description is asked for until it is kept, at intervals that double."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.broker.groups.streams_description import (
    PROCESSOR,
    SINK,
    SOURCE,
    KeptDescription,
    description_problem,
)
from minibroker_protocol.messages.streams_group_describe import (
    TopologyDescription,
    TopologyDescriptionGlobalStore,
    TopologyDescriptionNode,
    TopologyDescriptionSubtopology,
)


def node(kind: int, **fields: Any) -> TopologyDescriptionNode:
    return TopologyDescriptionNode(name="n", node_type=kind, **fields)


def described(
    *nodes: TopologyDescriptionNode, store: tuple[int, int] | None = None
) -> TopologyDescription:
    kinds = [] if store is None else [store]
    return TopologyDescription(
        subtopologies=[TopologyDescriptionSubtopology(subtopology_id="0", nodes=list(nodes))],
        global_stores=[
            TopologyDescriptionGlobalStore(source=node(source), processor=node(processor))
            for source, processor in kinds
        ],
    )


def test_requests_for_a_description_become_rare() -> None:
    kept, asked = KeptDescription(), []
    for now in range(0, 8 * 3600, 10):
        if kept.is_due(3, now):
            kept.ask(3, now)
            asked.append(now)
    assert asked[:4] == [0, 30, 90, 210]
    assert asked[-1] - asked[-2] == 3600


def test_a_new_epoch_is_asked_for_at_once() -> None:
    kept = KeptDescription()
    kept.ask(3, 100.0)
    assert not kept.is_due(3, 100.0)
    assert kept.is_due(4, 100.0)


def test_what_is_kept_is_not_asked_for() -> None:
    kept = KeptDescription()
    kept.keep(3, described())
    assert kept.of_epoch(3) == described()
    assert kept.of_epoch(4) is None
    assert not kept.is_due(3, 1e9)
    assert kept.is_due(4, 1e9)


@pytest.mark.parametrize(
    ("description", "problem"),
    [
        (described(node(SOURCE), node(PROCESSOR), node(SINK)), None),
        (described(store=(SOURCE, PROCESSOR)), None),
        (described(node(0)), "Unknown topology node type: 0"),
        (described(store=(SOURCE, 4)), "Unknown topology node type: 4"),
        (described(store=(SOURCE, SINK)), "Global store must be composed of a source and"),
        (described(store=(PROCESSOR, SOURCE)), "Global store must be composed of a source and"),
    ],
)
def test_nodes_have_known_types(description: TopologyDescription, problem: str | None) -> None:
    found = description_problem(description)
    assert found is problem or (found or "").startswith(problem or "nothing")


def test_nodes_lose_what_their_type_does_not_have() -> None:
    fields: dict[str, Any] = {
        "source_topics": ["t", "t"],
        "stores": ["s", "s"],
        "sink_topic": "u",
        "successors": ["n", "n"],
    }
    source, processor, sink = (node(kind, **fields) for kind in (SOURCE, PROCESSOR, SINK))
    assert description_problem(described(source, processor, sink)) is None
    assert (source.source_topics, source.stores, source.sink_topic) == (["t"], [], None)
    assert (processor.source_topics, processor.stores) == ([], ["s"])
    assert (sink.sink_topic, sink.successors) == ("u", ["n"])
