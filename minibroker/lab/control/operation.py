"""One operation of the control API, and the kinds of responses.

Owns the declaration of operations. It must never know an operation. Invariant: a function with its
types, its docstring and its ``Operations.add`` says all that the application, the OpenAPI
description and the reference need. Kafka has no HTTP API.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeVar, get_args, get_type_hints

import minibroker
from minibroker.lab.errors import ErrorAnswer
from minibroker.lab.schema import Fault, component, components_of, json_schema

NUMBER_DIGITS_MAX: Final = 20
"""Digits of a number in a query that are read."""

BODY_MAX_BYTES: Final = 64 * 1024
"""Maximum size of a body: enough for a topic with many configs. Records may have more."""

WAIT_MS: Final = 10_000
"""How long a request waits by default for what clients do, in real time."""

WAIT_MS_MAX: Final = 600_000

POLL_S: Final = 0.02
"""How often logs and groups are looked at while a request waits, in real seconds."""

TIMED_OUT: Final = {408: "What the request waits for did not happen within the timeout."}
UNAVAILABLE: Final = {503: "A process is restarting, or the broker is stopping."}


class Stream(NamedTuple):
    """A response without an end: ``run`` sends its bytes until it is cancelled."""

    run: Callable[[Callable[[bytes], Awaitable[None]]], Awaitable[None]]
    media_type: str


class Text(NamedTuple):
    """A response that is not a record as JSON."""

    content: bytes
    media_type: str
    headers: Mapping[str, str] = {}


class Redirect(NamedTuple):
    """A redirect for browsers, and the response for other clients."""

    path: str
    otherwise: Text


class Answer(NamedTuple):
    """A response with a status other than the default of the operation."""

    content: object
    status: int


class ApiOperation(NamedTuple):
    """One operation of the API.

    ``run`` gets the context and its arguments: the path's ``{parameter}`` if there is one, then the
    body if ``body`` is a record, or what follows the path's ``?`` if ``query`` is one, of texts.
    Its name is the operation's id in the OpenAPI description, and its docstring the summary.
    ``answer`` is a record, a media type, or None for no content. ``errors`` are the statuses that
    reject a request, beyond those of every operation. The body of a ``form`` is that of an HTML
    form, with a name and password of HTTP's Basic scheme as client_id and client_secret. A
    ``public`` operation needs no token.
    """

    method: str
    path: str
    answer: type | str | None
    run: Callable[..., Awaitable[object]]
    body: type | None = None
    query: type | None = None
    status: int = 200
    errors: Mapping[int, str] = {}
    example: Mapping[str, Any] | None = None
    body_max_bytes: int = BODY_MAX_BYTES
    form: bool = False
    public: bool = False

    @property
    def name(self) -> str:
        """The operation's id in the OpenAPI description."""
        return self.run.__name__

    @property
    def summary(self) -> str:
        """What the operation does, in one line."""
        return (self.run.__doc__ or "").strip()

    @property
    def parameter(self) -> str | None:
        """The name of the path's parameter."""
        return (
            self.path[self.path.index("{") + 1 : self.path.index("}")] if "{" in self.path else None
        )

    def matches_path(self, path: str) -> bool:
        """Whether a request's path matches the operation's path."""
        if self.parameter is None:
            return path == self.path
        start, _, rest = self.path.partition("{")
        end = rest.partition("}")[2]
        return path.startswith(start) and path.endswith(end)


RunT = TypeVar("RunT", bound=Callable[..., Awaitable[object]])


class Operations(list[ApiOperation]):
    """The operations of a feature, in the order in which requests are compared with their paths."""

    def add(
        self,
        method: str,
        path: str,
        *,
        media_type: str = "",
        status: int = 200,
        errors: Mapping[int, str] = {},
        example: Mapping[str, Any] | None = None,
        body_max_bytes: int = BODY_MAX_BYTES,
        form: bool = False,
        public: bool = False,
    ) -> Callable[[RunT], RunT]:
        """Declare a function as an operation, as in ``ApiOperation``.

        The types of its parameters and result are those of body or query, and of the response.
        """

        def declare(run: RunT) -> RunT:
            context, *_ = run.__annotations__.values()
            # The type of the context may be imported for type checkers only.
            _, *arguments, answer = get_type_hints(run, localns={context: object}).values()
            record = arguments[-1] if len(arguments) > ("{" in path) else None
            is_query = method == "GET"
            operation = ApiOperation(
                method,
                path,
                media_type or _answer(answer),
                run,
                body=None if is_query else record,
                query=record if is_query else None,
                status=204 if answer is type(None) else status,
                errors=errors,
                example=example,
                body_max_bytes=body_max_bytes,
                form=form,
                public=public,
            )
            self.append(operation)
            return run

        return declare


def _answer(hint: Any) -> type | None:
    """The record that an operation returns; None if it returns none."""
    kinds = [kind for kind in get_args(hint) or (hint,) if kind is not Answer]
    return None if kinds[0] is type(None) else kinds[0]


def whole_number(name: str, text: str, highest: int, faults: list[Fault]) -> int:
    """The number in a text of a query; anything else is a fault."""
    if text.isascii() and text.isdecimal() and int(text[:NUMBER_DIGITS_MAX]) <= highest:
        return int(text[:NUMBER_DIGITS_MAX])
    faults.append(Fault(name, f"must be a number from 0 to {highest}"))
    return 0


class ApiContext(Protocol):
    """The program that operations act on: a broker or a proxy."""

    @property
    def operations(self) -> Sequence[ApiOperation]:
        """The operations that it has."""


# --------------- OpenAPI 3.1 description of the control API, generated from the table of operations
# Owns the layout of the document. Must never list an operation or a field itself. The invariant:
# all content comes from the table and the records, so it matches the code. Kafka has no
# counterpart.


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
