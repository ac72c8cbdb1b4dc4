"""Attaches the laboratory to the roles of one process.

Owns which observers, interceptors and handlers each role gets. It must never know what they do.
Invariant: until the journal, a fault rule or activity is switched on, nothing is attached but the
handlers of the messages that do so, and the modules of these three are not loaded.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from minibroker.broker.process.environment import ACCEPTOR, PROCESSOR, RECORDER, WORKER
from minibroker.broker.settings import ACTIVITY_ENABLE
from minibroker.lab.observers.hold_points import ControllerDecisions, ProcessHoldPoints
from minibroker.lab.observers.messages import FaultRules, JournalRequest, JournalSwitch, KillProcess

if TYPE_CHECKING:
    from minibroker.broker.admission.connection_events import ConnectionEvents
    from minibroker.broker.log.segment import SegmentFiles
    from minibroker.broker.network.client_connection import ClientConnection
    from minibroker.broker.network.request_handler import RequestHandler
    from minibroker.broker.process.environment import (
        Environment,
        NotedClient,
        NotedHeader,
        NoteListener,
    )
    from minibroker.broker.process.journal_counts import JournalCounts
    from minibroker.broker.process.metadata_client import MetadataClient
    from minibroker.broker.process.storage_watch import StorageWatch
    from minibroker.lab.journal.records import JournalBuffer
    from minibroker.lab.observers.activity_sender import ActivitySender
    from minibroker.lab.observers.faults import ProcessorFaults, StorageFaults


class ObservedRole(Protocol):
    """A role with a link to the controller."""

    metadata_client: MetadataClient
    services: list[Callable[[], Awaitable[None]]]
    """Tasks that run as long as the role."""


class AcceptingRole(ObservedRole, Protocol):
    """An acceptor or a processor."""

    events: ConnectionEvents
    last_services: list[Callable[[], Awaitable[None]]]
    """Awaited when the role has ended its work."""


class ObservedProcessor(AcceptingRole, Protocol):
    """A processor."""

    request_handler: RequestHandler
    clients: dict[int, ClientConnection]


class ObservedWorker(ObservedRole, Protocol):
    """An I/O worker."""

    segment_files: SegmentFiles
    storage: StorageWatch


class ProcessObservers:
    """What is attached to the roles of one process."""

    def __init__(self, counts: JournalCounts) -> None:
        """``counts`` are those of the journal's entries, in all processes."""
        self._counts = counts
        self._buffers: dict[str, JournalBuffer] = {}

    def prepare(self, env: Environment) -> Environment:
        """Let a role be observed."""
        attachments: dict[str, Callable[[Environment, Any], None]] = {
            ACCEPTOR: self._attach_to_acceptor,
            PROCESSOR: self._attach_to_processor,
            WORKER: self._attach_to_worker,
            RECORDER: self._attach_journal,
        }
        if env.role in attachments:
            env.observe = partial(attachments[env.role], env)
        if env.role == WORKER:
            env.hold_points = ProcessHoldPoints()
        return env

    def _attach_to_acceptor(self, env: Environment, role: AcceptingRole) -> None:
        self._attach_journal(env, role)
        _attach_activity(env, role)

    def _attach_journal(
        self,
        env: Environment,
        role: ObservedRole,
        on_switch: Callable[[JournalBuffer | None], None] = lambda _: None,
    ) -> None:
        ProcessJournal(env, role.metadata_client, self._counts, self._buffers, on_switch=on_switch)

    def _attach_to_processor(self, env: Environment, role: ObservedProcessor) -> None:
        handler = role.request_handler
        activity = _attach_activity(env, role)
        if activity is not None:
            from minibroker.lab.observers.activity_sender import RequestActivity

            handler.observers = (RequestActivity(activity),)
        always = handler.observers

        def switch_journal(buffer: JournalBuffer | None) -> None:
            if buffer is None:
                handler.observers = always
                return
            from minibroker.lab.observers.request_journal import RequestJournal

            handler.observers = (RequestJournal(env, buffer), *always)

        FollowedRules(role.metadata_client, ProcessorRules(env, role).change)
        self._attach_journal(env, role, switch_journal)

    def _attach_to_worker(self, env: Environment, role: ObservedWorker) -> None:
        hold_points = env.hold_points
        assert isinstance(hold_points, ProcessHoldPoints)
        hold_points.decisions = ControllerDecisions(role.metadata_client.link, env.name)
        role.services.append(hold_points.run)
        save = partial(save_records, env, self._counts, self._buffers)
        FollowedRules(role.metadata_client, WorkerRules(env, role, hold_points, save).change)
        self._attach_journal(env, role)


