"""Every metric once: its name, kind, labels, unit and meaning.

Owns the catalogue that the recorder, the exposition and the reference page all read.
Must never know a value, a process or prometheus-client. The invariant: a name, once
published, keeps its labels and its meaning; each label has a bounded set of values.
Echoes the JMX names of Kafka's monitoring page; a metric says which one it answers to.
"""

from __future__ import annotations

from typing import Final

from minibroker.broker.metrics.cleaner_definitions import CLEANER_METRICS
from minibroker.broker.metrics.close_reason import (
    CloseReason as CloseReason,  # noqa: PLC0414 - exported with the metrics
)
from minibroker.broker.metrics.metric import Metric, MetricKind

TIME_BUCKETS_NS: Final = tuple(
    int(us * 1000)
    for us in (
        *(10, 25, 50, 100, 250, 500),
        *(1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000),
        *(1_000_000, 2_500_000, 5_000_000, 10_000_000, 30_000_000),
    )
)
"""Upper bounds, in nanoseconds, of the time histograms: 10 µs to 30 s.

The low end separates a local hop (about 100 µs) from its parts, the high end a long poll
from a rebalance.
"""

SIZE_BUCKETS_BYTES: Final = tuple(128 * 4**power for power in range(10))
"""Upper bounds of the size histograms: 128 B to 32 MiB in steps of four."""

TOPIC_PARTITIONS_MAX: Final = 500
"""Logs with metrics of their own; the rest are summed as topic ``(other)``, partition ``-1``."""

QUEUES_MAX: Final = 64
"""Queues one process may watch."""

LISTENERS_MAX: Final = 16
"""Listener names one process may count; more are counted as ``(other)``."""

IPS_SHOWN_MAX: Final = 100
"""Addresses whose connection rates are shown: those that connected last."""

QUOTA_COUNTERS_SHOWN_MAX: Final = 400
"""Sharing groups of quotas that are shown, of all types together: those used last."""

API_KEYS_MAX: Final = 128
"""Api keys counted one by one; Kafka 4's highest is below 100, and clients may send any."""

OTHER: Final = "(other)"
"""The label value for everything beyond a limit."""


_NS: Final = 1_000_000_000
_SOCKET_SERVER: Final = "kafka.server:type=socket-server-metrics,name={}"
_REQUEST: Final = "kafka.network:type=RequestMetrics,name={},request=…"


def _request_time(part: str, meaning: str, jmx: str) -> Metric:
    return Metric(
        f"minibroker_request_{part}_seconds", MetricKind.HISTOGRAM, ("api",), meaning, jmx, _NS
    )


REQUESTS: Final = Metric(
    "minibroker_requests_total",
    MetricKind.COUNTER,
    ("api", "result"),
    "Requests answered. `result` is `error` if any part of the response has an error code, "
    "else `ok`.",
    _REQUEST.format("RequestsPerSec") + "; " + _REQUEST.format("ErrorsPerSec"),
)
REQUEST_BYTES: Final = Metric(
    "minibroker_request_size_bytes",
    MetricKind.HISTOGRAM,
    ("api",),
    "Size of a request, header and body.",
    _REQUEST.format("RequestBytes"),
)
RESPONSE_BYTES: Final = Metric(
    "minibroker_response_size_bytes",
    MetricKind.HISTOGRAM,
    ("api",),
    "Size of a response, header and body, records included.",
)
QUEUE_TIME: Final = _request_time(
    "queue",
    "Time that a request waited until an owner of its data started to execute it.",
    _REQUEST.format("RequestQueueTimeMs"),
)
NETWORK_TIME: Final = _request_time(
    "network",
    "Time that a network processor worked for the request: reading, decoding, encoding, sending.",
    _REQUEST.format("ResponseSendTimeMs") + " (sending only)",
)
IO_TIME: Final = _request_time(
    "io",
    "Time that the owners of the data worked for the request.",
    _REQUEST.format("LocalTimeMs"),
)
TOTAL_TIME: Final = _request_time(
    "total",
    "Time from the request's last byte read to the response's last byte handed to the kernel; "
    "long polls and rebalances wait in here.",
    _REQUEST.format("TotalTimeMs"),
)

THROTTLE_TIME: Final = _request_time(
    "throttle",
    "Throttle times returned to clients, of throttled requests only.",
    _REQUEST.format("ThrottleTimeMs") + " (which counts zeros, too)",
)

