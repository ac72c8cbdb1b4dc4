"""Records for quotas in the control API.

Owns only the records, which are part of ``backend``; must never know how a quota is selected or
measured.  The invariant: every response is plain, immutable data.  Kafka exposes some of it as
MBeans.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal, NamedTuple, TypeAlias

from minibroker.broker.quotas.types import CLIENT_QUOTA_TYPES
from minibroker.lab.control.schema import Doc

LAST: Final = "last"
"""Selects the most recent throttle instead of a number."""

if TYPE_CHECKING:
    QuotaKind: TypeAlias = str
else:
    QuotaKind = Literal[tuple(kind.row.control_name for kind in CLIENT_QUOTA_TYPES)]


class QuotaUse(NamedTuple):
    """Usage and quota of the clients that share a counter."""

    type: QuotaKind
    user: Annotated[str, Doc("URL-encoded; empty if the counter does not depend on the user.")]
    client_id: Annotated[str, Doc("Empty if the counter does not depend on the client-id.")]
    rate: Annotated[
        float,
        Doc("Bytes per second, percent of a process's time, or partitions per second."),
    ]
    quota: Annotated[float | None, Doc("The quota in force; null if there is none.")]
    share: Annotated[float | None, Doc("Rate divided by quota; null if that is 0.")]
    path: Annotated[str | None, Doc("The entity that the quota is set for.")]
    throttle_ms: Annotated[
        float | None, Doc("Average throttle in the last minute; null if there was none.")
    ]
    throttled_ago_ms: Annotated[
        int | None, Doc("When the last throttle started; null if there was none.")
    ]
    last_throttle_ms: Annotated[
        int | None,
        Doc(
            "Duration of the last throttle; if longer than `throttled_ago_ms`, it is "
            "still in effect."
        ),
    ]


class QuotaThrottle(NamedTuple):
    """A recent throttle."""

    number: Annotated[int, Doc("Sequence number since the broker started.")]
    ago_ms: int
    type: QuotaKind
    user: Annotated[str, Doc("User of the counter, as in `QuotaUse`.")]
    client_id: str
    api: Annotated[str, Doc("The API of the request, e.g. `Produce`.")]
    throttle_ms: int


class QuotasView(NamedTuple):
    """Usage and quotas of clients, most recently used counter first."""

    counting: Annotated[bool, Doc("False until the first quota is set since the start.")]
    mode: Annotated[str, Doc("The setting `quota.throttle.mode`.")]
    window_ms: Annotated[int, Doc("Length of a sample.")]
    samples: Annotated[int, Doc("Number of samples in the average of a rate.")]
    exempt_percent: Annotated[float, Doc("Time spent on requests that are exempt from quotas.")]
    uses: tuple[QuotaUse, ...]
    uses_total: Annotated[
        int, Doc("Number of counters, including unused ones that have not expired.")
    ]
    throttles: Annotated[tuple[QuotaThrottle, ...], Doc("The most recent throttles, newest first.")]


class QuotaQuery(NamedTuple):
    """The client whose quota to explain."""

    user: Annotated[str, Doc("The principal's name, e.g. `ANONYMOUS`.")] = "ANONYMOUS"
    client_id: str = ""
    type: Annotated[str, Doc("One of the types of `QuotaUse`.")] = "produce"
    throttle: Annotated[
        str,
        Doc(
            "Explain this throttle: the number of a `QuotaThrottle`, or `last`. Omit other fields."
        ),
    ] = ""


class QuotaLevel(NamedTuple):
    """An entity that the quota can be set for."""

    path: str
    value: float | None
    holds: bool
    why: str


class QuotaSample(NamedTuple):
    """The usage recorded in one sample."""

    ago_ms: Annotated[int, Doc("Time since the sample started.")]
    total: Annotated[float, Doc("Bytes, percent times seconds, or partitions.")]


class QuotaExplanation(NamedTuple):
    """Why a client is or is not throttled."""

    type: QuotaKind
    user: Annotated[
        str | None,
        Doc("Null for a throttle if all users with this client-id share the counter."),
    ]
    client_id: Annotated[
        str | None, Doc("Null for a throttle if all client-ids of this user share the counter.")
    ]
    key: Annotated[str, Doc("The quota's name, e.g. `producer_byte_rate`.")]
    sharing: Annotated[str, Doc("Which clients share the counter, and why.")]
    levels: Annotated[tuple[QuotaLevel, ...], Doc("In order of precedence.")]
    quota: float | None
    path: Annotated[str | None, Doc("The entity that the quota in force is set for.")]
    samples: Annotated[tuple[QuotaSample, ...], Doc("Oldest first.")]
    rate: float
    window_ms: Annotated[int, Doc("Length of the window of the rate.")]
    throttle_ms: Annotated[
        int, Doc("The throttle time that a request without any usage would get now.")
    ]
    formula: Annotated[str, Doc("The calculation of the throttle time.")]
    throttle: Annotated[
        QuotaThrottle | None,
        Doc(
            "The throttle of the request, if any. Quota, rate, window and formula are from the "
            "time of the throttle; levels and samples are current."
        ),
    ]
