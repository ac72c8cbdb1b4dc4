"""Names of roles."""

from __future__ import annotations

import pytest

from minibroker.broker.process.environment import (
    ACCEPTOR,
    CONTROLLER,
    PROCESSOR,
    WORKER,
    handoff_name,
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
