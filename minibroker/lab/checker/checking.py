"""Checks a history for all anomalies of the table: cycles, the rules for records, and the report.

Owns the list of rules, the text and the JSON of a report, the edges between operations (ww between
the writers of successive records, wr from a writer to each ok operation that polled its record,
process and realtime between ok operations), and the search for cycles, with Tarjan's algorithm. It
must never judge single records, or read files. Invariants: the same history gives the same report,
and time and memory are linear in its size, apart from sorting; a cycle is reported once, under the
row with the fewest kinds of edges, and no function recurses; every case is counted, and at most
`EXAMPLES_MAX` of each row are kept, so that the size of a report is bounded. There are no rw edges,
because a poll may end before the end of the log: a record that it did not return is not proved to
be younger. The names are Adya's, as in Jepsen's Elle; Jepsen's checker for Kafka does the same for
histories in its own format.
"""

from __future__ import annotations

import gc
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from itertools import chain
from typing import Any, Final, Generic, NamedTuple, TypeVar

from minibroker.lab.checker.history import (
    ClientHistory,
    ClientOperation,
    HistorySettings,
    OperationResult,
    read_history,
)
from minibroker.lab.checker.record_rules import (
    LISTED_MAX,
    RULE_OF,
    RULES,
    FoundAnomaly,
    Observations,
    duplicates,
    foreign_reads,
    inconsistent_offsets,
    listed,
    lost_writes,
    sequence_anomalies,
    unseen,
)

K = TypeVar("K")


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
    cyclic = set(chain.from_iterable(graph.components((WW, WR, REALTIME, PROCESS))))
    explained: dict[str, set[int]] = {}
    for rule in CYCLE_RULES:
        known = set().union(*(explained[name] for name in rule.weaker))
        found = [each for each in graph.components(rule.kinds, cyclic) if known.isdisjoint(each)]
        if len(found) > 1:  # They are reported in the order of a search in the whole graph.
            found = [each for each in graph.components(rule.kinds) if known.isdisjoint(each)]
        explained[rule.name] = set(chain.from_iterable(found))
        for component in found:
            yield _found(observations, rule, graph.shortest_cycle(component, rule.kinds))


def dependency_graph(observations: Observations) -> EdgeGraph[Dependency]:
    """Build the graph. A node below the number of operations is the operation of that index."""
    graph: EdgeGraph[Dependency] = EdgeGraph(len(observations.history.operations))
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
            writer = writers.get(order.values_at(index)[0])
            if writer is None or not observations.committed[writer.index]:
                continue
            if previous is not None:
                graph.add_edge(previous.index, WW, writer.index)
            previous = writer


def _add_wr_edges(graph: EdgeGraph[Dependency], observations: Observations) -> None:
    committed = {
        key: {
            value: writer.index
            for value, writer in writers.items()
            if observations.committed[writer.index]
        }
        for key, writers in observations.writer_of.items()
    }
    for operation in observations.history.completed:
        if operation.result is not OperationResult.OK:
            continue
        sources: dict[int, None] = {}
        for key, polled in operation.polls.items():
            writers = committed.get(key, {})
            for _, value in polled:
                if value in writers:
                    sources[writers[value]] = None
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
            for _, value in after.polls.get(key, ()):
                if value in sent:
                    return f"{first} sent {value!r} to {key}, which {second} polled"
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


# Cycles -------------------------------------------------------------------------------------------


class GraphEdge(NamedTuple, Generic[K]):
    """An edge of a cycle."""

    source: int
    kind: K
    target: int


