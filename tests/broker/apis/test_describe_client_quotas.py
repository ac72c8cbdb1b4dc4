"""DescribeClientQuotas: matches of filters, and one error for an invalid one."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.broker.apis.describe_client_quotas import API
from minibroker.broker.metadata.quotas import QuotaChange
from minibroker_protocol.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
)

RATE = "connection_creation_rate"


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
    response = await apis.ask(API, request, version)
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
