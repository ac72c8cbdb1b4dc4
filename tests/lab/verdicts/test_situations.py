from __future__ import annotations

from minibroker.lab.verdicts.situations import Situation, duration


def test_durations_are_written_in_milliseconds_or_seconds() -> None:
    assert [duration(ms) for ms in (0.4, 150, 9_999, 12_340)] == [
        "0 ms",
        "150 ms",
        "9999 ms",
        "12.3 s",
    ]


def test_situation_without_a_fault_is_kept() -> None:
    assert not Situation((1,)).fault
