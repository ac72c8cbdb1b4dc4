"""Every process of the broker is killed while a producer and consumers are at work."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Mapping

import pytest

from system_tests.faults.conftest import Starter
from system_tests.faults.history import find_anomalies
from system_tests.faults.killing import (
    COMBINED,
    DEFAULT_LAYOUT,
    ROLES,
    SEPARATE,
    kill,
    names_of,
    one_of_each_process,
)
from system_tests.faults.verifiable import Run
from system_tests.harness.brokers import RunningBroker
from system_tests.harness.control import processes, wait_ready
from system_tests.harness.processes import open_files
from system_tests.harness.waiting import wait_until

pytestmark = pytest.mark.minibroker

SEED = 20_260_801
BeginRun = Callable[..., Run]
Settings = Mapping[str, str]
SHARDED = {"acceptor.mode": "sharded"}
MODES = pytest.mark.parametrize(
    "mode",
    [DEFAULT_LAYOUT, SHARDED, COMBINED, {**SEPARATE, **SHARDED}, SEPARATE],
    ids=["default", "sharded", "combined", "separate-sharded", "separate"],
)
"""One acceptor, or processors that accept themselves; processors and workers that share processes,
or not."""


@pytest.mark.parametrize(
    ("layout", "role"),
    [
        *((DEFAULT_LAYOUT, role) for role in ("acceptor", "processor", "controller")),
        (COMBINED, "processor"),
        *((SEPARATE, role) for role in ROLES),
    ],
    ids=lambda value: value if isinstance(value, str) else value.get("process.mode", "default"),
)
def test_process_kill_loses_and_duplicates_no_acknowledged_record(
    layout: Settings, role: str, start: Starter, begin_run: BeginRun
) -> None:
    broker = start(settings=layout)
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


@pytest.mark.parametrize(
    ("layout", "role"),
    [(DEFAULT_LAYOUT, "worker"), (SEPARATE, "processor"), (SEPARATE, "worker")],
    ids=["default", "processor", "worker"],
)
def test_non_idempotent_producer_loses_no_record(
    layout: Settings, role: str, start: Starter, begin_run: BeginRun
) -> None:
    broker = start(settings=layout)
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
    mode: Settings, start: Starter, begin_run: BeginRun
) -> None:
    print(f"seed {SEED}")
    dice = random.Random(SEED)
    broker = start(settings=mode)
    run = begin_run(broker)
    run.wait_progress()
    names = one_of_each_process(broker)
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
    mode: Settings, start: Starter, begin_run: BeginRun
) -> None:
    broker = start(settings=mode)
    everyone = [processes(broker)[name] for name in one_of_each_process(broker)]
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
def test_restarted_process_leaks_no_descriptors(mode: Settings, start: Starter) -> None:
    broker = start(settings=mode)
    wait_ready(broker)
    names = one_of_each_process(broker)
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
