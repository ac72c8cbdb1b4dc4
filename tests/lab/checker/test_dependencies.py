from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from minibroker.lab.checker.dependencies import EdgeGraph
from tests.lab.checker.written import completed, found, invoked, poll, report, txn

A, B = "orders-0", "orders-1"
NONE: dict[str, list[tuple[int, int]]] = {}
SEES_A1 = {A: [(0, 1)]}
SEES_B1 = {B: [(0, 1)]}


def test_writes_of_two_transactions_in_opposite_orders_are_g0() -> None:
    first = [(A, 1, 0), (B, 2, 1)]
    second = [(A, 2, 1), (B, 1, 0)]
    history = [
        invoked(0, "txn", first, None),
        invoked(1, "txn", second, None),
        completed(0, "txn", first, None, "ok"),
        completed(1, "txn", second, None, "ok"),
    ]
    polls = poll(2, {A: [(0, 1), (1, 2)], B: [(0, 1), (1, 2)]})
    assert found(history, polls) == {"G0": 1}
    assert report(history, polls).valid


def test_transactions_that_see_each_other_are_g1c() -> None:
    history = [
        invoked(0, "txn", [(A, 1, 0)], NONE),
        invoked(1, "txn", [(B, 1, 0)], NONE),
        completed(0, "txn", [(A, 1, 0)], SEES_B1, "ok"),
        completed(1, "txn", [(B, 1, 0)], SEES_A1, "ok"),
    ]
    assert report(history).anomalies == {"G1c": 1}
    assert report(history, isolation_level="read_uncommitted").valid
    [found_cycle] = report(history).examples["G1c"]
    assert found_cycle.text == (
        "line 4 sent 1 to orders-0, which line 5 polled; "
        "line 5 sent 1 to orders-1, which line 4 polled"
    )


def test_poll_of_a_later_operation_of_the_process_is_g1c_process() -> None:
    assert report(txn(0, [], SEES_A1), txn(0, [(A, 1, 0)])).anomalies == {"G1c-process": 1}


def test_poll_of_a_later_invocation_is_g1c_realtime() -> None:
    assert report(txn(0, [], SEES_A1), txn(1, [(A, 1, 0)])).anomalies == {"G1c-realtime": 1}


def test_poll_of_a_concurrent_operation_is_no_cycle() -> None:
    history = [
        invoked(0, "txn", [], NONE),
        *txn(1, [(A, 1, 0)]),
        completed(0, "txn", [], SEES_A1, "ok"),
    ]
    assert found(history) == {}


def test_cycle_of_ww_and_wr_edges_is_allowed() -> None:
    # The second transaction writes before the first to orders-1 and polls its record of orders-0.
    first = [(A, 1, 0), (B, 2, 1)]
    history = [
        invoked(0, "txn", first, None),
        invoked(1, "txn", [(B, 1, 0)], NONE),
        completed(0, "txn", first, None, "ok"),
        completed(1, "txn", [(B, 1, 0)], SEES_A1, "ok"),
    ]
    polls = poll(2, {A: [(0, 1)], B: [(0, 1), (1, 2)]})
    assert found(history, polls) == {"G1c-ww": 1}
    assert report(history, polls).valid


def test_failed_operation_is_in_no_cycle() -> None:
    assert found(txn(0, [], SEES_A1, result="fail"), txn(0, [(A, 1, 0)])) == {}


def test_record_that_is_older_in_the_log_than_in_time_is_g0_realtime() -> None:
    assert found(txn(0, [(A, 1, 1)]), txn(1, [(A, 2, 0)]), poll(2, {A: [(0, 2), (1, 1)]})) == {
        "G0-realtime": 1
    }


def reaches(edges: set[tuple[int, int]], source: int) -> set[int]:
    found: set[int] = set()
    waiting = [source]
    while waiting:
        node = waiting.pop()
        for start, end in edges:
            if start == node and end not in found:
                found.add(end)
                waiting.append(end)
    return found


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=10))
def test_g1c_is_found_if_and_only_if_polls_form_a_cycle(edges: list[tuple[int, int]]) -> None:
    """Draw which of six concurrent transactions polls the record of which other one."""
    read = {(writer, reader) for writer, reader in edges if writer != reader}
    keys = [f"k-{number}" for number in range(6)]
    sends = [[(key, 1, 0)] for key in keys]
    polls = [
        {keys[writer]: [(0, 1)] for writer, reader in sorted(read) if reader == number}
        for number in range(6)
    ]
    history = [
        *(invoked(number, "txn", sends[number], NONE) for number in range(6)),
        *(completed(number, "txn", sends[number], polls[number], "ok") for number in range(6)),
    ]
    components = {
        frozenset(b for b in range(6) if b in reaches(read, a) and a in reaches(read, b))
        for a in range(6)
    }
    expected = len(components - {frozenset()})
    assert report(history, final_polls=False).anomalies.get("G1c", 0) == expected


def graph_of(nodes: int, edges: list[tuple[int, str, int]]) -> EdgeGraph[str]:
    graph: EdgeGraph[str] = EdgeGraph(nodes)
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


def test_part_of_a_graph_is_searched_alone() -> None:
    graph = graph_of(5, [(0, "x", 1), (1, "x", 0), (1, "x", 2), (2, "x", 3), (3, "x", 2)])
    assert [sorted(each) for each in graph.components("x")] == [[2, 3], [0, 1]]
    assert [sorted(each) for each in graph.components("x", [0, 1, 4])] == [[0, 1]]


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
