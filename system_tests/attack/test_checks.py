"""The checkers of the attack: they find what they must, and nothing else."""

from __future__ import annotations

from collections import Counter

from system_tests.attack.checks import (
    GROWTH_MAX_BYTES,
    changed_files,
    crashes,
    growth,
    messages,
    restarts,
    unexpected_exceptions,
)
from system_tests.attack.plan import Kind, plan
from system_tests.attack.report import Invariant, Report
from system_tests.attack.stalls import Fault, Sample, failures, stalls, unexcused

LOG = """\
2026-11-23T10:00:00.000Z processor-0 WARNING connection closed: bad frame listener=PLAINTEXT
2026-11-23T10:00:00.100Z processor-1 WARNING connection closed: bad frame listener=PLAINTEXT
2026-11-23T10:00:00.200Z worker-0 ERROR a step failed error="KeyError: 1" at=minibroker.x:7
2026-11-23T10:00:00.300Z worker-0 INFO started pid=7
"""


def sample(took_s: float = 2.0, *, late_s: float = 0.0, queued_s: float = 0.0) -> Sample:
    return Sample(10.0, 10.0 + took_s, "Produce", ("processor-0", "worker-1"), late_s, queued_s)


def test_stall_without_excuse_is_found() -> None:
    assert stalls([sample()]) == [sample()]
    assert stalls([sample(0.9)]) == []


def test_stall_excludes_time_queued_for_cpu() -> None:
    assert stalls([sample(late_s=0.6, queued_s=0.6)]) == []
    assert stalls([sample(late_s=0.3, queued_s=0.3)])


def test_blamed_stall_time_is_within_its_duration() -> None:
    assert sample(late_s=9.0).blamed_s == 0.0
    assert sample(late_s=-9.0, queued_s=-9.0).blamed_s == 2.0


def test_fault_of_a_serving_process_excuses_a_stall() -> None:
    killed = Fault(11.0, 11.5, frozenset({"worker-1"}))
    assert unexcused([sample()], [killed]) == []


def test_unrelated_fault_excuses_no_problem() -> None:
    other = Fault(11.0, 11.5, frozenset({"worker-0"}))
    before, after = Fault(8.0, 9.9), Fault(12.1, 13.0)
    assert unexcused([sample()], [other, before, after]) == [sample()]


def test_fault_of_all_processes_excuses_any_stall() -> None:
    assert unexcused([sample()], [Fault(9.0, 10.5)]) == []


def test_failures_are_samples_with_an_error() -> None:
    failed = sample(0.1)._replace(error="ConnectionResetError")
    assert failures([sample(), failed]) == [failed]


def test_crashes_are_found_with_their_text() -> None:
    printed = LOG + 'Traceback (most recent call last):\n  File "x.py"\nKeyError: 1\n'
    [found] = crashes(printed)
    assert "KeyError: 1" in found
    assert crashes(LOG) == []


def test_messages_are_counted_by_level_without_their_fields() -> None:
    assert messages(LOG) == Counter(
        {"WARNING connection closed: bad frame": 2, "ERROR a step failed": 1}
    )


def test_messages_of_one_kind_are_counted_together() -> None:
    line = "2026-11-23T10:00:00.000Z worker-0 ERROR group '{}' is gone: /dev/shm/{}/x, error {}\n"
    printed = line.format("a", "b", 5) + line.format("c", "d", 6)
    assert messages(printed) == Counter({"ERROR group … is gone: … error …": 2})


def test_unexpected_exceptions_are_the_errors_that_name_a_line() -> None:
    assert unexpected_exceptions(LOG) == [LOG.splitlines()[2]]


def test_growth_beyond_its_bound_is_found() -> None:
    assert growth(100, 100 + GROWTH_MAX_BYTES + 50, 50) == []
    assert growth(100, 101 + GROWTH_MAX_BYTES + 50, 50)


def test_restart_without_a_kill_is_found() -> None:
    before, after = {"worker-0": 1, "worker-1": 0}, {"worker-0": 2, "worker-1": 1, "acceptor": 0}
    assert restarts(before, after, Counter({"worker-0": 1})) == [
        "worker-1 was restarted 1 times and killed 0"
    ]
    assert restarts(before, after, Counter({"worker-0": 1, "worker-1": 1})) == []


def test_changed_vanished_and_new_files_are_found() -> None:
    before, after = {"a": "1", "b": "1", "c": "1"}, {"a": "1", "b": "2", "d": "1"}
    assert changed_files(before, after) == ["b: changed", "c: vanished", "d: appeared"]
    assert changed_files(before, before) == []


def test_plan_of_one_seed_is_the_same_and_has_every_kind() -> None:
    assert plan(7, 300) == plan(7, 300)
    assert plan(7, 3600) != plan(8, 3600)
    for seconds in (1, 60, 300, 3600):
        rounds = plan(7, seconds)
        assert {each.kind for each in rounds} == set(Kind)
        assert sum(each.seconds for each in rounds) <= max(seconds, 75)
        assert {each.kind for each in rounds[:5]} == set(Kind)


def test_report_shows_figures_and_problems() -> None:
    report = Report(seed=7)
    report.counts["hostile frames"] += 1234
    report.waited(0.4, "Produce")
    report.waited(0.3, "Fetch")
    report.found(Invariant.FILES, "round 3", "beach.jpg: vanished")
    table = report.table()
    assert "1,234" in table
    assert "0.40 s Produce" in table
    assert "FILES in round 3: beach.jpg: vanished" in table
    assert report.violations(Invariant.FILES)
    assert not report.violations(Invariant.MEMORY)


def test_report_without_slow_requests_shows_an_upper_bound() -> None:
    assert "below 0.3 s" in Report(seed=7).table()
