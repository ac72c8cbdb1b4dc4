"""A scrape contains what was counted, under the names of the catalogue."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from minibroker.broker.metrics.definitions import (
    ACCEPT_RATE,
    ACCEPT_THROTTLE,
    ACCEPTED,
    BROKER_ACCEPT_RATE,
    CLOSED,
    COUNTED,
    GROUP_MEMBERS,
    GROUP_REBALANCES,
    GROUPS,
    IP_ACCEPT_THROTTLE,
    LOG_DIR_FREE,
    LOG_DIR_SIZE,
    LOG_DIR_TOTAL,
    METRICS,
    OPEN,
    OTHER,
    QUOTA_BOUND,
    QUOTA_BYTE_RATE,
    QUOTA_EXEMPT_TIME,
    QUOTA_MUTATION_RATE,
    QUOTA_QUEUE,
    QUOTA_REQUEST_TIME,
    QUOTA_THROTTLE,
    QUOTA_TOKENS,
    SHARE_ACKNOWLEDGED,
    SHARE_DEAD_LETTERS,
    SHARE_EXPIRED,
    SHARE_IN_FLIGHT,
    CloseReason,
)
from minibroker.broker.metrics.exposition import (
    IDLE_SPAN_NS,
    PROCESSES_MAX,
    Totals,
    api_name,
    render,
)
from minibroker.broker.metrics.metrics import (
    OK_AT,
    CleanerFigures,
    CommitFigures,
    FetchSessionFigures,
    Fill,
    LogFigures,
    ProcessMetrics,
    Snapshot,
)

Shown = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scrape(totals: Totals, restarts: dict[str, int] | None = None) -> Shown:
    families = text_string_to_metric_families(render(totals, restarts or {}).decode())
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def value(shown: Shown, name: str, **labels: str) -> float:
    return shown[name, tuple(sorted(labels.items()))]


def _of_worker(worker: ProcessMetrics) -> None:
    """Count what a worker counts."""
    worker.produced("orders", 1000, 10)
    worker.fetched("orders", 300)
    worker.storage_failed(OSError(errno.ENOSPC, "full"))
    worker.log_truncated(50, 900)
    worker.watch_gauges(lambda: {("minibroker_conditions", ("storage_failed",)): 1})
    worker.watch_gauges(
        lambda: {
            ("minibroker_client_instances", ()): 1,
            ("minibroker_client_metric", ("app", "id", "records.total", "a=b")): 7,
        }
    )
    worker.watch_purgatory("fetch", lambda: 4)
    worker.watch_logs(lambda: [LogFigures("orders", 2, 1000, 5, 10)])
    worker.watch_commits(lambda: [CommitFigures(1, "shop", "orders", 2, 7)])
    worker.watch_gauges(
        lambda: {
            (LOG_DIR_SIZE.name, ("/data",)): 1000,
            (GROUPS.name, ("consumer", "Stable")): 2,
            (GROUP_MEMBERS.name, ("consumer",)): 3,
            (GROUP_REBALANCES.name, ("consumer",)): 4,
            (SHARE_ACKNOWLEDGED.name, ("accept",)): 5,
            (SHARE_EXPIRED.name, ()): 6,
            (SHARE_DEAD_LETTERS.name, ("g", "written")): 3,
            (SHARE_IN_FLIGHT.name, ("acquired",)): 7,
            (LOG_DIR_FREE.name, ("/data",)): 1,
            (LOG_DIR_TOTAL.name, ("/data",)): 2,
        }
    )


@pytest.fixture
def shown() -> Shown:
    processor, worker = ProcessMetrics("processor-0"), ProcessMetrics("worker-1")
    processor.request(0, False, 128, 1000, 20_000, 30_000, 40_000, 2_000_000)
    processor.request(0, True, 129, 1000, 20_000, 30_000, 40_000, 60_000_000_000)
    processor.request(32_000, True, 1, 1, 1, 1, 1, 1)
    processor.request(127, True, 1, 1, 1, 1, 1, 1)
    processor.connection_accepted("PLAINTEXT")
    processor.connection_opened("PLAINTEXT")
    processor.connection_opened("PLAINTEXT")
    processor.connection_closed("PLAINTEXT", CloseReason.BAD_FRAME)
    processor.acceptor_blocked("PLAINTEXT", 1.5)
    processor.watch_queue("connection_slots", lambda: Fill(3, 20, 7, 1))
    processor.watch_fetch_sessions(lambda: FetchSessionFigures(2, 30, 4))
    processor.watch_gauges(
        lambda: {
            (COUNTED.name, ("PLAINTEXT",)): 3,
            (BROKER_ACCEPT_RATE.name, ()): 2.5,
            (ACCEPT_RATE.name, ("", "10.0.0.1")): 1.5,
            (ACCEPT_THROTTLE.name, ("PLAINTEXT",)): 312.5,
            (IP_ACCEPT_THROTTLE.name, ("PLAINTEXT",)): 200,
        }
    )
    worker.watch_memory(lambda: 4096)
    worker.watch_gauges(lambda: CleanerFigures().gauges(0))
    processor.throttled(0, 1_500_000_000)
    processor.watch_gauges(
        lambda: {
            (QUOTA_QUEUE.name, ("Produce",)): 2,
            (QUOTA_EXEMPT_TIME.name, ()): 0.5,
            (QUOTA_THROTTLE.name, ("Produce", "u", "c")): 1500,
            **{
                (metric.name, ("Produce", "u", "c")): 7
                for metric in (
                    *(QUOTA_BYTE_RATE, QUOTA_REQUEST_TIME, QUOTA_MUTATION_RATE),
                    *(QUOTA_TOKENS, QUOTA_BOUND),
                )
            },
        }
    )
    _of_worker(worker)
    totals = Totals()
    totals.take([processor.snapshot(), worker.snapshot()])
    return scrape(totals, {"processor-0": 2, "controller-0": 1})


def test_requests_are_exposed_by_api_and_result(shown: Shown) -> None:
    assert value(shown, "minibroker_requests_total", api="Produce", result="ok") == 1
    assert value(shown, "minibroker_requests_total", api="Produce", result="error") == 1
    assert value(shown, "minibroker_requests_total", api="unknown", result="error") == 2


def test_histograms_are_cumulative_in_base_units(shown: Shown) -> None:
    def bucket(le: str) -> float:
        return value(shown, "minibroker_request_total_seconds_bucket", api="Produce", le=le)

    assert (bucket("0.001"), bucket("0.0025"), bucket("30.0"), bucket("+Inf")) == (0, 1, 1, 2)
    assert value(shown, "minibroker_request_total_seconds_count", api="Produce") == 2
    assert value(shown, "minibroker_request_total_seconds_sum", api="Produce") == 60.002
    assert value(shown, "minibroker_request_io_seconds_sum", api="Produce") == pytest.approx(8e-5)
    sizes = "minibroker_request_size_bytes"
    assert value(shown, f"{sizes}_bucket", api="Produce", le="128") == 1
    assert value(shown, f"{sizes}_sum", api="Produce") == 257


def test_connection_queue_and_log_metrics_are_exposed(shown: Shown) -> None:
    assert value(shown, "minibroker_connections_accepted_total", listener="PLAINTEXT") == 1
    closed = "minibroker_connections_closed_total"
    assert value(shown, closed, listener="PLAINTEXT", reason="bad_frame") == 1
    one = {"process": "processor-0"}
    assert value(shown, "minibroker_broker_connection_accept_rate", **one) == 2.5
    rate = "minibroker_connection_accept_rate"
    assert value(shown, rate, **one, listener="", ip="10.0.0.1") == 1.5
    throttled = "minibroker_connection_accept_throttle_time_seconds"
    assert value(shown, throttled, **one, listener="PLAINTEXT") == 0.3125
    at = {"process": "processor-0", "queue": "connection_slots"}
    assert value(shown, "minibroker_queue_used", **at) == 3
    assert value(shown, "minibroker_queue_capacity", **at) == 20
    assert value(shown, "minibroker_queue_peak", **at) == 7
    assert value(shown, "minibroker_queue_waiting", **at) == 1
    opened = "minibroker_connections_open"
    assert value(shown, opened, process="processor-0", listener="PLAINTEXT") == 1
    blocked = "minibroker_acceptor_blocked_seconds_total"
    assert value(shown, blocked, listener="PLAINTEXT") == 1.5
    assert value(shown, "minibroker_log_size_bytes", topic="orders", partition="2") == 1000
    assert value(shown, "minibroker_log_start_offset", topic="orders", partition="2") == 5
    assert value(shown, "minibroker_log_end_offset", topic="orders", partition="2") == 10
    assert value(shown, "minibroker_purgatory_size", process="worker-1", operation="fetch") == 4
    assert value(shown, "minibroker_records_in_total") == 10
    assert value(shown, "minibroker_record_bytes_in_total") == 1000
    assert value(shown, "minibroker_record_bytes_out_total") == 300


def test_storage_metrics_are_exposed(shown: Shown) -> None:
    assert value(shown, "minibroker_storage_errors_total", error="ENOSPC") == 1
    assert value(shown, "minibroker_log_truncated_records_total") == 50
    assert value(shown, "minibroker_log_truncated_bytes_total") == 900
    conditions = {"process": "worker-1", "kind": "storage_failed"}
    assert value(shown, "minibroker_conditions", **conditions) == 1


def test_process_metrics_are_exposed(shown: Shown) -> None:
    assert value(shown, "minibroker_process_up", process="worker-1") == 1
    assert value(shown, "minibroker_process_up", process="controller-0") == 0
    assert value(shown, "minibroker_process_restarts_total", process="controller-0") == 1
    assert value(shown, "minibroker_process_restarts_total", process="worker-1") == 0
    assert value(shown, "minibroker_process_idle_ratio", process="worker-1") == 1
    assert value(shown, "minibroker_process_elapsed_seconds_total", process="worker-1") > 0
    assert value(shown, "minibroker_process_busy_seconds_total", process="worker-1") == 0
    assert value(shown, "minibroker_process_memory_bytes", process="worker-1") == 4096


def test_every_defined_metric_is_exposed_with_its_labels(shown: Shown) -> None:
    labels: dict[str, set[str]] = {}
    for name, pairs in shown:
        family = name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count")
        labels.setdefault(family, set()).update(label for label, _ in pairs if label != "le")
    assert labels == {metric.name: set(metric.labels) for metric in METRICS}


def test_quota_metrics_are_per_broker_and_quota_queues_per_process(shown: Shown) -> None:
    group = {"type": "Produce", "user": "u", "client_id": "c"}
    assert value(shown, "minibroker_quota_byte_rate", **group) == 7
    assert value(shown, "minibroker_quota_throttle_time_seconds", **group) == 1.5
    assert value(shown, "minibroker_quota_exempt_request_time_percent") == 0.5
    queue = {"process": "processor-0", "type": "Produce"}
    assert value(shown, "minibroker_quota_queue_size", **queue) == 2
    assert value(shown, "minibroker_request_throttle_seconds_sum", api="Produce") == 1.5


def test_idle_broker_is_scraped_with_zero_counters() -> None:
    assert value(scrape(Totals()), "minibroker_records_in_total") == 0


def test_topic_names_in_labels_are_escaped() -> None:
    worker, totals = ProcessMetrics("worker-0"), Totals()
    worker.watch_logs(lambda: [LogFigures('a"b\n\\', 0, 1, 0, 1), LogFigures(OTHER, -1, 7, 0, 0)])
    totals.take([worker.snapshot()])
    assert value(scrape(totals), "minibroker_log_size_bytes", topic='a"b\n\\', partition="0") == 1
    assert value(scrape(totals), "minibroker_log_size_bytes", topic=OTHER, partition="-1") == 7


def test_api_names_match_kafka() -> None:
    assert [api_name(key) for key in (0, 18, 22, 60, -1, 120)] == [
        "Produce",
        "ApiVersions",
        "InitProducerId",
        "DescribeCluster",
        "unknown",
        "unknown",
    ]


PRODUCE = 0
LISTENER = "PLAINTEXT"


def processor(index: int = 0) -> ProcessMetrics:
    return ProcessMetrics(f"processor-{index}")


def work(metrics: ProcessMetrics, times: int = 1) -> None:
    for _ in range(times):
        metrics.request(PRODUCE, False, 10, 10, 1, 1, 1, 1)
        metrics.connection_accepted(LISTENER)


def requests(totals: Totals) -> int:
    return totals.rows()[PRODUCE][OK_AT]


def accepted(totals: Totals) -> int:
    return totals.counters()[ACCEPTED.name, (LISTENER,)]


def test_counters_of_processes_are_summed() -> None:
    first, second, totals = processor(0), processor(1), Totals()
    work(first, 2)
    work(second, 3)
    totals.take([first.snapshot(), second.snapshot()])
    totals.take([first.snapshot(), second.snapshot()])
    assert (requests(totals), accepted(totals)) == (5, 5)


def test_counters_of_dead_process_are_kept() -> None:
    totals, first = Totals(), processor()
    work(first, 2)
    totals.take([first.snapshot()])
    totals.take([])
    assert requests(totals) == 2
    second = processor()
    work(second, 1)
    totals.take([second.snapshot()])
    totals.take([second.snapshot()])
    assert (requests(totals), accepted(totals)) == (3, 3)


def test_late_snapshot_is_ignored() -> None:
    totals, first = Totals(), processor()
    early = first.snapshot()
    work(first)
    last_words = first.snapshot()
    second = processor()
    work(second, 4)
    totals.take([last_words])
    totals.take([early])
    assert requests(totals) == 1
    totals.take([second.snapshot()])
    totals.take([last_words])
    assert requests(totals) == 5


def test_open_connections_of_dead_process_are_counted_as_closed() -> None:
    totals, first = Totals(), processor()
    for _ in range(3):
        first.connection_opened(LISTENER)
    first.connection_closed(LISTENER, CloseReason.IDLE)
    totals.take([first.snapshot()])
    totals.take([processor().snapshot()])
    assert totals.counters()[CLOSED.name, (LISTENER, "process_died")] == 2
    assert totals.counters()[CLOSED.name, (LISTENER, "idle")] == 1


def test_missing_process_is_down_and_has_no_gauges() -> None:
    totals, first, second = Totals(), processor(0), processor(1)
    first.connection_opened(LISTENER)
    first.watch_logs(lambda: [LogFigures("t", 0, 5, 0, 1)])
    totals.take([first.snapshot(), second.snapshot()])
    assert totals.up() == {"processor-0": True, "processor-1": True}
    assert totals.gauges()["processor-0"] == {(OPEN.name, (LISTENER,)): 1}
    assert totals.logs() == (LogFigures("t", 0, 5, 0, 1),)
    totals.take([second.snapshot()])
    assert totals.up() == {"processor-0": False, "processor-1": True}
    assert set(totals.gauges()) == set(totals.idle()) == {"processor-1"}
    assert totals.logs() == ()
    totals.take([first.snapshot(), second.snapshot()])
    assert totals.up()["processor-0"]


def snapshot(incarnation: int, elapsed_ns: int, busy_ns: int) -> Snapshot:
    return (
        processor()
        .snapshot()
        ._replace(incarnation=incarnation, elapsed_ns=elapsed_ns, busy_ns=busy_ns)
    )


def test_idle_ratio_covers_last_span_of_at_least_one_second() -> None:
    totals = Totals()

    def idle(elapsed_s: float, busy_s: float, incarnation: int = 1) -> float:
        figures = (int(elapsed_s * IDLE_SPAN_NS), int(busy_s * IDLE_SPAN_NS))
        totals.take([snapshot(incarnation, *figures)])
        return round(totals.idle()["processor-0"], 6)

    assert idle(0.5, 0.1) == 0.8  # the first span is as long as the process has lived
    assert idle(1, 0.1) == 0.9
    assert idle(1.5, 0.6) == 0.9  # half a second is too short to say
    assert idle(3, 0.6) == 0.75
    assert idle(5, 9) == 0  # rounding of two clocks must not show less than nothing
    assert idle(0.5, 0.5, incarnation=2) == 0
    assert totals.worked()["processor-0"] == (int(9.5 * IDLE_SPAN_NS), int(5.5 * IDLE_SPAN_NS))


def test_number_of_processes_is_limited() -> None:
    totals = Totals()
    totals.take([processor(index).snapshot() for index in range(PROCESSES_MAX + 5)])
    assert len(totals.up()) == PROCESSES_MAX
    assert len(totals.gauges()) == PROCESSES_MAX


@given(st.lists(st.sampled_from(["work", "die", "take", "keep", "late", "miss"]), max_size=60))
def test_counters_never_decrease(history: list[str]) -> None:
    totals, metrics = Totals(), processor()
    totals.take([metrics.snapshot()])
    kept = [metrics.snapshot()]
    shown, counted, died_with = 0, 0, 0
    for step in history:
        match step:
            case "work":
                work(metrics)
                counted += 1
            case "die":
                metrics = processor()
                died_with = counted
            case "take":
                totals.take([metrics.snapshot()])
            case "keep":
                kept.append(metrics.snapshot())
            case "late":
                totals.take([kept[0]])
            case "miss":
                totals.take([])
        now = totals.counters().get((ACCEPTED.name, (LISTENER,)), 0)
        assert shown <= now <= counted
        shown = now
    totals.take([metrics.snapshot()])
    assert totals.counters().get((ACCEPTED.name, (LISTENER,)), 0) >= counted - died_with
