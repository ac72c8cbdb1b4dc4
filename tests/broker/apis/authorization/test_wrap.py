"""Authorization checks run and are loaded only if an authorizer is configured."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from minibroker.broker.apis.authorization import checks, special_checks
from minibroker.broker.apis.authorization.wrap import Authorizers
from minibroker.broker.apis.registry import APIS
from minibroker.broker.metadata.image import AclsChanged, BrokerGone, Image, apply
from minibroker.broker.security.acl import AclRule, Operation, Pattern, Permission, Resource
from minibroker.broker.security.principal import ANONYMOUS
from minibroker.broker.settings import Settings
from minibroker_protocol.messages.describe_cluster import DescribeClusterRequest
from minibroker_protocol.messages.list_config_resources import ListConfigResourcesRequest
from minibroker_protocol.messages.list_groups import ListGroupsRequest
from minibroker_protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from minibroker_protocol.registry import ApiKey
from tests.broker.apis.authorization.callers import ALICE, SETTINGS
from tests.broker.apis.conftest import ApisMaker


async def test_wrap_without_authorizer_runs_no_check(
    apis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_arguments: Any) -> None:
        raise AssertionError("an authorization check ran")

    monkeypatch.setattr(special_checks, "SPECIAL_CHECKS", dict.fromkeys(ApiKey, never))
    monkeypatch.setattr(checks, "check_requirements", never)
    response = await apis.ask(APIS[ApiKey.DESCRIBE_CLUSTER], DescribeClusterRequest(), 0)
    assert response.brokers
    listed = await apis.ask(APIS[ApiKey.LIST_CONFIG_RESOURCES], ListConfigResourcesRequest(), 1)
    assert listed.config_resources


def test_wrap_without_authorizer_does_not_load_the_checks() -> None:
    loaded = "[name for name in sys.modules if 'authorization' in name and 'checks' in name]"
    look = f"import sys, minibroker.launch.processes; print({loaded})"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


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


# Authorizers --------------------------------------------------------------------------------------


PATTERN = Pattern(Resource.TOPIC, "cats")
RULE = AclRule("User:*", "*", Operation.READ, Permission.ALLOW)


def test_authorizer_is_rebuilt_only_if_acls_change() -> None:
    assert Authorizers(Settings.from_sources()).of(Image()) is None
    authorizers = Authorizers(Settings.from_sources(pairs=SETTINGS))
    image = Image()
    first = authorizers.of(image)
    assert first is not None
    assert authorizers.of(apply(image, BrokerGone(7))) is first
    image = apply(image, AclsChanged(PATTERN, (RULE,)))
    second = authorizers.of(image)
    assert second is not None
    asked = (ALICE, "h", Operation.READ, Resource.TOPIC, "cats")
    assert (first.allows(*asked), second.allows(*asked)) == (False, True)
    assert apply(image, AclsChanged(PATTERN, ())).acls == {}


def test_resource_without_acl_is_allowed_if_configured() -> None:
    open_house = (*SETTINGS, "allow.everyone.if.no.acl.found=true")
    authorizer = Authorizers(Settings.from_sources(pairs=open_house)).of(Image())
    assert authorizer is not None
    assert authorizer.allows(ANONYMOUS, "h", Operation.READ, Resource.TOPIC, "cats")