ACCEPTED: Final = Metric(
    "minibroker_connections_accepted_total",
    MetricKind.COUNTER,
    ("listener",),
    "Connections accepted.",
    "kafka.server:type=socket-server-metrics,name=connection-creation-total",
)
CLOSED: Final = Metric(
    "minibroker_connections_closed_total",
    MetricKind.COUNTER,
    ("listener", "reason"),
    "Connections closed, by reason.",
    "kafka.server:type=socket-server-metrics,name=connection-close-total",
)
OPEN: Final = Metric(
    "minibroker_connections_open",
    MetricKind.GAUGE,
    ("process", "listener"),
    "Connections open.",
    "kafka.server:type=socket-server-metrics,name=connection-count",
)
ACCEPTOR_BLOCKED: Final = Metric(
    "minibroker_acceptor_blocked_seconds_total",
    MetricKind.COUNTER,
    ("listener",),
    "Time, on the broker's clock, that a listener's next connection was delayed: by full "
    "slots of all processors, by `max.connections` or by `max.connection.creation.rate`.",
    "kafka.network:type=Acceptor,name=AcceptorBlockedPercent,listener=…",
    _NS,
)

COUNTED: Final = Metric(
    "minibroker_connections_counted",
    MetricKind.GAUGE,
    ("process", "listener"),
    "Connections that count against limits, reported by the process that accepts them: the "
    "acceptor, or in mode `sharded` each processor.",
)
BROKER_ACCEPT_RATE: Final = Metric(
    "minibroker_broker_connection_accept_rate",
    MetricKind.GAUGE,
    ("process",),
    "Connections accepted per second, except on a protected inter-broker listener, over the "
    "quota window.",
    _SOCKET_SERVER.format("broker-connection-accept-rate"),
)
ACCEPT_RATE: Final = Metric(
    "minibroker_connection_accept_rate",
    MetricKind.GAUGE,
    ("process", "listener", "ip"),
    "The same for one listener, or for one address with a limit; the other label is empty.",
    _SOCKET_SERVER.format("connection-accept-rate,listener=…")
    + "; "
    + _SOCKET_SERVER.format("connection-accept-rate,ip=…"),
)
ACCEPT_THROTTLE: Final = Metric(
    "minibroker_connection_accept_throttle_time_seconds",
    MetricKind.GAUGE,
    ("process", "listener"),
    "Average time that connections were delayed by the rate limits of broker and listener, over "
    "the last minute; absent if none was.",
    _SOCKET_SERVER.format("connection-accept-throttle-time,listener=…"),
    1000,
)
IP_ACCEPT_THROTTLE: Final = Metric(
    "minibroker_ip_connection_accept_throttle_time_seconds",
    MetricKind.GAUGE,
    ("process", "listener"),
    "Average time that connections were delayed by the rates of their addresses, over the last "
    "minute; absent if none was.",
    _SOCKET_SERVER.format("ip-connection-accept-throttle-time,listener=…"),
    1000,
)

QUEUE_USED: Final = Metric(
    "minibroker_queue_used",
    MetricKind.GAUGE,
    ("process", "queue"),
    "Usage of a bounded queue, in its own unit: slots, bytes of the arena, messages.",
    "kafka.network:type=RequestChannel,name=RequestQueueSize; "
    "kafka.network:type=SocketServer,name=MemoryPoolUsed",
)
QUEUE_CAPACITY: Final = Metric(
    "minibroker_queue_capacity", MetricKind.GAUGE, ("process", "queue"), "Capacity of the queue."
)
QUEUE_PEAK: Final = Metric(
    "minibroker_queue_peak",
    MetricKind.GAUGE,
    ("process", "queue"),
    "Highest usage of the queue since its process started.",
)
QUEUE_WAITING: Final = Metric(
    "minibroker_queue_waiting",
    MetricKind.GAUGE,
    ("process", "queue"),
    "Senders that wait for space in the queue.",
)

_QUOTA_LABELS: Final = ("type", "user", "client_id")
_QUOTA: Final = "kafka.server:type={},user=…,client-id=…: {}"

