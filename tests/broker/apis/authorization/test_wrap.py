"""Authorization checks run and are loaded only if an authorizer is configured."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from minibroker.broker.apis.authorization import table
from minibroker.broker.apis.registry import APIS
from minibroker.broker.security.acl import Operation, Resource
from minibroker_protocol.messages.describe_cluster import DescribeClusterRequest
from minibroker_protocol.messages.list_groups import ListGroupsRequest
from minibroker_protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from minibroker_protocol.registry import ApiKey
from tests.broker.apis.authorization.callers import ALICE, SETTINGS
from tests.broker.apis.conftest import ApisMaker


async def test_wrap_without_authorizer_runs_no_check(
    apis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(_ctx: Any, _request: Any) -> None:
        raise AssertionError("an authorization check ran")

    monkeypatch.setattr(table, "CHECKS", dict.fromkeys(ApiKey, never))
    response = await apis.ask(APIS[ApiKey.DESCRIBE_CLUSTER], DescribeClusterRequest(), 0)
    assert response.brokers


def test_wrap_without_authorizer_does_not_load_the_table() -> None:
    table_name = "minibroker.broker.apis.authorization.table"
    look = f"import sys, minibroker.launch.processes; print({table_name!r} in sys.modules)"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


async def test_only_denials_of_requested_resources_are_reported(
    make_apis: ApisMaker,
) -> None:
    apis = await make_apis(*SETTINGS)
    apis.principal = ALICE
    denied: list[tuple[Operation, Resource, str]] = []
    asked = MetadataRequest(
        topics=[MetadataRequestTopic(name="cats")], include_topic_authorized_operations=True
    )
    for request, key in ((asked, ApiKey.METADATA), (ListGroupsRequest(), ApiKey.LIST_GROUPS)):
        ctx = apis.context(key, 4)
        ctx.denied = lambda *what: denied.append(what)
        APIS[key].split(ctx, request)
        if key == ApiKey.METADATA:
            APIS[key].merge(ctx, request, {})
    assert denied == [(Operation.DESCRIBE, Resource.TOPIC, "cats")]
