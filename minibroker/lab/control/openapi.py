"""OpenAPI 3.1 description of the control API, generated from the table of operations.

Owns the layout of the document. Must never list an operation or a field itself. The invariant: all
content comes from the table and the records, so it matches the code. Kafka has no counterpart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import minibroker
from minibroker.lab.control.operation import ApiOperation
from minibroker.lab.errors import ErrorAnswer
from minibroker.lab.schema import component, components_of, json_schema

ALWAYS: Final = {
    401: "The request does not have the token that the broker was started with.",
    403: "The `Host`, `Origin` or `Sec-Fetch-Site` header does not match this broker.",
    500: "An internal error; the broker's log has the details.",
}
"""Errors of every operation."""

WITH_BODY: Final = {
    400: "The body is not JSON that matches the schema, or the broker rejects the request.",
    413: "The body is too large.",
}
"""Errors of every operation with a body."""


def description(operations: Sequence[ApiOperation]) -> dict[str, Any]:
    """Return the OpenAPI document of these operations."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _describe(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "minibroker control API",
            "version": minibroker.__version__,
            "description": "Inspect and control a running minibroker. All times are from the "
            "broker's clock.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {"schemas": _components(operations)},
    }


def _components(operations: Sequence[ApiOperation]) -> dict[str, Any]:
    mentioned: list[type] = [ErrorAnswer]
    for operation in operations:
        mentioned += [kind for kind in (operation.answer, operation.body) if isinstance(kind, type)]
    return {inner.__name__: component(inner) for kind in mentioned for inner in components_of(kind)}


def _describe(operation: ApiOperation) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "responses": _responses(operation),
    }
    if operation.parameter is not None:
        described["parameters"] = [
            {
                "name": operation.parameter,
                "in": "path",
                "required": True,
                "schema": {"type": "string"},
            }
        ]
    if operation.query is not None:
        described["parameters"] = described.get("parameters", []) + [
            {"name": name, "in": "query", "required": False, "schema": schema}
            for name, schema in component(operation.query)["properties"].items()
        ]
    if operation.body is not None:
        content: dict[str, Any] = {"schema": json_schema(operation.body)}
        if operation.example is not None:
            content["example"] = dict(operation.example)
        media_type = "application/x-www-form-urlencoded" if operation.form else "application/json"
        described["requestBody"] = {"required": True, "content": {media_type: content}}
    return described


def _responses(operation: ApiOperation) -> dict[str, Any]:
    errors = {**operation.errors, **ALWAYS, **(WITH_BODY if operation.body else {})}
    responses: dict[str, Any] = {
        str(status): {"description": why, "content": _json(ErrorAnswer)}
        for status, why in errors.items()
    }
    responses["default"] = {"description": "Refused.", "content": _json(ErrorAnswer)}
    responses[str(operation.status)] = _success(operation)
    if operation.path == "/v1/health":
        responses["503"] = {"description": "Not ready.", "content": _json(operation.answer)}
    return dict(sorted(responses.items()))


def _success(operation: ApiOperation) -> dict[str, Any]:
    if operation.answer is None:
        return {"description": "Done."}
    if isinstance(operation.answer, str):
        return {"description": "The text.", "content": {operation.answer: {}}}
    return {"description": "Done.", "content": _json(operation.answer)}


def _json(kind: object) -> dict[str, Any]:
    return {"application/json": {"schema": json_schema(kind)}}
