"""The journal of a broker: what all processes recorded before a query, in one order."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from minibroker.cluster.image import Image
from minibroker.control.backend import Conflict, NotFound
from minibroker.control.journal_shapes import (
    EntryConditions,
    EntryQuery,
    JournalAssertion,
    JournalChange,
)
from minibroker.control.schema import InvalidJson
from minibroker.controller.journal import PING_S, RESPONSE_S, JournalController
from minibroker.controller.metadata_publisher import MetadataPublisher
from minibroker.journal.buffer import JournalBuffer
from minibroker.journal.records import note_record
from minibroker.observability.log import EventLog
from minibroker.process.environment import CONTROLLER, Environment
from minibroker.process.journal_files import JournalFiles
from minibroker.process.journal_notes import note
from minibroker.process.messages import (
    ImageApplied,
    JournalRequest,
    JournalSwitch,
    KillProcess,
    RegisterRole,
)
from minibroker.runtime.channel import memory_channel_pair
from minibroker.runtime.roles import RoleState, RoleStatus
from minibroker.runtime.rpc import RpcConnection
from tests.journal.records_of_tests import FRAME, request
from tests.process.conftest import MakeEnvironment, make_env

__all__ = ["make_env"]

ON, OFF = JournalChange(enabled=True), JournalChange(enabled=False)


class Role:
    """A process that records when the test says so."""

    def __init__(
        self,
        publisher: MetadataPublisher,
        nursery: trio.Nursery,
        number: int,
        env: Environment,
    ) -> None:
        here, there = memory_channel_pair()
        self.number = number
        self.name = f"worker-{number}"
        self.counts = env.journal_counts
        self.files = JournalFiles(env.data_dir, env.started_us, EventLog("test"))
        self.buffer: JournalBuffer | None = None
        self.is_on = False
        self.is_stopped = False
        self.requests = 0
        self.has_ended = False
        self.at_switch: Callable[[], object] = lambda: None
        self.rpc = RpcConnection(here, self._handle)
        nursery.start_soon(publisher.serve_role, there)
        nursery.start_soon(self.rpc.run)

    async def _handle(self, request: Any) -> Any:
        if self.is_stopped:
            await trio.sleep_forever()
        if isinstance(request, KillProcess):
            assert self.buffer is not None
            chunks = self.buffer.take_all(self.counts.chunk(self.name))
            self.files.save_chunks(self.name, chunks)
            self.has_ended = True
            self.rpc.close()
            return None
        if isinstance(request, JournalSwitch):
            self.at_switch()
            self.switch(is_on=request.is_on)
            return None
        assert isinstance(request, JournalRequest)
        self.requests += 1
        return None if self.buffer is None else self.buffer.take(request.received)

    def switch(self, *, is_on: bool) -> None:
        self.is_on = is_on
        if is_on and self.buffer is None:
            self.buffer = JournalBuffer(time.perf_counter_ns(), self.counts.word(self.name))

    async def register(self) -> bool:
        registered = await self.rpc.request(RegisterRole("worker", self.number, 1))
        await self.rpc.request(ImageApplied())
        self.switch(is_on=registered.records_journal)
        return bool(registered.records_journal)

    def note(self, text: str) -> None:
        assert self.buffer is not None
        details = {"what": "test", "name": text}
        self.buffer.add(note_record(time.perf_counter_ns(), 0.0, "state", details))


class Running:
    """A controller's journal and two processes."""

    def __init__(self, env: Environment, nursery: trio.Nursery) -> None:
        self.env = env
        self.nursery = nursery
        self.publisher = MetadataPublisher(Image, lambda _: None, 0)
        self.statuses = [
            RoleStatus(name, number, 1, RoleState.READY, 0, None)
            for number, name in enumerate(("controller", "worker-0", "worker-1"), 1)
        ]
        self.journal = self.new_journal()
        self.roles = [self.new_role(number) for number in range(2)]

    def new_journal(self) -> JournalController:
        """The journal of a controller of this start of the broker."""
        env, start_soon = self.env, self.nursery.start_soon
        return JournalController(
            env,
            self.publisher,
            start_soon,
            1 << 20,
            statuses=lambda: self.statuses,
            files=JournalFiles(env.data_dir, env.started_us, EventLog("test")),
        )

    def new_role(self, number: int) -> Role:
        """A process that is not registered."""
        return Role(self.publisher, self.nursery, number, self.env)

    async def restart_controller(self) -> None:
        """Replace the controller as after its kill; the processes register again."""
        self.env.journal = None
        self.publisher = MetadataPublisher(Image, lambda _: None, 0)
        self.journal = self.new_journal()
        if self.env.journal_counts.is_on:
            self.journal.begin()
        for role in self.roles:
            former = role.buffer
            again = self.new_role(role.number)
            again.buffer = former
            await again.register()
            self.roles[role.number] = again

    async def names(self, **query: str) -> list[object]:
        page = await self.journal.find(EntryQuery(**query))
        return [entry.details["name"] for entry in page.entries]