class EdgeGraph(Generic[K]):
    """A directed graph whose nodes are integers from 0, with several kinds of edges."""

    def __init__(self, nodes: int) -> None:
        self._edges: dict[K, dict[int, list[int]]] = {}
        self.nodes = nodes

    def add_node(self) -> int:
        """Add a node and return its number."""
        self.nodes += 1
        return self.nodes - 1

    def add_edge(self, source: int, kind: K, target: int) -> None:
        """Add an edge; one to the same node is ignored."""
        if source != target:
            self._edges.setdefault(kind, {}).setdefault(source, []).append(target)

    def edges_from(self, node: int, kinds: Collection[K]) -> Iterator[tuple[K, int]]:
        """Iterate over the edges of some kinds that leave a node."""
        for kind in kinds:
            for target in self._edges.get(kind, {}).get(node, ()):
                yield kind, target

    def components(
        self, kinds: Collection[K], within: Collection[int] | None = None
    ) -> list[list[int]]:
        """Return the strongly connected components of more than one node, as they are completed.

        ``within`` are the nodes that are searched, and without it all are, from the lowest on.
        """
        edges = [self._edges[kind] for kind in kinds if kind in self._edges]
        search = _ComponentSearch(self.nodes, edges, within)
        for root in range(self.nodes) if within is None else within:
            if not search.number[root]:
                search.start(root)
        return search.found

    def shortest_cycle(
        self, component: Collection[int], kinds: Collection[K]
    ) -> list[GraphEdge[K]]:
        """Return a shortest cycle through the lowest node of a component."""
        start = min(component)
        within = set(component)
        came: dict[int, GraphEdge[K]] = {}
        queue = deque([start])
        while start not in came:
            node = queue.popleft()
            for kind, target in self.edges_from(node, kinds):
                if target in within and target not in came:
                    came[target] = GraphEdge(node, kind, target)
                    queue.append(target)
        cycle = [came[start]]
        while cycle[-1].source != start:
            cycle.append(came[cycle[-1].source])
        return cycle[::-1]


class _ComponentSearch:
    """Tarjan's algorithm. Each node gets a number when the search reaches it; 0 is none."""

    def __init__(
        self, nodes: int, edges: list[dict[int, list[int]]], within: Collection[int] | None
    ) -> None:
        self.found: list[list[int]] = []
        self._edges = edges
        self._done = nodes + 1
        """The number of nodes whose component is known, and of those that are not searched."""
        self.number = [0 if within is None else self._done] * nodes
        for node in within or ():
            self.number[node] = 0
        self._low = self.number.copy()
        """The lowest number that is reached from each node."""
        self._open: list[int] = []
        """Nodes whose component is not known yet."""
        self._last = 0

    def start(self, root: int) -> None:
        """Find the components of all nodes that are reached from one."""
        number, low = self.number, self._low
        path: list[tuple[int, Iterator[int]]] = []
        node: int | None = root
        while node is not None:
            self._last += 1
            number[node] = low[node] = self._last
            self._open.append(node)
            path.append((node, self._targets(node)))
            node = None
            while path and node is None:
                current, targets = path[-1]
                for target in targets:
                    if not number[target]:
                        node = target
                        break
                    low[current] = min(low[current], number[target])
                else:
                    path.pop()
                    if path and low[current] < low[path[-1][0]]:
                        low[path[-1][0]] = low[current]
                    if low[current] == number[current]:
                        self._close(current)

    def _targets(self, node: int) -> Iterator[int]:
        """Iterate over the ends of all edges from a node."""
        targets: list[int] = []
        for edges in self._edges:
            if node in edges:
                targets += edges[node]
        return iter(targets)

    def _close(self, first: int) -> None:
        """Complete the component whose first node this is."""
        component: list[int] = []
        while not component or component[-1] != first:
            component.append(self._open.pop())
            self.number[component[-1]] = self._done
        if len(component) > 1:
            self.found.append(component)


RULE_FUNCTIONS: Final = (
    inconsistent_offsets,
    duplicates,
    lost_writes,
    foreign_reads,
    sequence_anomalies,
    unseen,
    cycle_anomalies,
)

EXAMPLES_MAX: Final = 8
"""Cases of each anomaly that a report describes."""


