"""The running broker that the control API controls.

Owns what operations use of the controller role, and what they keep between requests. It must never
know an operation. Invariant: fault rules and journal are imported when they are used first. Kafka
has no equivalent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar

from minibroker.broker.metrics.log import EventLog
from minibroker.broker.process.environment import PROCESSOR, WORKER, note_state, role_name
from minibroker.broker.settings import JOURNAL_MAX_BYTES

if TYPE_CHECKING:
    from minibroker.broker.apis.base import ControllerScope
    from minibroker.broker.metadata.image import Image
    from minibroker.broker.process.environment import Environment
    from minibroker.broker.roles.metadata_publisher import MetadataPublisher
    from minibroker.lab.control.broker_faults import BrokerFaults
    from minibroker.lab.control.journal_collector import JournalCollector
    from minibroker.lab.control.operation import ApiOperation
    from minibroker.lab.control.processes import ProcessSignals

_State = TypeVar("_State")


class ControlledBroker:
    """A running broker, as its controller sees it. Implements ``operation.ApiContext``."""

    def __init__(
        self,
        env: Environment,
        scope: ControllerScope,
        publisher: MetadataPublisher,
        start_soon: Callable[..., None],
        operations: Callable[[], Sequence[ApiOperation]] = tuple,
    ) -> None:
        """``start_soon`` starts a task that runs as long as the controller.

        ``operations`` imports the operations of the control API.
        """
        self.env = env
        self.scope = scope
        self.publisher = publisher
        self.started_at = env.clock.now()
        """The start of the controller on the broker's clock."""
        self.processors = [role_name(PROCESSOR, index) for index in range(env.processors)]
        self.workers = [role_name(WORKER, index) for index in range(env.workers)]
        self._start_soon = start_soon
        self._operations = operations
        self._states: dict[object, Any] = {}

    @property
    def operations(self) -> Sequence[ApiOperation]:
        """The operations of the control API."""
        return self._operations()

    @property
    def image(self) -> Image:
        """The cluster's metadata."""
        return self.scope.image

    def state(self, kind: Callable[[ControlledBroker], _State]) -> _State:
        """Return what a feature keeps between requests: the one object of its class ``kind``."""
        if kind not in self._states:
            self._states[kind] = kind(self)
        found: _State = self._states[kind]
        return found

    @cached_property
    def faults(self) -> BrokerFaults:
        """The fault rules."""
        # Imported by the first request about faults: most brokers get none.
        from minibroker.broker.apis.registry import served_versions, serving
        from minibroker.lab.control.broker_faults import BrokerFaults
        from minibroker.lab.faults.register import FaultStore

        env = self.env
        store = FaultStore(env.data_dir, env.started_us)
        served = served_versions(serving(env.settings).apis)
        return BrokerFaults(env, self.publisher, self.processes, store, served=served)

    @cached_property
    def journal(self) -> JournalCollector:
        """The journal."""
        # Imported when it is switched on, or by the first request about it.
        from minibroker.lab.control.journal_collector import JournalCollector
        from minibroker.lab.observers.attaching import listen_to_notes
        from minibroker.lab.observers.request_journal import JournalFiles

        env = self.env
        journal = JournalCollector(
            env,
            self.publisher,
            self._start_soon,
            env.settings[JOURNAL_MAX_BYTES],
            on_switch=partial(listen_to_notes, env),
            statuses=env.statuses,
            files=JournalFiles(env.data_dir, env.started_us, EventLog(env.name)),
        )
        journal.learn_topics(self.image.topic_names)
        self.publisher.further.append(journal.switch_of_new_role)
        self.publisher.observers.append(lambda image: journal.learn_topics(image.topic_names))
        return journal

    @cached_property
    def processes(self) -> ProcessSignals:
        """The broker's processes, to kill or pause them."""
        # Imported by the first fault rule or action.
        from minibroker.lab.control.processes import ProcessSignals

        env = self.env
        on_state = partial(note_state, env, "process")
        return ProcessSignals(env.clock, env.statuses, on_state, self._hand_over_journal)

    async def _hand_over_journal(self, process: str, *, ends: bool) -> None:
        if self.env.on_note is not None:
            await self.journal.hand_over(process, ends=ends)
