"""Properties of a client that subscriptions can select it by."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from minibroker.broker.apis.telemetry_clients import (
    TelemetryClient,
    client_properties,
    instances_with,
)
from minibroker.broker.telemetry.instances import ClientInstances
from minibroker_protocol.types import ZERO_UUID
from tests.broker.apis.telemetry import subscribe


async def test_properties_are_those_of_the_connection(apis: Any) -> None:
    context = apis.context(71, 0)
    context = replace(context, caller=context.caller._replace(software=("java", "4.4.0")))
    assert client_properties(context.caller, "test", ZERO_UUID) == (
        "AAAAAAAAAAAAAAAAAAAAAA",
        "test",
        "java",
        "4.4.0",
        "127.0.0.1",
        "5000",
    )


async def test_instances_follow_the_subscriptions_of_the_image(apis: Any) -> None:
    await subscribe(apis, metrics="a")
    assert metrics_of(await known(apis)) == ("a",)
    await subscribe(apis, metrics="b")
    assert metrics_of(await known(apis)) == ("b",)


async def test_client_of_present_subscriptions_is_not_matched_again(apis: Any) -> None:
    await subscribe(apis, metrics="a", match="client_id=test")
    await known(apis)
    [before] = apis.controller.telemetry.all()
    await known(apis)
    assert apis.controller.telemetry.all() == [before]


async def test_hostile_pattern_does_not_stall(apis: Any) -> None:
    """With an engine that tries every way, this match would take longer than the universe."""
    await subscribe(apis, metrics="a", match="client_id=(a+)+b")
    assert metrics_of(await known(apis, client_id="a" * 60)) == ()


async def known(apis: Any, **properties: str) -> ClientInstances:
    caller = apis.context(71, 0).caller
    client = client_properties(caller, "test", ZERO_UUID)._replace(**properties)
    return await instances_with(apis.controller, TelemetryClient(b"i", client, 10**12))


def metrics_of(instances: ClientInstances) -> tuple[str, ...]:
    [instance] = instances.all()
    return instance.selection.metrics
