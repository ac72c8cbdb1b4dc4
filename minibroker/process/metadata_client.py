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

from collections.abc import Awaitable, Callable, Collection
from typing import Any

import trio

from minibroker.cluster.image import (
    ALL_KINDS,
    Image,
    Update,
    apply_update,
    image_of,
    update_of,
)
from minibroker.observability.metrics import Series, condition_gauges
from minibroker.process.environment import CONTROLLER, Environment
from minibroker.process.messages import (
    ClockAdvanced,
    ConditionsRequest,
    DetailsRequest,
    Greeting,
    ImageApplied,
    MetricsRequest,
    Welcome,
)
from minibroker.runtime.rpc import Conversation, Link

ImageStep = Callable[[Image, Image], Awaitable[None] | None]
"""Called with the image before and after a change. If it returns an awaitable, the change counts as
applied when that has finished; later changes do not wait for it.
"""


def _nothing_follows(before: Image, after: Image) -> None:
    del before, after


class MetadataClient:
    """A role's link to the controller; ``run`` must be running."""

    def __init__(
        self,
        env: Environment,
        *,
        on_image: ImageStep = _nothing_follows,
        details: Callable[[], Any] = lambda: None,
        on_ask: Callable[[Any], Any] | None = None,
        configs: Collection[str] = ALL_KINDS,
    ) -> None:
        """``configs`` are the kinds of resources whose configs the role needs.

        Other configs are not kept: ten thousand users' quotas take megabytes, and a role that does
        not need credentials should not have them.
        """
        self._env = env
        self._on_image = on_image
        self._details = details
        self._on_ask = on_ask
        self._configs = configs
        self.link = Link(self._dial, self._greet, self._answer)
        self._welcomed = trio.Event()
        self._failed = trio.Event()
        self._failure: Exception | None = None
        self.image = Image()
        env.metrics.watch_gauges(self._condition_gauges)

    def _condition_gauges(self) -> dict[Series, float]:
        return condition_gauges(self._env.conditions)

    async def _dial(self) -> Any:
        self._welcomed = trio.Event()
        return await self._env.switchboard.dial(CONTROLLER)

    async def _greet(self, conversation: Conversation) -> None:
        env = self._env
        welcome: Welcome = await conversation.ask(Greeting(env.role, env.index, env.incarnation))
        rest = self._take(image_of(welcome.image, self._configs))
        self._welcomed.set()
        if rest is not None:
            await rest
        await conversation.ask(ImageApplied())

    def _take(self, image: Image) -> Awaitable[None] | None:
        before, self.image = self.image, image
        if image is before:
            return None
        try:
            rest = self._on_image(before, image)
        except Exception as error:
            self._fail(error)
            raise
        return None if rest is None else self._finish(rest)

    async def _finish(self, rest: Awaitable[None]) -> None:
        try:
            await rest
        except Exception as error:
            self._fail(error)
            raise

    def _fail(self, error: Exception) -> None:
        self._failure = error
        self._failed.set()

    def _answer(self, question: Any) -> Any:
        if isinstance(question, Update):
            if not self._welcomed.is_set():
                return self._update_later(question)
            return self._update(question)
        if isinstance(question, MetricsRequest):
            return self._env.metrics.snapshot()
        if isinstance(question, ConditionsRequest):
            return self._env.conditions.all()
        if isinstance(question, DetailsRequest):
            return self._details()
        if isinstance(question, ClockAdvanced):
            return None  # It is enough that the event loop has run.
        if self._on_ask is None:
            raise TypeError(f"{self._env.name} has no answer to {type(question).__name__}")
        return self._on_ask(question)

    def _update(self, update: Update) -> Awaitable[None] | None:
        return self._take(apply_update(self.image, update_of(update, self._configs)))

    async def _update_later(self, update: Update) -> None:
        # An update may be received before the task has applied the image in the welcome.
        await self._welcomed.wait()
        rest = self._update(update)
        if rest is not None:
            await rest

    async def ask(self, question: object) -> Any:
        """Send a request to the controller, as ``Link.ask`` does."""
        return await self.link.ask(question)

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