@dataclass(frozen=True)
class CheckReport:
    """What was found in a history. Print it for a description of each anomaly."""

    settings: HistorySettings
    operations: Mapping[str, int]
    """Number of operations by result."""
    sent: int
    """Records sent."""
    polled: int
    """Records polled."""
    counts: Mapping[str, int]
    """Number of cases of each anomaly that was found."""
    examples: Mapping[str, list[FoundAnomaly]]
    clients: Mapping[int, str]
    """The client library of each line in the examples, if the history names it."""

    @property
    def anomalies(self) -> dict[str, int]:
        """The number of cases of each anomaly that is not allowed."""
        return {
            name: count
            for name, count in self.counts.items()
            if not RULE_OF[name].allowed(self.settings)
        }

    @property
    def allowed(self) -> dict[str, int]:
        """The number of cases of each anomaly that is allowed."""
        return {name: count for name, count in self.counts.items() if name not in self.anomalies}

    @property
    def valid(self) -> bool:
        """Whether there is no anomaly, except for those that are allowed."""
        return not self.anomalies

    def to_json(self) -> dict[str, Any]:
        """Return the report as an object for JSON."""
        return {
            "valid": self.valid,
            "workload": self.settings.workload,
            "operations": dict(self.operations),
            "sent": self.sent,
            "polled": self.polled,
            "anomalies": [self._row(name) for name in self.anomalies],
            "allowed": [self._row(name) for name in self.allowed],
        }

    def _row(self, name: str) -> dict[str, Any]:
        return {
            "name": name,
            "count": self.counts[name],
            "definition": RULE_OF[name].definition,
            "allowed_when": RULE_OF[name].allowed_text,
            "examples": [
                {
                    "text": each.text,
                    "key": each.key,
                    "lines": list(each.lines),
                    "clients": [self.clients.get(line) for line in each.lines],
                }
                for each in self.examples[name]
            ],
        }

    def __str__(self) -> str:
        operations = (
            ", ".join(f"{count} {name}" for name, count in self.operations.items()) or "none"
        )
        records = f"{self.sent} records sent, {self.polled} records polled"
        lines = [f"{sum(self.operations.values())} operations ({operations}), {records}"]
        for name, count in self.anomalies.items():
            lines += ["", f"{name}: {_cases(count)}: {RULE_OF[name].definition}"]
            lines += [f"  {each.text}{self._clients_of(each)}" for each in self.examples[name]]
            if count > len(self.examples[name]):
                lines.append(f"  ... and {count - len(self.examples[name])} more")
        if self.allowed:
            lines.append("")
            for name, count in self.allowed.items():
                lines.append(f"allowed: {name}: {_cases(count)} ({RULE_OF[name].allowed_text})")
        verdict = f"invalid: {', '.join(self.anomalies)}" if self.anomalies else "valid"
        return "\n".join([*lines, "", verdict])

    def _clients_of(self, found: FoundAnomaly) -> str:
        named = [
            f"line {line}: {self.clients[line]}" for line in found.lines if line in self.clients
        ]
        return f" [{', '.join(named)}]" if named else ""


def check_history(history: ClientHistory) -> CheckReport:
    """Check a history."""
    observations = Observations(history)
    found = chain.from_iterable(rule(observations) for rule in RULE_FUNCTIONS)
    return _report_of(history, found)


def check_lines(lines: Iterable[str | Mapping[str, Any]]) -> CheckReport:
    """Check a history, given its lines. Raises ``InvalidHistory``."""
    with _collector_paused():
        return check_history(read_history(lines))


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Pause the search for reference cycles: a history is many objects without any."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _report_of(history: ClientHistory, found: Iterable[FoundAnomaly]) -> CheckReport:
    """Count what was found in a history, and keep examples."""
    counts: Counter[str] = Counter()
    examples: dict[str, list[FoundAnomaly]] = {}
    for each in found:
        counts[each.name] += 1
        kept = examples.setdefault(each.name, [])
        if len(kept) < EXAMPLES_MAX:
            kept.append(each)
    results = Counter(str(operation.result) for operation in history.operations)
    return CheckReport(
        settings=history.settings,
        operations={str(each): results[each] for each in OperationResult if results[each]},
        sent=sum(len(records) for each in history.operations for records in each.sends.values()),
        polled=sum(len(records) for each in history.operations for records in each.polls.values()),
        counts={rule.name: counts[rule.name] for rule in RULES if counts[rule.name]},
        examples=examples,
        clients=_clients_of_lines(history, examples.values()),
    )


def _clients_of_lines(
    history: ClientHistory, examples: Iterable[list[FoundAnomaly]]
) -> dict[int, str]:
    names = history.settings.clients
    lines = {line for found in examples for each in found for line in each.lines}
    return {
        operation.line: names[operation.process]
        for operation in history.operations
        if operation.line in lines and operation.process in names
    }


def _cases(count: int) -> str:
    return "1 case" if count == 1 else f"{count} cases"
