"""What a broker leaves on the machine when it has ended: nothing, unless configured."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from system_tests.faults.conftest import Starter, still_running
from system_tests.faults.killing import DEFAULT_LAYOUT, SEPARATE
from system_tests.faults.verifiable import Run
from system_tests.harness.brokers import RunningBroker
from system_tests.harness.processes import abandoned_segments, held_paths, tree
from system_tests.harness.waiting import wait_until

pytestmark = pytest.mark.minibroker


class Footprint:
    """The processes of a broker and everything that they have open in temporary folders.

    Files that this process has open existed before: the checkout may be in such a folder.
    """

    def __init__(self, broker: RunningBroker) -> None:
        self.processes = tree(broker.pid)
        held = {path for pid in self.processes for path in held_paths(pid)}
        self.paths = held - held_paths(os.getpid())

    def left(self) -> list[str]:
        running = [f"process {pid}" for pid in still_running(self.processes)]
        return running + sorted(str(path) for path in self.paths if path.exists())


@pytest.mark.parametrize("gently", [True, False], ids=["SIGTERM", "SIGKILL"])
@pytest.mark.parametrize(
    ("layout", "processes"),
    [
        (DEFAULT_LAYOUT, 4),  # supervisor, acceptor, controller, combined
        (SEPARATE, 7),  # supervisor, acceptor, controller, 2 + 2
    ],
    ids=["default", "separate"],
)
def test_no_process_is_left(
    layout: Mapping[str, str],
    processes: int,
    gently: bool,
    start: Starter,
    begin_run: Callable[..., Run],
) -> None:
    segments = abandoned_segments()
    broker = start(settings=layout)
    run = begin_run(broker)
    run.wait_progress()
    footprint = Footprint(broker)
    assert len(footprint.processes) >= processes
    assert footprint.paths, "the data directory was expected in a temporary folder"
    run.finish()
    if gently:
        assert broker.stop() == 0
        assert not footprint.left()
    broker.forget()
    wait_until(lambda: not footprint.left(), f"nothing to be left of {footprint.paths}")
    assert abandoned_segments() <= segments


def test_named_data_directory_is_kept(start: Starter, tmp_path: Path) -> None:
    broker = start(data_dir=tmp_path / "data")
    assert broker.stop() == 0
    assert (tmp_path / "data").is_dir()


def test_foreign_directory_with_broker_prefix_is_not_removed(start: Starter) -> None:
    parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="minibroker-", dir=parent) as name:
        kept = Path(name) / "data"
        end = start(data_dir=kept).stop
        assert end() == 0
        assert start().stop() == 0
        assert kept.is_dir()


def test_leftovers_of_killed_broker_are_removed_on_start(start: Starter) -> None:
    broker = start()
    footprint = Footprint(broker)
    for pid in footprint.processes:
        os.kill(pid, signal.SIGKILL)
    broker.forget()
    wait_until(lambda: not still_running(footprint.processes), "everything to be dead")
    start()
    assert not footprint.left()
