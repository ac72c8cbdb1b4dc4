"""SCRAM credentials on the command line: the part of ``minibroker configs`` for users.

Owns the syntax ``SCRAM-SHA-512=[iterations=8192,password=…]`` and the description of
credentials. It must never print a password or send one in clear text. Invariant: one command
changes quotas or credentials, not both. Kafka's ``ConfigCommand.alterUserScramCredentialConfigs``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from minibroker.broker.quotas.command_lines import USERS, Entities
from minibroker.broker.security.scram import ITERATIONS_MIN, MECHANISM_NUMBERS, SALT_BYTES, salted
from minibroker.cli.output import InvalidUsage
from minibroker.client.errors import check
from minibroker.client.kafka_client import KafkaClient
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from minibroker_protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    UserName,
)

NUMBERS: Final = {name: number for number, name in MECHANISM_NUMBERS.items()}
DEFAULT_ITERATIONS: Final = "-1"

_VALUE = re.compile(r"(?:iterations=(?P<count>-?[0-9]{1,9}),)?password=(?P<password>.*)", re.DOTALL)


class Salted(NamedTuple):
    """A salted hash of a password, as the broker stores it."""

    iterations: int
    salt: bytes
    password: bytes


def mechanisms_in(
    entities: Entities,
    additions: Mapping[str, str],
    deletions: Sequence[str],
    where: str = "--bootstrap-server",
) -> bool:
    """Return whether a command alters credentials. Raises `InvalidUsage` if it mixes in quotas.

    ``where`` is the option that names the broker or the store.
    """
    named = [*additions, *deletions]
    if entities.types != (USERS,) or not any(name in NUMBERS for name in named):
        return False
    if not all(name in NUMBERS for name in named):
        raise InvalidUsage(
            f"Cannot alter both quota and SCRAM credential configs simultaneously for '{USERS}' "
            f"using {where}."
        )
    if not entities.names[0]:
        raise InvalidUsage(
            "The use of --entity-default or --user-defaults is not allowed with User SCRAM "
            f"Credentials using {where}."
        )
    return True


def alter(
    client: KafkaClient, user: str, additions: Mapping[str, str], deletions: Sequence[str]
) -> None:
    """Set and delete credentials of one user."""
    request = AlterUserScramCredentialsRequest(
        deletions=[
            ScramCredentialDeletion(name=user, mechanism=NUMBERS[name]) for name in deletions
        ],
        upsertions=[_upsertion(user, name, value) for name, value in additions.items()],
    )
    for result in client.send(request, AlterUserScramCredentialsResponse).results:
        check(f"user {result.user}", result.error_code, result.error_message)


def _upsertion(user: str, mechanism: str, value: str) -> ScramCredentialUpsertion:
    made = made_of(mechanism, value)
    return ScramCredentialUpsertion(
        name=user,
        mechanism=NUMBERS[mechanism],
        iterations=made.iterations,
        salt=made.salt,
        salted_password=made.password,
    )


def made_of(mechanism: str, value: str) -> Salted:
    """Hash the password in ``iterations=8192,password=…`` with a new salt."""
    found = _VALUE.fullmatch(value)
    if found is None:
        text = f"Invalid credential property for {mechanism}: it must be [password=…] or "
        raise InvalidUsage(f"{text}[iterations={ITERATIONS_MIN},password=…]")
    given = found["count"] or DEFAULT_ITERATIONS
    count = ITERATIONS_MIN if given == DEFAULT_ITERATIONS else int(given)
    if count < ITERATIONS_MIN:
        raise InvalidUsage(
            f"Iterations {count} is less than the minimum {ITERATIONS_MIN} required for {mechanism}"
        )
    salt = os.urandom(SALT_BYTES)
    return Salted(count, salt, salted(mechanism, found["password"], salt, count))


def described(client: KafkaClient, entities: Entities) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield users with the iterations of their credentials by mechanism.

    There are none if the command describes quotas of client-ids.
    """
    if entities.types != (USERS,) or "" in entities.names:
        return
    request = DescribeUserScramCredentialsRequest(
        users=[UserName(name=name) for name in entities.names]
    )
    reply = client.send(request, DescribeUserScramCredentialsResponse)
    check("users", reply.error_code, reply.error_message)
    for result in reply.results:
        if result.error_code == ErrorCode.RESOURCE_NOT_FOUND:
            continue  # The user may still have quotas.
        check(f"user {result.user}", result.error_code, result.error_message)
        yield (
            result.user,
            {
                MECHANISM_NUMBERS.get(info.mechanism, "UNKNOWN"): info.iterations
                for info in result.credential_infos
            },
        )