def _attach_activity(env: Environment, role: AcceptingRole) -> ActivitySender | None:
    """Let the events of connections be sent to the recorder, if activity is recorded."""
    if not env.settings[ACTIVITY_ENABLE]:
        return None
    from minibroker.lab.observers.activity_sender import ActivitySender

    sender = ActivitySender(env)
    role.events.on_event = sender.report_connection
    role.services.append(sender.run)
    role.last_services.append(sender.finish)
    return sender


class FollowedRules:
    """The fault rules as one process follows them, over all incarnations of the controller."""

    def __init__(
        self, client: MetadataClient, change: Callable[[FaultRules], Awaitable[None]]
    ) -> None:
        """``change`` adds and removes rules, or replaces all."""
        self._client = client
        self._change = change
        self._number = 0
        client.on_registered.append(self._registered)
        client.handlers[FaultRules] = self._follow

    async def _registered(self, further: Sequence[object]) -> None:
        """Follow the rules of a new incarnation of the controller, which are none at first."""
        rules = next((each for each in further if isinstance(each, FaultRules)), None)
        if rules is not None or self._number:
            rules = rules or FaultRules(0, replaces=True)
            self._number = rules.number
            await self._change(rules)

    async def _follow(self, rules: FaultRules) -> None:
        await self._client.wait_registered()
        if rules.number <= self._number:
            return  # It was among the rules that this process got when it registered.
        self._number = rules.number
        await self._change(rules)


class ProcessorRules:
    """The fault rules about the connections of a processor, loaded with the first one."""

    def __init__(self, env: Environment, processor: ObservedProcessor) -> None:
        self._env = env
        self._processor = processor
        self._faults: ProcessorFaults | None = None

    async def change(self, rules: FaultRules) -> None:
        """Add and remove rules, or replace all."""
        processor = self._processor
        if self._faults is None:
            from minibroker.lab.observers.faults import ProcessorFaults

            self._faults = ProcessorFaults(self._env, processor.metadata_client.link)
        self._faults.change_rules(rules)
        processor.request_handler.interceptor = None if self._faults.is_empty else self._faults
        await self._faults.close_matching(rules, processor.clients.values())


class WorkerRules:
    """The fault rules about the inside of a worker: hold points, and storage."""

    def __init__(
        self,
        env: Environment,
        worker: ObservedWorker,
        hold_points: ProcessHoldPoints,
        save_records: Callable[[], None],
    ) -> None:
        """``save_records`` saves what the process has recorded for the journal."""
        self._env = env
        self._worker = worker
        self._hold_points = hold_points
        self._save_records = save_records
        self._storage: StorageFaults | None = None

    async def change(self, rules: FaultRules) -> None:
        """Add and remove rules, or replace all."""
        self._hold_points.change_rules(rules)
        if self._storage is None:
            from minibroker.lab.observers.faults import StorageFaults

            files = self._worker.segment_files
            self._storage = StorageFaults(self._env, files, self._save_records)
            self._worker.storage.fails_on_purpose = self._storage.fails_always
        self._storage.change_rules(rules)


# --------------------------------------------------------------------------------------------------
# The journal in one process: switched on and off by the controller, which takes what it recorded.
#
# Owns the buffers of the process' roles, and what a note becomes. It must never know where the
# journal is kept. Invariant: while the journal is off, nothing listens and no module of it is
# loaded; what was recorded and not handed over stays until it is, also when the journal is off
# again.


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
            from minibroker.lab.journal.records import JournalBuffer

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
    from minibroker.lab.observers.request_journal import JournalFiles

    files = JournalFiles(env.data_dir, env.started_us, EventLog(env.name))
    for role, buffer in buffers.items():
        files.save_chunks(role, buffer.take_all(counts.chunk(role)))
