"""Workloads of all clients leave valid histories while processes of the broker are killed."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from minibroker.testing import check
from system_tests.faults.killing import SEPARATE, kill, one_of_each_process
from system_tests.harness.brokers import RunningBroker, start_minibroker
from system_tests.histories.conftest import NAMES, command_of
from system_tests.histories.test_workloads import run

pytestmark = [pytest.mark.minibroker, pytest.mark.java, pytest.mark.slow]

PAUSE_S = 2
"""Time for clients to work between two kills."""


@pytest.fixture
def separate_broker() -> Iterator[RunningBroker]:
    """A broker whose processors and workers are processes of their own."""
    with start_minibroker(settings=SEPARATE) as running:
        yield running


@contextmanager
def kills(broker: RunningBroker) -> Iterator[Callable[[], int]]:
    """Kill one process after the other, and count them."""
    stopped = threading.Event()
    counter = itertools.count()
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for name in itertools.cycle(one_of_each_process(broker)):
                if stopped.wait(PAUSE_S):
                    return
                kill(broker, name)
                next(counter)
        except BaseException as error:  # noqa: BLE001 - reported below
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield lambda: next(counter)
    finally:
        stopped.set()
        thread.join()
    assert not errors, errors


@pytest.mark.parametrize("workload", ["queue", "abort", "producer-fencing"])
def test_workload_is_valid_while_processes_are_killed(
    workload: str, separate_broker: RunningBroker, fresh: Callable[[str], str], tmp_path: Path
) -> None:
    path = tmp_path / "history.jsonl"
    commands = [command_of(name) for name in NAMES]
    with kills(separate_broker) as killed:
        run(separate_broker, fresh("killed"), workload, commands, path)
        assert killed()
    report = check(path)
    assert report.valid, report
    assert report.operations["ok"] > len(NAMES)
