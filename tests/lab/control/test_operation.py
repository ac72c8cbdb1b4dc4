"""Operations are declared with their functions."""

from __future__ import annotations

from typing import Any, cast

import httpx
import pytest
from openapi_schema_validator import OAS31Validator
from openapi_spec_validator import validate

from minibroker.lab.control.clock import ClockChange, ClockView
from minibroker.lab.control.cluster import Health
from minibroker.lab.control.operation import Answer, ApiOperation, Operations, Text, description
from minibroker.lab.control.operations import OPERATIONS
from minibroker.lab.control.quotas import QuotaQuery


async def delete_topic() -> None:
    """Represents the function of an operation."""


ROW = ApiOperation("DELETE", "/v1/topics/{name}", None, delete_topic)
WITHOUT = ROW._replace(path="/v1/topics")


def test_operation_is_named_and_described_after_its_function() -> None:
    assert ROW.name == "delete_topic"
    assert ROW.summary == "Represents the function of an operation."


def test_operation_with_parameter_matches_any_value() -> None:
    assert (ROW.parameter, WITHOUT.parameter) == ("name", None)
    assert ROW.matches_path("/v1/topics/cats")
    assert not ROW.matches_path("/v1/groups/cats")
    assert WITHOUT.matches_path("/v1/topics")
    assert not WITHOUT.matches_path("/v1/topics/cats")


def test_parameter_may_be_in_the_middle_of_a_path() -> None:
    row = ROW._replace(path="/v1/faults/{fault_id}/wait")
    assert row.parameter == "fault_id"
    assert row.matches_path("/v1/faults/1/wait")
    assert not row.matches_path("/v1/faults/1")


def test_types_of_an_operation_are_those_of_its_function() -> None:
    declared = Operations()
    unknown: Any = None

    async def get_lag(context: Unknown, name: str, query: QuotaQuery) -> ClockView:  # type: ignore[name-defined]  # noqa: F821
        return cast("ClockView", unknown)

    async def add_lag(context: Unknown, change: ClockChange) -> Health | Answer:  # type: ignore[name-defined]  # noqa: F821
        return cast("Health", unknown)

    async def remove_lag(context: Unknown, name: str) -> None:  # type: ignore[name-defined]  # noqa: F821
        """Represents the function of an operation."""

    async def get_lags(context: Unknown) -> Text:  # type: ignore[name-defined]  # noqa: F821
        return cast("Text", unknown)

    declared.add("GET", "/v1/lags/{name}")(get_lag)
    declared.add("POST", "/v1/lags", status=201)(add_lag)
    declared.add("DELETE", "/v1/lags/{name}")(remove_lag)
    declared.add("GET", "/lags", media_type="text/plain")(get_lags)
    found = [(each.answer, each.body, each.query, each.status) for each in declared]
    assert found == [
        (ClockView, None, QuotaQuery, 200),
        (Health, ClockChange, None, 201),
        (None, None, None, 204),
        ("text/plain", None, None, 200),
    ]


# -------------------------- The OpenAPI description is valid, complete, and matches the application


def test_openapi_document_is_valid() -> None:
    validate(description(OPERATIONS))


def test_openapi_document_has_every_operation_once() -> None:
    described = {
        (method.upper(), path): operation["operationId"]
        for path, operations in description(OPERATIONS)["paths"].items()
        for method, operation in operations.items()
    }
    assert described == {(each.method, each.path): each.name for each in OPERATIONS}
    assert len(set(described.values())) == len(OPERATIONS)


def test_every_operation_has_summary_and_example_of_its_body() -> None:
    for operation in OPERATIONS:
        assert operation.summary.endswith(".")
        assert (operation.example is not None) == (operation.body is not None)


def schema_of(response: httpx.Response, method: str, path: str) -> dict[str, Any]:
    responses = description(OPERATIONS)["paths"][path][method.lower()]["responses"]
    described = responses.get(str(response.status_code), responses["default"])
    schema: dict[str, Any] = described["content"]["application/json"]["schema"]
    return {**schema, "components": description(OPERATIONS)["components"]}


@pytest.mark.parametrize(
    ("method", "path", "url", "body"),
    [
        ("GET", "/v1/health", "/v1/health", None),
        ("GET", "/v1/cluster", "/v1/cluster", None),
        ("GET", "/v1/topics", "/v1/topics", None),
        ("POST", "/v1/topics", "/v1/topics", {"name": "new", "partitions": 2}),
        ("POST", "/v1/topics", "/v1/topics", {"name": "orders"}),
        ("POST", "/v1/topics", "/v1/topics", {"wrong": 1}),
        ("POST", "/v1/topics", "/v1/topics", {"name": "bug"}),
        ("GET", "/v1/topics/{name}", "/v1/topics/orders", None),
        ("GET", "/v1/topics/{name}", "/v1/topics/none", None),
        ("DELETE", "/v1/topics/{name}", "/v1/topics/none", None),
        ("GET", "/v1/topics/{name}/records", "/v1/topics/orders/records?limit=x", None),
        ("POST", "/v1/topics/{name}/records", "/v1/topics/orders/records", {"records": []}),
        ("GET", "/v1/groups", "/v1/groups", None),
        ("GET", "/v1/groups/{group_id}", "/v1/groups/team/one", None),
        ("GET", "/v1/connections", "/v1/connections", None),
        ("GET", "/v1/clock", "/v1/clock", None),
        ("POST", "/v1/clock", "/v1/clock", {"freeze": True}),
        ("POST", "/v1/reset", "/v1/reset", None),
    ],
)
async def test_responses_match_their_schemas(
    client: httpx.AsyncClient, method: str, path: str, url: str, body: dict[str, Any] | None
) -> None:
    await client.post("/v1/topics", json={"name": "orders"})
    response = await client.request(method, url, json=body)
    OAS31Validator(schema_of(response, method, path)).validate(response.json())


async def test_health_of_broker_not_ready_matches_its_schema(
    client: httpx.AsyncClient, fake_broker: Any
) -> None:
    fake_broker.ready = False
    response = await client.get("/v1/health")
    OAS31Validator(schema_of(response, "GET", "/v1/health")).validate(response.json())


def test_examples_match_their_schemas() -> None:
    document = description(OPERATIONS)
    for operations in document["paths"].values():
        for operation in operations.values():
            if "requestBody" in operation:
                (content,) = operation["requestBody"]["content"].values()
                schema = {**content["schema"], "components": document["components"]}
                OAS31Validator(schema).validate(content["example"])


async def test_openapi_document_is_served(client: httpx.AsyncClient) -> None:
    assert (await client.get("/openapi.json")).json() == description(OPERATIONS)
