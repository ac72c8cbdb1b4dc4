"""The controller's changes of SCRAM credentials and delegation tokens.

Owns the calls of their plans, as `ClusterController`, which contains it, does for other configs. It
must never authorize a change. Invariant: a credential or token that could not be stored is in no
image. In Kafka these are ``ScramControlManager`` and ``DelegationTokenControlManager``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import TypeAlias

from minibroker.broker.metadata.bootstrap import new_uuid
from minibroker.broker.metadata.credentials import CredentialChange, plan_credentials
from minibroker.broker.metadata.feature_controller import FeatureController
from minibroker.broker.metadata.image import ConfigChanged, Image, Update
from minibroker.broker.metadata.outcomes import ConfigOutcome
from minibroker.broker.metadata.topics import ChangeRejected
from minibroker_protocol.types import uuid_text

Plans: TypeAlias = Sequence[ConfigChanged | ChangeRejected]


class UserController(FeatureController):
    """The part of the controller that changes what users prove themselves with."""

    _random: Random

    async def alter_credentials(
        self, requested: Sequence[CredentialChange]
    ) -> tuple[dict[str, ChangeRejected | None], list[Update]]:
        """Change SCRAM credentials; return the rejections by user, and the updates."""
        plans: dict[str, ConfigChanged | ChangeRejected] = {}

        def plan() -> Plans:
            plans.update(plan_credentials(self._image, requested))
            return list(plans.values())

        outcome = await self._store_configs(plan)
        return dict(zip(plans, outcome.rejections, strict=True)), outcome.updates

    async def change_tokens(self, plan: Callable[[Image], Plans]) -> ConfigOutcome:
        """Change delegation tokens by a plan, which is called with the newest image."""
        return await self._store_configs(lambda: plan(self._image))

    def new_token_id(self) -> str:
        """Return an id that no token had before."""
        return uuid_text(new_uuid(self._random))

    async def _store_configs(
        self, plan: Callable[[], Plans], *, validate_only: bool = False
    ) -> ConfigOutcome:
        raise NotImplementedError
