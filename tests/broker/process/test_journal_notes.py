"""Notes are recorded while the journal is on."""

from __future__ import annotations

from trio.testing import MockClock

from minibroker.broker.process.environment import WORKER, Environment
from minibroker.broker.process.journal_notes import note, note_clock, note_state, note_topics
from minibroker.lab.journal.buffer import JournalBuffer
from minibroker.lab.journal.entries import JournalEntry
from minibroker.lab.journal.records import entry_of, split
from tests.broker.process.conftest import MakeEnvironment


def taken(env: Environment) -> list[JournalEntry]:
    assert env.journal is not None
    found = [each for part in env.journal.take().parts for each in split(part.packed)]
    return [entry_of(kind, record, env.name, env.clock.epoch_s) for _, kind, record in found]


async def test_notes_while_the_journal_is_off_are_not_recorded(make_env: MakeEnvironment) -> None:
    env = make_env(WORKER)
    note(env, "clock", {})
    note_topics(env, [], ["t"])
    env.journal = JournalBuffer(0, env.journal_counts.word(env.name))
    assert taken(env) == []


async def test_changed_state_is_recorded_with_the_time(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    env = make_env(WORKER)
    env.journal = JournalBuffer(0, env.journal_counts.word(env.name))
    note_state(env, "group", "g", "Empty", "Stable")
    (entry,) = taken(env)
    assert entry.details == {"what": "group", "name": "g", "from": "Empty", "to": "Stable"}
    assert abs(entry.clock_ms - env.clock.wall_ms()) <= 1
    assert entry.role == "worker-0"


async def test_changed_clock_is_recorded_with_both_times(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    env = make_env(WORKER)
    env.journal = JournalBuffer(0, env.journal_counts.word(env.name))
    before = env.clock.wall_ms()
    env.clock.advance(5000)
    note_clock(env, before)
    (entry,) = taken(env)
    assert entry.details["to"] == before + 5000
    assert (entry.details["from"], entry.details["frozen"]) == (before, False)


async def test_created_and_deleted_topics_are_recorded(make_env: MakeEnvironment) -> None:
    env = make_env(WORKER)
    env.journal = JournalBuffer(0, env.journal_counts.word(env.name))
    note_topics(env, ["a", "b"], ["b", "c"])
    changes = [(entry.details["name"], entry.details["to"]) for entry in taken(env)]
    assert changes == [("a", None), ("c", "exists")]
