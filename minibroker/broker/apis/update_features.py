"""UpdateFeatures (57): change finalized feature levels (KIP-584, KIP-778).

Versions 0-2. A request changes all of its features or none; a lower level needs the upgrade type of
a downgrade. Version 1 can only validate, and version 2 has no result for each feature. The new
level is stored and applies to every request after the response. In Kafka:
``FeatureControlManager.updateFeatures``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from minibroker.broker.apis.base import CONTROLLER, Api, Context, ControllerScope, Owner
from minibroker.broker.metadata.features import FeatureUpdate, UpgradeType
from minibroker.broker.metadata.image import ChangeRejected
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from minibroker_protocol.registry import ApiKey


class UpdateFeaturesPart(NamedTuple):
    """Requested levels."""

    updates: tuple[FeatureUpdate, ...]
    validate_only: bool


UpdateFeaturesReply = ChangeRejected | None


def split(ctx: Context, request: UpdateFeaturesRequest) -> Mapping[Owner, UpdateFeaturesPart]:
    """Send everything to the controller."""
    updates = tuple(_update(ctx, update) for update in request.feature_updates)
    return {CONTROLLER: UpdateFeaturesPart(updates, request.validate_only)}


def _update(ctx: Context, update: FeatureUpdateKey) -> FeatureUpdate:
    upgrade_type = update.upgrade_type
    if ctx.version == 0:
        is_downgrade = update.allow_downgrade
        upgrade_type = UpgradeType.SAFE_DOWNGRADE if is_downgrade else UpgradeType.UPGRADE
    return FeatureUpdate(update.feature, update.max_version_level, upgrade_type)


async def execute_at_controller(
    scope: ControllerScope, part: UpdateFeaturesPart
) -> UpdateFeaturesReply:
    """Validate, store, and wait until every process has applied the change."""
    rejection, updates = await scope.cluster.update_features(
        part.updates, validate_only=part.validate_only
    )
    await scope.publish(updates)
    return rejection


def merge(
    _ctx: Context, request: UpdateFeaturesRequest, replies: Mapping[Owner, UpdateFeaturesReply]
) -> UpdateFeaturesResponse:
    """One error for all features."""
    rejection = replies[CONTROLLER]
    if rejection is not None:
        return UpdateFeaturesResponse(error_code=rejection.code, error_message=rejection.text)
    return UpdateFeaturesResponse(
        error_message=None,
        results=[
            UpdatableFeatureResult(
                feature=update.feature,
                error_code=ErrorCode.NONE,
                error_message=ErrorCode.NONE.name,
            )
            for update in request.feature_updates
        ],
    )


API: Api[UpdateFeaturesRequest, UpdateFeaturesPart, UpdateFeaturesReply, UpdateFeaturesResponse] = (
    Api(
        key=ApiKey.UPDATE_FEATURES,
        versions=(0, 2),
        split=split,
        execute_at_controller=execute_at_controller,
        merge=merge,
        left_out=("features other than transaction.version: they have no effect here",),
    )
)
