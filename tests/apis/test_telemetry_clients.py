"""Properties of a client that subscriptions can select it by."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from minibroker.apis.telemetry_clients import client_properties, current_instances
from protocol.types import ZERO_UUID
from tests.apis.telemetry import subscribe


async def test_properties_are_those_of_the_connection(apis: Any) -> None:
    context = apis.context(71, 0)
    context = replace(context, caller=context.caller._replace(software=("java", "4.4.0")))
    assert client_properties(context, ZERO_UUID) == (
        "AAAAAAAAAAAAAAAAAAAAAA",
        "test",
        "java",
        "4.4.0",
        "127.0.0.1",
        "5000",
    )


async def test_instances_follow_the_subscriptions_of_the_image(apis: Any) -> None:
    await subscribe(apis, metrics="a")
    client = client_properties(apis.context(71, 0), ZERO_UUID)
    selection = current_instances(apis.controller).ask(b"i", client, 10**12)
    assert getattr(selection, "metrics") == ("a",)  # noqa: B009 - or an error
