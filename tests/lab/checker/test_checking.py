"""Simulated runs: clean ones are valid, and each way of misbehaving is found, and only that.

``CHECKER_SEEDS=10000`` checks as many clean runs instead of `SEEDS`.
"""

from __future__ import annotations

import gc
import json
import os
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.lab.checker.checking import EXAMPLES_MAX, CheckReport, EdgeGraph, check_lines
from minibroker.lab.checker.history import InvalidHistory
from minibroker.testing.workload import WORKLOADS
from tests.lab.checker import written
from tests.lab.checker.simulated_broker import SimulatedRun, Tampering, simulate
from tests.lab.checker.written import completed, found, invoked, poll, send, txn

SEEDS = int(os.environ.get("CHECKER_SEEDS", "300"))
"""Clean runs, over all workloads."""
TAMPERED_SEEDS = 12

Checked = list[tuple[SimulatedRun, CheckReport]]


def tampered_runs(tampering: Tampering, *workloads: str) -> Checked:
    """Runs in which the broker misbehaved."""
    runs = []
    for workload in workloads or WORKLOADS:
        for seed in range(TAMPERED_SEEDS):
            run = simulate(workload, seed, tampering=tampering, countdown=seed)
            if run.broker.has_tampered:
                runs.append((run, check_lines(run.lines)))
    assert runs
    return runs


def is_committed(run: SimulatedRun) -> bool:
    """Whether an operation that was ok sent the record to which it was done."""
    record = run.broker.tampered
    assert record is not None
    assert record.value is not None
    return any(
        result == "ok" and value == record.value and record in run.broker.logs[key]
        for (key, value), result in run.results.items()
    )


