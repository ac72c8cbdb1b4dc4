"""Collects the records of all processes in the one journal.

Owns the journal, and when records are collected. It must never know what is recorded, nor queries.
While the journal is on, records are fetched four times a second, and before every answer, from the
processes that have any. Invariant: after ``collect`` the journal contains all that happened in any
process before, in the order in which it happened, or a loss in its place; only a process that does
not respond for seconds is not waited for: ``pending`` says how many entries it has, and they follow
later. If this process is killed, the next one continues with a loss of all entries, or with the
entries themselves if an action has killed it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import trio

from minibroker.broker.process.journal_counts import JournalCounts
from minibroker.lab.errors import Conflict
from minibroker.lab.journal.entries import Loss, LossReason
from minibroker.lab.journal.filters import TopicIds, Uuid
from minibroker.lab.journal.merging import JOURNAL_BYTES_MAX, Journal, JournalMerger
from minibroker.lab.journal.records import JournalBuffer, JournalChunk
from minibroker.lab.observers.messages import JournalRequest, JournalSwitch, KillProcess

if TYPE_CHECKING:
    from minibroker.lab.observers.request_journal import JournalFiles
    from minibroker.lab.proxy.journal import JournaledProcess
    from minibroker.runtime.roles import RoleStatus

COLLECT_INTERVAL_S: Final = 0.25
"""How often records are collected, in real time."""

POLL_INTERVAL_S: Final = 0.02
"""The same while a query waits."""

RESPONSE_S: Final = 5.0
"""How long a process may take to hand over its records, in real time."""


class JournalClock(Protocol):
    """The clock of a process that keeps a journal."""

    @property
    def epoch_s(self) -> float:
        """The seconds to add to the clock for seconds since 1970."""

    def real_s(self) -> float:
        """Monotonic real seconds."""

    async def sleep_real(self, seconds: float) -> None:
        """Wait for real seconds."""


class JournalingProcess(Protocol):
    """The process that keeps the journal; it records as well."""

    @property
    def journal_counts(self) -> JournalCounts:
        """The entries of all processes."""

    @property
    def name(self) -> str:
        """The name in entries."""

    @property
    def clock(self) -> JournalClock:
        """The clock."""


class JournalSubscribers(Protocol):
    """The other processes that record."""

    def names(self) -> Sequence[str]:
        """The names of those that are connected."""

    async def request_all(self, request: object, names: Sequence[str] = ()) -> dict[str, Any]:
        """Return the answers of the processes with these names, or of all."""


class NoOtherProcesses:
    """Implements ``JournalSubscribers`` for a program that is one process."""

    def names(self) -> list[str]:
        """No names."""
        return []

    async def request_all(self, request: object, names: Sequence[str] = ()) -> dict[str, Any]:
        """Ask nothing; return no answers."""
        del request, names
        return {}


class JournalCollector:
    """The journal of a broker or a proxy."""

    def __init__(
        self,
        env: JournalingProcess,
        publisher: JournalSubscribers,
        start_soon: Callable[..., None],
        bytes_max: int,
        *,
        on_switch: Callable[[JournalBuffer | None], None],
        statuses: Callable[[], Sequence[RoleStatus]] = tuple,
        files: JournalFiles | None = None,
    ) -> None:
        """``start_soon`` starts a task that runs as long as the controller.

        ``on_switch`` is called with where this process records, and with None when it stops.
        ``statuses`` are the states of all processes; ``files`` have what those of this start have
        left that were killed by request.
        """
        self.clock: Final = env.clock
        self._env = env
        self._publisher = publisher
        self._start_soon = start_soon
        self._statuses = statuses
        self._files = files
        self._on_switch = on_switch
        self._is_on = False
        self._counts = env.journal_counts
        self.journal = Journal(bytes_max, self._counts.cleared)
        self.topic_ids = TopicIds()
        self._merger = JournalMerger(self.journal, env.clock.epoch_s, self._counts)
        self._lock = trio.Lock()
        self._own: JournalBuffer | None = None
        self.pending: Mapping[str, int] = {}
        """Entries that processes which do not respond had before the last collection."""
        self._was_on = self._counts.is_on or self._counts.total() > self._counts.cleared
        self._continue()
        self._collecting: trio.CancelScope | None = None

    def _continue(self) -> None:
        """Continue the journal of the former controller of this start of the broker."""
        cleared, total = self._counts.cleared, self._counts.total()
        if self._files is not None:
            entries = self._files.take_journal()
            self.journal.restore(entry for entry in entries if entry.sequence > cleared)
        if total > self.journal.last:
            missing = total - self.journal.last
            self.journal.lose(Loss("", missing, LossReason.PROCESS_ENDED, 0.0))

    def learn_topics(self, names: Mapping[Uuid, str]) -> None:
        """Find requests that have only the id of a topic by its name, also when it is deleted."""
        self.topic_ids.learn(names)

    # Switching and collecting -----------------------------------------------------------------

    @property
    def is_on(self) -> bool:
        """Whether processes record."""
        return self._is_on

    def switch_of_new_role(self, role: str) -> JournalSwitch | None:
        """Return what a role must do that registers."""
        del role
        return JournalSwitch(is_on=True) if self._is_on else None

    def begin(self) -> None:
        """Switch the journal on, before processes register or before they are notified."""
        self._was_on = self._is_on = self._counts.is_on = True
        if self._own is None:
            self._own = JournalBuffer(time.perf_counter_ns(), self._counts.word(self._env.name))
        self._on_switch(self._own)
        self._start_soon(self._collect_regularly)

    async def switch(self, *, is_on: bool) -> None:
        """Switch the journal on or off in all processes."""
        if is_on == self.is_on:
            return
        if is_on:
            self.begin()
            await self._publisher.request_all(JournalSwitch(is_on))
            return
        self._is_on = self._counts.is_on = False
        self._on_switch(None)
        if self._collecting is not None:
            self._collecting.cancel()
        await self._publisher.request_all(JournalSwitch(is_on))
        async with self._lock:
            await self._fetch(self._publisher.names(), until_empty=True)
        await self.collect()

    async def _collect_regularly(self) -> None:
        with trio.CancelScope() as self._collecting:
            while True:
                await self._env.clock.sleep_real(COLLECT_INTERVAL_S)
                async with self._lock:
                    await self._fetch(self._counts.pending())

    async def collect(self) -> None:
        """Make entries of all that was recorded before this call."""
        async with self._lock:
            now_ns = time.perf_counter_ns()
            recorded = {name: self._counts.recorded(name) for name in self._counts.names}
            await self._fetch(self._counts.pending())
            for _ in self._merger.steps(now_ns):
                await trio.lowlevel.checkpoint()
            rest = {
                name: entries - self._counts.handed_over(name) for name, entries in recorded.items()
            }
            self.pending = {name: entries for name, entries in rest.items() if entries > 0}

    async def hand_over(self, process: str, *, ends: bool) -> None:
        """Implements ``HandOver``. Another process that ends has then ended, if it responds.

        ``process`` is one of its roles.
        """
        if not self.is_on:
            return
        async with self._lock:
            if process == self._env.name:
                await self._fetch(self._counts.pending())
                self._merger.merge(math.inf)
                if self._files is not None:
                    self._files.save_journal(self.journal)
            elif ends:
                request_all = self._publisher.request_all
                await self._within_bound(partial(request_all, KillProcess(), [process]))
            else:
                await self._fetch(self._roles_beside(process))

    def _roles_beside(self, role: str) -> list[str]:
        """The roles in the process of a role."""
        pids = {status.name: status.pid for status in self._statuses()}
        return [name for name, pid in pids.items() if pid and pid == pids.get(role)]

    async def _fetch(self, names: Iterable[str], *, until_empty: bool = False) -> None:
        own = self._env.name
        if self._own is not None:
            self._merger.add(own, self._own.take(self._merger.received(own)))
        async with trio.open_nursery() as nursery:
            for name in names:
                if name != own:
                    fetch = partial(self._fetch_from, name, until_empty=until_empty)
                    nursery.start_soon(self._within_bound, fetch)

    async def _within_bound(self, call: Callable[[], Awaitable[object]]) -> None:
        """Wait for a process, but not longer than it may take to respond."""

        async def bound() -> None:
            await self._env.clock.sleep_real(RESPONSE_S)
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(bound)
            await call()
            nursery.cancel_scope.cancel()

    async def _fetch_from(self, name: str, *, until_empty: bool) -> None:
        """Fetch what a process has, or learn that it has ended.

        A process that is not connected is waited for: it may still live, or its successor knows
        what is lost. ``until_empty`` lets it release what it handed over last.
        """
        while True:
            if self._take_saved(name):
                return
            chunk: JournalChunk | None = None
            if name in self._publisher.names():
                request = JournalRequest(self._merger.received(name))
                answers = await self._publisher.request_all(request, [name])
                chunk = answers.get(name)
            if chunk is not None:
                self._merger.add(name, chunk)
                if not (chunk.has_more or (until_empty and chunk.parts)):
                    return
            elif any(each.name == name and not each.pid for each in self._statuses()):
                self._merger.lose(name)
                return
            elif until_empty:
                return
            else:
                await self._env.clock.sleep_real(POLL_INTERVAL_S)

    def _take_saved(self, name: str) -> bool:
        """Take over what a killed process has saved; return whether that is all of its role."""
        chunks = () if self._files is None else self._files.take_chunks(name)
        for chunk in chunks:
            self._merger.add(name, chunk)
        return bool(chunks) and name not in self._counts.pending()

    # Queries ----------------------------------------------------------------------------------

    async def clear(self) -> None:
        """Drop all entries."""
        await self.collect()
        async with self._lock:
            self._merger.clear()

    async def wait(self, check: Callable[[], bool], wait_ms: int) -> None:
        """Collect until a check holds, for real time at most."""
        clock = self.clock
        deadline = clock.real_s() + wait_ms / 1000
        while True:
            await self.collect()
            if check() or clock.real_s() >= deadline:
                return
            await self.pause(max(deadline - clock.real_s(), 0))

    async def pause(self, longest_s: float = POLL_INTERVAL_S) -> None:
        """Wait until there may be something to collect."""
        await self.clock.sleep_real(min(POLL_INTERVAL_S, longest_s))

    def check_recorded(self) -> None:
        """Raise ``Conflict`` if the journal was never on."""
        if not self._was_on:
            raise Conflict(
                "JOURNAL_OFF",
                "the journal is off",
                'Switch it on: POST /v1/journal with {"enabled": true}.',
            )


def journal_of_one_process(
    process: JournaledProcess, start_soon: Callable[..., None]
) -> JournalCollector:
    """Return the journal of a program that is one process."""
    return JournalCollector(
        process, NoOtherProcesses(), start_soon, JOURNAL_BYTES_MAX, on_switch=process.switch
    )
