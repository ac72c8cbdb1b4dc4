"""The choice of measures, and what the command takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from system_tests.benchmarks import plan
from system_tests.benchmarks.__main__ import PEERS, parser
from system_tests.benchmarks.plan import Session

ROUNDS = plan.repeated(1000, grows=False)


def names(rounds: list[plan.Repeated]) -> list[str]:
    return [each.what for each in rounds]


def test_parser_without_arguments_measures_everything_five_times() -> None:
    options = parser().parse_args([])
    assert (options.runs, options.only, options.growth) == (5, [], None)
    assert options.peers == list(PEERS)


def test_parser_takes_names_of_measures_and_a_folder() -> None:
    options = parser().parse_args(["--only", "pinned", "group", "--growth", "docs"])
    assert (options.only, options.growth) == (["pinned", "group"], Path("docs"))


def test_parser_with_an_unknown_measure_ends(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["--only", "speed"])
    assert "'speed'" in capsys.readouterr().err


def test_names_of_measures_are_distinct() -> None:
    assert len(plan.NAMES) == len(set(plan.NAMES))


def test_growth_is_measured_if_it_is_drawn_or_named() -> None:
    assert not plan.grows(None, [])
    assert plan.grows(Path("docs"), [])
    assert plan.grows(None, [plan.GROWTH[0][0]])
    more = names(plan.repeated(1000, grows=True))
    assert set(more) - set(names(ROUNDS)) == {name for name, _ in plan.GROWTH}


def test_session_without_choice_wants_all_and_warms_up_with_a_few() -> None:
    session = Session(60)
    assert session.chosen(ROUNDS) == ROUNDS
    assert 0 < len(session.warm_up(ROUNDS)) < len(ROUNDS)


def test_session_with_choice_measures_and_warms_up_only_that() -> None:
    session = Session(60, ["pinned"])
    assert names(session.chosen(ROUNDS)) == names(session.warm_up(ROUNDS)) == ["pinned"]
    session.measure("peer", "group", lambda: {"row": 1.0})
    session.measure("peer", "pinned", lambda: {"row": 2.0})
    assert session.runs["row"]["peer"] == [2.0]


def test_session_notes_a_failed_measure_once() -> None:
    def fail() -> dict[str, float]:
        raise ValueError("no answer")

    session = Session(60)
    for _ in range(2):
        session.measure("peer", "group", fail)
    assert session.notes == ["group of peer: ValueError('no answer')"]
    assert session.runs == {}


def test_session_without_time_measures_nothing() -> None:
    session = Session(-1)
    session.measure("peer", "group", lambda: {"row": 1.0})
    assert session.notes == ["time was up before group of peer"]
    assert session.runs == {}
