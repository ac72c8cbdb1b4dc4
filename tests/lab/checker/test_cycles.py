from __future__ import annotations

import random

from minibroker.lab.checker.cycles import EdgeGraph


def graph_of(nodes: int, edges: list[tuple[int, str, int]]) -> EdgeGraph[str]:
    graph: EdgeGraph[str] = EdgeGraph()
    for _ in range(nodes):
        graph.add_node()
    for edge in edges:
        graph.add_edge(*edge)
    return graph


def test_graph_without_cycle_has_no_component() -> None:
    assert graph_of(3, [(0, "x", 1), (1, "x", 2), (0, "x", 2)]).components("x") == []


def test_edge_to_the_same_node_is_ignored() -> None:
    assert graph_of(1, [(0, "x", 0)]).components("x") == []


def test_cycle_is_found_with_its_kinds_of_edges_only() -> None:
    graph = graph_of(4, [(0, "x", 1), (1, "y", 2), (2, "x", 0), (3, "x", 0)])
    assert graph.components("x") == []
    [component] = graph.components("xy")
    assert sorted(component) == [0, 1, 2]
    assert [
        (edge.source, edge.kind, edge.target) for edge in graph.shortest_cycle(component, "xy")
    ] == [(0, "x", 1), (1, "y", 2), (2, "x", 0)]


def test_shortest_cycle_is_chosen() -> None:
    edges = [(0, "x", 1), (1, "x", 2), (2, "x", 0), (1, "x", 0)]
    graph = graph_of(3, edges)
    assert len(graph.shortest_cycle([0, 1, 2], "x")) == 2


def test_long_cycle_does_not_recurse() -> None:
    nodes = 50_000
    graph = graph_of(nodes, [(node, "x", (node + 1) % nodes) for node in range(nodes)])
    [component] = graph.components("x")
    assert len(component) == nodes


def reachable(graph: EdgeGraph[str], start: int) -> set[int]:
    seen: set[int] = set()
    waiting = [start]
    while waiting:
        for _, target in graph.edges_from(waiting.pop(), "x"):
            if target not in seen:
                seen.add(target)
                waiting.append(target)
    return seen


def test_components_of_random_graphs_are_mutually_reachable() -> None:
    source = random.Random(1)
    for _ in range(200):
        nodes = source.randint(1, 12)
        edges = [
            (source.randrange(nodes), "x", source.randrange(nodes))
            for _ in range(source.randint(0, 20))
        ]
        graph = graph_of(nodes, edges)
        reach = [reachable(graph, node) for node in range(nodes)]
        expected = {
            frozenset(b for b in range(nodes) if b == a or (b in reach[a] and a in reach[b]))
            for a in range(nodes)
        }
        found = {frozenset(each) for each in graph.components("x")}
        assert found == {each for each in expected if len(each) > 1}
