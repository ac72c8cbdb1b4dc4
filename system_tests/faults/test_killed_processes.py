"""Every process of the broker is killed while a producer and consumers are at work."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable

import pytest

from system_tests.faults.conftest import Starter
from system_tests.faults.history import find_anomalies
from system_tests.faults.killing import ROLES, kill, names_of
from system_tests.faults.verifiable import Run
from system_tests.harness.brokers import RunningBroker
from system_tests.harness.control import processes, wait_ready
from system_tests.harness.processes import open_files
from system_tests.harness.waiting import wait_until

pytestmark = pytest.mark.minibroker

SEED = 20_260_801
BeginRun = Callable[..., Run]
Mode = tuple[str, ...]
MODES = pytest.mark.parametrize(
    "mode", [(), ("--set", "acceptor.mode=sharded")], ids=["single", "sharded"]
)
"""Both modes: one acceptor, or processors that accept themselves."""


@pytest.mark.parametrize("role", ROLES)
def test_process_kill_loses_and_duplicates_no_acknowledged_record(
    role: str, start: Starter, begin_run: BeginRun
) -> None:
    broker = start()
    run = begin_run(broker)
    run.wait_progress()
    for _ in range(2):
        for name in names_of(broker, role):
            kill(broker, name)
            wait_ready(broker)
            run.wait_progress()
    history = run.finish()
    assert not history.failed
    assert not find_anomalies(history)


@pytest.mark.parametrize("role", ["processor", "worker"])
def test_non_idempotent_producer_loses_no_record(
    role: str, start: Starter, begin_run: BeginRun
) -> None:
    broker = start()
    run = begin_run(broker, idempotent=False)
    run.wait_progress()
    for name in names_of(broker, role):
        kill(broker, name)
        run.wait_progress()
    history = run.finish()
    anomalies = find_anomalies(history, allow_duplicates=True)
    # Without sequence numbers a batch sent again may overtake the next one: only losses count.
    assert not anomalies.lost
    assert not anomalies.skipped
    assert not anomalies.invented


@MODES
def test_processes_die_in_any_order_at_any_moment(
    mode: Mode, start: Starter, begin_run: BeginRun
) -> None:
    print(f"seed {SEED}")
    dice = random.Random(SEED)
    broker = start(*mode)
    run = begin_run(broker)
    run.wait_progress()
    names = sorted(name for name in processes(broker) if name.split("-")[0] in ROLES)
    for _ in range(12):
        kill(broker, dice.choice(names))
        run.wait_progress(records=dice.randrange(1, 40), also_consumed=False)
    wait_ready(broker)
    run.wait_progress()
    history = run.finish()
    assert not history.failed
    assert not find_anomalies(history)


@MODES
def test_killed_processes_leave_the_broker_answering(
    mode: Mode, start: Starter, begin_run: BeginRun
) -> None:
    broker = start(*mode)
    everyone = [each for each in processes(broker).values() if each.name.split("-")[0] in ROLES]
    for each in everyone:
        assert each.pid is not None
        os.kill(each.pid, signal.SIGKILL)

    def all_replaced() -> bool:
        now = processes(broker)
        return all(now[each.name].pid not in {None, each.pid} for each in everyone)

    wait_until(all_replaced, "every process to be started again")
    wait_ready(broker)
    run = begin_run(broker)
    run.wait_progress()
    assert not find_anomalies(run.finish())


@MODES
def test_restarted_process_leaks_no_descriptors(mode: Mode, start: Starter) -> None:
    broker = start(*mode)
    wait_ready(broker)
    names = [name for name in processes(broker) if name.split("-")[0] in ROLES]
    before = at_rest(broker, names)
    for _ in range(2):
        for name in names:
            kill(broker, name)
            wait_ready(broker)
    assert at_rest(broker, names) == before


def at_rest(broker: RunningBroker, names: list[str]) -> dict[str, int]:
    """Return the numbers of descriptors of idle processes."""
    pids = {name: processes(broker)[name].pid or 0 for name in names}
    seen: list[dict[str, int]] = []

    def unchanged_for_a_while() -> bool:
        seen.append({name: open_files(pid) for name, pid in pids.items()})
        return seen[-20:] == [seen[-1]] * 20

    wait_until(unchanged_for_a_while, "the processes to be at rest")
    return seen[-1]
