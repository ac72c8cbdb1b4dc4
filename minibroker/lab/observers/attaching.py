"""Attaches the laboratory to the roles of one process.

Owns which observers, interceptors and handlers each role gets. It must never know what they do.
Invariant: until the journal, a fault rule or activity is switched on, nothing is attached but the
handlers of the messages that do so, and the modules of these three are not loaded.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from minibroker.broker.process.environment import ACCEPTOR, CONTROLLER, PROCESSOR, WORKER
from minibroker.broker.settings import ACTIVITY_ENABLE
from minibroker.lab.observers.hold_points import ProcessHoldPoints
from minibroker.lab.observers.messages import FaultRules
from minibroker.lab.observers.process_journal import ProcessJournal, save_records

if TYPE_CHECKING:
    from minibroker.broker.admission.connection_events import ConnectionEvents
    from minibroker.broker.log.segment import SegmentFiles
    from minibroker.broker.network.client_connection import ClientConnection
    from minibroker.broker.network.request_handler import RequestHandler
    from minibroker.broker.process.environment import Environment
    from minibroker.broker.process.metadata_client import MetadataClient
    from minibroker.broker.process.storage_watch import StorageWatch
    from minibroker.lab.journal.buffer import JournalBuffer
    from minibroker.lab.journal.counts import JournalCounts
    from minibroker.lab.observers.activity_sender import ActivitySender
    from minibroker.lab.observers.processor_faults import ProcessorFaults
    from minibroker.lab.observers.storage_faults import StorageFaults


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
        env.observe = partial(self._attach, env)
        if env.role == WORKER:
            env.hold_points = ProcessHoldPoints(env.name)
        return env

    def _attach(self, env: Environment, role: Any) -> None:
        if env.role == PROCESSOR:
            self._attach_to_processor(env, role)
        elif env.role == WORKER:
            self._attach_to_worker(env, role)
        elif env.role == ACCEPTOR:
            self._attach_journal(env, role)
            _attach_activity(env, role)
        elif env.role != CONTROLLER:
            self._attach_journal(env, role)

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
            from minibroker.lab.observers.request_activity import RequestActivity

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
        hold_points.link = role.metadata_client.link
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
            from minibroker.lab.observers.processor_faults import ProcessorFaults

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
            from minibroker.lab.observers.storage_faults import StorageFaults

            files = self._worker.segment_files
            self._storage = StorageFaults(self._env, files, self._save_records)
            self._worker.storage.fails_on_purpose = self._storage.fails_always
        self._storage.change_rules(rules)
