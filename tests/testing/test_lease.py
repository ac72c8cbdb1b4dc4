from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from minibroker.testing.lease import (
    STOP_SECONDS_MAX,
    BrokerStartError,
    Ended,
    ForkServerAddress,
    Lease,
    fork_server_of_process,
)

IDLE_BYTES_MAX = 100

HOLDER = """
import sys
from minibroker.testing.lease import ForkServerAddress, Lease
fork_server = ForkServerAddress(sys.argv[1], sys.argv[2:])
lease = Lease(fork_server, {}, share="session")
print(lease.wait_ready()["pid"], flush=True)
sys.stdin.read()
lease.stop()
fork_server.close()
"""


def hold(run_id: str, command: tuple[str, ...]) -> subprocess.Popen[str]:
    """Another process of the run, which holds the shared broker until its input ends."""
    return subprocess.Popen(
        [sys.executable, "-c", HOLDER, run_id, *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def read_pid(holder: subprocess.Popen[str]) -> int:
    assert holder.stdout is not None
    return int(holder.stdout.readline())


def test_broker_runs_until_its_lease_is_released(
    fork_server: ForkServerAddress, is_gone: Callable[[int], bool]
) -> None:
    lease = Lease(fork_server, {"num.partitions": "7"})
    ready = lease.wait_ready()
    assert ready["bootstrap_servers"] == "127.0.0.1:7"
    lease.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(ready["pid"], 0)


def test_fork_server_is_idle_once_and_only_after_its_first_broker_is_ready(
    fork_server: ForkServerAddress, idle_socket: socket.socket
) -> None:
    first = Lease(fork_server, {})
    ready_ns = first.wait_ready()["ready_ns"]
    second = Lease(fork_server, {})
    second.wait_ready()
    for lease in (first, second):
        lease.stop()
    assert int(idle_socket.recv(IDLE_BYTES_MAX)) > ready_ns
    idle_socket.setblocking(False)
    with pytest.raises(BlockingIOError):
        idle_socket.recv(IDLE_BYTES_MAX)


def test_lease_without_share_has_its_own_broker(
    fork_server: ForkServerAddress,
) -> None:
    shares = [None, None, "session", "session"]
    leases = [Lease(fork_server, {}, share) for share in shares]
    pids = [lease.wait_ready()["pid"] for lease in leases]
    assert len(set(pids[:3])) == 3
    assert pids[2] == pids[3]
    for lease in leases:
        lease.stop()


def test_shared_broker_ends_with_its_last_lease(
    fork_server: ForkServerAddress, is_gone: Callable[[int], bool]
) -> None:
    first, second = Lease(fork_server, {}, "session"), Lease(fork_server, {}, "session")
    pid = first.wait_ready()["pid"]
    assert second.wait_ready()["pid"] == pid
    first.stop()
    os.kill(pid, 0)
    second.stop()
    assert is_gone(pid)


def leased_twice(
    fork_server: ForkServerAddress, started_socket: socket.socket
) -> tuple[list[Lease], int]:
    """Two leases of brokers without settings, and the spare that follows when both are ready."""
    leases = list[Lease]()
    for _ in range(2):
        leases.append(Lease(fork_server, {}))
        assert leases[-1].wait_ready()["pid"] == read_started(started_socket)
    return leases, read_started(started_socket)


def read_started(started_socket: socket.socket) -> int:
    """The process of the next broker that starts."""
    return int(started_socket.recv(IDLE_BYTES_MAX))


def test_third_broker_in_a_row_was_started_in_advance(
    fork_server: ForkServerAddress, started_socket: socket.socket, is_gone: Callable[[int], bool]
) -> None:
    leases, spare = leased_twice(fork_server, started_socket)
    leases.append(Lease(fork_server, {}))
    assert leases[-1].wait_ready()["pid"] == spare
    leases.pop().stop()
    assert is_gone(spare)
    for lease in leases:
        lease.stop()


def test_broker_with_other_settings_is_not_the_spare(
    fork_server: ForkServerAddress, started_socket: socket.socket
) -> None:
    leases, spare = leased_twice(fork_server, started_socket)
    leases += [Lease(fork_server, {"num.partitions": "7"}), Lease(fork_server, {}, "session")]
    assert spare not in [lease.wait_ready()["pid"] for lease in leases[2:]]
    leases.append(Lease(fork_server, {}))
    assert leases[-1].wait_ready()["pid"] == spare
    for lease in leases:
        lease.stop()


def test_spare_is_replaced_when_other_settings_are_requested_in_a_row(
    fork_server: ForkServerAddress, started_socket: socket.socket, is_gone: Callable[[int], bool]
) -> None:
    leases, spare = leased_twice(fork_server, started_socket)
    leases += [Lease(fork_server, {"num.partitions": "7"}) for _ in range(2)]
    assert is_gone(spare)
    for lease in leases:
        lease.stop()


def test_spare_that_starts_while_another_broker_ends_does_not_delay_its_lease(
    fork_server: ForkServerAddress, started_socket: socket.socket, is_gone: Callable[[int], bool]
) -> None:
    leases, spare = leased_twice(fork_server, started_socket)
    ending = Lease(fork_server, {"num.partitions": "7"})
    pid = ending.wait_ready()["pid"]
    assert read_started(started_socket) == pid
    os.kill(pid, signal.SIGSTOP)
    ending._connection.shutdown(socket.SHUT_WR)
    leases.append(Lease(fork_server, {}))
    assert leases[-1].wait_ready()["pid"] == spare
    assert read_started(started_socket) != spare
    os.kill(pid, signal.SIGCONT)
    assert is_gone(pid)
    # Fails after this time if the new spare has a copy of the connection.
    ending._connection.settimeout(STOP_SECONDS_MAX)
    assert b"stopped" in ending._reader.read()
    for lease in (*leases, ending):
        lease.stop()


def test_spare_ends_with_the_run(
    fork_server: ForkServerAddress, started_socket: socket.socket, is_gone: Callable[[int], bool]
) -> None:
    leases, spare = leased_twice(fork_server, started_socket)
    fork_server.close()
    assert is_gone(spare)
    for lease in leases:
        lease.stop()


def test_killed_spare_is_not_given_away(
    fork_server: ForkServerAddress, started_socket: socket.socket, is_gone: Callable[[int], bool]
) -> None:
    leases, spare = leased_twice(fork_server, started_socket)
    os.kill(spare, signal.SIGKILL)
    assert is_gone(spare)
    leases.append(Lease(fork_server, {}))
    assert leases[-1].wait_ready()["pid"] != spare
    for lease in leases:
        lease.stop()


def test_repeated_settings_with_which_no_broker_starts_leave_the_fork_server_running(
    fork_server: ForkServerAddress,
) -> None:
    for settings in ({"num.partitions": "many"}, {"num.partitions": "13"}):
        for _ in range(3):
            with pytest.raises(BrokerStartError, match=r"whole number|bad luck"):
                Lease(fork_server, settings).wait_ready()
    lease = Lease(fork_server, {})
    assert lease.wait_ready()["event"] == "ready"
    lease.stop()


def test_broker_that_does_not_start_shows_its_log(fork_server: ForkServerAddress) -> None:
    lease = Lease(fork_server, {"num.partitions": "13"})
    with pytest.raises(BrokerStartError, match="bad luck with 13 partitions"):
        lease.wait_ready()


def test_invalid_settings_are_rejected_with_the_broker_s_error(
    fork_server: ForkServerAddress,
) -> None:
    lease = Lease(fork_server, {"num.partition": "1"})
    with pytest.raises(BrokerStartError, match=r"did you mean num\.partitions\?"):
        lease.wait_ready()


def test_log_of_running_broker_can_be_read(fork_server: ForkServerAddress) -> None:
    lease = Lease(fork_server, {})
    lease.wait_ready()
    assert lease.log() == "about to start\n"
    lease.stop()


def test_failed_fork_server_reports_its_error() -> None:
    fork_server = ForkServerAddress(
        uuid.uuid4().hex, (sys.executable, "-c", "raise SystemExit('no way')")
    )
    lease = Lease(fork_server, {})
    with pytest.raises(BrokerStartError, match="no way"):
        lease.wait_ready()
    fork_server.close()


def test_concurrent_processes_share_one_fork_server(fake_command: tuple[str, ...]) -> None:
    run_id = uuid.uuid4().hex
    holders = [hold(run_id, fake_command) for _ in range(4)]
    assert len({read_pid(holder) for holder in holders}) == 1
    for holder in holders:
        holder.communicate()
        assert holder.returncode == 0


def test_leased_broker_survives_the_process_that_started_the_fork_server(
    fake_command: tuple[str, ...], is_gone: Callable[[int], bool]
) -> None:
    run_id = uuid.uuid4().hex
    first = hold(run_id, fake_command)
    pid = read_pid(first)
    second = hold(run_id, fake_command)
    assert read_pid(second) == pid
    first.communicate()
    os.kill(pid, 0)
    second.communicate()
    assert is_gone(pid)


def test_killed_test_process_leaves_no_broker(
    fake_command: tuple[str, ...], is_gone: Callable[[int], bool]
) -> None:
    holder = hold(uuid.uuid4().hex, fake_command)
    pid = read_pid(holder)
    holder.kill()
    holder.communicate()
    assert is_gone(pid)


def test_killed_fork_server_leaves_no_broker(
    fork_server: ForkServerAddress, is_gone: Callable[[int], bool]
) -> None:
    lease = Lease(fork_server, {})
    pid = lease.wait_ready()["pid"]
    assert fork_server.pid is not None
    os.kill(fork_server.pid, signal.SIGKILL)
    assert is_gone(pid)
    lease.stop()


def test_fork_server_survives_the_end_of_a_broker_and_of_its_output_in_one_round(
    fork_server: ForkServerAddress, is_gone: Callable[[int], bool], idle_socket: socket.socket
) -> None:
    lease = Lease(fork_server, {"num.partitions": "2"})
    pid = lease.wait_ready()["pid"]
    [worker] = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    server = fork_server.pid
    assert server is not None
    idle_socket.recv(IDLE_BYTES_MAX)
    while " S " not in Path(f"/proc/{server}/stat").read_text():
        pass  # until it waits for events
    os.kill(server, signal.SIGSTOP)
    os.waitid(os.P_PID, server, os.WSTOPPED)
    for process in (pid, worker):  # in this order the output is closed last
        os.kill(process, signal.SIGKILL)
        assert is_gone(process)
    os.kill(server, signal.SIGCONT)
    following = Lease(fork_server, {})
    assert following.wait_ready()["event"] == "ready"
    assert lease.ended() == Ended(-signal.SIGKILL, "about to start\n")
    assert fork_server.pid == server
    lease.stop()
    following.stop()


def test_run_after_its_fork_server_ended_gets_a_new_one(
    fake_command: tuple[str, ...], is_gone: Callable[[int], bool]
) -> None:
    run_id = uuid.uuid4().hex
    holder = hold(run_id, fake_command)
    read_pid(holder)
    holder.communicate()
    fork_server = ForkServerAddress(run_id, fake_command)
    lease = Lease(fork_server, {}, "session")
    assert lease.wait_ready()["event"] == "ready"
    lease.stop()
    fork_server.close()


def test_process_uses_a_single_fork_server() -> None:
    assert fork_server_of_process() is fork_server_of_process("another run")
