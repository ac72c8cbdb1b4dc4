"""Carries out fault rules about appends in the process that owns the logs.

Owns what such a rule does to a write: a failure, a torn batch, a crash, a wait. It must never know
batches or clients. Invariant: a batch that a rule has torn stays in the file as after a real crash,
and while no such rule is set nothing is matched. Trogdor's ``FilesUnreadableFault`` is the closest
that Kafka has.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from minibroker.broker.metrics.log import EventLog
from minibroker.lab.faults.actions import FailAppend, StallAppend
from minibroker.lab.faults.fault_rule import COUNTS
from minibroker.lab.faults.matching import EntityMatcher
from minibroker.lab.faults.register import FaultCounts
from minibroker.lab.faults.rulebook import is_in_time
from minibroker_protocol.meanings import Meaning

if TYPE_CHECKING:
    from minibroker.broker.log.segment import SegmentFiles
    from minibroker.broker.process.environment import Environment
    from minibroker.lab.faults.fault_rule import ActiveRule
    from minibroker.lab.observers.messages import FaultRules

DEFAULT_ERRNO: Final = "ENOSPC"


class StorageFaults:
    """The rules about the appends of one worker."""

    def __init__(
        self, env: Environment, files: SegmentFiles, save_records: Callable[[], None]
    ) -> None:
        """``save_records`` saves what the process has recorded for the journal."""
        self._env = env
        self._files = files
        self._save_records = save_records
        self._log = EventLog(env.name)
        self._rules = EntityMatcher()
        self._counts: FaultCounts | None = None

    def change_rules(self, rules: FaultRules) -> None:
        """Add and remove rules, or replace all."""
        if rules.replaces:
            self._rules = EntityMatcher()
        for rule_id in rules.removed:
            self._rules.remove(rule_id)
        for active in rules.added:
            if active.rule.action.matches == "appends" and active.slot >= 0:
                self._rules.add(active)
        if self._counts is not None and (rules.replaces or not self._rules):
            self._counts.close()
            self._counts = None
        if self._rules and self._counts is None:
            self._counts = FaultCounts(self._env.data_dir)
        self._files.write_fault = self._meet if self._rules else None

    def fails_always(self) -> bool:
        """Whether a rule lets each append to some partition fail now."""
        now = self._env.clock.now()
        return any(
            isinstance(active.rule.action, FailAppend)
            and all(getattr(active.rule, name) is None for name in COUNTS)
            and is_in_time(active, now)
            for active in self._rules.all()
        )

    def _meet(self, fd: int, directory: str, batch: tuple[bytes, memoryview], size: int) -> None:
        """Let the rules act on a write of a batch at the end of a file of ``size`` bytes."""
        topic, _, partition = os.path.basename(directory).rpartition("-")
        keys = {Meaning.TOPIC: topic, Meaning.PARTITION: int(partition)}
        for active in self._rules.match(keys):
            assert self._counts is not None
            if self._counts.decide(active, self._env.clock.now()):
                self._carry_out(active, fd, batch, size)

    def _carry_out(
        self, active: ActiveRule, fd: int, batch: tuple[bytes, memoryview], size: int
    ) -> None:
        action = active.rule.action
        if isinstance(action, StallAppend):
            pause_s = action.pause_ms / 1000
            time.sleep(pause_s)  # noqa: TID251 - as for a disk that does not respond
            return
        assert isinstance(action, FailAppend)
        if action.bytes:
            os.pwrite(fd, b"".join(batch)[: action.bytes], size)
        if action.crash:
            self._log.warning("a fault rule kills this process in an append", rule=active.id)
            self._save_records()
            os.kill(os.getpid(), signal.SIGKILL)
        number = getattr(errno, action.errno or DEFAULT_ERRNO)
        raise OSError(number, os.strerror(number))
