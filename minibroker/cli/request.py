"""``minibroker request``: send one request of any API and print the response.

Owns the command and how fields are written. It must never know an API: the schemas say which fields
there are and of which types. Invariant: a field that does not exist, has a wrong type or cannot be
encoded is an error before anything is sent. Kafka has no such tool.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Final

import click

from minibroker.cli.access import bootstrap_option
from minibroker.cli.commands import Argument, Command, examples
from minibroker.cli.output import InvalidUsage, emit, json_line, note
from minibroker.client.connection import BootstrapServers
from minibroker.client.kafka_client import KafkaClient
from minibroker.lab.faults.message_fields import response_faults, set_fields
from minibroker.lab.journal.entries import fields_of_message
from minibroker_protocol import registry
from minibroker_protocol.dissect import api_named
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.schema import Array, Message, Struct

_ERRORS: Final = frozenset(int(code) for code in ErrorCode) - {0}

EXAMPLES = examples(
    "minibroker request ApiVersions client_software_name=me client_software_version=1",
    """minibroker request Metadata 'topics=[{"name": "cats"}]'""",
    "minibroker request FindCoordinator key=cat-lovers --api-version 3",
    "minibroker request InitProducerId transactional_id=orders transaction_timeout_ms=60000",
    "minibroker request Metadata --fields",
    after="""Fields have Kafka's names in snake case, and those that are not given have Kafka's
defaults; --fields lists them. Values are JSON, or texts; bytes are in base64. Without --api-version
the newest version is sent that the broker and minibroker know. `minibroker trace -v` shows the
bytes.""",
)


@click.command("request", cls=Command, epilog=EXAMPLES)
@click.argument("api", cls=Argument, metavar="API", about="The API: its name or number.")
@click.argument(
    "words", cls=Argument, nargs=-1, metavar="[FIELD=VALUE]...", about="Fields of the request."
)
@bootstrap_option
@click.option("--api-version", type=int, metavar="NUMBER", help="The version of the request.")
@click.option("--fields", "lists_fields", is_flag=True, help="List the request's fields instead.")
@click.option("--json", "as_json", is_flag=True, help="Print the response in one line.")
def request(
    api: str,
    words: tuple[str, ...],
    servers: BootstrapServers,
    api_version: int | None,
    lists_fields: bool,
    as_json: bool,
) -> None:
    """Send one request of any API and print the response."""
    try:
        schema = registry.schema(api_named(api))
    except ValueError as error:
        raise InvalidUsage(f"{api}: {error}") from None
    if lists_fields:
        emit("\n".join(field_lines(schema.request)))
        return
    if api_version is not None and not schema.valid_versions.has(api_version):
        known = f"versions {schema.valid_versions} of {schema.name} are known"
        raise InvalidUsage(f"--api-version {api_version}: {known}")
    message = message_of(schema.request, words)
    with KafkaClient(*servers) as client:
        version = client.version_for(message) if api_version is None else api_version
        reply = client.send(message, schema.response, version=version)
    fields = json.loads(json.dumps(fields_of_message(reply, version), default=_base64))
    emit(json_line(fields) if as_json else json.dumps(fields, indent=2, ensure_ascii=False))
    for code in sorted(set(_error_codes(fields))):
        note(f"error code {code} is {ErrorCode(code).name}")


def message_of(cls: type[Message], words: tuple[str, ...]) -> Message:
    """Return the request that ``field=value`` words describe. Raises `InvalidUsage`."""
    types = {item.name: item.kind for item in cls.__fields__}
    fields: dict[str, object] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise InvalidUsage(f"{word!r} is not field=value; --fields lists the fields")
        if name in fields:
            raise InvalidUsage(f"{name} is given twice")
        fields[name] = text if _is_text(types.get(name)) and text != "null" else _json(name, text)
    faults = list(response_faults(cls, fields, "request"))
    if faults:
        raise InvalidUsage("; ".join(f"{fault.path} {fault.message}" for fault in faults))
    message = cls()
    set_fields(message, fields)
    return message


def field_lines(cls: type[Struct], indent: str = "") -> Iterator[str]:
    """Yield a line for each field: name, type, versions; below an array those of its elements."""
    for item in cls.__fields__:
        kind, suffix = item.kind, ""
        if isinstance(kind, Array):
            kind, suffix = kind.element, "[]"
        name = kind.__name__ if isinstance(kind, type) else getattr(kind, "name", "")
        yield f"{indent}{item.name}: {name}{suffix}  (versions {item.versions})"
        if isinstance(kind, type):
            yield from field_lines(kind, indent + "  ")


def _is_text(kind: object) -> bool:
    """Whether values of a type are texts in JSON; those of arrays and structs are not."""
    name = getattr(kind, "name", "").removeprefix("nullable ")
    return name in {"string", "bytes", "records", "uuid"}


def _json(name: str, text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidUsage(f"{name}: {text!r} is not JSON: {error}") from None


def _error_codes(value: object) -> Iterator[int]:
    """Yield all known error codes in a response's fields, at any depth."""
    if isinstance(value, list):
        for element in value:
            yield from _error_codes(element)
    elif isinstance(value, dict):
        for name, inner in value.items():
            if name.endswith("error_code") and inner in _ERRORS:
                yield inner
            yield from _error_codes(inner)


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()
