"""A role's link to the controller: registers the role, updates its image, and answers requests.

Owns this process's copy of the cluster image. It must never know the consequences of a change;
those are in the role's ``on_image``. Invariant: an update is answered after ``on_image`` and the
awaitable that it may return have finished, so an update that the controller reports as published
is applied in every process. A restarted controller sends the complete image, which the role
handles as one more change. If ``on_image`` fails, ``run`` raises and the role is restarted,
because a change may have been applied only in part, and the next image would not contain the rest
as a change.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING, Any

import trio

from minibroker.broker.metadata.image import (
    ALL_KINDS,
    BROKER_LOGGER,
    Image,
    Update,
    apply_update,
    image_of,
    update_of,
)
from minibroker.broker.metrics.metrics import Series, condition_gauges
from minibroker.broker.process.environment import CONTROLLER, Environment
from minibroker.broker.process.log_levels import follow_log_levels
from minibroker.broker.process.messages import (
    ClockAdvanced,
    ConditionsRequest,
    DetailsRequest,
    FaultRules,
    ImageApplied,
    JournalRequest,
    JournalSwitch,
    KillProcess,
    MetricsRequest,
    RegisterRole,
    RoleRegistered,
)
from minibroker.runtime.rpc import Link, RpcConnection

if TYPE_CHECKING:
    from minibroker.lab.journal.buffer import JournalBuffer

ImageStep = Callable[[Image, Image], Awaitable[None] | None]
"""Called with the image before and after a change. If it returns an awaitable, the change counts as
applied when that has finished; later changes do not wait for it.
"""


def _ignore_change(before: Image, after: Image) -> None:
    del before, after


async def _ignore_faults(rules: FaultRules) -> None:
    del rules


class MetadataClient:
    """A role's link to the controller; ``run`` must be running."""

    def __init__(
        self,
        env: Environment,
        *,
        on_image: ImageStep = _ignore_change,
        details: Callable[[], Any] = lambda: None,
        on_request: Callable[[Any], Any] | None = None,
        on_faults: Callable[[FaultRules], Awaitable[None]] = _ignore_faults,
        configs: Collection[str] = ALL_KINDS,
    ) -> None:
        """``configs`` are the kinds of resources whose configs the role needs.

        Other configs are not kept: ten thousand users' quotas take megabytes, and a role that does
        not need credentials should not have them.
        """
        self._env = env
        self._on_image = on_image
        self._details = details
        self._on_request = on_request
        self._on_faults = on_faults
        self._faults_number = 0
        self._configs = frozenset((*configs, BROKER_LOGGER))
        self.link = Link(self._connect, self._register, self._handle_request)
        self._registered = trio.Event()
        self._failed = trio.Event()
        self._failure: Exception | None = None
        self._journal: JournalBuffer | None = None
        """What was recorded and not handed over, also when the journal is off again."""
        self.image = Image()
        env.metrics.watch_gauges(self._condition_gauges)

    def _condition_gauges(self) -> dict[Series, float]:
        return condition_gauges(self._env.conditions)

    async def _connect(self) -> Any:
        self._registered = trio.Event()
        return await self._env.transport.connect(CONTROLLER)

    async def _register(self, rpc: RpcConnection) -> None:
        env = self._env
        reply: RoleRegistered = await rpc.request(
            RegisterRole(env.role, env.index, env.incarnation)
        )
        remaining = self._set_image(image_of(reply.image, self._configs))
        await self._reset_faults(reply.faults)
        self._switch_journal(is_on=reply.records_journal)
        self._registered.set()
        if remaining is not None:
            await remaining
        await rpc.request(ImageApplied())

    def _set_image(self, image: Image) -> Awaitable[None] | None:
        before, self.image = self.image, image
        if image is before:
            return None
        follow_log_levels(self._env.settings, before, image)
        try:
            remaining = self._on_image(before, image)
        except Exception as error:
            self._fail(error)
            raise
        return None if remaining is None else self._finish(remaining)

    async def _finish(self, remaining: Awaitable[None]) -> None:
        try:
            await remaining
        except Exception as error:
            self._fail(error)
            raise

    def _fail(self, error: Exception) -> None:
        self._failure = error
        self._failed.set()

    def _handle_request(self, request: Any) -> Any:
        if isinstance(request, Update):
            is_registered = self._registered.is_set()
            return self._update(request) if is_registered else self._update_later(request)
        if isinstance(request, MetricsRequest):
            return self._env.metrics.snapshot()
        if isinstance(request, ConditionsRequest):
            return self._env.conditions.all()
        if isinstance(request, DetailsRequest):
            return self._details()
        if isinstance(request, FaultRules):
            return self._set_faults(request)
        if isinstance(request, JournalRequest | JournalSwitch | KillProcess):
            return self._handle_journal(request)
        if isinstance(request, ClockAdvanced):
            return None  # The loop has read the clock again.
        if self._on_request is None:
            raise TypeError(f"{self._env.name} cannot handle {type(request).__name__}")
        return self._on_request(request)

    async def _reset_faults(self, rules: FaultRules | None) -> None:
        """Apply the rules of a new incarnation of the controller, which are none at first."""
        if rules is not None or self._faults_number:
            rules = rules or FaultRules(0, replaces=True)
            self._faults_number = rules.number
            await self._on_faults(rules)

    async def _set_faults(self, rules: FaultRules) -> None:
        await self._registered.wait()
        if rules.number <= self._faults_number:
            return  # It was among the rules that this process got when it registered.
        self._faults_number = rules.number
        await self._on_faults(rules)

    def _handle_journal(self, request: JournalRequest | JournalSwitch | KillProcess) -> Any:
        if isinstance(request, JournalSwitch):
            return self._set_journal(request)
        if isinstance(request, KillProcess):
            from minibroker.broker.process.journal_files import save_records

            save_records(self._env)
            os.kill(os.getpid(), signal.SIGKILL)
            return None
        return None if self._journal is None else self._journal.take(request.received)

    async def _set_journal(self, switch: JournalSwitch) -> None:
        await self._registered.wait()
        self._switch_journal(is_on=switch.is_on)

    def _switch_journal(self, *, is_on: bool) -> None:
        if is_on and self._journal is None:
            from minibroker.lab.journal.buffer import JournalBuffer

            count = self._env.journal_counts.word(self._env.name)
            self._journal = JournalBuffer(time.perf_counter_ns(), count)
            self._env.journal_buffers[self._env.name] = self._journal
        self._env.journal = self._journal if is_on else None

    def _update(self, update: Update) -> Awaitable[None] | None:
        return self._set_image(apply_update(self.image, update_of(update, self._configs)))

    async def _update_later(self, update: Update) -> None:
        # An update may be received before the image of the registration was applied.
        await self._registered.wait()
        remaining = self._update(update)
        if remaining is not None:
            await remaining

    async def request(self, request: object) -> Any:
        """Send a request to the controller, as ``Link.request`` does."""
        return await self.link.request(request)

    async def wait_image(self) -> None:
        """Wait until the controller has sent its first image."""
        await self.link.wait_connected()

    async def run(self) -> None:
        """Apply updates until cancelled. Raises any exception of ``on_image``."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._raise_failure)
            await self.link.run()

    async def _raise_failure(self) -> None:
        await self._failed.wait()
        assert self._failure is not None
        raise self._failure
