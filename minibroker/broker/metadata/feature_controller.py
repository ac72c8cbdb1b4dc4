"""The controller's changes of finalized feature levels.

Owns the order plan, store, image for them, as `ClusterController`, which contains it, does for all
other metadata. Invariant: a level that could not be stored is in no image. The feature methods of
Kafka's ``QuorumController``.
"""

from __future__ import annotations

from collections.abc import Sequence

from minibroker.broker.metadata import stored_features
from minibroker.broker.metadata.acl_controller import AclController
from minibroker.broker.metadata.feature_updates import FeatureUpdate, plan_features
from minibroker.broker.metadata.features import supported_features
from minibroker.broker.metadata.image import FeaturesChanged, Update
from minibroker.broker.metadata.outcomes import unavailable_rejection
from minibroker.broker.metadata.store.tree import UnavailableError
from minibroker.broker.metadata.topics import ChangeRejected
from minibroker.broker.settings import PERSONA, Settings


class FeatureController(AclController):
    """The part of the controller that finalizes feature levels."""

    _settings: Settings

    async def update_features(
        self, updates: Sequence[FeatureUpdate], *, validate_only: bool = False
    ) -> tuple[ChangeRejected | None, list[Update]]:
        """Change levels, all or none; return the rejection, and the updates to publish."""
        async with self._lock:
            node_id = self._image.controller_id
            features = supported_features(self._settings[PERSONA])
            plan = plan_features(self._image.features, updates, node_id, features)
            if isinstance(plan, ChangeRejected):
                return plan, []
            if validate_only or plan == self._image.features:
                return None, []
            try:
                operations = await stored_features.steps(self._store, plan)
                return None, await self._commit(operations, [FeaturesChanged(plan)])
            except UnavailableError as error:
                return unavailable_rejection(error), []
