"""ApiVersions: ranges, features by version, names of software, and unknown versions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from minibroker.broker.apis.api_versions import (
    API,
    answer,
    before_authentication,
    unsupported_version,
)
from minibroker.broker.metadata.features import (
    GROUP_VERSION,
    SHARE_VERSION,
    STREAMS_VERSION,
    TRANSACTION_VERSION,
)
from minibroker.broker.metadata.image import CLIENT_METRICS
from minibroker_protocol.compiler import decode, encode
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from minibroker_protocol.registry import ApiKey

SERVED = {ApiKey.API_VERSIONS: (0, 5), ApiKey.PRODUCE: (0, 13)}


def ask(
    apis: Any, version: int, name: str = "librdkafka", software: str = "2.15.0", **expected: Any
) -> Any:
    request = ApiVersionsRequest(
        client_software_name=name, client_software_version=software, **expected
    )
    context = replace(apis.context(API.key, version), served=SERVED)
    assert API.split(context, request) == {}
    response = answer(context, request)
    return decode(ApiVersionsResponse, version, encode(response, version))


@pytest.mark.parametrize("version", range(6))
async def test_all_served_apis_are_listed(apis: Any, version: int) -> None:
    response = ask(apis, version)
    assert response.error_code == ErrorCode.NONE
    assert [
        (entry.api_key, entry.min_version, entry.max_version) for entry in response.api_keys
    ] == [
        (0, 0, 13),
        (18, 0, 5),
    ]


async def test_telemetry_is_listed_while_there_is_a_subscription(apis: Any) -> None:
    telemetry = {ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: (0, 0), ApiKey.PUSH_TELEMETRY: (0, 0)}
    context = replace(apis.context(API.key, 4), served={**SERVED, **telemetry})
    request = ApiVersionsRequest(client_software_name="a", client_software_version="1")

    def listed() -> set[int]:
        return {entry.api_key for entry in answer(context, request).api_keys}

    assert listed() == SERVED.keys()
    configs = {**context.image.configs, (CLIENT_METRICS, "all"): {"interval.ms": "1000"}}
    context = replace(context, image=replace(context.image, configs=configs))
    assert listed() == SERVED.keys() | telemetry.keys()


async def test_cached_api_list_is_not_reused_for_other_served_apis(apis: Any) -> None:
    request = ApiVersionsRequest(client_software_name="a", client_software_version="1")
    listed = []
    for served in (SERVED, {ApiKey.FETCH: (4, 9)}, SERVED):
        context = replace(apis.context(API.key, 4), served=served)
        listed.append([entry.api_key for entry in answer(context, request).api_keys])
    assert listed == [[0, 18], [1], [0, 18]]


async def test_produce_12_is_accompanied_by_a_finalized_transaction_version(apis: Any) -> None:
    for version in (3, 4):
        response = ask(apis, version)
        assert [
            (feature.name, feature.min_version_level, feature.max_version_level)
            for feature in response.finalized_features
        ] == [
            ("group.version", 1, 1),
            ("share.version", 2, 2),
            ("streams.version", 1, 1),
            ("transaction.version", 2, 2),
        ]
        assert response.finalized_features_epoch >= 0


async def test_feature_with_min_version_0_is_hidden_before_version_4(apis: Any) -> None:
    assert ask(apis, 3).supported_features == []
    assert [
        (feature.name, feature.min_version, feature.max_version)
        for feature in ask(apis, 4).supported_features
    ] == [
        GROUP_VERSION[:3],
        SHARE_VERSION[:3],
        STREAMS_VERSION[:3],
        TRANSACTION_VERSION[:3],
    ]


@pytest.mark.parametrize(
    ("name", "software"), [("", "1"), ("x", ""), ("-x", "1"), ("a b", "1"), ("x", "1."), ("ü", "1")]
)
async def test_invalid_client_software_name_is_rejected(
    apis: Any, name: str, software: str
) -> None:
    response = ask(apis, 3, name, software)
    assert response.error_code == ErrorCode.INVALID_REQUEST
    assert response.api_keys == []


async def test_client_software_name_is_not_checked_before_version_3(apis: Any) -> None:
    assert ask(apis, 2, "", "").error_code == ErrorCode.NONE


CLUSTER = "the cluster"


@pytest.mark.parametrize(
    ("cluster_id", "node_id", "error"),
    [
        (CLUSTER, 1, ErrorCode.NONE),
        (None, -1, ErrorCode.NONE),
        (CLUSTER, 2, ErrorCode.REBOOTSTRAP_REQUIRED),
        ("another", 1, ErrorCode.REBOOTSTRAP_REQUIRED),
        ("", 1, ErrorCode.REBOOTSTRAP_REQUIRED),
        (CLUSTER, -1, ErrorCode.INVALID_REQUEST),
        (None, 1, ErrorCode.INVALID_REQUEST),
    ],
)
async def test_client_that_expects_another_broker_must_bootstrap_again(
    apis: Any, cluster_id: str | None, node_id: int, error: ErrorCode
) -> None:
    if cluster_id == CLUSTER:
        cluster_id = apis.cluster.image.cluster_id
    response = ask(apis, 5, cluster_id=cluster_id, node_id=node_id)
    assert response.error_code == error
    assert bool(response.api_keys) == (error == ErrorCode.NONE)


async def test_expected_broker_is_not_checked_before_authentication(apis: Any) -> None:
    request = ApiVersionsRequest(
        client_software_name="a", client_software_version="1", cluster_id="another", node_id=1
    )
    context = replace(apis.context(API.key, 5), served=SERVED)
    assert before_authentication(context, request).error_code == ErrorCode.NONE
    request.client_software_name = "-"
    assert before_authentication(context, request).error_code == ErrorCode.INVALID_REQUEST


def test_unsupported_version_is_answered_in_version_0_with_range() -> None:
    response = decode(ApiVersionsResponse, 0, encode(unsupported_version(SERVED), 0))
    assert response.error_code == 35
    [entry] = response.api_keys
    assert (entry.api_key, entry.min_version, entry.max_version) == (18, 0, 5)
