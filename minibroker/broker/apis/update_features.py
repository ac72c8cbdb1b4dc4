"""UpdateFeatures (57): change finalized feature levels (KIP-584, KIP-778).

Versions 0-2. A request changes all of its features or none; a lower level needs the upgrade type of
a downgrade. Version 1 can only validate, and version 2 has no result for each feature. The new
level is stored and applies to every request after the response. In Kafka:
``FeatureControlManager.updateFeatures``.
"""

from __future__ import annotations

from minibroker.broker.apis.base import (
    CLUSTER_DENIED_TEXT,
    ControllerRequest,
    ControllerScope,
    Requires,
    at_controller,
)
from minibroker.broker.metadata.features import FeatureUpdate, UpgradeType
from minibroker.broker.security.acl import Operation
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from minibroker_protocol.registry import ApiKey


async def execute(
    scope: ControllerScope, request: ControllerRequest[UpdateFeaturesRequest]
) -> UpdateFeaturesResponse:
    """Validate, store, and wait until every process has applied the change."""
    message = request.message
    rejection, updates = await scope.cluster.update_features(
        tuple(_update(request.version, update) for update in message.feature_updates),
        validate_only=message.validate_only,
    )
    await scope.publish(updates)
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
            for update in message.feature_updates
        ],
    )


def _update(version: int, update: FeatureUpdateKey) -> FeatureUpdate:
    upgrade_type = update.upgrade_type
    if version == 0:
        is_downgrade = update.allow_downgrade
        upgrade_type = UpgradeType.SAFE_DOWNGRADE if is_downgrade else UpgradeType.UPGRADE
    return FeatureUpdate(update.feature, update.max_version_level, upgrade_type)


API = at_controller(
    execute,
    key=ApiKey.UPDATE_FEATURES,
    versions=(0, 2),
    requires=(Requires(Operation.ALTER, Meaning.CLUSTER, text=CLUSTER_DENIED_TEXT),),
    left_out=("features other than transaction.version: they have no effect here",),
)
