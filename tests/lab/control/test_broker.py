"""The running broker keeps the state of features, and learns names of topics for the journal."""

from __future__ import annotations

import signal
import subprocess
from functools import partial
from typing import Any

from minibroker.lab.control.broker import ControlledBroker
from minibroker.lab.control.journal import EntryQuery, JournalChange, change_journal, find_entries
from minibroker.lab.control.topics import TopicCreation, create_topic
from minibroker.runtime.roles import RoleState, RoleStatus
from tests.lab.control.running_broker import At


class Visits:
    """The state of a feature."""

    def __init__(self, broker: ControlledBroker) -> None:
        self.broker = broker


async def test_state_of_a_feature_is_made_once(at: At) -> None:
    visits = at.broker.state(Visits)
    assert visits.broker is at.broker
    assert at.broker.state(Visits) is visits


async def test_roles_are_named_by_their_numbers(at: At) -> None:
    assert (at.broker.processors, at.broker.workers) == (["processor-0"], ["worker-0", "worker-1"])


async def test_fault_rules_journal_and_processes_are_made_once(at: At) -> None:
    broker = at.broker
    assert broker.faults is broker.faults
    assert broker.journal is broker.journal
    assert broker.processes is broker.processes
    assert broker.operations == ()


async def test_journal_learns_names_of_topics_before_they_are_published(at: At) -> None:
    names: list[Any] = []
    at.broker.journal.topic_ids.learn = names.append  # type: ignore[assignment, method-assign]
    await create_topic(at.broker, TopicCreation("t", 1))
    assert "t" in names[-1].values()


def sleeping() -> subprocess.Popen[bytes]:
    """A process of the broker that does nothing."""
    return subprocess.Popen(["sleep", "60"])


async def test_killed_process_hands_over_what_it_recorded_while_the_journal_is_on(at: At) -> None:
    handed_over: list[tuple[str, bool]] = []

    async def hand_over(process: str, *, ends: bool) -> None:
        handed_over.append((process, ends))

    at.broker.journal.hand_over = hand_over  # type: ignore[method-assign]
    for is_on in (False, True):
        await change_journal(at.broker, JournalChange(enabled=is_on))
        with sleeping() as running:
            status = RoleStatus("worker-0", running.pid, 1, RoleState.READY, 0, None)
            at.broker.processes._statuses = partial(tuple, [status])
            await at.broker.processes.kill("worker-0", "a test")
            assert running.wait() == -signal.SIGKILL
    assert handed_over == [("worker-0", True)]
    (entry,) = (await find_entries(at.broker, EntryQuery(kind="state"))).entries
    assert entry.details == {
        "what": "process",
        "name": "worker-0",
        "from": "running",
        "to": "killed",
    }
