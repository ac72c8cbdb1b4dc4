"""The journal of a broker: what all processes recorded before a query, in one order."""

from __future__ import annotations

import json
import time
from functools import partial

import pytest
import trio
from trio.testing import MockClock

from minibroker.broker.process.environment import note
from minibroker.lab.control.journal import (
    PING_S,
    EntryConditions,
    EntryQuery,
    JournalAssertion,
    JournalChange,
    assert_entries,
    change_journal,
    clear_journal,
    dissect_frame,
    find_entries,
    get_journal,
    send_entries,
    stream_entries,
)
from minibroker.lab.control.journal_collector import RESPONSE_S
from minibroker.lab.errors import Conflict, NotFound
from minibroker.lab.schema import InvalidJson
from tests.lab.control.journaling_roles import OFF, ON, Running, make_env, running
from tests.lab.journal.records_of_tests import FRAME, request

__all__ = ["make_env", "running"]


async def test_journal_that_was_never_on_rejects_questions(running: Running) -> None:
    assert not (await get_journal(running)).enabled
    with pytest.raises(Conflict, match="JOURNAL_OFF"):
        await find_entries(running, EntryQuery())
    with pytest.raises(Conflict, match="JOURNAL_OFF"):
        await assert_entries(running, JournalAssertion(happened=EntryConditions()))
    with pytest.raises(Conflict, match="JOURNAL_OFF"):
        await stream_entries(running, EntryQuery())
    with pytest.raises(Conflict, match="JOURNAL_OFF"):
        await send_entries(running.journal, EntryQuery(), _ignore)


async def _ignore(data: bytes) -> None:
    del data


async def test_entries_of_all_processes_are_in_one_order(running: Running) -> None:
    await change_journal(running, ON)
    first, second = running.roles
    for text, role in (("a", first), ("b", second), ("c", first)):
        role.note(text)
    note(running.env, "state", {"what": "test", "name": "d"})
    second.note("e")
    page = await find_entries(running, EntryQuery())
    assert [entry.details["name"] for entry in page.entries] == list("abcde")
    roles = [entry.role for entry in page.entries]
    assert roles == ["worker-0", "worker-1", "worker-0", "controller", "worker-1"]
    assert [entry.sequence for entry in page.entries] == [1, 2, 3, 4, 5]
    assert (page.last, page.dropped, page.has_more) == (5, 0, False)


async def test_pages_follow_each_other(running: Running) -> None:
    await change_journal(running, ON)
    for text in "abc":
        running.roles[0].note(text)
    page = await find_entries(running, EntryQuery(limit="2"))
    assert (len(page.entries), page.has_more) == (2, True)
    assert await running.names(after=str(page.entries[-1].sequence)) == ["c"]
    assert await running.names(limit="0") == []