@pytest.fixture
async def running(make_env: MakeEnvironment, autojump_clock: MockClock) -> AsyncIterator[Running]:
    async with trio.open_nursery() as nursery:
        found = Running(make_env(CONTROLLER), nursery)
        for role in found.roles:
            await role.register()
        yield found
        nursery.cancel_scope.cancel()


async def test_journal_that_was_never_on_rejects_questions(running: Running) -> None:
    assert not (await running.journal.view()).enabled
    with pytest.raises(Conflict, match="JOURNAL_OFF"):
        await running.journal.find(EntryQuery())
    with pytest.raises(Conflict, match="JOURNAL_OFF"):
        await running.journal.check(JournalAssertion(happened=EntryConditions()))
    with pytest.raises(Conflict, match="JOURNAL_OFF"):
        await running.journal.stream(EntryQuery(), _ignore)


async def _ignore(data: bytes) -> None:
    del data


async def test_entries_of_all_processes_are_in_one_order(running: Running) -> None:
    await running.journal.change(ON)
    first, second = running.roles
    for text, role in (("a", first), ("b", second), ("c", first)):
        role.note(text)
    note(running.env, "state", {"what": "test", "name": "d"})
    second.note("e")
    page = await running.journal.find(EntryQuery())
    assert [entry.details["name"] for entry in page.entries] == list("abcde")
    roles = [entry.role for entry in page.entries]
    assert roles == ["worker-0", "worker-1", "worker-0", "controller", "worker-1"]
    assert [entry.sequence for entry in page.entries] == [1, 2, 3, 4, 5]
    assert (page.last, page.dropped, page.has_more) == (5, 0, False)


async def test_pages_follow_each_other(running: Running) -> None:
    await running.journal.change(ON)
    for text in "abc":
        running.roles[0].note(text)
    page = await running.journal.find(EntryQuery(limit="2"))
    assert (len(page.entries), page.has_more) == (2, True)
    assert await running.names(after=str(page.entries[-1].sequence)) == ["c"]
    assert await running.names(limit="0") == []


