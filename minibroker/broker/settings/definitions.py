"""Settings of the broker: name, type, default, valid values, description.

Owns only the declarations; it must never read a file or hold a configured value.  The invariant: a
setting with a name from Kafka has Kafka's meaning and unit.  Echoes Kafka's ``KafkaConfig`` and its
config classes.
"""

from __future__ import annotations

from minibroker.broker.settings.listeners import (
    LISTENERS_TYPE,
    PROTOCOL_MAP_TYPE,
    SECURITY_PROTOCOLS,
    Listener,
)
from minibroker.broker.settings.setting import setting
from minibroker.broker.settings.types import (
    BOOLEAN,
    HOST_PORT,
    INT,
    LIST,
    LONG,
    LONG_MAX,
    PASSWORD,
    STRING,
    HostPort,
    any_valid,
    at_least,
    between,
    equals,
    one_of,
    optional,
    some_of,
)

_OPTIONAL_LONG = optional(LONG)
_OPTIONAL_INT = optional(INT)
_OPTIONAL_STRING = optional(STRING)
_ONE_BROKER = "there is only one broker, so values above 1 cannot be satisfied"

# ----------------------------------------------------------------------- identity and addresses

NODE_ID = setting(
    "node.id",
    INT,
    default=1,
    valid=at_least(0),
    doc="The node id of the broker, which clients see in metadata.",
)
BROKER_ID = setting(
    "broker.id",
    _OPTIONAL_INT,
    default=None,
    valid=at_least(-1),
    default_text="node.id",
    doc="The older name of `node.id`; -1 means `node.id`. If both are set, they must be equal.",
)
BROKER_RACK = setting(
    "broker.rack",
    _OPTIONAL_STRING,
    default=None,
    doc="The rack of the broker, which clients see in metadata.",
)
CLUSTER_ID = setting(
    "cluster.id",
    _OPTIONAL_STRING,
    default=None,
    default_text="generated at the first start and kept in the config store",
    doc="The cluster id for a new config store. If the store has another id, the broker does not "
    "start. Not a Kafka setting: Kafka writes the id with `kafka-storage format --cluster-id`.",
)
LISTENERS = setting(
    "listeners",
    LISTENERS_TYPE,
    default=(Listener("PLAINTEXT", "127.0.0.1", 9092),),
    doc="The addresses for clients: a comma-separated list of NAME://host:port. An empty host "
    "means all interfaces, and port 0 a free port. Put an IPv6 host in brackets.",
)
ADVERTISED_LISTENERS = setting(
    "advertised.listeners",
    optional(LISTENERS_TYPE),
    default=None,
    default_text="listeners",
    doc="The addresses that clients use to connect, if they differ from `listeners`. Port 0 means "
    "the actual port of the listener, and an empty host the hostname.",
)
LISTENER_SECURITY_PROTOCOL_MAP = setting(
    "listener.security.protocol.map",
    PROTOCOL_MAP_TYPE,
    default=(),
    default_text="names that are not a protocol use PLAINTEXT",
    doc="The security protocol of each listener name, as NAME:PROTOCOL pairs. The protocols are "
    + ", ".join(SECURITY_PROTOCOLS)
    + ".",
)
CONTROLLER_LISTENER_NAMES = setting(
    "controller.listener.names",
    LIST,
    default=(),
    doc="Listener names of the controllers in a KRaft configuration. The broker does not open "
    "these listeners, because only its own processes connect to its controller.",
)
CONTROL_LISTENER = setting(
    "control.listener",
    HOST_PORT,
    default=HostPort("127.0.0.1", 0),
    doc="The address of the HTTP control API and /metrics, as host:port; port 0 means a free port. "
    "Not a Kafka setting.",
)
CONTROL_TOKEN = setting(
    "control.token",
    optional(PASSWORD),
    default=None,
    default_text="none on loopback, otherwise one that is created at each start",
    doc="The token for the HTTP control API, which `minibroker start` prints as part of its URL. "
    "If it is empty, everyone who can connect may use the API. Not a Kafka setting.",
)
LOG_DIRS = setting(
    "log.dirs",
    LIST,
    default=(),
    default_text="a temporary directory, removed when the broker stops",
    valid=None,
    doc="The directory of the logs and the config store. Only one directory is supported.",
)
LOG_DIR = setting(
    "log.dir",
    _OPTIONAL_STRING,
    default=None,
    default_text="log.dirs",
    doc="The older name of `log.dirs`, used if that is not set.",
)

