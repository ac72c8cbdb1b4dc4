"""Why a rule accuses a client: public issues, and lines of its code.

Owns the list. It must never influence a verdict. Invariant: an issue or a line was read, and is
about the behavior of that version of the library, or of the one that is named.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class KnownSource(NamedTuple):
    """An issue in a public tracker, or lines of code."""

    name: str
    url: str
    text: str
    """The title of the issue, or what the code does."""


_THROTTLE: Final = KnownSource(
    "librdkafka #5592",
    "https://github.com/confluentinc/librdkafka/issues/5592",
    "Support client-side throttling (KIP-219)",
)
_FETCH_LOOP: Final = KnownSource(
    "aiokafka #1155",
    "https://github.com/aio-libs/aiokafka/issues/1155",
    "Missing retry backoff in Fetcher for NotLeaderForPartitionError",
)
_RECONNECT: Final = KnownSource(
    "aiokafka #1014",
    "https://github.com/aio-libs/aiokafka/pull/1014",
    "Added delay to retry connection",
)
_SEQUENCES: Final = KnownSource(
    "aiokafka #1017",
    "https://github.com/aio-libs/aiokafka/issues/1017",
    "idempotent producer and OutOfOrderSequenceNumber problem",
)
_AIOKAFKA_THROTTLE: Final = KnownSource(
    "aiokafka/protocol/fetch.py",
    "https://github.com/aio-libs/aiokafka/blob/v0.14.0/aiokafka/protocol/fetch.py#L37",
    "the throttle time is a field of responses that no code reads",
)
_AIOKAFKA_SESSION: Final = KnownSource(
    "aiokafka/conn.py",
    "https://github.com/aio-libs/aiokafka/blob/v0.14.0/aiokafka/conn.py#L303-L310",
    "of the response to SaslAuthenticate the error and the token are read, and no session lifetime",
)
_AIOKAFKA_OFFSETS: Final = KnownSource(
    "aiokafka/consumer/group_coordinator.py",
    "https://github.com/aio-libs/aiokafka/blob/v0.14.0/aiokafka/consumer/group_coordinator.py"
    "#L1191-L1197",
    "errors of partitions are looked at, and not that of the whole response, which names no "
    "partition then",
)
_OLD_LEADER: Final = KnownSource(
    "KAFKA-15615",
    "https://github.com/apache/kafka/pull/15647",
    "Improve handling of fetching during metadata updates",
)
_KAFKA_PYTHON_FETCH: Final = KnownSource(
    "kafka/consumer/fetcher.py",
    "https://github.com/dpkp/kafka-python/blob/3.0.12/kafka/consumer/fetcher.py#L1505-L1511",
    "an error of the leader requests metadata, and the partition is fetched again without a wait",
)
_KAFKA_PYTHON_CONNECT: Final = KnownSource(
    "kafka/net/manager.py",
    "https://github.com/dpkp/kafka-python/blob/3.0.12/kafka/net/manager.py#L244-L262",
    "initialize does not raise, so a connection that was closed during it resets the wait, too",
)
_FRANZ_FETCH: Final = KnownSource(
    "pkg/kgo/source.go",
    "https://github.com/twmb/franz-go/blob/v1.22.2/pkg/kgo/source.go#L1209-L1222",
    "an error of the leader updates metadata at once, and the fetch loop continues without a wait",
)
_KAFKA_GO_THROTTLE: Final = KnownSource(
    "kafka-go #919",
    "https://github.com/segmentio/kafka-go/issues/919",
    "Is throttling in the consumer supported",
)
_KAFKA_GO_LEADER: Final = KnownSource(
    "dialer.go",
    "https://github.com/segmentio/kafka-go/blob/v0.4.51/dialer.go#L162-L167",
    "the leader of a partition is looked up on a connection of its own, whenever a reader starts "
    "again, as it does after an error of the leader",
)
_KAFKA_GO_COORDINATOR: Final = KnownSource(
    "consumergroup.go",
    "https://github.com/segmentio/kafka-go/blob/v0.4.51/consumergroup.go#L898-L921",
    "each generation connects for FindCoordinator, and again for the group",
)
_KAFKA_GO_SESSION: Final = KnownSource(
    "conn.go",
    "https://github.com/segmentio/kafka-go/blob/v0.4.51/conn.go#L1605-L1619",
    "SaslAuthenticate is sent in version 0, which knows no lifetime of a session",
)
_KAFKAJS_REJOIN: Final = KnownSource(
    "src/consumer/consumerGroup.js",
    "https://github.com/tulios/kafkajs/blob/v2.2.4/src/consumer/consumerGroup.js#L553-L564",
    "an error of the leader refreshes metadata, joins the group again and fetches, without a wait",
)
_PLATFORMATIC_THROTTLE: Final = KnownSource(
    "src/apis/consumer/fetch-v17.ts",
    "https://github.com/platformatic/kafka/blob/v2.9.0/src/apis/consumer/fetch-v17.ts#L147",
    "the throttle time is read, and only the admin client gives it to the application; 2.12.1 is "
    "the same",
)

KNOWN_SOURCES: Final[Mapping[tuple[str, str], tuple[KnownSource, ...]]] = {
    ("confluent-kafka", "obeys-throttle"): (_THROTTLE,),
    ("@confluentinc/kafka-javascript", "obeys-throttle"): (_THROTTLE,),
    ("rdkafka", "obeys-throttle"): (_THROTTLE,),
    ("kafka-python", "retry-backoff"): (_KAFKA_PYTHON_FETCH,),
    ("kafka-python", "no-busy-loop"): (_KAFKA_PYTHON_FETCH,),
    ("kafka-python", "reconnect-backoff"): (_KAFKA_PYTHON_CONNECT,),
    ("kafka-python", "reconnect-backoff-grows"): (_KAFKA_PYTHON_CONNECT,),
    ("aiokafka", "retry-backoff"): (_FETCH_LOOP,),
    ("aiokafka", "no-busy-loop"): (_FETCH_LOOP,),
    ("aiokafka", "reconnect-backoff-grows"): (_RECONNECT,),
    ("aiokafka", "producer-reset"): (_SEQUENCES,),
    ("aiokafka", "obeys-throttle"): (_AIOKAFKA_THROTTLE,),
    ("aiokafka", "committed-position"): (_AIOKAFKA_OFFSETS,),
    ("aiokafka", "reauthentication"): (_AIOKAFKA_SESSION,),
    ("java", "retry-backoff"): (_OLD_LEADER,),
    ("java", "no-busy-loop"): (_OLD_LEADER,),
    ("franz-go", "retry-backoff"): (_FRANZ_FETCH,),
    ("franz-go", "no-busy-loop"): (_FRANZ_FETCH,),
    ("kafka-go", "obeys-throttle"): (_KAFKA_GO_THROTTLE,),
    ("kafka-go", "connection-reuse"): (_KAFKA_GO_LEADER, _KAFKA_GO_COORDINATOR),
    ("kafka-go", "reauthentication"): (_KAFKA_GO_SESSION,),
    ("kafkajs", "retry-backoff"): (_KAFKAJS_REJOIN,),
    ("kafkajs", "no-busy-loop"): (_KAFKAJS_REJOIN,),
    ("@platformatic/kafka", "obeys-throttle"): (_PLATFORMATIC_THROTTLE,),
}
"""Issues and code by library and rule."""
