"""Every served API is declared, and each once; a persona narrows what is served."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.apis import metadata, produce
from minibroker.broker.apis.authorization import checks, special_checks
from minibroker.broker.apis.registry import (
    APIS,
    Authorizers,
    advertised,
    collect,
    narrowed,
    serving,
)
from minibroker.broker.metadata.image import AclsChanged, BrokerGone, Image, apply
from minibroker.broker.personas.persona import NAMES, Persona, VersionRange, load
from minibroker.broker.security.acl import AclRule, Operation, Pattern, Permission, Resource
from minibroker.broker.security.principal import ANONYMOUS
from minibroker.broker.settings import Settings
from minibroker_protocol.messages.describe_cluster import DescribeClusterRequest
from minibroker_protocol.messages.list_config_resources import ListConfigResourcesRequest
from minibroker_protocol.messages.list_groups import ListGroupsRequest
from minibroker_protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from minibroker_protocol.registry import ApiKey, schema
from tests.broker.apis.authorization.callers import ALICE, SETTINGS
from tests.broker.apis.conftest import ApisMaker


@pytest.mark.parametrize("versions", [(0, 99), (-1, 3)])
def test_api_versions_not_declared_by_protocol_are_rejected(
    versions: tuple[int, int],
) -> None:
    api = replace(metadata.API, versions=versions)
    with pytest.raises(ValueError, match=r"METADATA serves versions .*, the protocol declares"):
        collect([api])


def test_served_versions_must_be_declared_and_advertised_ones_need_not() -> None:
    assert list(collect([produce.API])) == [ApiKey.PRODUCE]
    with pytest.raises(ValueError, match="PRODUCE serves versions 2 to 13"):
        collect([replace(produce.API, served_from=2)])
    with pytest.raises(ValueError, match="PRODUCE serves versions 0 to 13"):
        collect([replace(produce.API, served_from=None)])


def test_api_registered_twice_is_rejected() -> None:
    with pytest.raises(ValueError, match="METADATA is served twice"):
        collect([metadata.API, metadata.API])


@pytest.mark.parametrize("key", sorted(APIS), ids=lambda key: APIS[key].key.name)
def test_api_is_found_by_key_and_lists_unsupported_features(key: int) -> None:
    api = APIS[key]
    assert api.key == key
    assert schema(key).key is api.key
    assert all(text and text[0].islower() for text in api.left_out)


@pytest.mark.parametrize(
    ("pair", "listed"),
    [
        ("num.partitions=1", set()),
        ("zookeeper.connect=localhost:2181", {4, 5, 6, 7}),
        ("advertise.controller.requests=true", {4, 5, 6, 7}),
    ],
)
def test_controller_requests_are_advertised_only_for_other_controllers(
    pair: str, listed: set[int]
) -> None:
    served = advertised(Settings.from_sources(pairs=[pair]))
    assert {int(key) for key in served if 4 <= key <= 7} == listed
    assert APIS.keys() - served.keys() == {4, 5, 6, 7} - listed
    assert all(versions == APIS[key].versions for key, versions in served.items())


RANGES = st.tuples(st.integers(0, 20), st.integers(0, 20)).map(
    lambda pair: VersionRange(*sorted(pair))
)


def personas() -> st.SearchStrategy[Persona]:
    """The recorded personas, and ones of any versions."""
    any_versions = st.dictionaries(st.sampled_from([*APIS, 99]), RANGES).map(
        lambda versions: load("kafka-2.8")._replace(versions=versions)
    )
    return st.sampled_from(NAMES).map(load) | any_versions


@given(personas(), st.sampled_from(sorted(APIS)), st.integers(-1, 25))
def test_version_is_served_if_registry_and_persona_have_it(
    persona: Persona, key: int, version: int
) -> None:
    theirs = persona.versions.get(key, VersionRange(1, 0))
    wanted = APIS[key].serves(version) and theirs.low <= version <= theirs.high
    found = narrowed(APIS, persona).get(key)
    assert (found is not None and found.serves(version)) == wanted


@given(personas())
def test_listed_versions_are_within_both_and_some_of_them_are_served(persona: Persona) -> None:
    for key, api in narrowed(APIS, persona).items():
        low, high = api.versions
        assert low >= max(APIS[key].versions[0], persona.versions[key].low)
        assert high == min(APIS[key].versions[1], persona.versions[key].high)
        assert api.serves(high)
        assert api.execute is APIS[key].execute


def test_without_a_persona_the_registry_itself_is_served() -> None:
    settings = Settings.from_sources()
    assert serving(settings).apis is APIS
    assert serving(settings).advertised == advertised(settings)


def test_controller_requests_are_listed_if_the_persona_has_them() -> None:
    for name, listed in (("kafka-2.8", True), ("kafka-3.9", False)):
        found = serving(Settings.from_sources(pairs=[f"persona={name}"]))
        assert (ApiKey.LEADER_AND_ISR in found.advertised) == listed
        assert set(found.advertised) == set(found.apis)


def test_old_versions_of_produce_are_listed_but_not_served() -> None:
    produce = serving(Settings.from_sources(pairs=["persona=kafka-0.11"])).apis[ApiKey.PRODUCE]
    assert produce.versions == (0, 3)
    assert [version for version in range(5) if produce.serves(version)] == [3]


# ---------------------- Authorization checks run and are loaded only if an authorizer is configured


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
