"""The journal in one process: switched on and off by the controller, which takes what it recorded.

Owns the buffers of the process' roles, and what a note becomes. It must never know where the
journal is kept. Invariant: while the journal is off, nothing listens and no module of it is loaded;
what was recorded and not handed over stays until it is, also when the journal is off again.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from minibroker.lab.observers.messages import JournalRequest, JournalSwitch, KillProcess

if TYPE_CHECKING:
    from minibroker.broker.process.environment import (
        Environment,
        NotedClient,
        NotedHeader,
        NoteListener,
    )
    from minibroker.broker.process.metadata_client import MetadataClient
    from minibroker.lab.journal.buffer import JournalBuffer
    from minibroker.lab.journal.counts import JournalCounts


class ProcessJournal:
    """What one role records; ``buffers`` are those of its process by role."""

    def __init__(
        self,
        env: Environment,
        client: MetadataClient,
        counts: JournalCounts,
        buffers: dict[str, JournalBuffer],
        *,
        on_switch: Callable[[JournalBuffer | None], None] = lambda _: None,
    ) -> None:
        """``on_switch`` is called with the buffer, and with None when the journal is off."""
        self._env = env
        self._client = client
        self._counts = counts
        self._buffers = buffers
        self._on_switch = on_switch
        self._buffer: JournalBuffer | None = None
        client.on_registered.append(self._registered)
        client.handlers[JournalSwitch] = self._switch_later
        client.handlers[JournalRequest] = self._take
        client.handlers[KillProcess] = self._kill

    async def _registered(self, further: Sequence[object]) -> None:
        self._switch(is_on=any(isinstance(each, JournalSwitch) and each.is_on for each in further))

    async def _switch_later(self, switch: JournalSwitch) -> None:
        await self._client.wait_registered()
        self._switch(is_on=switch.is_on)

    def _switch(self, *, is_on: bool) -> None:
        env = self._env
        if is_on == (env.on_note is not None):
            return
        if is_on and self._buffer is None:
            from minibroker.lab.journal.buffer import JournalBuffer

            self._buffer = JournalBuffer(time.perf_counter_ns(), self._counts.word(env.name))
            self._buffers[env.name] = self._buffer
        buffer = self._buffer if is_on else None
        listen_to_notes(env, buffer)
        self._on_switch(buffer)

    def _take(self, request: JournalRequest) -> Any:
        return None if self._buffer is None else self._buffer.take(request.received)

    def _kill(self, _: KillProcess) -> None:
        save_records(self._env, self._counts, self._buffers)
        os.kill(os.getpid(), signal.SIGKILL)


def listen_to_notes(env: Environment, journal: JournalBuffer | None) -> None:
    """Record the notes of a role from now on, or stop if there is no journal."""
    env.on_note = None if journal is None else note_listener(journal, env.clock.now)


def note_listener(journal: JournalBuffer, now: Callable[[], float]) -> NoteListener:
    """Return a listener that records notes; ``now`` is the time of the broker's clock."""
    from minibroker.lab.journal.records import note_record, peer_of

    def record(
        kind: str, details: dict[str, Any], client: NotedClient | None, header: NotedHeader | None
    ) -> None:
        peer = None if client is None else peer_of(*client)
        found = note_record(time.perf_counter_ns(), now(), kind, details, peer=peer, header=header)
        journal.add(found, len(found[-1]))

    return record


def save_records(
    env: Environment, counts: JournalCounts, buffers: dict[str, JournalBuffer]
) -> None:
    """Write what all roles of this process have recorded and not handed over."""
    if not buffers:
        return
    from minibroker.broker.metrics.log import EventLog
    from minibroker.lab.observers.journal_files import JournalFiles

    files = JournalFiles(env.data_dir, env.started_us, EventLog(env.name))
    for role, buffer in buffers.items():
        files.save_chunks(role, buffer.take_all(counts.chunk(role)))
