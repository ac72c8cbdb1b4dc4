"""AlterClientQuotas: addresses by number and by name, each entry for itself."""

from __future__ import annotations

import socket
from typing import Any

import pytest
import trio

from minibroker.apis.alter_client_quotas import API
from protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    EntityData,
    OpData,
)

RATE = "connection_creation_rate"


class Hosts(trio.abc.HostnameResolver):
    """Knows one host."""

    async def getaddrinfo(self, host: Any, port: Any, *rest: Any) -> Any:
        if host in ("here.test", b"here.test"):
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.1", 0))]
        if host in ("slow.test", b"slow.test"):
            await trio.sleep_forever()
        raise socket.gaierror("nobody knows")

    async def getnameinfo(self, *_: Any) -> Any:
        raise NotImplementedError


async def alter(
    desk: Any,
    *entries: tuple[list[tuple[str, str | None]], dict[str, float | None]],
    version: int = 1,
    validate_only: bool = False,
) -> list[int]:
    trio.socket.set_custom_hostname_resolver(Hosts())
    request = AlterClientQuotasRequest(
        entries=[
            AlterClientQuotasRequestEntryData(
                entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
                ops=[
                    OpData(key=key, value=value or 0.0, remove=value is None)
                    for key, value in quotas.items()
                ],
            )
            for entity, quotas in entries
        ],
        validate_only=validate_only,
    )
    response = await desk.ask(API, request, version)
    for item, (entity, _) in zip(response.entries, entries, strict=True):
        assert [(part.entity_type, part.entity_name) for part in item.entity] == entity
        assert (item.error_message is None) == (item.error_code == 0)
    return [item.error_code for item in response.entries]


@pytest.mark.parametrize("version", [0, 1])
async def test_each_entry_is_done_for_itself(desk: Any, version: int) -> None:
    codes = await alter(
        desk,
        ([("ip", "10.0.0.1")], {RATE: 5.0}),
        ([("ip", None)], {RATE: 0.0}),
        ([("ip", "here.test")], {RATE: 6.0}),
        ([("ip", "::1")], {RATE: 1.5}),
        ([("ip", "gone.test")], {RATE: 6.0}),
        ([("ip", "a..b")], {RATE: 6.0}),
        ([("user", "u")], {"request_percentage": 6.0}),
        version=version,
    )
    assert codes == [0, 0, 0, 42, 42, 42, 35]
    configs = desk.controller.at_processor.configs
    assert {name: dict(quotas) for (kind, name), quotas in configs.items() if kind == "ips"} == {
        "10.0.0.1": {RATE: "5"},
        "<default>": {RATE: "0"},
        "here.test": {RATE: "6"},
    }


async def test_a_quota_is_removed(desk: Any) -> None:
    await alter(desk, ([("ip", "10.0.0.1")], {RATE: 5.0}))
    assert await alter(desk, ([("ip", "10.0.0.1")], {RATE: None})) == [0]
    assert ("ips", "10.0.0.1") not in desk.controller.at_processor.configs
    assert await alter(desk, ([("ip", "10.0.0.1")], {RATE: None})) == [0]


async def test_it_may_be_tried_first(desk: Any) -> None:
    assert await alter(desk, ([("ip", "10.0.0.1")], {RATE: 5.0}), validate_only=True) == [0]
    assert desk.controller.published == []


async def test_nobody_waits_long_for_a_name(desk: Any, autojump_clock: Any) -> None:
    before = trio.current_time()
    assert await alter(desk, ([("ip", "slow.test")], {RATE: 5.0})) == [42]
    assert trio.current_time() - before == 5
