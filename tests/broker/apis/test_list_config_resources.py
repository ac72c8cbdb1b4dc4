"""ListConfigResources: the resources of each type, and unknown types."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from minibroker.broker.apis.list_config_resources import API
from minibroker.broker.metadata.image import CLIENT_METRICS, GROUP
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.list_config_resources import ListConfigResourcesRequest

CONFIGS = {
    (GROUP, "g2"): {"a": "b"},
    (GROUP, "g1"): {"a": "b"},
    (CLIENT_METRICS, "m"): {"a": "b"},
}


async def listed(apis: Any, *types: int, version: int = 1) -> list[tuple[int, str]]:
    apis.image = replace(apis.cluster.image, configs=CONFIGS)
    request = ListConfigResourcesRequest(resource_types=list(types))
    response = await apis.ask(API, request, version)
    assert response.error_code == ErrorCode.NONE
    return [(each.resource_type, each.resource_name) for each in response.config_resources]


async def test_version_0_lists_client_metrics_only(apis: Any) -> None:
    assert await listed(apis, version=0) == [(16, "m")]


@pytest.mark.parametrize(
    ("kind", "names"), [(4, ["1"]), (8, ["1"]), (16, ["m"]), (32, ["g1", "g2"])]
)
async def test_resources_of_one_type_are_listed(apis: Any, kind: int, names: list[str]) -> None:
    assert await listed(apis, kind, kind) == [(kind, name) for name in names]


async def test_without_types_all_are_listed(apis: Any) -> None:
    found = await listed(apis)
    assert found[:5] == [(32, "g1"), (32, "g2"), (16, "m"), (8, "1"), (4, "1")]
    assert {name for kind, name in found if kind == 2} == set(apis.cluster.image.topics)


@pytest.mark.parametrize("types", [[0], [1], [64], [-1], [4, 64]])
async def test_unknown_type_is_rejected(apis: Any, types: list[int]) -> None:
    request = ListConfigResourcesRequest(resource_types=types)
    response = await apis.ask(API, request, 1)
    assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert response.config_resources == []