# ------------------------------------------------------------------------ processes and sockets

NUM_NETWORK_THREADS = setting(
    "num.network.threads",
    INT,
    default=1,
    kafka_default=3,
    valid=between(1, 64),
    doc="The number of network processors, which handle the sockets. Each is a process, not a "
    "thread; see `process.mode`.",
)
NUM_IO_THREADS = setting(
    "num.io.threads",
    INT,
    default=1,
    kafka_default=8,
    valid=between(1, 64),
    doc="The number of I/O workers, which own partitions and groups. Each is a process, not a "
    "thread; see `process.mode`.",
)
SOCKET_REQUEST_MAX_BYTES = setting(
    "socket.request.max.bytes",
    INT,
    default=100 * 1024 * 1024,
    valid=at_least(1),
    doc="The largest request, in bytes; the broker closes a connection that sends a larger one.",
)
QUEUED_MAX_REQUEST_BYTES = setting(
    "queued.max.request.bytes",
    LONG,
    default=-1,
    valid=any_valid(equals(-1), at_least(1)),
    doc="The size of the shared memory for requests in flight, in bytes, divided equally among the "
    "network processors. When it is full, a processor stops reading from sockets. -1 means "
    "`socket.request.max.bytes` for each network processor. Requests of up to 64 KiB use separate "
    "memory of at most 4 MiB for each network processor.",
)
QUEUED_MAX_REQUEST_BYTES_PER_IP = setting(
    "queued.max.request.bytes.per.ip",
    LONG,
    default=-1,
    valid=any_valid(equals(-1), at_least(1)),
    doc="How many bytes of each network processor's request memory one client IP address may use "
    "for requests that have not arrived completely. Its further requests wait; those of other "
    "addresses do not. One request is always admitted. -1 means half of the memory. Raise it if "
    "many clients with large requests share an address, such as that of a proxy. Not a Kafka "
    "setting.",
)
QUEUED_MAX_REQUESTS = setting(
    "queued.max.requests",
    INT,
    default=500,
    valid=at_least(1),
    doc="The number of requests that each network processor may have in flight at each I/O worker; "
    "further ones wait. Fetch, JoinGroup and SyncGroup do not count, because they may wait for "
    "records or members.",
)
SOCKET_LISTEN_BACKLOG_SIZE = setting(
    "socket.listen.backlog.size",
    INT,
    default=1024,
    kafka_default=50,
    valid=at_least(1),
    doc="The length of a listener's queue of connections that are not accepted yet. When it is "
    "full, the client's operating system tries again after a second.",
)
SOCKET_SEND_BUFFER_BYTES = setting(
    "socket.send.buffer.bytes",
    INT,
    default=256 * 1024,
    kafka_default=100 * 1024,
    valid=any_valid(equals(-1), at_least(1)),
    doc="SO_SNDBUF of client connections, in bytes. With -1 the operating system grows the "
    "buffers, so a consumer on the same machine waits longer for its first bytes.",
)
SOCKET_RECEIVE_BUFFER_BYTES = setting(
    "socket.receive.buffer.bytes",
    INT,
    default=-1,
    kafka_default=100 * 1024,
    valid=any_valid(equals(-1), at_least(1)),
    doc="SO_RCVBUF of client connections, in bytes. With -1 the operating system grows the buffers "
    "of producers with large requests.",
)
CONNECTIONS_MAX_IDLE_MS = setting(
    "connections.max.idle.ms",
    LONG,
    default=10 * 60 * 1000,
    doc="How long a connection may be idle before it is closed, in milliseconds; negative means "
    "unlimited.",
)

