"""Metrics of one process: exact, bounded, and counters never decrease."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.metrics.definitions import (
    ACCEPTED,
    ACCEPTOR_BLOCKED,
    API_KEYS_MAX,
    CLOSED,
    FETCH_SESSION_EVICTIONS,
    FETCH_SESSION_PARTITIONS,
    FETCH_SESSIONS,
    GROUP_LAG,
    GROUP_OFFSET,
    GROUP_PARTITIONS_MAX,
    LISTENERS_MAX,
    MEMORY,
    METRICS,
    OPEN,
    OTHER,
    PURGATORY,
    QUEUE_CAPACITY,
    QUEUE_PEAK,
    QUEUE_USED,
    QUEUE_WAITING,
    QUEUES_MAX,
    RECORD_BYTES_IN,
    RECORD_BYTES_OUT,
    RECORDS_IN,
    SIZE_BUCKETS_BYTES,
    TIME_BUCKETS_NS,
    TOPIC_BYTES_IN,
    TOPIC_BYTES_OUT,
    TOPIC_PARTITIONS_MAX,
    TOPIC_RECORDS_IN,
    TOPICS_MAX,
    CloseReason,
)
from minibroker.broker.metrics.metrics import (
    ERRORS_AT,
    HISTOGRAMS,
    OK_AT,
    ROW_LENGTH,
    UNKNOWN_API,
    CleanerFigures,
    CommitFigures,
    FetchSessionFigures,
    Fill,
    LogFigures,
    ProcessMetrics,
    bounded_logs,
    group_gauges,
    log_gauges,
)

PRODUCE = 0


@pytest.fixture
def metrics() -> ProcessMetrics:
    return ProcessMetrics("processor-1")


def buckets(row: list[int], name: str) -> list[int]:
    histogram = HISTOGRAMS[name]
    return row[histogram.buckets_at : histogram.buckets_at + len(histogram.bounds) + 1]


def test_requests_are_counted_by_api_and_result(metrics: ProcessMetrics) -> None:
    for error in (False, True, False):
        metrics.request(PRODUCE, error, 1, 1, 1, 1, 1, 1)
    row = metrics.snapshot().rows[PRODUCE]
    assert (row[OK_AT], row[ERRORS_AT]) == (2, 1)


def test_each_measurement_of_a_request_has_its_own_histogram(metrics: ProcessMetrics) -> None:
    metrics.request(PRODUCE, False, 100, 200, 11_000, 12_000, 13_000, 36_000)
    row = metrics.snapshot().rows[PRODUCE]
    sums = {name: row[histogram.sum_at] for name, histogram in HISTOGRAMS.items()}
    assert sums == {
        "request_bytes": 100,
        "response_bytes": 200,
        "queue": 11_000,
        "network": 12_000,
        "io": 13_000,
        "total": 36_000,
        "throttle": 0,
    }
    metrics.throttled(PRODUCE, 37_000)
    row = metrics.snapshot().rows[PRODUCE]
    assert row[HISTOGRAMS["throttle"].sum_at] == 37_000
    assert sum(buckets(row, "throttle")) == 1


def test_histograms_of_a_row_do_not_overlap() -> None:
    taken = [OK_AT, ERRORS_AT]
    for histogram in HISTOGRAMS.values():
        taken.append(histogram.sum_at)
        taken += range(histogram.buckets_at, histogram.buckets_at + len(histogram.bounds) + 1)
    assert sorted(taken) == list(range(ROW_LENGTH))


@pytest.mark.parametrize(
    ("name", "bounds"), [("request_bytes", SIZE_BUCKETS_BYTES), ("total", TIME_BUCKETS_NS)]
)
def test_bucket_bounds_are_inclusive(name: str, bounds: tuple[int, ...]) -> None:
    metrics = ProcessMetrics("processor-0")
    for at in (bounds[3], bounds[3] + 1, bounds[-1] + 1):
        metrics.request(PRODUCE, False, at, 0, 0, 0, 0, at)
    counts = buckets(metrics.snapshot().rows[PRODUCE], name)
    assert (counts[3], counts[4], counts[-1]) == (1, 1, 1)
    assert sum(counts) == 3


@given(st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 2**40)), max_size=20))
def test_every_histogram_counts_every_request(figures: list[tuple[int, int]]) -> None:
    metrics = ProcessMetrics("processor-0")
    for size, ns in figures:
        metrics.request(PRODUCE, False, size, size, ns, ns, ns, ns)
    for row in metrics.snapshot().rows.values():
        assert {sum(buckets(row, name)) for name in HISTOGRAMS if name != "throttle"} == {
            len(figures)
        }
        assert row[HISTOGRAMS["total"].sum_at] == sum(ns for _, ns in figures)


@given(st.lists(st.integers(-(2**15), 2**15 - 1), max_size=400))
def test_unknown_api_keys_share_one_row(api_keys: list[int]) -> None:
    metrics = ProcessMetrics("processor-0")
    for api_key in api_keys:
        metrics.request(api_key, True, 1, 1, 1, 1, 1, 1)
    rows = metrics.snapshot().rows
    assert len(rows) <= API_KEYS_MAX + 1
    assert sum(row[ERRORS_AT] for row in rows.values()) == len(api_keys)
    assert (UNKNOWN_API in rows) == any(not 0 <= key < API_KEYS_MAX for key in api_keys)


def test_snapshot_is_a_copy_and_can_be_pickled(metrics: ProcessMetrics) -> None:
    metrics.request(PRODUCE, False, 1, 1, 1, 1, 1, 1)
    metrics.connection_accepted("PLAINTEXT")
    before = metrics.snapshot()
    metrics.request(PRODUCE, False, 1, 1, 1, 1, 1, 1)
    metrics.connection_accepted("PLAINTEXT")
    assert before.rows[PRODUCE][OK_AT] == 1
    assert before.counters[ACCEPTED.name, ("PLAINTEXT",)] == 1
    assert pickle.loads(pickle.dumps(before)) == before
    assert before.process == "processor-1"


def test_accepted_open_and_closed_connections_are_counted(metrics: ProcessMetrics) -> None:
    for _ in range(3):
        metrics.connection_accepted("PLAINTEXT")
        metrics.connection_opened("PLAINTEXT")
    metrics.connection_closed("PLAINTEXT", CloseReason.IDLE)
    metrics.connection_refused("PLAINTEXT", CloseReason.LIMIT)
    snapshot = metrics.snapshot()
    assert snapshot.gauges[OPEN.name, ("PLAINTEXT",)] == 2
    assert snapshot.counters[ACCEPTED.name, ("PLAINTEXT",)] == 3
    assert snapshot.counters[CLOSED.name, ("PLAINTEXT", "idle")] == 1
    assert snapshot.counters[CLOSED.name, ("PLAINTEXT", "limit")] == 1


def test_listeners_beyond_limit_are_counted_together(metrics: ProcessMetrics) -> None:
    for number in range(LISTENERS_MAX + 5):
        metrics.connection_opened(f"L{number}")
    gauges = metrics.snapshot().gauges
    assert gauges[OPEN.name, (OTHER,)] == 5
    assert len(gauges) == LISTENERS_MAX + 1


def test_acceptor_without_own_connections_has_no_open_gauge() -> None:
    acceptor = ProcessMetrics("acceptor")
    acceptor.connection_accepted("PLAINTEXT")
    acceptor.acceptor_blocked("PLAINTEXT", 0.2)
    acceptor.acceptor_blocked("PLAINTEXT", 0.1)
    snapshot = acceptor.snapshot()
    assert snapshot.gauges == {}
    assert snapshot.counters[ACCEPTOR_BLOCKED.name, ("PLAINTEXT",)] == 300_000_000


def test_produced_and_fetched_record_bytes_are_counted() -> None:
    worker = ProcessMetrics("worker-0")
    worker.produced("cats", 100, 3)
    worker.produced("dogs", 50, 1)
    worker.fetched("dogs", 70)
    assert worker.snapshot().counters == {
        (RECORD_BYTES_IN.name, ()): 150,
        (RECORDS_IN.name, ()): 4,
        (RECORD_BYTES_OUT.name, ()): 70,
        (TOPIC_BYTES_IN.name, ("cats",)): 100,
        (TOPIC_BYTES_IN.name, ("dogs",)): 50,
        (TOPIC_RECORDS_IN.name, ("cats",)): 3,
        (TOPIC_RECORDS_IN.name, ("dogs",)): 1,
        (TOPIC_BYTES_OUT.name, ("dogs",)): 70,
    }


def test_topics_beyond_the_limit_are_counted_together() -> None:
    worker = ProcessMetrics("worker-0")
    names = [f"topic-{number:03}" for number in range(TOPICS_MAX + 2)]
    for name in names:
        worker.produced(name, 10, 1)
    counters = worker.snapshot().counters
    assert counters[TOPIC_BYTES_IN.name, (names[TOPICS_MAX - 1],)] == 10
    assert counters[TOPIC_BYTES_IN.name, (OTHER,)] == 20
    assert counters[RECORD_BYTES_IN.name, ()] == 10 * len(names)


def test_deleted_topics_make_room_and_stay_in_the_sum() -> None:
    worker = ProcessMetrics("worker-0")
    topics = {f"topic-{number}": None for number in range(TOPICS_MAX)}
    worker.watch_topics(lambda: topics)
    for name in topics:
        worker.produced(name, 10, 1)
    topics = {"new": None}
    worker.produced("new", 5, 1)
    assert worker.snapshot().counters == {
        (RECORD_BYTES_IN.name, ()): 10 * TOPICS_MAX + 5,
        (RECORDS_IN.name, ()): TOPICS_MAX + 1,
        (TOPIC_BYTES_IN.name, ("new",)): 5,
        (TOPIC_RECORDS_IN.name, ("new",)): 1,
    }


def test_fetches_without_records_show_no_topic() -> None:
    worker = ProcessMetrics("worker-0")
    worker.fetched("cats", 0)
    assert worker.snapshot().counters == {}


def test_offsets_committed_last_are_shown() -> None:
    worker = ProcessMetrics("worker-0")
    count = GROUP_PARTITIONS_MAX + 1
    worker.watch_commits(lambda: (CommitFigures(at, "g", "t", at, 7) for at in range(count)))
    shown = worker.snapshot().commits
    assert {commit.partition for commit in shown} == set(range(1, count))


def test_lag_is_shown_where_the_log_is() -> None:
    commits = [CommitFigures(1, "g", "t", 0, 7), CommitFigures(1, "g", "t", 1, 7)]
    assert group_gauges(commits, [LogFigures("t", 0, 100, 0, 10)]) == {
        (GROUP_OFFSET.name, ("g", "t", "0")): 7,
        (GROUP_LAG.name, ("g", "t", "0")): 3,
        (GROUP_OFFSET.name, ("g", "t", "1")): 7,
    }
    assert (
        group_gauges(commits[:1], [LogFigures("t", 0, 0, 0, 5)])[GROUP_LAG.name, ("g", "t", "0")]
        == 0
    )


def test_watched_sources_are_read_at_snapshot(metrics: ProcessMetrics) -> None:
    used = 1
    metrics.watch_queue("arena", lambda: Fill(used, 20, 7, 2))
    metrics.watch_purgatory("fetch", lambda: used + 10)
    metrics.watch_busy(lambda: used * 1000)
    used = 4
    snapshot = metrics.snapshot()
    assert snapshot.busy_ns == 4000
    assert snapshot.gauges == {
        (QUEUE_USED.name, ("arena",)): 4,
        (QUEUE_CAPACITY.name, ("arena",)): 20,
        (QUEUE_PEAK.name, ("arena",)): 7,
        (QUEUE_WAITING.name, ("arena",)): 2,
        (PURGATORY.name, ("fetch",)): 14,
    }


def test_fetch_sessions_are_shown_and_evictions_counted(metrics: ProcessMetrics) -> None:
    assert FETCH_SESSIONS.name not in {name for name, _ in metrics.snapshot().gauges}
    metrics.watch_fetch_sessions(lambda: FetchSessionFigures(2, 30, 4))
    snapshot = metrics.snapshot()
    assert snapshot.gauges[FETCH_SESSIONS.name, ()] == 2
    assert snapshot.gauges[FETCH_SESSION_PARTITIONS.name, ()] == 30
    assert snapshot.counters[FETCH_SESSION_EVICTIONS.name, ()] == 4


def test_watching_too_many_queues_raises_value_error(metrics: ProcessMetrics) -> None:
    for number in range(QUEUES_MAX):
        metrics.watch_queue(f"q{number}", lambda: Fill(0, 1, 0))
    metrics.watch_queue("q0", lambda: Fill(1, 1, 1))
    with pytest.raises(ValueError, match="QUEUES_MAX"):
        metrics.watch_queue("one more", lambda: Fill(0, 1, 0))


def test_later_process_has_larger_incarnation() -> None:
    first, second = ProcessMetrics("worker-0"), ProcessMetrics("worker-0")
    assert first.snapshot().incarnation < second.snapshot().incarnation
    early = first.snapshot()
    assert early.elapsed_ns <= first.snapshot().elapsed_ns


@given(st.integers(0, TOPIC_PARTITIONS_MAX + 30))
def test_logs_beyond_limit_are_summed(count: int) -> None:
    logs = [LogFigures("t", partition, 10, 0, 5) for partition in range(count)]
    bounded = bounded_logs(reversed(logs))
    assert len(bounded) <= TOPIC_PARTITIONS_MAX + 1
    assert sum(log.size_bytes for log in bounded) == count * 10
    assert bounded[:TOPIC_PARTITIONS_MAX] == tuple(logs[:TOPIC_PARTITIONS_MAX])


def test_summed_logs_of_several_processes_have_no_offsets() -> None:
    rest = LogFigures(OTHER, -1, 10, 0, 0)
    gauges = log_gauges([rest, LogFigures("t", 0, 3, 1, 2), rest])
    assert gauges == {
        ("minibroker_log_size_bytes", (OTHER, "-1")): 20,
        ("minibroker_log_size_bytes", ("t", "0")): 3,
        ("minibroker_log_start_offset", ("t", "0")): 1,
        ("minibroker_log_end_offset", ("t", "0")): 2,
    }


def test_memory_is_read_at_snapshot() -> None:
    metrics = ProcessMetrics("worker-0")
    taken = [5, 7]
    metrics.watch_memory(taken.pop)
    assert metrics.snapshot().gauges == {(MEMORY.name, ()): 7}
    assert metrics.snapshot().gauges == {(MEMORY.name, ()): 5}


def test_figures_of_cleaner_have_a_value_for_each_metric() -> None:
    figures = CleanerFigures()
    names = {metric.name for metric in METRICS if metric.name.startswith("minibroker_log_cleaner_")}
    assert {name for name, _ in figures.gauges(0)} == names


def test_cleaning_is_added() -> None:
    figures = CleanerFigures(last_run_ms=1000)
    figures.add(100, 25, 0.5, 7)
    figures.add(100, 75, 0.25, 9)
    values = {
        name.removeprefix("minibroker_log_cleaner_"): v
        for (name, _), v in figures.gauges(1500).items()
    }
    assert values["runs"] == 2
    assert (values["read_bytes"], values["written_bytes"]) == (200, 100)
    assert values["recopy_ratio"] == 0.75
    assert values["clean_time_seconds"] == 9
    assert values["time_since_last_run_seconds"] == 500
