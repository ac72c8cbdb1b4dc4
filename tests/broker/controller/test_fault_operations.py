"""The backend delegates operations on fault rules."""

from __future__ import annotations

from pathlib import Path

from trio.testing import MockClock

from minibroker.broker.controller.fault_operations import FaultOperations
from minibroker.broker.controller.fault_store import FaultStore
from minibroker.broker.controller.faults import FaultController
from minibroker.broker.controller.metadata_publisher import MetadataPublisher
from minibroker.broker.metadata.image import Image
from minibroker.lab.control.fault_shapes import FaultRule
from minibroker.runtime.clock import SimulatedClock
from tests.lab.faults.messages import SERVED


async def not_recorded(process: str, *, ends: bool) -> None:
    """The journal is off."""
    del process, ends


async def test_all_operations_reach_the_rules(autojump_clock: MockClock, tmp_path: Path) -> None:
    publisher = MetadataPublisher(Image, lambda _: None, 0)
    rules = FaultController(
        publisher,
        SimulatedClock(autojump_clock),
        ["processor-0"],
        tuple,
        FaultStore(tmp_path, 1),
        served=SERVED,
        on_clock=print,
        on_process=print,
        hand_over=not_recorded,
    )
    operations = FaultOperations(lambda: rules)
    view = await operations.add_fault(FaultRule("hold", name="h"))
    assert (await operations.faults()).faults == (view,)
    assert await operations.fault("h") == view
    assert (await operations.release_fault("h")).released == 0
    assert await operations.wait_fault("h", 0, 0) == view
    await operations.remove_fault("h")
    await operations.add_fault(FaultRule("observe"))
    await operations.remove_faults()
    assert (await operations.faults()).faults == ()
