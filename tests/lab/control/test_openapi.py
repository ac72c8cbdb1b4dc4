"""The OpenAPI description is valid, complete, and matches the application."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from openapi_schema_validator import OAS31Validator
from openapi_spec_validator import validate

from minibroker.lab.control.openapi import description
from minibroker.lab.control.operations import OPERATIONS


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
