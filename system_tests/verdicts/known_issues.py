"""Public issues that name what the verdicts found in a client.

Owns the list. It must never influence a verdict. Invariant: an issue was read and describes the
same behavior of the same library.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class KnownIssue(NamedTuple):
    """An issue in a public tracker."""

    name: str
    url: str
    title: str


_THROTTLE: Final = KnownIssue(
    "librdkafka #5592",
    "https://github.com/confluentinc/librdkafka/issues/5592",
    "Support client-side throttling (KIP-219)",
)
_FETCH_LOOP: Final = KnownIssue(
    "aiokafka #1155",
    "https://github.com/aio-libs/aiokafka/issues/1155",
    "Missing retry backoff in Fetcher for NotLeaderForPartitionError",
)
_RECONNECT: Final = KnownIssue(
    "aiokafka #1014",
    "https://github.com/aio-libs/aiokafka/pull/1014",
    "Added delay to retry connection",
)
_SEQUENCES: Final = KnownIssue(
    "aiokafka #1017",
    "https://github.com/aio-libs/aiokafka/issues/1017",
    "idempotent producer and OutOfOrderSequenceNumber problem",
)
_OLD_LEADER: Final = KnownIssue(
    "KAFKA-15615",
    "https://github.com/apache/kafka/pull/15647",
    "Improve handling of fetching during metadata updates",
)

KNOWN_ISSUES: Final[Mapping[tuple[str, str], tuple[KnownIssue, ...]]] = {
    ("confluent-kafka", "obeys-throttle"): (_THROTTLE,),
    ("aiokafka", "retry-backoff"): (_FETCH_LOOP,),
    ("aiokafka", "no-busy-loop"): (_FETCH_LOOP,),
    ("aiokafka", "reconnect-backoff-grows"): (_RECONNECT,),
    ("aiokafka", "producer-reset"): (_SEQUENCES,),
    ("java", "retry-backoff"): (_OLD_LEADER,),
    ("java", "no-busy-loop"): (_OLD_LEADER,),
}
"""Issues by library and rule."""
