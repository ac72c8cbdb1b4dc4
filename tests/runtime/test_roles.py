"""The shared table of processes."""

from __future__ import annotations

import os
import signal

import pytest

from minibroker.runtime.roles import ROLES_MAX, RoleState, RoleStatus, RoleTable, describe_exit


def test_role_from_birth_to_end() -> None:
    table = RoleTable(["a", "b"])
    assert table.read()[1] == RoleStatus("b", 0, 0, RoleState.NOT_STARTED, 0, None)
    table.started(1, 42, 1)
    assert table.read()[1] == RoleStatus("b", 42, 1, RoleState.STARTING, 0, None)
    table.ready(1)
    assert table.read()[1].state is RoleState.READY
    table.ended(1, 9, restarts=True)
    assert table.read()[1] == RoleStatus("b", 0, 1, RoleState.WAITING, 0, "signal 9 (SIGKILL)")
    table.started(1, 43, 2)
    table.ready(1)
    assert table.read()[1] == RoleStatus("b", 43, 2, RoleState.READY, 1, "signal 9 (SIGKILL)")
    table.ended(1, 0, restarts=False)
    assert table.read()[1] == RoleStatus("b", 0, 2, RoleState.ENDED, 1, "exit status 0")
    assert table.read()[0] == RoleStatus("a", 0, 0, RoleState.NOT_STARTED, 0, None)


def test_peer_process_reads_later_writes() -> None:
    table = RoleTable(["a"])
    go_read, go_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            os.read(go_read, 1)
            code = table.read()[0].pid
        finally:
            os._exit(code)
    table.started(0, 42, 1)
    os.write(go_write, b"!")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 42
    os.close(go_read)
    os.close(go_write)


@pytest.mark.parametrize("names", [[], ["a", "a"], [str(n) for n in range(ROLES_MAX + 1)]])
def test_invalid_tables_are_rejected(names: list[str]) -> None:
    with pytest.raises(ValueError, match="different names"):
        RoleTable(names)


def test_exit_status_is_described() -> None:
    assert describe_exit(3 << 8) == "exit status 3"
    assert describe_exit(signal.SIGTERM) == "signal 15 (SIGTERM)"
    assert describe_exit(33) == "signal 33"