QUOTA_BYTE_RATE: Final = Metric(
    "minibroker_quota_byte_rate",
    MetricKind.GAUGE,
    _QUOTA_LABELS,
    "Bytes per second that count against a quota, over the quota window. `type` is `Produce` or "
    "`Fetch`.",
    _QUOTA.format("Produce", "byte-rate") + "; " + _QUOTA.format("Fetch", "byte-rate"),
)
QUOTA_REQUEST_TIME: Final = Metric(
    "minibroker_quota_request_time_percent",
    MetricKind.GAUGE,
    _QUOTA_LABELS,
    "Time that processes worked for requests, in percent of one process. `type` is `Request`.",
    _QUOTA.format("Request", "request-time"),
)
QUOTA_EXEMPT_TIME: Final = Metric(
    "minibroker_quota_exempt_request_time_percent",
    MetricKind.GAUGE,
    (),
    "The same for requests that are exempt from quotas.",
    "kafka.server:type=Request: exempt-request-time",
)
QUOTA_MUTATION_RATE: Final = Metric(
    "minibroker_quota_controller_mutation_rate",
    MetricKind.GAUGE,
    _QUOTA_LABELS,
    "Partitions created and deleted per second. `type` is `ControllerMutation`.",
    _QUOTA.format("ControllerMutation", "mutation-rate"),
)
QUOTA_TOKENS: Final = Metric(
    "minibroker_quota_controller_tokens",
    MetricKind.GAUGE,
    _QUOTA_LABELS,
    "Partitions that may be created or deleted now, as of the last request; may be negative.",
    _QUOTA.format("ControllerMutation", "tokens"),
)
QUOTA_BOUND: Final = Metric(
    "minibroker_quota_bound",
    MetricKind.GAUGE,
    _QUOTA_LABELS,
    "Quota of these users and clients, in the unit of its rate; absent if there is none.",
)
QUOTA_THROTTLE: Final = Metric(
    "minibroker_quota_throttle_time_seconds",
    MetricKind.GAUGE,
    _QUOTA_LABELS,
    "Average throttle time in the last minute; absent if no client was throttled.",
    _QUOTA.format("Produce", "throttle-time") + " and of the other types",
    1000,
)
QUOTA_QUEUE: Final = Metric(
    "minibroker_quota_queue_size",
    MetricKind.GAUGE,
    ("process", "type"),
    "Connections that are throttled now.",
    "kafka.server:type=Produce: queue-size and of the other types",
)

RECORD_BYTES_IN: Final = Metric(
    "minibroker_record_bytes_in_total",
    MetricKind.COUNTER,
    (),
    "Bytes of record batches appended for clients.",
    "kafka.server:type=BrokerTopicMetrics,name=BytesInPerSec",
)
RECORDS_IN: Final = Metric(
    "minibroker_records_in_total",
    MetricKind.COUNTER,
    (),
    "Records appended for clients.",
    "kafka.server:type=BrokerTopicMetrics,name=MessagesInPerSec",
)
RECORD_BYTES_OUT: Final = Metric(
    "minibroker_record_bytes_out_total",
    MetricKind.COUNTER,
    (),
    "Bytes of record batches returned to consumers.",
    "kafka.server:type=BrokerTopicMetrics,name=BytesOutPerSec",
)

ACTIVITY_EVENTS: Final = Metric(
    "minibroker_activity_events_total",
    MetricKind.COUNTER,
    (),
    "Events written to the activity topic.",
)
ACTIVITY_BYTES: Final = Metric(
    "minibroker_activity_bytes_total",
    MetricKind.COUNTER,
    (),
    "Compressed size of these events in the topic.",
)
ACTIVITY_DROPPED: Final = Metric(
    "minibroker_activity_dropped_total",
    MetricKind.COUNTER,
    (),
    "Events that were dropped, because they could not be written in time or because the recorder "
    "died; some of the latter may have been written.",
)

LOG_SIZE: Final = Metric(
    "minibroker_log_size_bytes",
    MetricKind.GAUGE,
    ("topic", "partition"),
    "Size of the partition's log files.",
    "kafka.log:type=Log,name=Size,topic=…,partition=…",
)
LOG_START_OFFSET: Final = Metric(
    "minibroker_log_start_offset",
    MetricKind.GAUGE,
    ("topic", "partition"),
    "First offset that can still be read.",
    "kafka.log:type=Log,name=LogStartOffset,topic=…,partition=…",
)
LOG_END_OFFSET: Final = Metric(
    "minibroker_log_end_offset",
    MetricKind.GAUGE,
    ("topic", "partition"),
    "Offset of the next record.",
    "kafka.log:type=Log,name=LogEndOffset,topic=…,partition=…",
)
PURGATORY: Final = Metric(
    "minibroker_purgatory_size",
    MetricKind.GAUGE,
    ("process", "operation"),
    "Requests that wait for an event: new data, or members of a group.",
    "kafka.server:type=DelayedOperationPurgatory,name=PurgatorySize,delayedOperation=…",
)
FETCH_SESSIONS: Final = Metric(
    "minibroker_fetch_sessions",
    MetricKind.GAUGE,
    ("process",),
    "Incremental fetch sessions.",
    "kafka.server:type=FetchSessionCache,name=NumIncrementalFetchSessions",
)
FETCH_SESSION_PARTITIONS: Final = Metric(
    "minibroker_fetch_session_partitions",
    MetricKind.GAUGE,
    ("process",),
    "Partitions in incremental fetch sessions.",
    "kafka.server:type=FetchSessionCache,name=NumIncrementalFetchPartitionsCached",
)
FETCH_SESSION_EVICTIONS: Final = Metric(
    "minibroker_fetch_session_evictions_total",
    MetricKind.COUNTER,
    (),
    "Incremental fetch sessions that were closed to make room for others.",
    "kafka.server:type=FetchSessionCache,name=IncrementalFetchSessionEvictionsPerSec",
)

