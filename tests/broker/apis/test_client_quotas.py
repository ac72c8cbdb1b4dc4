"""Quotas are set, removed and described, for each kind of entity."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.broker.apis.client_quotas import ALTER_CLIENT_QUOTAS, DESCRIBE_CLIENT_QUOTAS
from minibroker.broker.metadata.quotas import QuotaChange
from minibroker.runtime import hosts
from minibroker_protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    EntityData,
    OpData,
)
from minibroker_protocol.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
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
    response = await apis.ask(ALTER_CLIENT_QUOTAS, request, version)
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


# Describe client quotas ---------------------------------------------------------------------------


@pytest.fixture
async def with_quotas(apis: Any) -> Any:
    names = {"10.0.0.1": 5.0, None: 7.0}
    changes = [QuotaChange((("ip", name),), ((RATE, rate),)) for name, rate in names.items()]
    both = (("user", "u"), ("client-id", None))
    changes.append(QuotaChange(both, (("request_percentage", 0.5),)))
    outcome = await apis.cluster.alter_quotas(changes)
    await apis.controller.publish(outcome.updates)
    return apis


async def describe(
    apis: Any, *components: tuple[str, int, str | None], version: int = 1, strict: bool = True
) -> Any:
    request = DescribeClientQuotasRequest(
        components=[
            ComponentData(entity_type=kind, match_type=match_type, match=match)
            for kind, match_type, match in components
        ],
        strict=strict,
    )
    response = await apis.ask(DESCRIBE_CLIENT_QUOTAS, request, version)
    assert apis.asked == {}
    return response


def found(response: Any) -> list[tuple[str | None, dict[str, float]]]:
    assert (response.error_code, response.error_message) == (0, None)
    return [
        (entry.entity[0].entity_name, {value.key: value.value for value in entry.values})
        for entry in response.entries
    ]


@pytest.mark.parametrize("version", [0, 1])
async def test_matching_entities_are_described_with_quotas(with_quotas: Any, version: int) -> None:
    one, default = ("10.0.0.1", {RATE: 5.0}), (None, {RATE: 7.0})

    async def names(*components: tuple[str, int, str | None], strict: bool = True) -> Any:
        return found(await describe(with_quotas, *components, version=version, strict=strict))

    assert await names(("ip", 0, "10.0.0.1")) == [one]
    assert await names(("ip", 1, None)) == [default]
    assert await names(("ip", 2, None)) == [one, default]
    assert await names(("ip", 0, "10.0.0.2")) == []
    assert await names(("user", 2, None)) == []
    assert await names() == []
    both = ("u", {"request_percentage": 0.5})
    assert await names(("user", 2, None), strict=False) == [both]
    assert await names(("user", 0, "u"), ("client-id", 1, None)) == [both]
    assert await names(strict=False) == [one, default, both]


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize(("component", "code"), [(("colour", 0, "red"), 35), (("ip", 3, None), 42)])
async def test_invalid_filter_is_rejected_with_null_entries(
    with_quotas: Any, version: int, component: tuple[str, int, str | None], code: int
) -> None:
    response = await describe(with_quotas, component, version=version)
    assert response.error_code == code
    assert response.error_message
    assert response.entries is None