async def test_large_frames_are_left_for_the_next_page(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minibroker.controller.journal.ANSWER_FRAME_BYTES_MAX", len(FRAME))
    await running.journal.change(ON)
    assert running.roles[0].buffer is not None
    for _ in range(2):
        running.roles[0].buffer.add(request(time.perf_counter_ns()))
    page = await running.journal.find(EntryQuery(frames="true"))
    assert (len(page.entries), page.has_more) == (1, True)
    assert len((await running.journal.find(EntryQuery())).entries) == 2


async def test_records_are_collected_regularly(running: Running, autojump_clock: MockClock) -> None:
    await running.journal.change(ON)
    role = running.roles[0]
    role.note("a")
    await trio.sleep(1)
    assert role.buffer is not None
    assert not len(role.buffer)


async def test_journal_that_is_off_keeps_what_was_recorded(running: Running) -> None:
    await running.journal.change(ON)
    running.roles[0].note("a")
    assert not (await running.journal.change(OFF)).enabled
    assert [role.is_on for role in running.roles] == [False, False]
    assert running.env.journal is None
    assert await running.names() == ["a"]
    await running.journal.change(ON)
    running.roles[0].note("b")
    assert await running.names() == ["a", "b"]


async def test_process_that_registers_later_records(running: Running) -> None:
    await running.journal.change(ON)
    later = running.new_role(2)
    assert await later.register()
    later.note("a")
    assert await running.names() == ["a"]


async def test_clear_drops_entries(running: Running) -> None:
    await running.journal.change(ON)
    running.roles[0].note("a")
    await running.journal.clear()
    assert await running.names() == []
    running.roles[0].note("b")
    assert (await running.journal.find(EntryQuery())).entries[0].sequence == 2


async def test_smaller_memory_drops_the_oldest_entries(running: Running) -> None:
    await running.journal.change(ON)
    for text in "abc":
        running.roles[0].note(text)
    assert (await running.journal.view()).entries == 3
    view = await running.journal.change(JournalChange(bytes_max=1))
    assert (view.entries, view.dropped, view.bytes_max) == (1, 2, 1)


async def test_question_waits_for_an_entry(running: Running, autojump_clock: MockClock) -> None:
    await running.journal.change(ON)
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
    await running.journal.change(ON)
    before = trio.current_time()
    assert await running.names(wait_ms="3000") == []
    assert trio.current_time() - before == pytest.approx(3, abs=0.1)


async def test_stopped_process_does_not_prevent_an_answer(
    running: Running, autojump_clock: MockClock
) -> None:
    await running.journal.change(ON)
    first, second = running.roles
    first.note("a")
    second.is_stopped = True
    assert await running.names() == ["a"]
    assert trio.current_time() == 0, "it has recorded nothing"
    second.note("b")
    page = await running.journal.find(EntryQuery())
    assert ([each.details["name"] for each in page.entries], page.pending) == (["a"], 1)
    assert trio.current_time() < 2 * RESPONSE_S


async def test_chunk_that_was_lost_on_its_way_is_fetched_again(running: Running) -> None:
    await running.journal.change(ON)
    role = running.roles[0]
    role.note("a")
    assert role.buffer is not None
    role.buffer.take(0)
    assert await running.names() == ["a"]


async def test_assertions_hold_when_the_entries_show_it(running: Running) -> None:
    await running.journal.change(ON)
    for text in "ab":
        running.roles[0].note(text)
    check = running.journal.check
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
    await running.journal.change(ON)
    for text in "ab":
        running.roles[0].note(text)
    await running.journal.view()
    await running.journal.change(JournalChange(bytes_max=1))
    a = EntryConditions(details={"name": "a"})
    assert not (await running.journal.check(JournalAssertion(absent=a))).holds
    assert (await running.journal.check(JournalAssertion(absent=a, after=1))).holds


async def test_assertion_waits_until_it_holds(running: Running, autojump_clock: MockClock) -> None:
    await running.journal.change(ON)

    async def note_later() -> None:
        await trio.sleep(5)
        running.roles[1].note("b")

    running.nursery.start_soon(note_later)
    wanted = EntryConditions(details={"name": "b"})
    assert (await running.journal.check(JournalAssertion(happened=wanted, wait_ms=9000))).holds


async def test_wrong_conditions_are_rejected(running: Running) -> None:
    await running.journal.change(ON)
    steps = (EntryConditions(), EntryConditions(api="x"))
    with pytest.raises(InvalidJson, match=r"in_order\.1\.api"):
        await running.journal.check(JournalAssertion(in_order=steps))


async def test_stream_sends_entries_and_blank_lines(
    running: Running, autojump_clock: MockClock
) -> None:
    await running.journal.change(ON)
    running.roles[0].note("a")
    lines: list[bytes] = []

    async def send(data: bytes) -> None:
        lines.append(data)

    with trio.move_on_after(2.5 * PING_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(running.journal.stream, EntryQuery(), send)
            await trio.sleep(1)
            running.roles[1].note("b")
            await trio.sleep_forever()
    assert lines.count(b"\n") == 3
    names = [json.loads(line)["details"]["name"] for line in lines if line != b"\n"]
    assert names == ["a", "b"]


async def test_frames_that_are_kept_are_dissected(running: Running) -> None:
    await running.journal.change(ON)
    assert running.roles[0].buffer is not None
    running.roles[0].buffer.add(request(time.perf_counter_ns()))
    running.roles[0].buffer.add(request(time.perf_counter_ns(), FRAME[:13], is_whole=False))
    assert "group_id: 'g'" in (await running.journal.dissect(1)).text
    for sequence in (0, 2, 3):
        with pytest.raises(NotFound, match="NO_SUCH_FRAME"):
            await running.journal.dissect(sequence)


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
    await running.journal.change(ON)
    first, second = running.roles
    first.note("a")
    assert await running.names() == ["a"]
    first.note("lost")
    first.note("lost")
    second.note("b")
    (await killed(running, 0)).note("c")
    page = await running.journal.find(EntryQuery())
    shown = [entry.details.get("name", entry.details.get("entries")) for entry in page.entries]
    assert shown == ["a", "b", 2, "c"]
    assert [entry.sequence for entry in page.entries] == [1, 2, 4, 5]
    assert (page.last, page.dropped, page.pending) == (5, 2, 0)
    wanted = EntryConditions(details={"name": "x"})
    for after, holds in ((0, False), (3, False), (4, True)):
        result = await running.journal.check(JournalAssertion(absent=wanted, after=after))
        assert result.holds == holds


async def test_question_waits_for_the_successor_of_a_killed_process(
    running: Running, autojump_clock: MockClock
) -> None:
    await running.journal.change(ON)
    running.roles[0].note("lost")
    later = await killed(running, 0, restarts=False)

    async def restart() -> None:
        await trio.sleep(2)
        await later.register()

    running.nursery.start_soon(restart)
    page = await running.journal.find(EntryQuery())
    assert [entry.kind for entry in page.entries] == ["lost"]
    assert 2 <= trio.current_time() < RESPONSE_S


async def test_process_that_is_known_to_have_ended_is_not_waited_for(
    running: Running, autojump_clock: MockClock
) -> None:
    await running.journal.change(ON)
    running.roles[0].note("lost")
    await killed(running, 0, restarts=False)
    running.statuses[1] = running.statuses[1]._replace(pid=0)
    page = await running.journal.find(EntryQuery())
    assert [(entry.kind, entry.role) for entry in page.entries] == [("lost", "worker-0")]
    assert trio.current_time() < 1


async def test_absence_is_unknown_while_a_process_does_not_respond(
    running: Running, autojump_clock: MockClock
) -> None:
    await running.journal.change(ON)
    first, second = running.roles
    second.note("a")
    second.is_stopped = True
    absent = EntryConditions(details={"name": "x"})
    result = await running.journal.check(JournalAssertion(absent=absent))
    assert (result.holds, result.text[:36]) == (False, "worker-1 does not respond and has 1 ")
    elsewhere = absent._replace(role="worker-0")
    assert (await running.journal.check(JournalAssertion(absent=elsewhere))).holds
    assert (await running.journal.view()).pending == 1
    first.note("b")


async def test_next_controller_continues_with_a_loss_of_all_entries(running: Running) -> None:
    await running.journal.change(ON)
    for text in "abc":
        running.roles[0].note(text)
    assert await running.names() == ["a", "b", "c"]
    running.roles[1].note("d")
    await running.restart_controller()
    page = await running.journal.find(EntryQuery())
    assert [(entry.kind, entry.sequence) for entry in page.entries] == [("lost", 3), ("state", 4)]
    assert page.entries[0].details["entries"] == 3
    running.roles[0].note("e")
    assert await running.names(after="3") == ["d", "e"]
    absent = EntryConditions(details={"name": "x"})
    assert not (await running.journal.check(JournalAssertion(absent=absent, after=2))).holds
    assert (await running.journal.check(JournalAssertion(absent=absent, after=3))).holds


async def test_cleared_entries_are_not_lost_with_the_controller(running: Running) -> None:
    await running.journal.change(ON)
    running.roles[0].note("a")
    await running.journal.clear()
    running.roles[0].note("b")
    assert await running.names() == ["b"]
    await running.restart_controller()
    page = await running.journal.find(EntryQuery())
    assert [entry.details["entries"] for entry in page.entries] == [1]
    assert (page.last, page.dropped) == (2, 1)


async def test_controller_that_hands_over_leaves_its_entries_to_the_next_one(
    running: Running,
) -> None:
    await running.journal.change(ON)
    running.roles[0].note("a")
    await running.journal.hand_over(CONTROLLER, ends=True)
    running.roles[0].note("b")
    await running.restart_controller()
    page = await running.journal.find(EntryQuery())
    assert [entry.details["name"] for entry in page.entries] == ["a", "b"]
    assert (page.last, page.dropped) == (2, 0)


async def test_process_that_is_asked_to_end_has_saved_what_it_recorded(running: Running) -> None:
    await running.journal.change(ON)
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
    await running.journal.change(ON)
    running.roles[0].is_stopped = True
    await running.journal.hand_over("worker-0", ends=True)
    assert trio.current_time() == RESPONSE_S


async def test_process_that_will_be_stopped_hands_over_with_the_roles_beside_it(
    running: Running,
) -> None:
    await running.journal.change(ON)
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
    await running.journal.change(ON)
    role = running.roles[0]
    role.at_switch = partial(role.note, "last")
    await running.journal.change(OFF)
    assert await running.names() == ["last"]
    assert role.buffer is not None
    assert role.buffer.take(running.env.journal_counts.chunk("worker-0")).parts == ()


async def test_process_without_new_entries_is_not_asked(running: Running) -> None:
    await running.journal.change(ON)
    running.roles[0].note("a")
    await running.names()
    before = [role.requests for role in running.roles]
    await running.names()
    assert [role.requests for role in running.roles] == before


async def test_reader_of_the_stream_sees_each_gap(
    running: Running, autojump_clock: MockClock
) -> None:
    await running.journal.change(ON)
    await running.journal.change(JournalChange(bytes_max=20 * 1024))
    lines: list[dict[str, Any]] = []

    async def send_slowly(data: bytes) -> None:
        await trio.sleep(1)
        if data.strip():
            lines.append(json.loads(data))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(running.journal.stream, EntryQuery(kind="state"), send_slowly)
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
