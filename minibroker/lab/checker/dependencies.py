"""Dependencies between operations, and the anomalies that are cycles of them.

Owns the edges: ww between the writers of successive records, wr from a writer to each ok operation
that polled its record, process and realtime between ok operations. It must never know how cycles
are found. Invariant: a cycle is reported once, under the row with the fewest kinds of edges. There
are no rw edges, because a poll may end before the end of the log: a record that it did not return
is not proved to be younger. The names are Adya's, as in Jepsen's Elle.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, auto
from typing import Final, NamedTuple

from minibroker.lab.checker.anomalies import LISTED_MAX, FoundAnomaly, listed
from minibroker.lab.checker.client_history import ClientOperation, OperationResult
from minibroker.lab.checker.cycles import EdgeGraph, GraphEdge
from minibroker.lab.checker.record_order import Observations


class Dependency(Enum):
    """Why one operation precedes another."""

    WW = auto()
    WR = auto()
    PROCESS = auto()
    REALTIME = auto()


class CycleRule(NamedTuple):
    """An anomaly and the kinds of edges of its cycles."""

    name: str
    kinds: tuple[Dependency, ...]
    weaker: tuple[str, ...]
    """Anomalies with fewer kinds of edges, which explain a cycle as well."""


WW, WR, PROCESS, REALTIME = Dependency
CYCLE_RULES: Final = (
    CycleRule("G1c", (WR,), ()),
    CycleRule("G1c-process", (WR, PROCESS), ("G1c",)),
    CycleRule("G1c-realtime", (WR, REALTIME), ("G1c", "G1c-process")),
    CycleRule("G0", (WW,), ()),
    CycleRule("G0-process", (WW, PROCESS), ("G0",)),
    CycleRule("G0-realtime", (WW, REALTIME), ("G0", "G0-process")),
    CycleRule("G1c-ww", (WW, WR), ("G1c", "G0")),
    CycleRule(
        "G1c-ww-process", (WW, WR, PROCESS), ("G1c", "G1c-process", "G0", "G0-process", "G1c-ww")
    ),
    CycleRule(
        "G1c-ww-realtime",
        (WW, WR, REALTIME),
        (
            *("G1c", "G1c-process", "G1c-realtime", "G0", "G0-process", "G0-realtime"),
            *("G1c-ww", "G1c-ww-process"),
        ),
    ),
)


def cycle_anomalies(observations: Observations) -> Iterator[FoundAnomaly]:
    """Find cycles of dependencies."""
    graph = dependency_graph(observations)
    if not graph.components((WW, WR, REALTIME, PROCESS)):
        return
    explained: dict[str, set[int]] = {}
    for rule in CYCLE_RULES:
        nodes = explained[rule.name] = set()
        for component in graph.components(rule.kinds):
            if any(not explained[name].isdisjoint(component) for name in rule.weaker):
                continue
            nodes.update(component)
            yield _found(observations, rule, graph.shortest_cycle(component, rule.kinds))


def dependency_graph(observations: Observations) -> EdgeGraph[Dependency]:
    """Build the graph. A node below the number of operations is the operation of that index."""
    graph: EdgeGraph[Dependency] = EdgeGraph()
    for _ in observations.history.operations:
        graph.add_node()
    _add_ww_edges(graph, observations)
    _add_wr_edges(graph, observations)
    _add_process_edges(graph, observations)
    _add_realtime_edges(graph, observations)
    return graph


def _add_ww_edges(graph: EdgeGraph[Dependency], observations: Observations) -> None:
    for key, order in observations.orders.items():
        writers = observations.writer_of.get(key, {})
        previous: ClientOperation | None = None
        for index in range(len(order.values)):
            writer = writers.get(next(order.values_at(index)))
            if writer is None or not observations.committed[writer.index]:
                continue
            if previous is not None:
                graph.add_edge(previous.index, WW, writer.index)
            previous = writer


def _add_wr_edges(graph: EdgeGraph[Dependency], observations: Observations) -> None:
    for operation in observations.history.completed:
        if operation.result is not OperationResult.OK:
            continue
        sources: dict[int, None] = {}
        for key, polled in operation.polls.items():
            writers = observations.writer_of.get(key, {})
            for record in polled:
                writer = writers.get(record.value)
                if writer is not None and observations.committed[writer.index]:
                    sources[writer.index] = None
        for source in sources:
            graph.add_edge(source, WR, operation.index)


def _add_process_edges(graph: EdgeGraph[Dependency], observations: Observations) -> None:
    last: dict[int, int] = {}
    for operation in observations.history.completed:
        if operation.result is OperationResult.OK:
            if operation.process in last:
                graph.add_edge(last[operation.process], PROCESS, operation.index)
            last[operation.process] = operation.index


def _add_realtime_edges(graph: EdgeGraph[Dependency], observations: Observations) -> None:
    """Add an edge from each completion to the later invocations, through a chain of moments.

    A moment is a node of its own after each completion, so the number of edges is linear.
    """
    completions = [
        each for each in observations.history.completed if each.result is OperationResult.OK
    ]
    at = 0
    moment: int | None = None
    for operation in observations.history.operations:
        while at < len(completions):
            line = completions[at].completed_line
            if line is None or line > operation.invoked_line:
                break
            following = graph.add_node()
            if moment is not None:
                graph.add_edge(moment, REALTIME, following)
            graph.add_edge(completions[at].index, REALTIME, following)
            moment = following
            at += 1
        if moment is not None and observations.committed[operation.index]:
            graph.add_edge(moment, REALTIME, operation.index)


def _found(
    observations: Observations, rule: CycleRule, cycle: list[GraphEdge[Dependency]]
) -> FoundAnomaly:
    operations = observations.history.operations
    steps = []
    lines = []
    source = cycle[0].source
    for edge in cycle:
        if edge.target >= len(operations):
            continue
        before, after = operations[source], operations[edge.target]
        steps.append(_step_text(observations, edge.kind, before, after))
        lines.append(before.line)
        source = edge.target
    return FoundAnomaly(rule.name, listed(steps, "; "), tuple(lines[:LISTED_MAX]))


def _step_text(
    observations: Observations, kind: Dependency, before: ClientOperation, after: ClientOperation
) -> str:
    first, second = f"line {before.line}", f"line {after.line}"
    if kind is REALTIME:
        return f"{first} was complete before {second} was invoked"
    if kind is PROCESS:
        return f"{first} precedes {second} in process {after.process}"
    if kind is WR:
        for key, records in before.sends.items():
            sent = {record.value for record in records}
            for record in after.polls.get(key, ()):
                if record.value in sent:
                    return f"{first} sent {record.value!r} to {key}, which {second} polled"
    return f"{first} sent a record to {_common_key(observations, before, after)} before {second}"


def _common_key(observations: Observations, before: ClientOperation, after: ClientOperation) -> str:
    """Return a key in which a record of one operation directly precedes one of the other."""
    for key, records in before.sends.items():
        order = observations.orders.get(key)
        following = {record.value for record in after.sends.get(key, ())}
        if order is None or not following:
            continue
        for record in records:
            index = order.first_index.get(record.value, len(order.values)) + 1
            if index < len(order.values) and not following.isdisjoint(order.values_at(index)):
                return key
    return "a key"
