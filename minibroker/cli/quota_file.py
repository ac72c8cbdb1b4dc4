"""``minibroker configs --alter --quota-file``: apply all quotas of a file, or none.

Owns the order of requests; ``quotas.file`` validates lines, and the broker validates quotas.
Invariant: nothing is changed before the broker has validated every line, and every change is
printed. Kafka's script applies such lines one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from minibroker.broker.quotas.arguments import QUOTA_TYPES
from minibroker.broker.quotas.file import QuotaFile, QuotaFileError, QuotaLine, parse
from minibroker.broker.quotas.types import value_text
from minibroker.cli.errors import CliError, InvalidUsage, error_message
from minibroker.cli.output import emit
from minibroker.client.errors import BrokerError, check
from minibroker.client.kafka_client import KafkaClient
from minibroker_protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    AlterClientQuotasResponse,
    EntityData,
    OpData,
)
from minibroker_protocol.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

LINES_MAX: Final = 500
"""Maximum number of lines in one request."""

Parts = frozenset[tuple[str, str | None]]
"""An entity in the protocol's form: pairs of type and name, None for the default."""


def read(path: str) -> QuotaFile:
    """Read the file. Raises `InvalidUsage` if it is invalid."""
    try:
        found = parse(Path(path).read_text("utf-8"), path)
    except OSError as error:
        raise InvalidUsage(f"--quota-file {path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise InvalidUsage(f"--quota-file {path}: not UTF-8 ({error})") from None
    except QuotaFileError as error:
        raise InvalidUsage(str(error)) from None
    if not found.lines:
        raise InvalidUsage(f"--quota-file {path}: contains no --alter line")
    return found


def apply(client: KafkaClient, file: QuotaFile) -> None:
    """Apply all lines of the file if the broker accepts every one."""
    _check_deletions(client, file)
    batches = list(_batches(file.lines))
    for batch in batches:
        for line, refused in _alter(client, batch, validate_only=True):
            if refused:
                raise CliError(f"{file.name}:{line.number}: {refused}; nothing was changed")
    done = 0
    for batch in batches:
        refusals = []
        for line, refused in _alter(client, batch, validate_only=False):
            if refused:
                refusals.append(f"{file.name}:{line.number}: {refused}")
                continue
            emit(f"{line.who}: {', '.join(_changes(line))}")
            done += 1
        if refusals:
            changed = f"{done} of {len(file.lines)} lines were applied, as listed above"
            raise CliError("\n".join([*refusals, changed]))
    emit(f"Applied {done} line{'s' * (done > 1)} of {file.name}.")


def _changes(line: QuotaLine) -> Iterator[str]:
    for key, value in line.additions.items():
        yield f"{key}={value_text(key, value)}"
    for key in line.deletions:
        yield f"no {key}"


def _batches(lines: tuple[QuotaLine, ...]) -> Iterator[list[QuotaLine]]:
    """Split lines into requests; no request has an entity twice, because order matters."""
    batch: dict[Parts, QuotaLine] = {}
    for line in lines:
        if _parts(line) in batch or len(batch) == LINES_MAX:
            yield list(batch.values())
            batch = {}
        batch[_parts(line)] = line
    yield list(batch.values())


def _parts(line: QuotaLine) -> Parts:
    pairs = zip(*line.entities, strict=True)
    return frozenset((QUOTA_TYPES[kind], name or None) for kind, name in pairs)


def _check_deletions(client: KafkaClient, file: QuotaFile) -> None:
    if not any(line.deletions for line in file.lines):
        return
    request = DescribeClientQuotasRequest(components=[], strict=False)
    reply = client.send(request, DescribeClientQuotasResponse)
    check("quotas", reply.error_code, reply.error_message)
    present = {
        frozenset((part.entity_type, part.entity_name) for part in entry.entity): {
            value.key for value in entry.values
        }
        for entry in reply.entries or []
    }
    for line in file.lines:
        keys = present.setdefault(_parts(line), set())
        missing = [key for key in line.deletions if key not in keys]
        if missing:
            raise CliError(
                f"{file.name}:{line.number}: {line.who} has no {', '.join(missing)} to delete; "
                "nothing was changed"
            )
        keys.update(line.additions)
        keys.difference_update(line.deletions)


def _alter(
    client: KafkaClient, lines: list[QuotaLine], *, validate_only: bool
) -> list[tuple[QuotaLine, str]]:
    """Send lines in one request; return each with the error of its rejection, or an empty text."""
    request = AlterClientQuotasRequest(
        entries=[_entry(line) for line in lines], validate_only=validate_only
    )
    reply = client.send(request, AlterClientQuotasResponse)
    return [
        (line, _rejection(line, answer.error_code, answer.error_message))
        if answer.error_code
        else (line, "")
        for line, answer in zip(lines, reply.entries, strict=True)
    ]


def _rejection(line: QuotaLine, code: int, message: str | None) -> str:
    return error_message(BrokerError(line.who, code, message)).rstrip(".")


def _entry(line: QuotaLine) -> AlterClientQuotasRequestEntryData:
    return AlterClientQuotasRequestEntryData(
        entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in _parts(line)],
        ops=[
            *(OpData(key=key, value=value, remove=False) for key, value in line.additions.items()),
            *(OpData(key=key, value=0.0, remove=True) for key in line.deletions),
        ],
    )
