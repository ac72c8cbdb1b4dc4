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

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

import trio

from minibroker.broker.metadata.image import (
    ALL_KINDS,
    BROKER_LOGGER,
    EMPTY,
    Image,
    Update,
    apply_update,
    image_of,
    update_of,
)
from minibroker.broker.metrics.log import apply_levels
from minibroker.broker.metrics.metrics import Series, condition_gauges
from minibroker.broker.process.environment import CONTROLLER, Environment
from minibroker.broker.process.messages import (
    ClockAdvanced,
    ConditionsRequest,
    DetailsRequest,
    ImageApplied,
    MetricsRequest,
    RegisterRole,
    RoleRegistered,
)
from minibroker.broker.settings import NODE_ID, Settings
from minibroker.broker.settings.loggers import LEVELS, logger_levels
from minibroker.runtime.rpc import Link, RpcConnection

ImageStep = Callable[[Image, Image], Awaitable[None] | None]
"""Called with the image before and after a change. If it returns an awaitable, the change counts as
applied when that has finished; later changes do not wait for it.
"""


def _ignore_change(before: Image, after: Image) -> None:
    del before, after


class MetadataClient:
    """A role's link to the controller; ``run`` must be running."""

    def __init__(
        self,
        env: Environment,
        *,
        on_image: ImageStep = _ignore_change,
        details: Callable[[], Any] = lambda: None,
        on_request: Callable[[Any], Any] | None = None,
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
        self.handlers: dict[type, Callable[[Any], Any]] = {}
        """Further requests that the role answers, by their type."""
        self.on_registered: list[Callable[[Sequence[object]], Awaitable[None]]] = []
        """Called with what else the controller sends when the role registers, also if that is
        nothing, before the image counts as applied.
        """
        self._configs = frozenset((*configs, BROKER_LOGGER))
        self.link = Link(self._connect, self._register, self._handle_request)
        self._registered = trio.Event()
        self._failed = trio.Event()
        self._failure: Exception | None = None
        self.image = Image()
        env.metrics.watch_gauges(self._condition_gauges)
        env.metrics.watch_topics(lambda: self.image.topics)

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
        for follow in self.on_registered:
            await follow(reply.further)
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
        if isinstance(request, ClockAdvanced):
            return None  # The loop has read the clock again.
        handler = self.handlers.get(type(request))
        if handler is not None:
            return handler(request)
        if self._on_request is None:
            raise TypeError(f"{self._env.name} cannot handle {type(request).__name__}")
        return self._on_request(request)

    def _update(self, update: Update) -> Awaitable[None] | None:
        return self._set_image(apply_update(self.image, update_of(update, self._configs)))

    async def _update_later(self, update: Update) -> None:
        # An update may be received before the image of the registration was applied.
        await self._registered.wait()
        remaining = self._update(update)
        if remaining is not None:
            await remaining

    async def wait_registered(self) -> None:
        """Wait until the image of the registration is set, and what came with it is handled."""
        await self._registered.wait()

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


# --------------------------------------------------------------------------------------------------
# Levels of this process's loggers, which admin clients change as configs of broker loggers.
#
# Sets the levels when the image has others. It must never know a request. Invariant: loggers of
# processes that run in one interpreter share their levels. Kafka's ``Log4jCoreController``.


def follow_log_levels(settings: Settings, before: Image, after: Image) -> None:
    """Set the levels of the loggers if the configs of this broker's loggers have changed."""
    key = (BROKER_LOGGER, str(settings[NODE_ID]))
    changed = after.configs.get(key, EMPTY)
    if changed != before.configs.get(key, EMPTY):
        levels = logger_levels(changed)
        apply_levels({logger: LEVELS[level] for logger, level in levels.items()})
