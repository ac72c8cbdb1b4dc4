"""A controller's journal and two processes that record when a test says so."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from minibroker.broker.metadata.image import Image
from minibroker.broker.metrics.log import EventLog
from minibroker.broker.process.environment import CONTROLLER, Environment
from minibroker.broker.process.messages import (
    ImageApplied,
    RegisterRole,
)
from minibroker.broker.roles.metadata_publisher import MetadataPublisher
from minibroker.lab.control.journal import (
    EntryQuery,
    JournalChange,
    find_entries,
)
from minibroker.lab.control.journal_collector import JournalCollector
from minibroker.lab.journal.records import JournalBuffer, note_record
from minibroker.lab.observers.attaching import listen_to_notes
from minibroker.lab.observers.messages import JournalRequest, JournalSwitch, KillProcess
from minibroker.lab.observers.request_journal import JournalFiles
from minibroker.runtime.roles import RoleState, RoleStatus
from minibroker.runtime.rpc import RpcConnection, memory_channel_pair
from tests.broker.process.conftest import MakeEnvironment, make_env

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
        is_on = JournalSwitch(is_on=True) in registered.further
        self.switch(is_on=is_on)
        return is_on

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

    def new_journal(self) -> JournalCollector:
        """The journal of a controller of this start of the broker."""
        env, start_soon = self.env, self.nursery.start_soon
        journal = JournalCollector(
            env,
            self.publisher,
            start_soon,
            1 << 20,
            on_switch=partial(listen_to_notes, env),
            statuses=lambda: self.statuses,
            files=JournalFiles(env.data_dir, env.started_us, EventLog("test")),
        )
        self.publisher.further.append(journal.switch_of_new_role)
        return journal

    def new_role(self, number: int) -> Role:
        """A process that is not registered."""
        return Role(self.publisher, self.nursery, number, self.env)

    async def restart_controller(self) -> None:
        """Replace the controller as after its kill; the processes register again."""
        self.env.on_note = None
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
        page = await find_entries(self, EntryQuery(**query))
        return [entry.details["name"] for entry in page.entries]


@pytest.fixture
async def running(make_env: MakeEnvironment, autojump_clock: MockClock) -> AsyncIterator[Running]:
    async with trio.open_nursery() as nursery:
        found = Running(make_env(CONTROLLER), nursery)
        for role in found.roles:
            await role.register()
        yield found
        nursery.cancel_scope.cancel()