BUSY: Final = Metric(
    "minibroker_process_busy_seconds_total",
    MetricKind.COUNTER,
    ("process",),
    "Time that the process worked.",
    divisor=_NS,
)
ELAPSED: Final = Metric(
    "minibroker_process_elapsed_seconds_total",
    MetricKind.COUNTER,
    ("process",),
    "Time since the start of the process; busy ÷ elapsed is its utilization.",
    divisor=_NS,
)
IDLE: Final = Metric(
    "minibroker_process_idle_ratio",
    MetricKind.GAUGE,
    ("process",),
    "Share of time, 0 to 1, that the process was idle, over at least the last second "
    "before the scrape.",
    "processors: kafka.network:type=SocketServer,name=NetworkProcessorAvgIdlePercent; "
    "workers: kafka.server:type=KafkaRequestHandlerPool,name=RequestHandlerAvgIdlePercent",
)
MEMORY: Final = Metric(
    "minibroker_process_memory_bytes",
    MetricKind.GAUGE,
    ("process",),
    "Resident memory of the process; shared memory counts for each process.",
)
UP: Final = Metric(
    "minibroker_process_up", MetricKind.GAUGE, ("process",), "1 while the process answers, else 0."
)
RESTARTS: Final = Metric(
    "minibroker_process_restarts_total",
    MetricKind.COUNTER,
    ("process",),
    "Number of restarts of the process by the supervisor.",
)

STORAGE_ERRORS: Final = Metric(
    "minibroker_storage_errors_total",
    MetricKind.COUNTER,
    ("error",),
    "Reads and writes of logs and of the config store that failed, by error, e.g. ENOSPC.",
    "kafka.log:type=LogManager,name=OfflineLogDirectoryCount",
)
TRUNCATED_RECORDS: Final = Metric(
    "minibroker_log_truncated_records_total",
    MetricKind.COUNTER,
    (),
    "Complete records that recovery removed, because a batch before them was damaged.",
)
TRUNCATED_BYTES: Final = Metric(
    "minibroker_log_truncated_bytes_total",
    MetricKind.COUNTER,
    (),
    "Bytes that recovery removed, including batches that were cut short while they were written.",
)
CONDITIONS: Final = Metric(
    "minibroker_conditions",
    MetricKind.GAUGE,
    ("process", "kind"),
    "Conditions that degrade the broker now, as `/v1/health` names them.",
)

CLIENT_INSTANCES: Final = Metric(
    "minibroker_client_instances",
    MetricKind.GAUGE,
    (),
    "Client instances that have asked for a subscription of metrics (KIP-714).",
    "kafka.server:type=client-metrics,name=instance-count",
)
CLIENT_METRIC: Final = Metric(
    "minibroker_client_metric",
    MetricKind.GAUGE,
    ("client_id", "client_instance", "metric", "attributes"),
    "Newest value of a metric that a client has pushed (KIP-714), of a thousand series at most.",
)

METRICS: Final = (
    *(REQUESTS, REQUEST_BYTES, RESPONSE_BYTES, QUEUE_TIME, NETWORK_TIME, IO_TIME, TOTAL_TIME),
    THROTTLE_TIME,
    *(ACCEPTED, CLOSED, OPEN, COUNTED, ACCEPTOR_BLOCKED),
    *(BROKER_ACCEPT_RATE, ACCEPT_RATE, ACCEPT_THROTTLE, IP_ACCEPT_THROTTLE),
    *(QUEUE_USED, QUEUE_CAPACITY, QUEUE_PEAK, QUEUE_WAITING),
    *(QUOTA_BYTE_RATE, QUOTA_REQUEST_TIME, QUOTA_EXEMPT_TIME, QUOTA_MUTATION_RATE, QUOTA_TOKENS),
    *(QUOTA_BOUND, QUOTA_THROTTLE, QUOTA_QUEUE),
    *(RECORD_BYTES_IN, RECORDS_IN, RECORD_BYTES_OUT),
    *(ACTIVITY_EVENTS, ACTIVITY_BYTES, ACTIVITY_DROPPED),
    *(LOG_SIZE, LOG_START_OFFSET, LOG_END_OFFSET, PURGATORY),
    *(FETCH_SESSIONS, FETCH_SESSION_PARTITIONS, FETCH_SESSION_EVICTIONS),
    *CLEANER_METRICS,
    *(STORAGE_ERRORS, TRUNCATED_RECORDS, TRUNCATED_BYTES, CONDITIONS),
    *(CLIENT_INSTANCES, CLIENT_METRIC),
    *(BUSY, ELAPSED, IDLE, MEMORY, UP, RESTARTS),
)
"""The catalogue, in the order in which it is shown."""
