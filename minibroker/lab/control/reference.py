"""Reference page of the control API, generated from the table of operations.

Owns the layout of ``docs/reference/control-api.md``, which this module prints. It must never
describe an operation itself. Invariant: the committed page is the output of this module (a test
compares them). Kafka has no equivalent.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any, Final

from minibroker.lab.control.openapi import description
from minibroker.lab.control.operation import BODY_MAX_BYTES, ApiOperation
from minibroker.lab.control.operations import OPERATIONS
from minibroker.lab.control.records import RECORDS_BODY_MAX_BYTES
from minibroker.lab.control.seed import SEED_BODY_MAX_BYTES
from minibroker.lab.control.server import CONNECTIONS_MAX

_INTRODUCTION: Final = """\
# Control API

<!-- Written by `python -m minibroker.lab.control.reference`; don't edit. -->

Inspect and control a running broker over HTTP. `minibroker start` prints the address
(`control_url`), by default a free port of the loopback interface; the setting `control.listener`
selects another one. A browser shows [the console](../guides/console.md) there;
`GET /openapi.json` describes the API for programs.

- Request and response bodies are JSON. A body has at most %(body)d bytes, one with records
  %(records)d, a seed %(seed)d.
- Names in paths are percent-encoded: group `a/b?` is `/v1/groups/a%%2Fb%%3F`. Many clients remove
  `.` and `..` from paths; such groups are `/v1/groups/?group_id=..`.
- Keys and values of records are text, or base64 in the field with that suffix. The broker itself
  produces and reads them: no quota, fault rule, listener or credential applies, and no group
  changes. Waits are in real time, also if the clock is frozen.
- At most %(connections)d connections are open. At the limit, the one idle for longest is closed.
- An error is `{"error": {"code", "message", "hint", "fields": [{"path", "message"}]}}`: `code` is
  Kafka's name of the error where it has one, `fields` lists every invalid field of a body.
- All times are from the broker's clock, which `POST /v1/clock` changes.
- By default the API listens on loopback only, and has no authentication. If `control.listener` is
  another address, requests need a token: `control.token`, or one that is created at each start.
  `control_url` contains it; curl and browsers send it from there, other programs as
  `Authorization: Bearer TOKEN`. `GET /v1/health` and the token issuer, `/v1/oauth/…`, need none
  where OAuth clients use them. With an empty `control.token`, everyone who can connect may do
  everything.
- Requests are rejected whose `Host` isn't an IP address, `localhost` or a name of the broker, and
  those that web pages of other sites send (`Origin`, `Sec-Fetch-Site`), except for links.

```sh
curl $control_url/v1/health
curl $control_url/v1/clock -d '{"advance_ms": 11000}'
curl $control_url/v1/topics/orders/records -d '{"records": [{"key": "7", "value": "paid"}]}'
curl "$control_url/v1/topics/orders/records?wait=1"
curl "$control_url/v1/groups/billing?state=Stable&members=2&lag=0"
curl -X POST $control_url/v1/reset
```
"""


def page() -> str:
    """The whole page as Markdown."""
    introduction = _INTRODUCTION % {
        "body": BODY_MAX_BYTES,
        "records": RECORDS_BODY_MAX_BYTES,
        "seed": SEED_BODY_MAX_BYTES,
        "connections": CONNECTIONS_MAX,
    }
    schemas = description(OPERATIONS)["components"]["schemas"]
    lines = [*_operations(), "", "## Shapes", ""]
    for name in sorted(schemas):
        lines += _shape(name, schemas[name])
    return introduction + "\n" + "\n".join(lines).rstrip() + "\n"


def _operations() -> Iterator[str]:
    yield "| Request | Description | Body | Response | Errors |"
    yield "| --- | --- | --- | --- | --- |"
    for operation in OPERATIONS:
        yield _row(operation)
    for operation in OPERATIONS:
        if operation.example is not None:
            yield ""
            form = ", sent as a form" if operation.form else ""
            yield f"Example of a body for `{operation.method} {operation.path}`{form}:"
            yield ""
            yield f"    {json.dumps(operation.example)}"


def _row(operation: ApiOperation) -> str:
    body = f"[{operation.body.__name__}]" if operation.body else ""
    answer = operation.answer
    shown = f"[{answer.__name__}]" if isinstance(answer, type) else answer or "nothing"
    errors = "; ".join(f"{status}: {why}" for status, why in sorted(operation.errors.items()))
    if operation.body:
        errors = f"400: the body is invalid; {errors}".removesuffix("; ")
    return (
        f"| `{operation.method} {operation.path}` | {operation.summary} | {_link(body)} "
        f"| {operation.status}, {_link(shown)} | {errors} |"
    )


def _link(text: str) -> str:
    return f"{text}(#{text[1:-1].lower()})" if text.startswith("[") else text


def _shape(name: str, schema: dict[str, Any]) -> Iterator[str]:
    yield f"### {name}"
    yield ""
    yield schema["description"]
    yield ""
    yield "| Field | Type | Meaning |"
    yield "| --- | --- | --- |"
    for field, inner in schema["properties"].items():
        optional = "" if field in schema["required"] else ", optional"
        yield f"| `{field}` | {_type(inner)}{optional} | {inner.get('description', '')} |"
    yield ""


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return _link(f"[{name}]")
    if "anyOf" in schema:
        return " or ".join(_type(inner) for inner in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "type" not in schema:
        return "any value"
    kind: str = schema["type"]
    if kind == "array":
        return f"list of {_type(schema['items'])}"
    if kind == "object":
        return f"object of {_type(schema['additionalProperties'])}"
    if "minimum" in schema:
        return f"{kind}, {schema['minimum']} to {schema['maximum']}"
    return kind


if __name__ == "__main__":
    sys.stdout.write(page())
