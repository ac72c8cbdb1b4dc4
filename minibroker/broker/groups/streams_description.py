"""The description of the topology of a streams group, which a member sends for people to read.

Owns when a member is asked for it, and what is kept: the description of one epoch, until the broker
restarts. It must never know the members. Invariant: while there is none of the topology's epoch,
members are asked for it, but not again before a delay that doubles with each request. Kafka's
``StreamsGroupTopologyDescriptionManager`` (4.4), which gives descriptions to a plug-in (KIP-1331).
"""

from __future__ import annotations

from typing import Final

from minibroker_protocol.messages.streams_group_describe import (
    TopologyDescription,
    TopologyDescriptionNode,
)

FIRST_DELAY_S: Final = 30.0
DELAY_MAX_S: Final = 3600.0

SOURCE: Final = 1
PROCESSOR: Final = 2
SINK: Final = 3


class KeptDescription:
    """The description of a topology, or the requests for it."""

    def __init__(self) -> None:
        self._kept: tuple[int, TopologyDescription] | None = None
        self._asked_epoch = -1
        self._requests = 0
        self._next_request = 0.0

    def of_epoch(self, epoch: int) -> TopologyDescription | None:
        """The description of a topology with this epoch, if it was sent."""
        return self._kept[1] if self._kept is not None and self._kept[0] == epoch else None

    def keep(self, epoch: int, description: TopologyDescription) -> None:
        self._kept = epoch, description

    def is_due(self, epoch: int, now: float) -> bool:
        """Whether a member is to be asked for the description of this epoch."""
        is_early = epoch == self._asked_epoch and now < self._next_request
        return self.of_epoch(epoch) is None and not is_early

    def ask(self, epoch: int, now: float) -> None:
        """Note that a member is asked."""
        self._requests = self._requests + 1 if epoch == self._asked_epoch else 0
        self._asked_epoch = epoch
        self._next_request = now + min(FIRST_DELAY_S * 2**self._requests, DELAY_MAX_S)


def description_problem(description: TopologyDescription) -> str | None:
    """Why a description cannot be kept, or None if it can."""
    nodes = [node for each in description.subtopologies for node in each.nodes]
    nodes += [node for each in description.global_stores for node in (each.source, each.processor)]
    for node in nodes:
        if node.node_type not in (SOURCE, PROCESSOR, SINK):
            return f"Unknown topology node type: {node.node_type}"
    for store in description.global_stores:
        if (store.source.node_type, store.processor.node_type) != (SOURCE, PROCESSOR):
            return "Global store must be composed of a source and a processor node."
    for node in nodes:
        _keep_what_counts(node)
    return None


def _keep_what_counts(node: TopologyDescriptionNode) -> None:
    """Leave out what nodes of this type do not have, and repetitions."""
    is_source, is_processor = node.node_type == SOURCE, node.node_type == PROCESSOR
    node.source_topics = list(dict.fromkeys(node.source_topics)) if is_source else []
    node.stores = list(dict.fromkeys(node.stores)) if is_processor else []
    node.sink_topic = node.sink_topic if node.node_type == SINK else None
    node.successors = list(dict.fromkeys(node.successors))
