"""Strongly connected components and cycles of a graph with several kinds of edges.

Owns the graph algorithms. It must never know what nodes and edges mean. Invariant: the time is
linear in the number of nodes and edges, and no function recurses. The components are found with
Tarjan's algorithm, as in Jepsen's Elle.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K")


class GraphEdge(NamedTuple, Generic[K]):
    """An edge of a cycle."""

    source: int
    kind: K
    target: int


class EdgeGraph(Generic[K]):
    """A directed graph whose nodes are integers from 0."""

    def __init__(self) -> None:
        self._edges: dict[K, dict[int, list[int]]] = {}
        self.nodes = 0

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

    def components(self, kinds: Collection[K]) -> list[list[int]]:
        """Return the strongly connected components of more than one node."""
        found: list[list[int]] = []
        search = _ComponentSearch(self.nodes)
        for root in range(self.nodes):
            if search.number[root] < 0:
                self._search_from(root, kinds, search, found)
        return found

    def _search_from(
        self, root: int, kinds: Collection[K], search: _ComponentSearch, found: list[list[int]]
    ) -> None:
        path: list[tuple[int, Iterator[tuple[K, int]]]] = []
        node: int | None = root
        while node is not None:
            search.enter(node)
            path.append((node, self.edges_from(node, kinds)))
            node = None
            while path and node is None:
                current, edges = path[-1]
                for _, target in edges:
                    if search.number[target] < 0:
                        node = target
                        break
                    if search.is_open[target]:
                        search.low[current] = min(search.low[current], search.number[target])
                else:
                    path.pop()
                    component = search.leave(current, path[-1][0] if path else None)
                    if len(component) > 1:
                        found.append(component)

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
    """State of Tarjan's algorithm."""

    def __init__(self, nodes: int) -> None:
        self.number = [-1] * nodes
        self.low = [0] * nodes
        self.is_open = bytearray(nodes)
        self._stack: list[int] = []
        self._next = 0

    def enter(self, node: int) -> None:
        self.number[node] = self.low[node] = self._next
        self._next += 1
        self._stack.append(node)
        self.is_open[node] = 1

    def leave(self, node: int, parent: int | None) -> list[int]:
        """Return the component whose first node this is, or nothing."""
        if parent is not None:
            self.low[parent] = min(self.low[parent], self.low[node])
        if self.low[node] != self.number[node]:
            return []
        component = []
        while True:
            last = self._stack.pop()
            self.is_open[last] = 0
            component.append(last)
            if last == node:
                return component
