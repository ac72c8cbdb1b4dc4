"""Rules reach the hold points and the storage of a worker."""

from __future__ import annotations

from trio.testing import MockClock

from minibroker.broker.groups.holds import PREPARED
from minibroker.broker.log.segment_files import SegmentFiles
from minibroker.broker.metrics.log import EventLog
from minibroker.broker.process.environment import WORKER
from minibroker.broker.process.messages import FaultRules
from minibroker.broker.process.storage_watch import StorageWatch
from minibroker.broker.process.worker_faults import WorkerFaults
from minibroker.lab.control.fault_shapes import FaultRule
from minibroker.lab.faults.rules import ActiveRule
from tests.broker.process.conftest import MakeEnvironment


async def test_rules_are_delivered_and_removed(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    env, files = make_env(WORKER, 0), SegmentFiles()
    watch = StorageWatch(env, EventLog(env.name))
    faults = WorkerFaults(env, files, watch)
    before = watch.fails_on_purpose()
    hold = ActiveRule("1", FaultRule("hold", point="transaction.prepared"))
    fail = ActiveRule("2", FaultRule("fail_append"), slot=0)
    await faults.change_rules(FaultRules(1, (hold, fail)))
    assert faults.hold_points.may_hold(PREPARED, "tx")
    assert vars(files)["write_fault"] is not None
    assert watch.fails_on_purpose()
    await faults.change_rules(FaultRules(2, removed=("1", "2")))
    assert not faults.hold_points.may_hold(PREPARED, "tx")
    assert vars(files)["write_fault"] is None
    assert (before, watch.fails_on_purpose()) == (False, False)
