"""UpdateFeatures: each version, trials, and what ApiVersions lists afterwards."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.broker.apis import api_versions
from minibroker.broker.apis.update_features import API
from minibroker.broker.metadata.features import TRANSACTION_VERSION
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.api_versions import ApiVersionsRequest
from minibroker_protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest

NAME = TRANSACTION_VERSION.name


async def update(
    apis: Any, level: int, version: int, *, name: str = NAME, trial: bool = False, **fields: Any
) -> Any:
    change = FeatureUpdateKey(feature=name, max_version_level=level, **fields)
    request = UpdateFeaturesRequest(feature_updates=[change], validate_only=trial)
    return await apis.ask(API, request, version)


async def finalized(apis: Any) -> tuple[int, int]:
    """The level that ApiVersions lists, and the epoch."""
    request = ApiVersionsRequest(client_software_name="a", client_software_version="1")
    response = await apis.ask(api_versions.API, request, 4)
    [feature] = response.finalized_features
    return feature.max_version_level, response.finalized_features_epoch


@pytest.mark.parametrize("version", range(3))
async def test_downgrade_is_listed_by_api_versions(apis: Any, version: int) -> None:
    fields = {"allow_downgrade": True} if version == 0 else {"upgrade_type": 2}
    response = await update(apis, 1, version, **fields)
    assert (response.error_code, response.error_message) == (ErrorCode.NONE, None)
    assert [result.feature for result in response.results] == ([NAME] if version < 2 else [])
    assert await finalized(apis) == (1, 1)


@pytest.mark.parametrize("version", range(3))
async def test_downgrade_must_be_permitted(apis: Any, version: int) -> None:
    response = await update(apis, 1, version)
    assert response.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert response.results == []
    assert "Can't downgrade" in response.error_message
    assert await finalized(apis) == (2, 0)


@pytest.mark.parametrize("version", [1, 2])
async def test_trial_changes_nothing(apis: Any, version: int) -> None:
    response = await update(apis, 1, version, upgrade_type=3, trial=True)
    assert response.error_code == ErrorCode.NONE
    assert await finalized(apis) == (2, 0)


async def test_unknown_feature_is_rejected(apis: Any) -> None:
    response = await update(apis, 1, 1, name="other")
    assert response.error_code == ErrorCode.INVALID_UPDATE_VERSION