@pytest.mark.parametrize("workload", WORKLOADS)
def test_clean_runs_are_valid(workload: str) -> None:
    results: Counter[str] = Counter()
    for seed in range(SEEDS // len(WORKLOADS)):
        report = check_lines(simulate(workload, seed).lines)
        assert report.valid, f"{workload}, seed {seed}:\n{report}"
        results.update(report.operations, polled=report.polled)
    assert min(results["polled"], results["ok"], results["unknown"]) > 0
    assert bool(results["fail"]) is WORKLOADS[workload].transactional


def test_lost_record_is_found() -> None:
    found: Counter[str] = Counter()
    for run, report in tampered_runs(Tampering.LOSE):
        found.update(report.anomalies)
        assert report.anomalies.keys() <= {"lost-write", "unseen"}, report
        assert sum(report.anomalies.values()) <= 1
        if is_committed(run):
            assert sum(report.anomalies.values()) == 1, report
    assert found["lost-write"] > found["unseen"]


def test_doubled_record_is_found() -> None:
    for run, report in tampered_runs(Tampering.DOUBLE):
        assert report.anomalies.keys() <= {"duplicate"}, report
        assert report.anomalies.get("duplicate", 0) <= 1
        if is_committed(run):
            assert report.anomalies == {"duplicate": 1}, report


def test_reordered_record_is_found() -> None:
    for run, report in tampered_runs(Tampering.REORDER):
        assert report.anomalies.keys() <= {"internal-nonmonotonic-send"}, report
        assert sum(report.anomalies.values()) <= 1
        if is_committed(run):
            assert report.anomalies == {"internal-nonmonotonic-send": 1}, report


def test_overwritten_record_is_found() -> None:
    for run, report in tampered_runs(Tampering.OVERWRITE):
        # The consumers that are past the offset do not poll the new record.
        assert report.anomalies.keys() <= {"inconsistent-offsets", "lost-write", "unseen"}, report
        if is_committed(run):
            assert report.anomalies["inconsistent-offsets"] == 1, report


def test_aborted_transaction_that_is_committed_is_found() -> None:
    found = 0
    for run, report in tampered_runs(Tampering.COMMIT_ABORTED, "abort"):
        assert report.anomalies.keys() <= {"aborted-read"}, report
        transaction = run.broker.committed_by_mistake
        assert transaction is not None
        assert bool(transaction.keys) is bool(report.anomalies), report
        found += bool(report.anomalies)
    assert found


def test_record_that_one_poll_passes_over_is_found() -> None:
    for _, report in tampered_runs(Tampering.SKIP, "queue", "abort", "list-append"):
        assert report.anomalies == {"internal-poll-skip": 1}, report


def test_record_that_no_member_of_a_group_polls_is_lost() -> None:
    found: Counter[str] = Counter()
    for _, report in tampered_runs(Tampering.SKIP, "auto-commit"):
        found.update(report.anomalies)
    assert found["lost-write"]
    assert found.keys() <= {"lost-write", "internal-poll-skip", "unseen"}


def test_record_that_one_poll_returns_twice_is_found() -> None:
    for _, report in tampered_runs(Tampering.REPEAT, "queue", "abort", "list-append"):
        assert report.anomalies == {"internal-nonmonotonic-poll": 1}, report


def test_report_of_a_clean_history_says_valid() -> None:
    text = str(written.report(send(0, (A, 1, 0)), poll(1, {A: [(0, 1)]})))
    assert text == "2 operations (2 ok), 1 records sent, 1 records polled\n\nvalid"


def test_report_names_lines_and_client_of_an_anomaly() -> None:
    result = written.report(
        send(0, (A, 1, 0), (A, 2, 1)), poll(1, {A: [(1, 2)]}), clients={"0": "librdkafka 2.11"}
    )
    assert "lost-write: 1 case: " in str(result)
    assert (
        "value 1 of orders-0 at offset 0 was not polled; line 3 sent it and was acknowledged, and "
        "line 5 polled offset 1 [line 3: librdkafka 2.11]" in str(result)
    )
    assert str(result).endswith("invalid: lost-write")


def test_examples_are_bounded_and_all_cases_are_counted() -> None:
    number = EXAMPLES_MAX + 5
    result = written.report(
        send(0, *((A, value, value) for value in range(number + 1))),
        poll(1, {A: [(number, number)]}),
    )
    assert result.counts == {"lost-write": number}
    assert len(result.examples["lost-write"]) == EXAMPLES_MAX
    assert "... and 5 more" in str(result)


def test_allowed_anomaly_leaves_a_report_valid() -> None:
    result = written.report(send(0, (A, 1, 0)), final_polls=False)
    assert result.valid
    assert result.allowed == {"unseen": 1}
    assert "allowed: unseen: 1 case (without final polls)" in str(result)


def test_json_of_a_report_has_every_anomaly_with_examples() -> None:
    result = written.report(send(0, (A, 1, 0), (A, 2, 1)), poll(1, {A: [(1, 2)]}))
    document = json.loads(json.dumps(result.to_json()))
    assert document["valid"] is False
    assert document["operations"] == {"ok": 2}
    [row] = document["anomalies"]
    assert (row["name"], row["count"]) == ("lost-write", 1)
    assert row["examples"][0]["lines"] == [3, 5]


@pytest.mark.parametrize("is_enabled", [True, False])
def test_check_leaves_the_garbage_collector_as_it_was(is_enabled: bool) -> None:
    was_enabled = gc.isenabled()
    try:
        gc.enable() if is_enabled else gc.disable()
        with pytest.raises(InvalidHistory):
            check_lines(["{"])
        assert gc.isenabled() is is_enabled
    finally:
        gc.enable() if was_enabled else gc.disable()


def test_order_of_anomalies_does_not_depend_on_hashes() -> None:
    keys = [f"key-{number}" for number in range(8)]
    result = written.report(poll(0, {key: [(1, 1), (0, 0)] for key in keys}))
    assert [each.key for each in result.examples["internal-nonmonotonic-poll"]] == keys


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
    assert written.report(history, polls).valid


def test_transactions_that_see_each_other_are_g1c() -> None:
    history = [
        invoked(0, "txn", [(A, 1, 0)], NONE),
        invoked(1, "txn", [(B, 1, 0)], NONE),
        completed(0, "txn", [(A, 1, 0)], SEES_B1, "ok"),
        completed(1, "txn", [(B, 1, 0)], SEES_A1, "ok"),
    ]
    assert written.report(history).anomalies == {"G1c": 1}
    assert written.report(history, isolation_level="read_uncommitted").valid
    [found_cycle] = written.report(history).examples["G1c"]
    assert found_cycle.text == (
        "line 4 sent 1 to orders-0, which line 5 polled; "
        "line 5 sent 1 to orders-1, which line 4 polled"
    )


def test_poll_of_a_later_operation_of_the_process_is_g1c_process() -> None:
    assert written.report(txn(0, [], SEES_A1), txn(0, [(A, 1, 0)])).anomalies == {"G1c-process": 1}


def test_poll_of_a_later_invocation_is_g1c_realtime() -> None:
    assert written.report(txn(0, [], SEES_A1), txn(1, [(A, 1, 0)])).anomalies == {"G1c-realtime": 1}


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
    assert written.report(history, polls).valid


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
    assert written.report(history, final_polls=False).anomalies.get("G1c", 0) == expected


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
