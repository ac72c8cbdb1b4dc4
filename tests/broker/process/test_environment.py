"""Names of roles, and notes of a process."""

from __future__ import annotations

from typing import Any

import pytest
from trio.testing import MockClock

from minibroker.broker.process.environment import (
    ACCEPTOR,
    CONTROLLER,
    PROCESSOR,
    WORKER,
    Environment,
    handoff_name,
    note,
    note_clock,
    note_state,
    note_topics,
    role_name,
)
from tests.broker.process.conftest import MakeEnvironment


@pytest.mark.parametrize(
    ("role", "name"),
    [
        (ACCEPTOR, "acceptor"),
        (CONTROLLER, "controller"),
        (PROCESSOR, "processor-1"),
        (WORKER, "worker-1"),
    ],
)
def test_repeated_roles_are_numbered(make_env: MakeEnvironment, role: str, name: str) -> None:
    assert role_name(role, 1) == name
    assert make_env(role, 1).name == name


def test_socket_channel_has_its_own_name() -> None:
    assert handoff_name(1) not in (role_name(PROCESSOR, 1), handoff_name(0))


def test_each_incarnation_has_its_own_stop_event(make_env: MakeEnvironment) -> None:
    first, second = make_env(WORKER), make_env(WORKER)
    first.stopping.set()
    assert not second.stopping.is_set()


def listen(env: Environment) -> list[tuple[str, dict[str, Any]]]:
    """Return the kinds and details of the notes from now on."""
    heard: list[tuple[str, dict[str, Any]]] = []
    env.on_note = lambda kind, details, *_: heard.append((kind, details))
    return heard


async def test_notes_without_a_listener_are_lost(make_env: MakeEnvironment) -> None:
    env = make_env(WORKER)
    note(env, "clock", {})
    note_topics(env, [], ["t"])
    assert listen(env) == []


async def test_note_has_its_connection_and_request(make_env: MakeEnvironment) -> None:
    env, heard = make_env(WORKER), []
    env.on_note = lambda *note: heard.append(note)
    note(env, "fault", {"rule": "1"}, (7, "10.0.0.1", 5000), (0, 9, 1, "etl"))
    assert heard == [("fault", {"rule": "1"}, (7, "10.0.0.1", 5000), (0, 9, 1, "etl"))]


async def test_changed_state_is_noted(make_env: MakeEnvironment) -> None:
    env = make_env(WORKER)
    heard = listen(env)
    note_state(env, "group", "g", "Empty", "Stable")
    assert heard == [("state", {"what": "group", "name": "g", "from": "Empty", "to": "Stable"})]


async def test_changed_clock_is_noted_with_both_times(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    env = make_env(WORKER)
    heard = listen(env)
    before = env.clock.wall_ms()
    env.clock.advance(5000)
    note_clock(env, before)
    ((kind, details),) = heard
    assert (kind, details["to"]) == ("clock", before + 5000)
    assert (details["from"], details["frozen"]) == (before, False)


async def test_created_and_deleted_topics_are_noted(make_env: MakeEnvironment) -> None:
    env = make_env(WORKER)
    heard = listen(env)
    note_topics(env, ["a", "b"], ["b", "c"])
    changes = [(details["name"], details["to"]) for _, details in heard]
    assert changes == [("a", None), ("c", "exists")]
