"""Quotas of clients and addresses: given, taken away, looked for, and refused."""

from __future__ import annotations

import math
from typing import Final

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
from system_tests.peers.conversation import SendRequest

BYTES: Final = "producer_byte_rate"
FETCHED: Final = "consumer_byte_rate"
TIME: Final = "request_percentage"
CHANGES: Final = "controller_mutation_rate"
CONNECTIONS: Final = "connection_creation_rate"
EXACT, DEFAULT, ANY = 0, 1, 2

Entity = tuple[tuple[str, str | None], ...]
USER: Final[Entity] = (("user", "u"),)
IP: Final[Entity] = (("ip", "1.2.3.4"),)


def entry(
    entity: Entity, *operations: tuple[str, float | None]
) -> AlterClientQuotasRequestEntryData:
    """Return an alteration of an entity's quotas; None removes one."""
    return AlterClientQuotasRequestEntryData(
        entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
        ops=[
            OpData(key=key, value=value or 0.0, remove=value is None) for key, value in operations
        ],
    )


def alter(
    *entries: AlterClientQuotasRequestEntryData, only_try: bool = False
) -> AlterClientQuotasRequest:
    return AlterClientQuotasRequest(entries=list(entries), validate_only=only_try)


GIVEN: Final[dict[str, tuple[Entity, tuple[tuple[str, float | None], ...]]]] = {
    "a user": (USER, ((BYTES, 1000.0),)),
    "half a byte": (USER, ((BYTES, 1000.5),)),
    "half a percent": (USER, ((TIME, 1000.5),)),
    "nothing": (USER, ((BYTES, 0.0),)),
    "less than nothing": (USER, ((BYTES, -1.0),)),
    "endless": (USER, ((BYTES, math.inf),)),
    "too many": (USER, ((BYTES, 1e30),)),
    "just too many": (USER, ((BYTES, 9.3e18),)),
    "very few percent": (USER, ((TIME, 1e-9),)),
    "half a change": (USER, ((CHANGES, 0.5),)),
    "no such quota": (USER, (("foo", 1.0),)),
    "what was not given taken": ((("user", "other"),), ((BYTES, None),)),
    "no such quota taken": ((("user", "other"),), (("foo", None),)),
    "without an entity": ((), ((BYTES, 1.0),)),
    "nothing to do": (USER, ()),
    "to a group": ((("group", "g"),), ((BYTES, 1.0),)),
    "to a user without a name": ((("user", ""),), ((BYTES, 1.0),)),
    "to a client without a name": ((("client-id", ""),), ((BYTES, 1.0),)),
    "the same twice": (USER, ((BYTES, 1.0), (BYTES, 2.0))),
    "given and taken": (USER, ((BYTES, 1.0), (BYTES, None))),
    "to an address of a user": ((*IP, *USER), ((CONNECTIONS, 1.0),)),
    "bytes to an address": (IP, ((BYTES, 1.0),)),
    "an address": (IP, ((CONNECTIONS, 10.0),)),
    "half a connection": (IP, ((CONNECTIONS, 10.5),)),
    "less than no connections": (IP, ((CONNECTIONS, -1.0),)),
    "too many connections": (IP, ((CONNECTIONS, 3e9),)),
    "no address": ((("ip", "not a host"),), ((CONNECTIONS, 10.0),)),
    "no such host": ((("ip", "no.such.host.invalid"),), ((CONNECTIONS, 10.0),)),
    "a long address": ((("ip", "::1"),), ((CONNECTIONS, 10.0),)),
    "a host": ((("ip", "localhost"),), ((CONNECTIONS, 10.0),)),
    "all addresses": ((("ip", None),), ((CONNECTIONS, 10.0),)),
    "connections to a user": (USER, ((CONNECTIONS, 10.0),)),
    "all users": ((("user", None),), ((BYTES, 10.0),)),
    "all clients of all users": ((("user", None), ("client-id", None)), ((BYTES, 10.0),)),
    "a user called so": ((("user", "<default>"),), ((BYTES, 10.0),)),
    "a user's client": (
        (("client-id", "c"), *USER),
        ((BYTES, 10.0), (FETCHED, 11.0), (TIME, 12.0), (CHANGES, 13.0)),
    ),
    "a strange name": ((("user", "a b/c=%é"),), ((BYTES, 10.0),)),
    "a long name": ((("user", "x" * 300),), ((BYTES, 10.0),)),
}

LOOKED_FOR: Final[dict[str, tuple[tuple[str, int, str | None], ...]]] = {
    "everything": (),
    "a user": (("user", EXACT, "u"),),
    "all users": (("user", DEFAULT, None),),
    "any user": (("user", ANY, None),),
    "null exactly": (("user", EXACT, None),),
    "a name by default": (("user", DEFAULT, "x"),),
    "any of a name": (("user", ANY, "x"),),
    "somehow": (("user", 7, "x"),),
    "somehow else": (("user", -1, "x"),),
    "a group": (("group", EXACT, "x"),),
    "no kind": (("", EXACT, "x"),),
    "users twice": (("user", EXACT, "x"), ("user", EXACT, "y")),
    "any address": (("ip", ANY, None),),
    "an address of a user": (("ip", ANY, None), ("user", ANY, None)),
    "any client of any user": (("user", ANY, None), ("client-id", ANY, None)),
    "any client": (("client-id", ANY, None),),
    "unknown user": (("user", EXACT, "unknown"),),
    "no name": (("user", EXACT, ""),),
}


def given(ask: SendRequest) -> None:
    for name, (entity, operations) in GIVEN.items():
        ask(name, alter(entry(entity, *operations)), 1)
        ask(f"{name}, in force", DescribeClientQuotasRequest(components=[], strict=False), 1)
    ask("tried", alter(entry((("user", "tried"),), (BYTES, 1.0)), only_try=True), 1)
    ask("a fault tried", alter(entry((("user", "tried"),), ("foo", 1.0)), only_try=True), 1)
    other: Entity = (("user", "good"),)
    ask("a good one and a bad one", alter(entry(other, (BYTES, 1.0)), entry(USER, ("foo", 1.0))), 1)
    ask("none", alter(), 1)
    for name, components in LOOKED_FOR.items():
        parts = [
            ComponentData(entity_type=kind, match_type=how, match=match)
            for kind, how, match in components
        ]
        for strict in (False, True):
            for version in (0, 1):
                request = DescribeClientQuotasRequest(components=parts, strict=strict)
                ask(f"{name}, {strict}, version {version}", request, version)
    for entity in {entity for entity, _ in GIVEN.values()}:
        gone = [(key, None) for key in (BYTES, FETCHED, TIME, CHANGES)]
        by_ip = any(kind == "ip" for kind, _ in entity)
        ask(f"{entity} freed", alter(entry(entity, *([(CONNECTIONS, None)] if by_ip else gone))), 1)


CONVERSATIONS: Final = (given,)
