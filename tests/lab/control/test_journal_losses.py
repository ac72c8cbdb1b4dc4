"""What the journal does not have is a loss in its place, or is named in the answer."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from minibroker.broker.process.environment import CONTROLLER
from minibroker.lab.control.journal import (
    EntryConditions,
    EntryQuery,
    JournalAssertion,
    JournalChange,
    assert_entries,
    change_journal,
    clear_journal,
    find_entries,
    get_journal,
    send_entries,
)
from minibroker.lab.control.journal_collector import RESPONSE_S
from tests.lab.control.journaling_roles import OFF, ON, Role, Running, make_env, running

__all__ = ["make_env", "running"]


async def killed(running: Running, number: int, *, restarts: bool = True) -> Role:
    """Let a process end with what it has, and return the next one, which may not register yet."""
    former = running.roles[number]
    former.rpc.close()
    await wait_all_tasks_blocked()
    running.roles[number] = running.new_role(number)
    if restarts:
        await running.roles[number].register()
    return running.roles[number]


async def test_entries_of_a_process_that_was_killed_are_a_loss_in_their_place(
    running: Running,
) -> None:
    await change_journal(running, ON)
    first, second = running.roles
    first.note("a")
    assert await running.names() == ["a"]
    first.note("lost")
    first.note("lost")
    second.note("b")
    (await killed(running, 0)).note("c")
    page = await find_entries(running, EntryQuery())
    shown = [entry.details.get("name", entry.details.get("entries")) for entry in page.entries]
    assert shown == ["a", "b", 2, "c"]
    assert [entry.sequence for entry in page.entries] == [1, 2, 4, 5]
    assert (page.last, page.dropped, page.pending) == (5, 2, 0)
    wanted = EntryConditions(details={"name": "x"})
    for after, holds in ((0, False), (3, False), (4, True)):
        result = await assert_entries(running, JournalAssertion(absent=wanted, after=after))
        assert result.holds == holds


async def test_question_waits_for_the_successor_of_a_killed_process(
    running: Running, autojump_clock: MockClock
) -> None:
    await change_journal(running, ON)
    running.roles[0].note("lost")
    later = await killed(running, 0, restarts=False)

    async def restart() -> None:
        await trio.sleep(2)
        await later.register()

    running.nursery.start_soon(restart)
    page = await find_entries(running, EntryQuery())
    assert [entry.kind for entry in page.entries] == ["lost"]
    assert 2 <= trio.current_time() < RESPONSE_S


async def test_process_that_is_known_to_have_ended_is_not_waited_for(
    running: Running, autojump_clock: MockClock
) -> None:
    await change_journal(running, ON)
    running.roles[0].note("lost")
    await killed(running, 0, restarts=False)
    running.statuses[1] = running.statuses[1]._replace(pid=0)
    page = await find_entries(running, EntryQuery())
    assert [(entry.kind, entry.role) for entry in page.entries] == [("lost", "worker-0")]
    assert trio.current_time() < 1


async def test_absence_is_unknown_while_a_process_does_not_respond(
    running: Running, autojump_clock: MockClock
) -> None:
    await change_journal(running, ON)
    first, second = running.roles
    second.note("a")
    second.is_stopped = True
    absent = EntryConditions(details={"name": "x"})
    result = await assert_entries(running, JournalAssertion(absent=absent))
    assert (result.holds, result.text[:36]) == (False, "worker-1 does not respond and has 1 ")
    elsewhere = absent._replace(role="worker-0")
    assert (await assert_entries(running, JournalAssertion(absent=elsewhere))).holds
    assert (await get_journal(running)).pending == 1
    first.note("b")


async def test_next_controller_continues_with_a_loss_of_all_entries(running: Running) -> None:
    await change_journal(running, ON)
    for text in "abc":
        running.roles[0].note(text)
    assert await running.names() == ["a", "b", "c"]
    running.roles[1].note("d")
    await running.restart_controller()
    page = await find_entries(running, EntryQuery())
    assert [(entry.kind, entry.sequence) for entry in page.entries] == [("lost", 3), ("state", 4)]
    assert page.entries[0].details["entries"] == 3
    running.roles[0].note("e")
    assert await running.names(after="3") == ["d", "e"]
    absent = EntryConditions(details={"name": "x"})
    assert not (await assert_entries(running, JournalAssertion(absent=absent, after=2))).holds
    assert (await assert_entries(running, JournalAssertion(absent=absent, after=3))).holds


async def test_cleared_entries_are_not_lost_with_the_controller(running: Running) -> None:
    await change_journal(running, ON)
    running.roles[0].note("a")
    await clear_journal(running)
    running.roles[0].note("b")
    assert await running.names() == ["b"]
    await running.restart_controller()
    page = await find_entries(running, EntryQuery())
    assert [entry.details["entries"] for entry in page.entries] == [1]
    assert (page.last, page.dropped) == (2, 1)


async def test_controller_that_hands_over_leaves_its_entries_to_the_next_one(
    running: Running,
) -> None:
    await change_journal(running, ON)
    running.roles[0].note("a")
    await running.journal.hand_over(CONTROLLER, ends=True)
    running.roles[0].note("b")
    await running.restart_controller()
    page = await find_entries(running, EntryQuery())
    assert [entry.details["name"] for entry in page.entries] == ["a", "b"]
    assert (page.last, page.dropped) == (2, 0)


async def test_process_that_is_asked_to_end_has_saved_what_it_recorded(running: Running) -> None:
    await change_journal(running, ON)
    role = running.roles[0]
    role.note("a")
    assert await running.names() == ["a"]
    role.note("b")
    await running.journal.hand_over("worker-0", ends=True)
    assert role.has_ended
    (await killed(running, 0)).note("c")
    assert await running.names() == ["a", "b", "c"]


async def test_process_that_cannot_end_by_itself_is_not_waited_for(
    running: Running, autojump_clock: MockClock
) -> None:
    await change_journal(running, ON)
    running.roles[0].is_stopped = True
    await running.journal.hand_over("worker-0", ends=True)
    assert trio.current_time() == RESPONSE_S


async def test_process_that_will_be_stopped_hands_over_with_the_roles_beside_it(
    running: Running,
) -> None:
    await change_journal(running, ON)
    for role in running.roles:
        role.note("a")
    running.statuses[1:] = [each._replace(pid=7) for each in running.statuses[1:]]
    await running.journal.hand_over("worker-1", ends=False)
    assert running.env.journal_counts.pending() == {}


async def test_nothing_is_handed_over_while_the_journal_is_off(running: Running) -> None:
    for ends in (True, False):
        await running.journal.hand_over("worker-0", ends=ends)
    assert running.roles[0].requests == 0


async def test_what_is_recorded_until_the_journal_is_off_is_kept(running: Running) -> None:
    await change_journal(running, ON)
    role = running.roles[0]
    role.at_switch = partial(role.note, "last")
    await change_journal(running, OFF)
    assert await running.names() == ["last"]
    assert role.buffer is not None
    assert role.buffer.take(running.env.journal_counts.chunk("worker-0")).parts == ()


async def test_process_without_new_entries_is_not_asked(running: Running) -> None:
    await change_journal(running, ON)
    running.roles[0].note("a")
    await running.names()
    before = [role.requests for role in running.roles]
    await running.names()
    assert [role.requests for role in running.roles] == before


async def test_reader_of_the_stream_sees_each_gap(
    running: Running, autojump_clock: MockClock
) -> None:
    await change_journal(running, ON)
    await change_journal(running, JournalChange(bytes_max=20 * 1024))
    lines: list[dict[str, Any]] = []

    async def send_slowly(data: bytes) -> None:
        await trio.sleep(1)
        if data.strip():
            lines.append(json.loads(data))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send_entries, running.journal, EntryQuery(kind="state"), send_slowly)
        for _ in range(300):
            running.roles[0].note("a")
            running.roles[1].note("b")
            await trio.sleep(0.1)
        await trio.sleep(60)
        nursery.cancel_scope.cancel()
    seen = 0
    for line in lines:
        lost = line["details"].get("entries", 1)
        assert line["sequence"] == seen + lost
        seen += lost
    assert seen == 600
    assert {line["kind"] for line in lines} == {"state", "lost"}
