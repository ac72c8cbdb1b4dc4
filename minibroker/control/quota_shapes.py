"""The shapes in which the control API tells of quotas.

Owns the records alone, like ``backend``, of which they are a part; must never know how a quota is
chosen or measured.  The invariant: every answer is plain, immutable data.  Kafka shows as much of
it as its MBeans hold.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, NamedTuple, TypeAlias

from minibroker.control.schema import Doc

LAST: Final = "last"
"""In place of a throttle's number: the newest."""

QuotaKind: TypeAlias = Literal["produce", "fetch", "request", "controller_mutation"]


class QuotaUse(NamedTuple):
    """What those who share one counter use, and what they may."""

    type: QuotaKind
    user: Annotated[str, Doc("URL-encoded; empty where users don't matter for who shares.")]
    client_id: Annotated[str, Doc("Empty where client-ids don't matter for who shares.")]
    rate: Annotated[
        float,
        Doc("Bytes a second, percent of a process's time, or partitions a second."),
    ]
    quota: Annotated[float | None, Doc("What they may use; null without a quota.")]
    share: Annotated[float | None, Doc("Rate divided by quota; null if that is 0.")]
    path: Annotated[str | None, Doc("Where the quota is set.")]
    throttle_ms: Annotated[
        float | None, Doc("Average throttle in the last minute; null if there was none.")
    ]
    throttled_ago_ms: Annotated[
        int | None, Doc("When the last throttle began; null if there was none.")
    ]
    last_throttle_ms: Annotated[
        int | None, Doc("For how long that was; if for longer than ago, somebody is held now.")
    ]


class QuotaThrottle(NamedTuple):
    """A throttle that began lately."""

    number: Annotated[int, Doc("Since the broker's start, one more than the one before.")]
    ago_ms: int
    type: QuotaKind
    user: Annotated[str, Doc("Whose counter it is, as in `QuotaUse`.")]
    client_id: str
    api: Annotated[str, Doc("What was asked for, e.g. `Produce`.")]
    throttle_ms: int


class Quotas(NamedTuple):
    """Who uses what against which quota, who was counted last first."""

    counting: Annotated[bool, Doc("False until the first quota is set since the start.")]
    mode: Annotated[str, Doc("The setting `quota.throttle.mode`.")]
    window_ms: Annotated[int, Doc("One sample's length.")]
    samples: Annotated[int, Doc("How many samples a rate is an average over.")]
    exempt_percent: Annotated[float, Doc("Time worked for requests that no quota holds.")]
    uses: tuple[QuotaUse, ...]
    uses_total: Annotated[int, Doc("How many counters there are; some of them may be long unused.")]
    throttles: Annotated[tuple[QuotaThrottle, ...], Doc("The last of all, newest first.")]


class QuotaQuestion(NamedTuple):
    """Whose quota is to be explained."""

    user: Annotated[str, Doc("The principal's name, e.g. `ANONYMOUS`.")] = "ANONYMOUS"
    client_id: str = ""
    type: Annotated[str, Doc("One of the types of `QuotaUse`.")] = "produce"
    throttle: Annotated[
        str,
        Doc("The number of a `QuotaThrottle`, or `last`: why that was. The rest is left out then."),
    ] = ""


class QuotaLevel(NamedTuple):
    """One place where the quota might be set."""

    path: str
    value: float | None
    holds: bool
    why: str


class QuotaSample(NamedTuple):
    """What was counted in one sample."""

    ago_ms: Annotated[int, Doc("How long ago it began.")]
    total: Annotated[float, Doc("Bytes, percent times seconds, or partitions.")]


class QuotaExplained(NamedTuple):
    """Why somebody is throttled, or isn't."""

    type: QuotaKind
    user: Annotated[
        str | None,
        Doc("Null for a throttle if all users with this client-id share the counter."),
    ]
    client_id: Annotated[
        str | None, Doc("Null for a throttle if all client-ids of this user share the counter.")
    ]
    key: Annotated[str, Doc("The quota's name, e.g. `producer_byte_rate`.")]
    sharing: Annotated[str, Doc("With whom the counter is shared, and why.")]
    levels: Annotated[tuple[QuotaLevel, ...], Doc("In the order of precedence.")]
    quota: float | None
    path: Annotated[str | None, Doc("Where the quota that holds is set.")]
    samples: Annotated[tuple[QuotaSample, ...], Doc("Oldest first.")]
    rate: float
    window_ms: Annotated[int, Doc("What the rate is an average over.")]
    throttle_ms: Annotated[int, Doc("What a request would be told now that costs nothing itself.")]
    formula: Annotated[str, Doc("How that is worked out, with the numbers.")]
    throttle: Annotated[
        QuotaThrottle | None,
        Doc(
            "Asked for a throttle: which it is. Quota, rate, window and formula are of its moment,"
            " levels and samples are as they are now."
        ),
    ]
