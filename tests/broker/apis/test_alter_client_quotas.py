"""AlterClientQuotas: addresses by number and by name, each entry for itself."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.broker.apis.alter_client_quotas import API
from minibroker.runtime import hosts
from minibroker_protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    EntityData,
    OpData,
)

RATE = "connection_creation_rate"


@pytest.fixture(autouse=True)
def one_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is a single host that has a name."""

    async def look_up(host: str) -> list[str]:
        if host != "here.test":
            raise OSError(f"nobody knows {host}")
        return ["10.0.0.1"]

    monkeypatch.setattr(hosts, "look_up", look_up)


async def alter(
    apis: Any,
    *entries: tuple[list[tuple[str, str | None]], dict[str, float | None]],
    version: int = 1,
    validate_only: bool = False,
) -> list[int]:
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
    response = await apis.ask(API, request, version)
    for item, (entity, _) in zip(response.entries, entries, strict=True):
        assert [(part.entity_type, part.entity_name) for part in item.entity] == entity
        assert (item.error_message is None) == (item.error_code == 0)
    return [item.error_code for item in response.entries]


@pytest.mark.parametrize("version", [0, 1])
async def test_invalid_entry_does_not_affect_other_entries(apis: Any, version: int) -> None:
    codes = await alter(
        apis,
        ([("ip", "10.0.0.1")], {RATE: 5.0}),
        ([("ip", None)], {RATE: 0.0}),
        ([("ip", "here.test")], {RATE: 6.0}),
        ([("ip", "::1")], {RATE: 1.5}),
        ([("ip", "gone.test")], {RATE: 6.0}),
        ([("ip", "a..b")], {RATE: 6.0}),
        ([("user", "u")], {"request_percentage": 6.0}),
        version=version,
    )
    assert codes == [0, 0, 0, 42, 42, 42, 0]
    configs = apis.controller.at_processor.configs
    assert {name: dict(quotas) for (kind, name), quotas in configs.items() if kind == "ips"} == {
        "10.0.0.1": {RATE: "5"},
        "<default>": {RATE: "0"},
        "here.test": {RATE: "6"},
    }


async def test_quota_is_removed(apis: Any) -> None:
    await alter(apis, ([("ip", "10.0.0.1")], {RATE: 5.0}))
    assert await alter(apis, ([("ip", "10.0.0.1")], {RATE: None})) == [0]
    assert ("ips", "10.0.0.1") not in apis.controller.at_processor.configs
    assert await alter(apis, ([("ip", "10.0.0.1")], {RATE: None})) == [0]


async def test_validate_only_changes_are_not_applied(apis: Any) -> None:
    assert await alter(apis, ([("ip", "10.0.0.1")], {RATE: 5.0}), validate_only=True) == [0]
    assert apis.controller.published == []


async def test_user_and_client_id_quotas_are_stored_by_entity(apis: Any) -> None:
    rate: dict[str, float | None] = {"producer_byte_rate": 5.0}
    codes = await alter(
        apis,
        ([("user", "a b")], rate),
        ([("user", "a b"), ("client-id", None)], rate),
        ([("client-id", "c")], rate),
        ([("client-id", "c"), ("ip", "10.0.0.1")], rate),
        ([("user", "")], rate),
    )
    assert codes == [0, 0, 0, 42, 42]
    configs = apis.controller.at_processor.configs
    assert [key for key in configs if key[0] in ("users", "clients")] == [
        ("users", "a%20b"),
        ("users", "a%20b/clients/<default>"),
        ("clients", "c"),
    ]
