"""The table of metrics: constant, name, kind, labels, unit, meaning and Kafka's name.

Owns the table, which the recorder, the exposition and the reference page all read. It must never
know a value, a process or prometheus-client. Invariants: a name, once published, keeps its labels
and its meaning; each label has a bounded set of values. Each row with a counterpart in Kafka has
its JMX name from Kafka's monitoring page.
"""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import Final, NamedTuple


class MetricKind(Enum):
    """Type of a metric, as Prometheus names it."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Metric(NamedTuple):
    """One metric family: one row of the table.

    ``divisor`` turns what processes count (nanoseconds, whole numbers) into the published
    unit (seconds). ``jmx`` is Kafka's name for it, or empty.
    """

    name: str
    kind: MetricKind
    labels: tuple[str, ...]
    divisor: int = 1
    meaning: str = ""
    jmx: str = ""


class CloseReason(StrEnum):
    """Why a connection ended, as metrics, logs and connection events name it.

    This is the whole set, so that the label stays bounded. Kafka logs reasons as texts.
    """

    CLIENT_CLOSED = "client_closed"
    CLIENT_RESET = "client_reset"
    IDLE = "idle"
    FRAME_TOO_LARGE = "frame_too_large"
    BAD_FRAME = "bad_frame"
    BAD_REQUEST = "bad_request"
    UNSUPPORTED_VERSION = "unsupported_version"
    PARTIAL_REQUEST = "partial_request"
    SLOW_CLIENT = "slow_client"
    LIMIT = "limit"
    MAX_CONNECTIONS = "max_connections"
    PER_IP = "max_connections_per_ip"
    IP_RATE = "ip_connection_creation_rate"
    DROPPED = "kafka_connections_max"
    DROPPED_PER_IP = "kafka_connections_max_per_ip"
    TLS_FAILED = "tls_failed"
    AUTHENTICATION_FAILED = "authentication_failed"
    SESSION_EXPIRED = "session_expired"
    ACKS_ZERO_ERROR = "acks_zero_error"
    RECORDS_GONE = "records_gone"
    RECORDS_UNREADABLE = "records_unreadable"
    PEER_LOST = "peer_lost"
    STOPPING = "stopping"
    RESET = "reset"
    SNAPSHOT_RESTORED = "snapshot_restored"
    FAULT_RULE = "fault_rule"
    PROCESS_DIED = "process_died"
    INTERNAL_ERROR = "internal_error"


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

TOPICS_MAX: Final = 200
"""Topics whose bytes and records one process counts; more are counted as ``(other)``."""

GROUP_PARTITIONS_MAX: Final = 500
"""Partitions of groups whose offsets and lag are shown: those committed last."""

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

_COUNTER, _GAUGE, _HISTOGRAM = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM
_MS: Final = 1000
_NS: Final = 1_000_000_000
_QUOTA_LABELS: Final = ("type", "user", "client_id")

_REQUEST: Final = "kafka.network:type=RequestMetrics,name={},request=…"
_SOCKET_SERVER: Final = "kafka.server:type=socket-server-metrics,name={}"
_QUOTA: Final = "kafka.server:type={},user=…,client-id=…: {}"
_CLEANER: Final = "kafka.log:type=LogCleaner,name={}"
_MANAGER: Final = "kafka.log:type=LogCleanerManager,name={}"


# A table by hand: the row of a metric starts with its constant and ends with Kafka's name for it.
# fmt: off

# ----------------------------------------------------------------------------------------- requests

REQUESTS: Final = Metric("minibroker_requests_total", _COUNTER, ("api", "result"),
    meaning="Requests answered. `result` is `error` if any part of the response has an error code, "
    "else `ok`.",
    jmx=_REQUEST.format("RequestsPerSec") + "; " + _REQUEST.format("ErrorsPerSec"))
REQUEST_BYTES: Final = Metric("minibroker_request_size_bytes", _HISTOGRAM, ("api",),
    meaning="Size of a request, header and body.",
    jmx=_REQUEST.format("RequestBytes"))
RESPONSE_BYTES: Final = Metric("minibroker_response_size_bytes", _HISTOGRAM, ("api",),
    meaning="Size of a response, header and body, records included.")
QUEUE_TIME: Final = Metric("minibroker_request_queue_seconds", _HISTOGRAM, ("api",), _NS,
    meaning="Time that a request waited until an owner of its data started to execute it.",
    jmx=_REQUEST.format("RequestQueueTimeMs"))
NETWORK_TIME: Final = Metric("minibroker_request_network_seconds", _HISTOGRAM, ("api",),
    _NS,
    meaning="Time that a network processor worked for the request: reading, decoding, encoding, "
    "sending.",
    jmx=_REQUEST.format("ResponseSendTimeMs") + " (sending only)")
IO_TIME: Final = Metric("minibroker_request_io_seconds", _HISTOGRAM, ("api",), _NS,
    meaning="Time that the owners of the data worked for the request.",
    jmx=_REQUEST.format("LocalTimeMs"))
TOTAL_TIME: Final = Metric("minibroker_request_total_seconds", _HISTOGRAM, ("api",), _NS,
    meaning="Time from the request's last byte read to the response's last byte handed to the "
    "kernel; long polls and rebalances wait in here.",
    jmx=_REQUEST.format("TotalTimeMs"))
THROTTLE_TIME: Final = Metric("minibroker_request_throttle_seconds", _HISTOGRAM, ("api",),
    _NS,
    meaning="Throttle times returned to clients, of throttled requests only.",
    jmx=_REQUEST.format("ThrottleTimeMs") + " (which counts zeros, too)")

# -------------------------------------------------------------------------------------- connections

ACCEPTED: Final = Metric("minibroker_connections_accepted_total", _COUNTER, ("listener",),
    meaning="Connections accepted.",
    jmx="kafka.server:type=socket-server-metrics,name=connection-creation-total")
CLOSED: Final = Metric("minibroker_connections_closed_total", _COUNTER, ("listener", "reason"),
    meaning="Connections closed, by reason.",
    jmx="kafka.server:type=socket-server-metrics,name=connection-close-total")
OPEN: Final = Metric("minibroker_connections_open", _GAUGE, ("process", "listener"),
    meaning="Connections open.",
    jmx="kafka.server:type=socket-server-metrics,name=connection-count")
COUNTED: Final = Metric("minibroker_connections_counted", _GAUGE, ("process", "listener"),
    meaning="Connections that count against limits, reported by the process that accepts them: the "
    "acceptor, or in mode `sharded` each processor.")
ACCEPTOR_BLOCKED: Final = Metric("minibroker_acceptor_blocked_seconds_total", _COUNTER,
    ("listener",), _NS,
    meaning="Time, on the broker's clock, that a listener's next connection was delayed: by full "
    "slots of all processors, by `max.connections` or by `max.connection.creation.rate`.",
    jmx="kafka.network:type=Acceptor,name=AcceptorBlockedPercent,listener=…")
BROKER_ACCEPT_RATE: Final = Metric("minibroker_broker_connection_accept_rate", _GAUGE,
    ("process",),
    meaning="Connections accepted per second, except on a protected inter-broker listener, over "
    "the quota window.",
    jmx=_SOCKET_SERVER.format("broker-connection-accept-rate"))
ACCEPT_RATE: Final = Metric("minibroker_connection_accept_rate", _GAUGE,
    ("process", "listener", "ip"),
    meaning="The same for one listener, or for one address with a limit; the other label is empty.",
    jmx=_SOCKET_SERVER.format("connection-accept-rate,listener=…") + "; "
    + _SOCKET_SERVER.format("connection-accept-rate,ip=…"))
ACCEPT_THROTTLE: Final = Metric("minibroker_connection_accept_throttle_time_seconds", _GAUGE,
    ("process", "listener"), _MS,
    meaning="Average time that connections were delayed by the rate limits of broker and listener, "
    "over the last minute; absent if none was.",
    jmx=_SOCKET_SERVER.format("connection-accept-throttle-time,listener=…"))
IP_ACCEPT_THROTTLE: Final = Metric("minibroker_ip_connection_accept_throttle_time_seconds", _GAUGE,
    ("process", "listener"), _MS,
    meaning="Average time that connections were delayed by the rates of their addresses, over the "
    "last minute; absent if none was.",
    jmx=_SOCKET_SERVER.format("ip-connection-accept-throttle-time,listener=…"))

# ------------------------------------------------------------------------------------------- queues

QUEUE_USED: Final = Metric("minibroker_queue_used", _GAUGE, ("process", "queue"),
    meaning="Usage of a bounded queue, in its own unit: slots, bytes of the arena, messages.",
    jmx="kafka.network:type=RequestChannel,name=RequestQueueSize; "
    "kafka.network:type=SocketServer,name=MemoryPoolUsed")
QUEUE_CAPACITY: Final = Metric("minibroker_queue_capacity", _GAUGE, ("process", "queue"),
    meaning="Capacity of the queue.")
QUEUE_PEAK: Final = Metric("minibroker_queue_peak", _GAUGE, ("process", "queue"),
    meaning="Highest usage of the queue since its process started.")
QUEUE_WAITING: Final = Metric("minibroker_queue_waiting", _GAUGE, ("process", "queue"),
    meaning="Senders that wait for space in the queue.")

# ------------------------------------------------------------------------------------------- quotas

QUOTA_BYTE_RATE: Final = Metric("minibroker_quota_byte_rate", _GAUGE, _QUOTA_LABELS,
    meaning="Bytes per second that count against a quota, over the quota window. `type` is "
    "`Produce` or `Fetch`.",
    jmx=_QUOTA.format("Produce", "byte-rate") + "; " + _QUOTA.format("Fetch", "byte-rate"))
QUOTA_REQUEST_TIME: Final = Metric("minibroker_quota_request_time_percent", _GAUGE, _QUOTA_LABELS,
    meaning="Time that processes worked for requests, in percent of one process. `type` is "
    "`Request`.",
    jmx=_QUOTA.format("Request", "request-time"))
QUOTA_EXEMPT_TIME: Final = Metric("minibroker_quota_exempt_request_time_percent", _GAUGE, (),
    meaning="The same for requests that are exempt from quotas.",
    jmx="kafka.server:type=Request: exempt-request-time")
QUOTA_MUTATION_RATE: Final = Metric("minibroker_quota_controller_mutation_rate", _GAUGE,
    _QUOTA_LABELS,
    meaning="Partitions created and deleted per second. `type` is `ControllerMutation`.",
    jmx=_QUOTA.format("ControllerMutation", "mutation-rate"))
QUOTA_TOKENS: Final = Metric("minibroker_quota_controller_tokens", _GAUGE, _QUOTA_LABELS,
    meaning="Partitions that may be created or deleted now, as of the last request; may be "
    "negative.",
    jmx=_QUOTA.format("ControllerMutation", "tokens"))
QUOTA_BOUND: Final = Metric("minibroker_quota_bound", _GAUGE, _QUOTA_LABELS,
    meaning="Quota of these users and clients, in the unit of its rate; absent if there is none.")
QUOTA_THROTTLE: Final = Metric("minibroker_quota_throttle_time_seconds", _GAUGE, _QUOTA_LABELS,
    _MS,
    meaning="Average throttle time in the last minute; absent if no client was throttled.",
    jmx=_QUOTA.format("Produce", "throttle-time") + " and of the other types")
QUOTA_QUEUE: Final = Metric("minibroker_quota_queue_size", _GAUGE, ("process", "type"),
    meaning="Connections that are throttled now.",
    jmx="kafka.server:type=Produce: queue-size and of the other types")

# ----------------------------------------------------------------------------- records and activity

RECORD_BYTES_IN: Final = Metric("minibroker_record_bytes_in_total", _COUNTER, (),
    meaning="Bytes of record batches appended for clients.",
    jmx="kafka.server:type=BrokerTopicMetrics,name=BytesInPerSec")
RECORDS_IN: Final = Metric("minibroker_records_in_total", _COUNTER, (),
    meaning="Records appended for clients.",
    jmx="kafka.server:type=BrokerTopicMetrics,name=MessagesInPerSec")
RECORD_BYTES_OUT: Final = Metric("minibroker_record_bytes_out_total", _COUNTER, (),
    meaning="Bytes of record batches returned to consumers.",
    jmx="kafka.server:type=BrokerTopicMetrics,name=BytesOutPerSec")
TOPIC_BYTES_IN: Final = Metric("minibroker_topic_bytes_in_total", _COUNTER, ("topic",),
    meaning="The same by topic: bytes appended for clients.",
    jmx="kafka.server:type=BrokerTopicMetrics,name=BytesInPerSec,topic=…")
TOPIC_RECORDS_IN: Final = Metric("minibroker_topic_records_in_total", _COUNTER, ("topic",),
    meaning="Records appended for clients, by topic.",
    jmx="kafka.server:type=BrokerTopicMetrics,name=MessagesInPerSec,topic=…")
TOPIC_BYTES_OUT: Final = Metric("minibroker_topic_bytes_out_total", _COUNTER, ("topic",),
    meaning="Bytes returned to consumers, by topic. Records returned are not counted: the broker "
    "does not read the batches that it sends.",
    jmx="kafka.server:type=BrokerTopicMetrics,name=BytesOutPerSec,topic=…")
ACTIVITY_EVENTS: Final = Metric("minibroker_activity_events_total", _COUNTER, (),
    meaning="Events written to the activity topic.")
ACTIVITY_BYTES: Final = Metric("minibroker_activity_bytes_total", _COUNTER, (),
    meaning="Compressed size of these events in the topic.")
ACTIVITY_DROPPED: Final = Metric("minibroker_activity_dropped_total", _COUNTER, (),
    meaning="Events that were dropped, because they could not be written in time or because the "
    "recorder died; some of the latter may have been written.")

# ------------------------------------------------------------------------ logs and waiting requests

LOG_SIZE: Final = Metric("minibroker_log_size_bytes", _GAUGE, ("topic", "partition"),
    meaning="Size of the partition's log files.",
    jmx="kafka.log:type=Log,name=Size,topic=…,partition=…")
LOG_START_OFFSET: Final = Metric("minibroker_log_start_offset", _GAUGE, ("topic", "partition"),
    meaning="First offset that can still be read.",
    jmx="kafka.log:type=Log,name=LogStartOffset,topic=…,partition=…")
LOG_END_OFFSET: Final = Metric("minibroker_log_end_offset", _GAUGE, ("topic", "partition"),
    meaning="Offset of the next record.",
    jmx="kafka.log:type=Log,name=LogEndOffset,topic=…,partition=…")
GROUP_OFFSET: Final = Metric("minibroker_group_committed_offset", _GAUGE,
    ("group", "topic", "partition"),
    meaning="Offset that the group has committed.")
GROUP_LAG: Final = Metric("minibroker_group_lag", _GAUGE, ("group", "topic", "partition"),
    meaning="Records between the group's committed offset and the end of the log; absent if the "
    "partition's log is not shown.",
    jmx="on the consumer: kafka.consumer:type=consumer-fetch-manager-metrics: records-lag")
GROUPS: Final = Metric("minibroker_groups", _GAUGE, ("process", "type", "state"),
    meaning="Groups that the process coordinates.",
    jmx="kafka.server:type=group-coordinator-metrics,name=group-count,protocol=… and "
    "name=consumer-group-count,state=…")
GROUP_MEMBERS: Final = Metric("minibroker_group_members", _GAUGE, ("process", "type"),
    meaning="Members of these groups.")
GROUP_REBALANCES: Final = Metric("minibroker_group_rebalances", _GAUGE, ("process", "type"),
    meaning="Generations of classic groups and group epochs of others since the process started.",
    jmx="kafka.server:type=group-coordinator-metrics,name=consumer-group-rebalance-count")
SHARE_ACKNOWLEDGED: Final = Metric("minibroker_share_acknowledged_records", _GAUGE,
    ("process", "type"),
    meaning="Records that members of share groups have acknowledged since the process started; "
    "`type` is `accept`, `release`, `reject` or `renew`.",
    jmx="kafka.server:type=ShareGroupMetrics,name=RecordAcknowledgementsPerSec,ackType=…")
SHARE_EXPIRED: Final = Metric("minibroker_share_expired_records", _GAUGE, ("process",),
    meaning="Records whose acquisition locks have expired since the process started.",
    jmx="kafka.server:type=SharePartitionMetrics,name=AcquisitionLockTimeoutPerSec,…")
SHARE_IN_FLIGHT: Final = Metric("minibroker_share_in_flight_records", _GAUGE,
    ("process", "state"),
    meaning="Records in flight for share groups: `acquired` by a member, `available` again, or "
    "`archiving`, which are being written to a dead-letter queue.",
    jmx="kafka.server:type=SharePartitionMetrics,name=InFlightMessageCount,…")
SHARE_DEAD_LETTERS: Final = Metric("minibroker_share_dead_letters", _GAUGE,
    ("process", "group", "result"),
    meaning="Records of share groups that were `written` to a dead-letter queue since the process "
    "started, or archived without it because that has `failed`.",
    jmx="kafka.server:type=ShareGroupMetrics,name=DeadLetterQueueRecordCount,group=…")
LOG_DIR_SIZE: Final = Metric("minibroker_log_dir_size_bytes", _GAUGE, ("process", "directory"),
    meaning="Size of the logs of the process in the data directory.")
LOG_DIR_FREE: Final = Metric("minibroker_log_dir_free_bytes", _GAUGE, ("directory",),
    meaning="Bytes that the broker may still write to the file system of the data directory.")
LOG_DIR_TOTAL: Final = Metric("minibroker_log_dir_total_bytes", _GAUGE, ("directory",),
    meaning="Size of that file system.")
PURGATORY: Final = Metric("minibroker_purgatory_size", _GAUGE, ("process", "operation"),
    meaning="Requests that wait for an event: new data, or members of a group.",
    jmx="kafka.server:type=DelayedOperationPurgatory,name=PurgatorySize,delayedOperation=…")
FETCH_SESSIONS: Final = Metric("minibroker_fetch_sessions", _GAUGE, ("process",),
    meaning="Incremental fetch sessions.",
    jmx="kafka.server:type=FetchSessionCache,name=NumIncrementalFetchSessions")
FETCH_SESSION_PARTITIONS: Final = Metric("minibroker_fetch_session_partitions", _GAUGE,
    ("process",),
    meaning="Partitions in incremental fetch sessions.",
    jmx="kafka.server:type=FetchSessionCache,name=NumIncrementalFetchPartitionsCached")
FETCH_SESSION_EVICTIONS: Final = Metric("minibroker_fetch_session_evictions_total", _COUNTER, (),
    meaning="Incremental fetch sessions that were closed to make room for others.",
    jmx="kafka.server:type=FetchSessionCache,name=IncrementalFetchSessionEvictionsPerSec")

# -------------------------------------------------------------------------------------- log cleaner

CLEANER_RUNS: Final = Metric("minibroker_log_cleaner_runs", _GAUGE, ("process",),
    meaning="Cleanings of a log since the process started.")
CLEANER_BYTES_READ: Final = Metric("minibroker_log_cleaner_read_bytes", _GAUGE, ("process",),
    meaning="Bytes that cleanings have read since the start.")
CLEANER_BYTES_WRITTEN: Final = Metric("minibroker_log_cleaner_written_bytes", _GAUGE, ("process",),
    meaning="Bytes that cleanings have written since the start.")
CLEANER_RECOPY: Final = Metric("minibroker_log_cleaner_recopy_ratio", _GAUGE, ("process",),
    meaning="Bytes written ÷ bytes read of the last cleaning. It reads dirty parts twice.",
    jmx=_CLEANER.format("cleaner-recopy-percent"))
CLEANER_CLEAN_TIME: Final = Metric("minibroker_log_cleaner_clean_time_seconds", _GAUGE,
    ("process",), _MS,
    meaning="Time of the last cleaning.",
    jmx=_CLEANER.format("max-clean-time-secs"))
CLEANER_BUFFER_UTILIZATION: Final = Metric("minibroker_log_cleaner_buffer_utilization_ratio",
    _GAUGE, ("process",),
    meaning="Share of the map of keys that the last cleaning used.",
    jmx=_CLEANER.format("max-buffer-utilization-percent"))
CLEANER_COMPACTION_DELAY: Final = Metric("minibroker_log_cleaner_max_compaction_delay_seconds",
    _GAUGE, ("process",), _MS,
    meaning="How long the most delayed log has exceeded `max.compaction.lag.ms`.",
    jmx=_CLEANER.format("max-compaction-delay-secs"))
CLEANER_MAX_DIRTY: Final = Metric("minibroker_log_cleaner_max_dirty_ratio", _GAUGE, ("process",),
    meaning="Share of dirty bytes of the dirtiest log.",
    jmx=_MANAGER.format("max-dirty-percent"))
CLEANER_SINCE_LAST_RUN: Final = Metric("minibroker_log_cleaner_time_since_last_run_seconds",
    _GAUGE, ("process",), _MS,
    meaning="Time since logs were last checked.",
    jmx=_MANAGER.format("time-since-last-run-ms"))
CLEANER_UNCLEANABLE: Final = Metric("minibroker_log_cleaner_uncleanable_partitions", _GAUGE,
    ("process",),
    meaning="Partitions that cannot be compacted, because it failed.",
    jmx=_MANAGER.format("uncleanable-partitions-count"))

# --------------------------------------------------------------------------- storage and conditions

STORAGE_ERRORS: Final = Metric("minibroker_storage_errors_total", _COUNTER, ("error",),
    meaning="Reads and writes of logs and of the config store that failed, by error, e.g. ENOSPC.",
    jmx="kafka.log:type=LogManager,name=OfflineLogDirectoryCount")
TRUNCATED_RECORDS: Final = Metric("minibroker_log_truncated_records_total", _COUNTER, (),
    meaning="Complete records that recovery removed, because a batch before them was damaged.")
TRUNCATED_BYTES: Final = Metric("minibroker_log_truncated_bytes_total", _COUNTER, (),
    meaning="Bytes that recovery removed, including batches that were cut short while they were "
    "written.")
CONDITIONS: Final = Metric("minibroker_conditions", _GAUGE, ("process", "kind"),
    meaning="Conditions that degrade the broker now, as `/v1/health` names them.")

# ------------------------------------------------------------------------------- metrics of clients

CLIENT_INSTANCES: Final = Metric("minibroker_client_instances", _GAUGE, (),
    meaning="Client instances that have asked for a subscription of metrics (KIP-714).",
    jmx="kafka.server:type=client-metrics,name=instance-count")
CLIENT_METRIC: Final = Metric("minibroker_client_metric", _GAUGE,
    ("client_id", "client_instance", "metric", "attributes"),
    meaning="Newest value of a metric that a client has pushed (KIP-714), of a thousand series at "
    "most.")

# ---------------------------------------------------------------------------------------- processes

BUSY: Final = Metric("minibroker_process_busy_seconds_total", _COUNTER, ("process",), _NS,
    meaning="Time that the process worked.")
ELAPSED: Final = Metric("minibroker_process_elapsed_seconds_total", _COUNTER, ("process",),
    _NS,
    meaning="Time since the start of the process; busy ÷ elapsed is its utilization.")
IDLE: Final = Metric("minibroker_process_idle_ratio", _GAUGE, ("process",),
    meaning="Share of time, 0 to 1, that the process was idle, over at least the last second "
    "before the scrape.",
    jmx="processors: kafka.network:type=SocketServer,name=NetworkProcessorAvgIdlePercent; workers: "
    "kafka.server:type=KafkaRequestHandlerPool,name=RequestHandlerAvgIdlePercent")
MEMORY: Final = Metric("minibroker_process_memory_bytes", _GAUGE, ("process",),
    meaning="Resident memory of the process; shared memory counts for each process.")
UP: Final = Metric("minibroker_process_up", _GAUGE, ("process",),
    meaning="1 while the process answers, else 0.")
RESTARTS: Final = Metric("minibroker_process_restarts_total", _COUNTER, ("process",),
    meaning="Number of restarts of the process by the supervisor.")

METRICS: Final = tuple(row for row in tuple(globals().values()) if isinstance(row, Metric))
"""All metrics, in the order of the table, in which they are shown."""
