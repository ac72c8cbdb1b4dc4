"""The verification of histories finds each anomaly; otherwise every simulation would pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation.history import History, Log, judge

P = ("t", 0)


def kinds(history: History, log: Log) -> list[str]:
    return [anomaly.kind for anomaly in judge(history, log)]


def test_valid_history_passes() -> None:
    history = History()
    history.appended(P, 0, ["a:0", "a:1"])
    history.read("c", P, 0, "a:0")
    history.read("c", P, 1, "a:1")
    history.shown_end(P, 2, 3)
    history.assigned("g", 1, "m", [P])
    history.assigned("g", 2, "n", [P])
    history.joined("g", "c")
    history.committed("g", P, 1)
    history.shown_commit("g", P, history.known_commit("g", P), 1)
    assert kinds(history, {P: {0: "a:0", 1: "a:1", 2: "b:0"}}) == []


@pytest.mark.parametrize(
    ("log", "kind"),
    [
        ({}, "lost"),
        ({P: {0: "a:9"}}, "lost"),
        ({P: {0: "b:0", 1: "a:0"}}, "moved"),
        ({P: {0: "a:0", 1: "a:0"}}, "doubled"),
        ({P: {0: "a:0", 1: "a:2", 2: "a:1"}}, "disordered"),
        ({P: {0: "a:0", 2: "a:1"}}, "skipped"),
    ],
)
def test_history_of_acknowledged_records(log: Log, kind: str) -> None:
    history = History()
    history.appended(P, 0, ["a:0"])
    assert kinds(history, log) == [kind]


def _skip(history: History) -> None:
    history.read("c", P, 0, "a:0")
    history.read("c", P, 2, "a:2")


def _vanished(history: History) -> None:
    history.read("c", P, 0, "a:9")


def _stale(history: History) -> None:
    history.appended(P, 0, ["a:0", "a:1", "a:2"])
    history.shown_end(P, history.known_end(P), 2)


def _shared(history: History) -> None:
    history.assigned("g", 1, "m", [P])
    history.assigned("g", 1, "n", [P])


def _held_twice(history: History) -> None:
    history.held("g", "m", [P], until=2.0, now=1.0)
    history.held("g", "n", [P], until=3.0, now=1.9)


def _forgotten(history: History) -> None:
    history.committed("g", P, 5)
    history.shown_commit("g", P, history.known_commit("g", P), 4)


def _gone_back(history: History) -> None:
    history.shown_commit("g", P, history.known_commit("g", P), 5)
    history.shown_commit("g", P, history.known_commit("g", P), 4)


def _unread(history: History) -> None:
    history.joined("g", "c")
    for offset in (0, 1):
        history.read("c", P, offset, f"a:{offset}")
        history.read("other", P, offset, f"a:{offset}")
    history.read("other", P, 2, "a:2")
    history.committed("g", P, 3)


@pytest.mark.parametrize(
    ("story", "kind"),
    [
        (_skip, "skipped"),
        (_vanished, "lost"),
        (_stale, "stale"),
        (_shared, "shared"),
        (_held_twice, "shared"),
        (_forgotten, "forgotten"),
        (_gone_back, "forgotten"),
        (_unread, "unread"),
    ],
)
def test_history_of_readers_and_members(story: Callable[[History], None], kind: str) -> None:
    history = History()
    story(history)
    assert kinds(history, {P: {0: "a:0", 1: "a:1", 2: "a:2"}}) == [kind]


def test_partition_may_move_when_its_member_has_less_lets_go_or_expires() -> None:
    history = History()
    history.held("g", "m", [P], until=2.0, now=1.0)
    history.held("another", "n", [P], until=2.0, now=1.0)
    history.held("g", "m", [], until=2.1, now=1.1)
    history.held("g", "n", [P], until=2.2, now=1.2)
    history.let_go("g", "n")
    history.held("g", "m", [P], until=2.3, now=1.3)
    history.held("g", "n", [P], until=3.3, now=2.3)
    history.held("g", "m", [], until=3.4, now=2.4)
    assert not history.anomalies
    history.held("g", "m", [P], until=3.4, now=2.5)
    assert [each.kind for each in history.anomalies] == ["shared"]
