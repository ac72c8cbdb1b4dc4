"""The one definition of a fault rule, and the views of what it has done.

Owns the fields of a rule with their meaning, from which the validation, the reference page, the
OpenAPI description and the help of the commands follow. It must never know how a rule is matched
or carried out. Invariant: a rule is one flat object of plain data, which travels to every process
unchanged. Kafka has no equivalent; Trogdor's ``TaskSpec`` describes faults of whole nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal, NamedTuple, TypeAlias

from minibroker.lab.schema import Doc, Length, Range

RULES_MAX: Final = 1000
"""Rules that may be set at the same time."""

TEXT_MAX: Final = 1024
"""Characters of a text in a rule."""

COUNT_MAX: Final = 1_000_000_000
TIME_MS_MAX: Final = 7 * 24 * 3600 * 1000
PAUSE_MS_MAX: Final = 60_000
INT32_MAX: Final = 2**31 - 1
VERSION_MAX: Final = 2**15 - 1
SEED_MAX: Final = 2**53
"""The largest whole number that every JSON library keeps."""

HOLDS_SHOWN_MAX: Final = 100
"""Held requests of one rule that are shown."""

FaultAction: TypeAlias = Literal[
    "error",
    "delay",
    "hold",
    "reorder",
    "disconnect",
    "never_answer",
    "throttle",
    "slow",
    "corrupt",
    "replace",
    "observe",
    "kill",
    "pause",
    "advance",
    "fail_append",
    "stall_append",
    "refuse",
    "silent",
    "close",
]
FaultPoint: TypeAlias = Literal[
    "produce.appended",
    "fetch.waiting",
    "group.preparing_rebalance",
    "transaction.prepared",
    "transaction.completing",
    "controller.applied",
]
FaultPlace: TypeAlias = Literal["before", "after", "middle"]
StorageErrno: TypeAlias = Literal["ENOSPC", "EDQUOT", "EROFS", "EIO"]
CorruptPart: TypeAlias = Literal[
    "crc", "bit", "length", "correlation_id", "tagged_field", "truncate"
]


class FaultRule(NamedTuple):
    """A fault rule: what goes wrong, for which requests or connections, and how often.

    All selectors must match. A request that does not have a selected field never matches.
    """

    action: Annotated[FaultAction, Doc("What goes wrong.")]
    name: Annotated[
        str | None,
        Length(1, 64),
        Doc("The id of the rule: letters, digits, `.`, `_` and `-`. By default a number."),
    ] = None
    api: Annotated[
        str | None, Length(1, 64), Doc("API by name or key, e.g. `Produce`, `PRODUCE` or `0`.")
    ] = None
    version_min: Annotated[
        int | None, Range(0, VERSION_MAX), Doc("Lowest version of the request.")
    ] = None
    version_max: Annotated[
        int | None, Range(0, VERSION_MAX), Doc("Highest version of the request.")
    ] = None
    client_id: Annotated[
        str | None, Length(0, TEXT_MAX), Doc("Client id of the request; `*` matches any text.")
    ] = None
    principal: Annotated[
        str | None, Length(1, TEXT_MAX), Doc("E.g. `User:alice`; `*` matches any text.")
    ] = None
    connection: Annotated[
        int | None, Range(0, SEED_MAX), Doc("Number of the connection, as in `/v1/connections`.")
    ] = None
    address: Annotated[
        str | None, Length(1, 64), Doc("IP address of the client, or a network, `10.0.0.0/8`.")
    ] = None
    listener: Annotated[
        str | None, Length(1, TEXT_MAX), Doc("Name of the listener, e.g. `PLAINTEXT`.")
    ] = None
    correlation_id: Annotated[
        int | None, Range(-INT32_MAX - 1, INT32_MAX), Doc("Correlation id of the request.")
    ] = None
    topic: Annotated[
        str | None,
        Length(1, TEXT_MAX),
        Doc("Topic, also of requests that have its id; `*` matches any text."),
    ] = None
    topic_id: Annotated[str | None, Length(22, 24), Doc("Topic id in Kafka's base64url form.")] = (
        None
    )
    partition: Annotated[int | None, Range(0, INT32_MAX), Doc("Partition index.")] = None
    group: Annotated[str | None, Length(0, TEXT_MAX), Doc("Group id; `*` matches any text.")] = None
    member: Annotated[str | None, Length(0, TEXT_MAX), Doc("Member id; `*` matches any text.")] = (
        None
    )
    transactional_id: Annotated[
        str | None, Length(0, TEXT_MAX), Doc("Transactional id; `*` matches any text.")
    ] = None
    resource: Annotated[
        str | None,
        Length(0, TEXT_MAX),
        Doc("Name of the resource in requests about configs and ACLs; `*` matches any text."),
    ] = None
    first: Annotated[int | None, Range(1, COUNT_MAX), Doc("Fires for the first n matches.")] = None
    nth: Annotated[int | None, Range(1, COUNT_MAX), Doc("Fires for the n-th match only.")] = None
    every: Annotated[int | None, Range(1, COUNT_MAX), Doc("Fires for each n-th match.")] = None
    probability: Annotated[
        float | None, Range(0, 1), Doc("Fires for a match with this probability.")
    ] = None
    seed: Annotated[
        int | None, Range(0, SEED_MAX), Doc("Seed for `probability`; by default 0.")
    ] = None
    after_ms: Annotated[
        int | None,
        Range(0, TIME_MS_MAX),
        Doc("Matches from this time after the rule was added, on the broker's clock."),
    ] = None
    until_ms: Annotated[
        int | None,
        Range(1, TIME_MS_MAX),
        Doc("Matches until this time after the rule was added, on the broker's clock."),
    ] = None
    at: Annotated[
        FaultPlace | None,
        Doc(
            "`before` the request is executed, `after` it and before the response, or in the "
            "`middle` of the response."
        ),
    ] = None
    point: Annotated[
        FaultPoint | None, Doc("A hold point inside of the broker, instead of a place of requests.")
    ] = None
    error: Annotated[
        str | None, Length(1, 64), Doc("Kafka's error by name or code, e.g. `NOT_COORDINATOR`.")
    ] = None
    whole: Annotated[
        bool | None,
        Doc("Put the error at the top of the response, instead of into its matching entries."),
    ] = None
    delay_ms: Annotated[
        int | None, Range(1, TIME_MS_MAX), Doc("Delay after the rule fires, on the broker's clock.")
    ] = None
    bytes_per_s: Annotated[
        int | None,
        Range(1, INT32_MAX),
        Doc("Bytes of the response a second of the broker's clock."),
    ] = None
    process: Annotated[
        str | None, Length(1, 64), Doc("A process of the broker as in `/v1/health`.")
    ] = None
    pause_ms: Annotated[
        int | None,
        Range(1, PAUSE_MS_MAX),
        Doc("How long a process stops or an append waits, in real time."),
    ] = None
    advance_ms: Annotated[
        int | None, Range(1, TIME_MS_MAX), Doc("How far the broker's clock is advanced.")
    ] = None
    throttle_ms: Annotated[
        int | None, Range(1, INT32_MAX), Doc("Throttle time of the response.")
    ] = None
    mute: Annotated[
        bool | None,
        Doc(
            "Whether the connection is muted, or the response delayed, for the throttle time; by "
            "default true."
        ),
    ] = None
    bytes: Annotated[
        int | None,
        Range(0, INT32_MAX),
        Doc(
            "Bytes of the response: sent before a disconnect, cut by `truncate`, or the position "
            "of the changed `bit`; or of a batch that reach the file."
        ),
    ] = None
    errno: Annotated[StorageErrno | None, Doc("The error of the append; by default `ENOSPC`.")] = (
        None
    )
    crash: Annotated[bool | None, Doc("Kill the process that appends.")] = None
    reset: Annotated[
        bool | None, Doc("Disconnect with a TCP reset; by default the connection is closed.")
    ] = None
    part: Annotated[
        CorruptPart | None,
        Doc(
            "The corrupted part: the `crc` of the first batch of each partition in a Fetch "
            "response, one `bit`, the `length` or `correlation_id` of the response, or its end "
            "(`truncate`). `tagged_field` adds a tagged field that no client knows to a response "
            "of a flexible version, which is valid."
        ),
    ] = None
    response: Annotated[
        Mapping[str, object] | None,
        Length(0, 1000),
        Doc("Fields of the response that are replaced, with Kafka's names in snake case."),
    ] = None


class FaultHold(NamedTuple):
    """What a rule holds: a request, or something inside of the broker.

    The entity is the first one that the rule matches.
    """

    process: Annotated[str, Doc("The process that waits.")]
    api: Annotated[str | None, Doc("The API of the request.")] = None
    client_id: str | None = None
    connection: Annotated[int | None, Doc("Number of the connection, as in `/v1/connections`.")] = (
        None
    )
    topic: str | None = None
    partition: int | None = None
    group: str | None = None
    member: str | None = None
    transactional_id: str | None = None
    resource: str | None = None


class FaultView(NamedTuple):
    """A fault rule and what it has done so far."""

    id: Annotated[str, Doc("Its name, or a number.")]
    rule: Annotated[Mapping[str, object], Doc("Its fields, as in `FaultRule`.")]
    matches: Annotated[
        int,
        Doc("Requests or connections that its selectors matched and that it could change."),
    ]
    hits: Annotated[int, Doc("How often it fired, and changed a response or its time.")]
    held: Annotated[int, Doc("How many requests or others it holds now.")]
    holds: Annotated[
        tuple[FaultHold, ...], Doc(f"What it holds, the first {HOLDS_SHOWN_MAX} of them.")
    ]
    age_ms: Annotated[int, Doc("Time since it was added, on the broker's clock.")]
