from __future__ import annotations

from minibroker.lab.namespaces import PrefixedNames, prefix_of
from minibroker_protocol.messages.find_coordinator import FindCoordinatorRequest
from minibroker_protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)

NAMES = PrefixedNames(prefix_of("ns"))


def test_broker_knows_names_with_the_prefix() -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name="orders")])
    NAMES.to_broker(request, 9)
    assert request.topics == [MetadataRequestTopic(name="ns.orders")]
    coordinators = FindCoordinatorRequest(coordinator_keys=["g"], key_type=1)
    NAMES.to_broker(coordinators, 4)
    assert coordinators.coordinator_keys == ["ns.g"]


def test_client_knows_its_own_names_without_the_prefix() -> None:
    topics = [MetadataResponseTopic(name=name) for name in ("ns.orders", "other.orders", "orders")]
    response = MetadataResponse(topics=topics)
    NAMES.to_client(response, 9)
    assert [each.name for each in response.topics] == ["orders"]


def test_name_of_the_namespace_has_the_prefix() -> None:
    assert NAMES.has("ns.orders")
    assert not NAMES.has("orders")
    assert not NAMES.has(None)