# -------------------------------------------------------------------------------------- topics

AUTO_CREATE_TOPICS_ENABLE = setting(
    "auto.create.topics.enable",
    BOOLEAN,
    default=True,
    doc="Whether a metadata request for a topic that does not exist creates the topic.",
)
DELETE_TOPIC_ENABLE = setting(
    "delete.topic.enable",
    BOOLEAN,
    default=True,
    doc="Whether topics may be deleted.",
)
NUM_PARTITIONS = setting(
    "num.partitions",
    INT,
    default=1,
    valid=at_least(1),
    doc="The default number of partitions of a topic.",
)
DEFAULT_REPLICATION_FACTOR = setting(
    "default.replication.factor",
    INT,
    default=1,
    valid=between(1, 32767),
    doc=f"The default number of replicas of a topic; {_ONE_BROKER}.",
)
MIN_INSYNC_REPLICAS = setting(
    "min.insync.replicas",
    INT,
    default=1,
    valid=at_least(1),
    dynamic=True,
    doc="How many replicas must be in sync for acks=all; topics can override it.",
    no_effect="as in Kafka, a partition never needs more than it has, and each has one",
)

# ---------------------------------------------------------------------------------------- logs

MESSAGE_MAX_BYTES = setting(
    "message.max.bytes",
    INT,
    default=1024 * 1024 + 12,
    valid=at_least(0),
    dynamic=True,
    doc="The largest record batch, in bytes after compression; topics can override it.",
)
COMPRESSION_TYPE = setting(
    "compression.type",
    STRING,
    default="producer",
    valid=one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    dynamic=True,
    doc="The codec of stored batches; topics can override it. With `producer`, batches keep the "
    "producer's codec. With other values, the broker recompresses batches with another codec.",
)
LOG_SEGMENT_BYTES = setting(
    "log.segment.bytes",
    INT,
    default=1024 * 1024 * 1024,
    valid=at_least(14),
    dynamic=True,
    doc="The size at which a log rolls to a new segment file, in bytes. Small values are allowed "
    "for testing rolling and retention; Kafka 4 requires at least 1 MiB.",
)
LOG_ROLL_MS = setting(
    "log.roll.ms",
    _OPTIONAL_LONG,
    default=None,
    default_text="log.roll.hours",
    valid=at_least(1),
    dynamic=True,
    doc="The age at which a log rolls to a new segment file, in milliseconds.",
)
LOG_ROLL_HOURS = setting(
    "log.roll.hours",
    INT,
    default=168,
    valid=at_least(1),
    doc="The age at which a log rolls to a new segment file, in hours; used if `log.roll.ms` is "
    "not set.",
)
_TIME_OR_UNLIMITED = any_valid(equals(-1), at_least(1))
LOG_RETENTION_MS = setting(
    "log.retention.ms",
    _OPTIONAL_LONG,
    default=None,
    default_text="log.retention.minutes, else log.retention.hours",
    valid=_TIME_OR_UNLIMITED,
    dynamic=True,
    doc="How long records are kept at least, in milliseconds; -1 means forever.",
)
LOG_RETENTION_MINUTES = setting(
    "log.retention.minutes",
    _OPTIONAL_INT,
    default=None,
    default_text="log.retention.hours",
    valid=_TIME_OR_UNLIMITED,
    doc="How long records are kept at least, in minutes; used if `log.retention.ms` is not set.",
)
LOG_RETENTION_HOURS = setting(
    "log.retention.hours",
    INT,
    default=168,
    valid=_TIME_OR_UNLIMITED,
    doc="How long records are kept at least, in hours; used if neither `log.retention.ms` nor "
    "`log.retention.minutes` is set.",
)
LOG_RETENTION_BYTES = setting(
    "log.retention.bytes",
    LONG,
    default=-1,
    valid=at_least(-1),
    dynamic=True,
    doc="The size of a partition above which old segments are deleted, in bytes; -1 means "
    "unlimited.",
)
LOG_RETENTION_CHECK_INTERVAL_MS = setting(
    "log.retention.check.interval.ms",
    LONG,
    default=5 * 60 * 1000,
    valid=at_least(1),
    doc="How often logs are checked for segments to delete, in milliseconds.",
)
LOG_CLEANUP_POLICY = setting(
    "log.cleanup.policy",
    LIST,
    default=("delete",),
    valid=some_of("compact", "delete"),
    dynamic=True,
    doc="What happens to old segments; topics can override it. `delete` deletes them by retention. "
    "`compact` keeps the last value of each key.",
)
LOG_INDEX_INTERVAL_BYTES = setting(
    "log.index.interval.bytes",
    INT,
    default=4096,
    valid=at_least(0),
    dynamic=True,
    doc="How many bytes of records are appended between two index entries.",
)
LOG_INDEX_SIZE_MAX_BYTES = setting(
    "log.index.size.max.bytes",
    INT,
    default=10 * 1024 * 1024,
    valid=at_least(4),
    dynamic=True,
    doc="The maximum size of an index file, in bytes; a full index rolls the segment.",
)
LOG_FLUSH_INTERVAL_MESSAGES = setting(
    "log.flush.interval.messages",
    LONG,
    default=LONG_MAX,
    valid=at_least(1),
    dynamic=True,
    doc="The number of records after which a log is flushed to disk.",
)
LOG_FLUSH_INTERVAL_MS = setting(
    "log.flush.interval.ms",
    _OPTIONAL_LONG,
    default=None,
    default_text="log.flush.scheduler.interval.ms",
    valid=at_least(0),
    dynamic=True,
    doc="How long records may stay in memory before they are flushed to disk, in milliseconds.",
)
LOG_FLUSH_SCHEDULER_INTERVAL_MS = setting(
    "log.flush.scheduler.interval.ms",
    LONG,
    default=LONG_MAX,
    valid=at_least(1),
    doc="How often logs are checked for records to flush, in milliseconds.",
)
LOG_MESSAGE_TIMESTAMP_TYPE = setting(
    "log.message.timestamp.type",
    STRING,
    default="CreateTime",
    valid=one_of("CreateTime", "LogAppendTime"),
    dynamic=True,
    doc="Whether records have the producer's timestamp or the broker's append time.",
)
LOG_MESSAGE_TIMESTAMP_BEFORE_MAX_MS = setting(
    "log.message.timestamp.before.max.ms",
    LONG,
    default=LONG_MAX,
    valid=at_least(0),
    dynamic=True,
    doc="How far a record's timestamp may be before the broker's time, in milliseconds.",
)
LOG_MESSAGE_TIMESTAMP_AFTER_MAX_MS = setting(
    "log.message.timestamp.after.max.ms",
    LONG,
    default=60 * 60 * 1000,
    valid=at_least(0),
    dynamic=True,
    doc="How far a record's timestamp may be after the broker's time, in milliseconds.",
)
LOG_SEGMENT_DELETE_DELAY_MS = setting(
    "log.segment.delete.delay.ms",
    LONG,
    default=60_000,
    valid=at_least(0),
    dynamic=True,
    doc="How long the files of a deleted segment stay on disk, in milliseconds.",
)
PRODUCER_ID_EXPIRATION_MS = setting(
    "producer.id.expiration.ms",
    INT,
    default=24 * 60 * 60 * 1000,
    valid=at_least(1),
    dynamic=True,
    doc="How long a log keeps the state of an inactive idempotent producer, in milliseconds.",
)
PRODUCER_ID_EXPIRATION_CHECK_INTERVAL_MS = setting(
    "producer.id.expiration.check.interval.ms",
    INT,
    default=10 * 60 * 1000,
    valid=at_least(1),
    doc="How often inactive producers are expired, in milliseconds.",
)

UNCLEAN_LEADER_ELECTION_ENABLE = setting(
    "unclean.leader.election.enable",
    BOOLEAN,
    default=False,
    dynamic=True,
    doc="Whether a replica that is not in sync may become the leader.",
    no_effect="with one broker there is no other replica to elect",
)