async def test_large_frames_are_left_for_the_next_page(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minibroker.lab.control.journal.ANSWER_FRAME_BYTES_MAX", len(FRAME))
    await change_journal(running, ON)
    assert running.roles[0].buffer is not None
    for _ in range(2):
        running.roles[0].buffer.add(request(time.perf_counter_ns()))
    page = await find_entries(running, EntryQuery(frames="true"))
    assert (len(page.entries), page.has_more) == (1, True)
    assert len((await find_entries(running, EntryQuery())).entries) == 2


async def test_records_are_collected_regularly(running: Running, autojump_clock: MockClock) -> None:
    await change_journal(running, ON)
    role = running.roles[0]
    role.note("a")
    await trio.sleep(1)
    assert role.buffer is not None
    assert not len(role.buffer)


async def test_journal_that_is_off_keeps_what_was_recorded(running: Running) -> None:
    await change_journal(running, ON)
    running.roles[0].note("a")
    assert not (await change_journal(running, OFF)).enabled
    assert [role.is_on for role in running.roles] == [False, False]
    assert running.env.on_note is None
    assert await running.names() == ["a"]
    await change_journal(running, ON)
    running.roles[0].note("b")
    assert await running.names() == ["a", "b"]


async def test_process_that_registers_later_records(running: Running) -> None:
    await change_journal(running, ON)
    later = running.new_role(2)
    assert await later.register()
    later.note("a")
    assert await running.names() == ["a"]


async def test_clear_drops_entries(running: Running) -> None:
    await change_journal(running, ON)
    running.roles[0].note("a")
    await clear_journal(running)
    assert await running.names() == []
    running.roles[0].note("b")
    assert (await find_entries(running, EntryQuery())).entries[0].sequence == 2


async def test_smaller_memory_drops_the_oldest_entries(running: Running) -> None:
    await change_journal(running, ON)
    for text in "abc":
        running.roles[0].note(text)
    assert (await get_journal(running)).entries == 3
    view = await change_journal(running, JournalChange(bytes_max=1))
    assert (view.entries, view.dropped, view.bytes_max) == (1, 2, 1)


async def test_question_waits_for_an_entry(running: Running, autojump_clock: MockClock) -> None:
    await change_journal(running, ON)
    running.roles[0].note("a")

    async def note_later() -> None:
        await trio.sleep(5)
        running.roles[1].note("b")

    running.nursery.start_soon(note_later)
    assert await running.names(after="1", wait_ms="10000") == ["b"]
    assert 5 <= trio.current_time() < 6


async def test_wait_without_an_entry_ends_after_its_time(
    running: Running, autojump_clock: MockClock
) -> None:
    await change_journal(running, ON)
    before = trio.current_time()
    assert await running.names(wait_ms="3000") == []
    assert trio.current_time() - before == pytest.approx(3, abs=0.1)


async def test_stopped_process_does_not_prevent_an_answer(
    running: Running, autojump_clock: MockClock
) -> None:
    await change_journal(running, ON)
    first, second = running.roles
    first.note("a")
    second.is_stopped = True
    assert await running.names() == ["a"]
    assert trio.current_time() == 0, "it has recorded nothing"
    second.note("b")
    page = await find_entries(running, EntryQuery())
    assert ([each.details["name"] for each in page.entries], page.pending) == (["a"], 1)
    assert trio.current_time() < 2 * RESPONSE_S


async def test_chunk_that_was_lost_on_its_way_is_fetched_again(running: Running) -> None:
    await change_journal(running, ON)
    role = running.roles[0]
    role.note("a")
    assert role.buffer is not None
    role.buffer.take(0)
    assert await running.names() == ["a"]


async def test_assertions_hold_when_the_entries_show_it(running: Running) -> None:
    await change_journal(running, ON)
    for text in "ab":
        running.roles[0].note(text)
    check = partial(assert_entries, running)
    a, b = (EntryConditions(details={"name": text}) for text in "ab")
    assert (await check(JournalAssertion(happened=a))).holds
    assert not (await check(JournalAssertion(happened=a, times=2))).holds
    assert not (await check(JournalAssertion(happened=a, after=1))).holds
    assert (await check(JournalAssertion(in_order=(a, b)))).holds
    failed = await check(JournalAssertion(in_order=(b, a)))
    assert (failed.holds, failed.text) == (False, "step 2 of 2 did not happen after entry 2")
    assert not (await check(JournalAssertion(absent=a))).holds
    assert (await check(JournalAssertion(absent=a, before_ms=1.0))).holds
    assert (await check(JournalAssertion(absent=a, after=1))).holds


async def test_absence_is_unknown_if_entries_were_dropped(running: Running) -> None:
    await change_journal(running, ON)
    for text in "ab":
        running.roles[0].note(text)
    await get_journal(running)
    await change_journal(running, JournalChange(bytes_max=1))
    a = EntryConditions(details={"name": "a"})
    assert not (await assert_entries(running, JournalAssertion(absent=a))).holds
    assert (await assert_entries(running, JournalAssertion(absent=a, after=1))).holds


async def test_assertion_waits_until_it_holds(running: Running, autojump_clock: MockClock) -> None:
    await change_journal(running, ON)

    async def note_later() -> None:
        await trio.sleep(5)
        running.roles[1].note("b")

    running.nursery.start_soon(note_later)
    wanted = EntryConditions(details={"name": "b"})
    assert (await assert_entries(running, JournalAssertion(happened=wanted, wait_ms=9000))).holds


async def test_wrong_conditions_are_rejected(running: Running) -> None:
    await change_journal(running, ON)
    steps = (EntryConditions(), EntryConditions(api="x"))
    with pytest.raises(InvalidJson, match=r"in_order\.1\.api"):
        await assert_entries(running, JournalAssertion(in_order=steps))


async def test_stream_sends_entries_and_blank_lines(
    running: Running, autojump_clock: MockClock
) -> None:
    await change_journal(running, ON)
    running.roles[0].note("a")
    lines: list[bytes] = []

    async def send(data: bytes) -> None:
        lines.append(data)

    with trio.move_on_after(2.5 * PING_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_entries, running.journal, EntryQuery(), send)
            await trio.sleep(1)
            running.roles[1].note("b")
            await trio.sleep_forever()
    assert lines.count(b"\n") == 3
    names = [json.loads(line)["details"]["name"] for line in lines if line != b"\n"]
    assert names == ["a", "b"]


async def test_frames_that_are_kept_are_dissected(running: Running) -> None:
    await change_journal(running, ON)
    assert running.roles[0].buffer is not None
    running.roles[0].buffer.add(request(time.perf_counter_ns()))
    running.roles[0].buffer.add(request(time.perf_counter_ns(), FRAME[:13], is_whole=False))
    assert "group_id: 'g'" in (await dissect_frame(running, "1")).text
    for sequence in (0, 2, 3):
        with pytest.raises(NotFound, match="NO_SUCH_FRAME"):
            await dissect_frame(running, str(sequence))
