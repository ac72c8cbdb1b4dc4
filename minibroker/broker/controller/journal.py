"""The journal of a broker: collects the records of all processes, and answers the control API.

Owns the one journal, and when records are collected. It must never know what is recorded. While
the journal is on, records are fetched four times a second, and before every answer, from the
processes that have any. Invariant: an answer contains all that happened in any process before its
query, in the order in which it happened, or a loss in its place; only a process that does not
respond for seconds is not waited for: the answer says how many entries it has, and they follow
later. If this process is killed, the next one continues with a loss of all entries, or with the
entries themselves if an action has killed it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Protocol

import trio

from minibroker.lab.control.backend import Conflict, NotFound
from minibroker.lab.control.errors import json_bytes
from minibroker.lab.control.journal_shapes import (
    AssertionView,
    EntryConditions,
    EntryQuery,
    FrameView,
    JournalAssertion,
    JournalChange,
    JournalPage,
    JournalView,
    SendLine,
)
from minibroker.lab.control.journal_views import (
    dissected,
    read_conditions,
    read_query,
    view_of,
    views,
)
from minibroker.lab.journal.assertions import (
    AssertionResult,
    did_not_happen_before,
    happened,
    happened_in_order,
)
from minibroker.lab.journal.bounded import JOURNAL_BYTES_MAX, Journal
from minibroker.lab.journal.buffer import JournalBuffer, JournalChunk
from minibroker.lab.journal.counts import JournalCounts
from minibroker.lab.journal.entries import JournalEntry, Loss, LossReason
from minibroker.lab.journal.filters import EntryFilter
from minibroker.lab.journal.merging import JournalMerger
from minibroker.lab.journal.topic_ids import TopicIds, Uuid
from minibroker.lab.observers.journal_files import JournalFiles
from minibroker.lab.observers.messages import JournalRequest, JournalSwitch, KillProcess
from minibroker.runtime.roles import RoleStatus

COLLECT_INTERVAL_S: Final = 0.25
"""How often records are collected, in real time."""

POLL_INTERVAL_S: Final = 0.02
"""The same while a query waits."""

RESPONSE_S: Final = 5.0
"""How long a process may take to hand over its records, in real time."""

PING_S: Final = 5.0
"""A stream sends a blank line after so long without an entry, to notice a client that is away."""

ANSWER_FRAME_BYTES_MAX: Final = 8 * 1024 * 1024
"""Bytes of all frames in one answer; the rest is left for the next one."""

SHOWN_MAX: Final = 100
"""Entries in the answer to an assertion."""

STREAMED_MAX: Final = 1000
"""Entries that a stream sends before records are collected again."""


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


class SwitchedProcess(JournalingProcess, Protocol):
    """A process that records by itself."""

    def switch(self, journal: JournalBuffer | None) -> None:
        """Record into a journal from now on, or stop."""


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


class JournalController:
    """Implements ``control.journal_shapes.JournalBackend``."""

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
        self._env = env
        self._publisher = publisher
        self._start_soon = start_soon
        self._statuses = statuses
        self._files = files
        self._on_switch = on_switch
        self._is_on = False
        self._counts = env.journal_counts
        self._journal = Journal(bytes_max, self._counts.cleared)
        self._topic_ids = TopicIds()
        self._merger = JournalMerger(self._journal, env.clock.epoch_s, self._counts)
        self._lock = trio.Lock()
        self._own: JournalBuffer | None = None
        self._pending: Mapping[str, int] = {}
        """Entries that processes which do not respond had before the last collection."""
        self._was_on = self._counts.is_on or self._counts.total() > self._counts.cleared
        self._continue()
        self._collecting: trio.CancelScope | None = None

    def _continue(self) -> None:
        """Continue the journal of the former controller of this start of the broker."""
        cleared, total = self._counts.cleared, self._counts.total()
        if self._files is not None:
            entries = self._files.take_journal()
            self._journal.restore(entry for entry in entries if entry.sequence > cleared)
        if total > self._journal.last:
            missing = total - self._journal.last
            self._journal.lose(Loss("", missing, LossReason.PROCESS_ENDED, 0.0))

    def learn_topics(self, names: Mapping[Uuid, str]) -> None:
        """Find requests that have only the id of a topic by its name, also when it is deleted."""
        self._topic_ids.learn(names)

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

    async def _switch(self, *, is_on: bool) -> None:
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
        await self._collect()

    async def _collect_regularly(self) -> None:
        with trio.CancelScope() as self._collecting:
            while True:
                await self._env.clock.sleep_real(COLLECT_INTERVAL_S)
                async with self._lock:
                    await self._fetch(self._counts.pending())

    async def _collect(self) -> None:
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
            self._pending = {name: entries for name, entries in rest.items() if entries > 0}

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
                    self._files.save_journal(self._journal)
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

    # The control API --------------------------------------------------------------------------

    async def view(self) -> JournalView:
        """The state of the journal."""
        await self._collect()
        journal = self._journal
        return JournalView(
            self.is_on,
            len(journal),
            journal.last,
            journal.dropped,
            sum(self._pending.values()),
            journal.bytes,
            journal.bytes_max,
        )

    async def change(self, change: JournalChange) -> JournalView:
        """Switch the journal on or off in all processes, or change its memory."""
        if change.bytes_max is not None:
            self._journal.bytes_max = change.bytes_max
            self._journal.shrink(change.bytes_max)
        if change.enabled is not None:
            await self._switch(is_on=change.enabled)
        return await self.view()

    async def clear(self) -> None:
        """Drop all entries."""
        await self._collect()
        async with self._lock:
            self._merger.clear()

    async def find(self, query: EntryQuery) -> JournalPage:
        """Matching entries; waits until there is one, for real time at most."""
        request = read_query(query)
        self._check_recorded()
        wanted = replace(request.wanted, topic_ids=self._topic_ids)
        found: list[JournalEntry] = []

        def search() -> bool:
            nonlocal wanted
            found.extend(self._journal.find(wanted, request.limit + 1))
            wanted = _after(wanted, self._journal.last)
            return bool(found) or not request.limit

        await self._wait(search, request.wait_ms)
        shown = _within(found[: request.limit], frames=request.frames or request.decode)
        return JournalPage(
            views(shown, frames=request.frames, decode=request.decode),
            self._journal.last,
            self._journal.dropped,
            sum(self._pending.values()),
            len(shown) < len(found),
        )

    async def check(self, assertion: JournalAssertion) -> AssertionView:
        """Check an assertion; waits until it holds, for real time at most."""
        after = assertion.after
        steps = [
            replace(read_conditions(path, conditions, after), topic_ids=self._topic_ids)
            for path, conditions in _conditions(assertion)
        ]
        self._check_recorded()
        result = AssertionResult(False, "", ())

        def decide() -> bool:
            nonlocal result
            if assertion.happened is not None:
                result = happened(self._journal, steps[0], assertion.times)
            elif assertion.in_order is not None:
                result = happened_in_order(self._journal, steps)
            else:
                result = did_not_happen_before(
                    self._journal, steps[0], assertion.before_ms, pending=self._pending
                )
                return True
            return result.holds

        await self._wait(decide, assertion.wait_ms)
        return AssertionView(
            result.holds, result.text, views(result.entries[:SHOWN_MAX]), self._journal.last
        )

    async def dissect(self, sequence: int) -> FrameView:
        """What the bytes of a frame mean."""
        self._check_recorded()
        await self._collect()
        found = self._journal.find(EntryFilter(after=sequence - 1), 1)
        if found and found[0].sequence == sequence:
            text = dissected(found[0])
            if text is not None:
                return FrameView(text)
        raise NotFound("NO_SUCH_FRAME", f"no frame of an entry {sequence} is kept")

    async def stream(self, query: EntryQuery, send: SendLine) -> None:
        """Send matching entries as lines of JSON until cancelled."""
        request = read_query(query)
        self._check_recorded()
        wanted, clock = replace(request.wanted, topic_ids=self._topic_ids), self._env.clock
        await send(b"\n")
        silent_since = clock.real_s()
        while True:
            await self._collect()
            found = self._journal.find(wanted, STREAMED_MAX)
            for entry in found:
                view = view_of(entry, frames=request.frames, decode=request.decode)
                await send(json_bytes(view))
            wanted = _after(
                wanted, found[-1].sequence if len(found) == STREAMED_MAX else self._journal.last
            )
            if found:
                silent_since = clock.real_s()
            elif clock.real_s() - silent_since >= PING_S:
                await send(b"\n")
                silent_since = clock.real_s()
            if len(found) < STREAMED_MAX:
                await clock.sleep_real(POLL_INTERVAL_S)

    async def _wait(self, check: Callable[[], bool], wait_ms: int) -> None:
        clock = self._env.clock
        deadline = clock.real_s() + wait_ms / 1000
        while True:
            await self._collect()
            if check() or clock.real_s() >= deadline:
                return
            await clock.sleep_real(min(POLL_INTERVAL_S, max(deadline - clock.real_s(), 0)))

    def _check_recorded(self) -> None:
        if not self._was_on:
            raise Conflict(
                "JOURNAL_OFF",
                "the journal is off",
                'Switch it on: POST /v1/journal with {"enabled": true}.',
            )


def _after(wanted: EntryFilter, sequence: int) -> EntryFilter:
    return replace(wanted, after=max(wanted.after, sequence))


def _within(entries: list[JournalEntry], *, frames: bool) -> list[JournalEntry]:
    """The first entries, as many as fit into an answer with their frames."""
    if not frames:
        return entries
    total = 0
    for count, entry in enumerate(entries):
        total += len(entry.frame or b"")
        if total > ANSWER_FRAME_BYTES_MAX and count:
            return entries[:count]
    return entries


def _conditions(assertion: JournalAssertion) -> Iterator[tuple[str, EntryConditions]]:
    """The conditions of an assertion, with the names of their fields."""
    if assertion.happened is not None:
        yield "happened", assertion.happened
    for index, step in enumerate(assertion.in_order or ()):
        yield f"in_order.{index}", step
    if assertion.absent is not None:
        yield "absent", assertion.absent


def journal_of_one_process(
    process: SwitchedProcess, start_soon: Callable[..., None]
) -> JournalController:
    """Return the journal of a program that is one process."""
    return JournalController(
        process, NoOtherProcesses(), start_soon, JOURNAL_BYTES_MAX, on_switch=process.switch
    )
