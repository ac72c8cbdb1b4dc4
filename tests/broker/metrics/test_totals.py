"""Totals never decrease when processes die or snapshots arrive late."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.metrics.definitions import ACCEPTED, CLOSED, OPEN, CloseReason
from minibroker.broker.metrics.metrics import OK_AT, LogFigures, ProcessMetrics, Snapshot
from minibroker.broker.metrics.totals import IDLE_SPAN_NS, PROCESSES_MAX, Totals

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
