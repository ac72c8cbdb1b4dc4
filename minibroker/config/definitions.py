"""Every setting of the broker, once: name, type, default, valid values, what it does.

Owns the declarations and nothing else; it must never read a file or hold a value in force.  The
invariant: a name that Kafka has means here what it means in Kafka, in the same unit.  Echoes
Kafka's ``KafkaConfig`` and the config classes it is put together from.
"""

from __future__ import annotations

from minibroker.config.listeners import (
    LISTENERS_TYPE,
    PROTOCOL_MAP_TYPE,
    SECURITY_PROTOCOLS,
    Listener,
)
from minibroker.config.setting import setting
from minibroker.config.types import (
    BOOLEAN,
    DOUBLE,
    HOST_PORT,
    INT,
    LIST,
    LONG,
    LONG_MAX,
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
_ONE_BROKER = "one broker is all there is, so a value above 1 cannot be met"

# ------------------------------------------------------------------------------ who and where

NODE_ID = setting(
    "node.id",
    INT,
    default=1,
    valid=at_least(0),
    doc="The broker's number, which clients see in metadata.",
)
BROKER_ID = setting(
    "broker.id",
    _OPTIONAL_INT,
    default=None,
    valid=at_least(-1),
    default_text="node.id",
    doc="The older name of `node.id`; -1 leaves the number to `node.id`. If both are given they "
    "must agree.",
)
BROKER_RACK = setting(
    "broker.rack",
    _OPTIONAL_STRING,
    default=None,
    doc="The rack that metadata names for this broker.",
)
CLUSTER_ID = setting(
    "cluster.id",
    _OPTIONAL_STRING,
    default=None,
    default_text="made at the first start and kept in the config store",
    doc="The cluster's id, for a store that has none yet; a store that holds another id refuses "
    "to start. Not a Kafka setting: Kafka writes it with `kafka-storage format --cluster-id`.",
)
LISTENERS = setting(
    "listeners",
    LISTENERS_TYPE,
    default=(Listener("PLAINTEXT", "127.0.0.1", 9092),),
    doc="Where clients connect: a comma-separated list of NAME://host:port. An empty host takes "
    "every interface, port 0 a free port, an IPv6 host stands in brackets.",
)
ADVERTISED_LISTENERS = setting(
    "advertised.listeners",
    optional(LISTENERS_TYPE),
    default=None,
    default_text="listeners",
    doc="What clients of each listener are told to dial, when it differs from `listeners`. Port 0 "
    "stands for the port that the listener got; an empty host for the machine's name.",
)
LISTENER_SECURITY_PROTOCOL_MAP = setting(
    "listener.security.protocol.map",
    PROTOCOL_MAP_TYPE,
    default=(),
    default_text="every name that is no protocol stands for PLAINTEXT",
    doc="The security protocol of each listener name, as NAME:PROTOCOL pairs with a protocol of "
    + ", ".join(SECURITY_PROTOCOLS)
    + ".",
)
CONTROLLER_LISTENER_NAMES = setting(
    "controller.listener.names",
    LIST,
    default=(),
    doc="Listener names that a KRaft configuration keeps for its controllers. They are not opened: "
    "this broker's controller speaks to its own processes only.",
)
CONTROL_LISTENER = setting(
    "control.listener",
    HOST_PORT,
    default=HostPort("127.0.0.1", 0),
    doc="Where the HTTP control API and /metrics listen, as host:port; port 0 takes a free port. "
    "Not a Kafka setting.",
)
LOG_DIRS = setting(
    "log.dirs",
    LIST,
    default=(),
    default_text="a temporary directory, removed at the end",
    valid=None,
    doc="The directory that keeps logs and the config store. One directory is served.",
)
LOG_DIR = setting(
    "log.dir",
    _OPTIONAL_STRING,
    default=None,
    default_text="log.dirs",
    doc="The older name of `log.dirs`, used when that is not given.",
)

# ------------------------------------------------------------------------ processes and sockets

NUM_NETWORK_THREADS = setting(
    "num.network.threads",
    INT,
    default=2,
    kafka_default=3,
    valid=between(1, 64),
    doc="How many network processors speak to sockets. Each is a process here, not a thread.",
)
NUM_IO_THREADS = setting(
    "num.io.threads",
    INT,
    default=2,
    kafka_default=8,
    valid=between(1, 64),
    doc="How many I/O workers own partitions and groups. Each is a process here, not a thread.",
)
SOCKET_REQUEST_MAX_BYTES = setting(
    "socket.request.max.bytes",
    INT,
    default=100 * 1024 * 1024,
    valid=at_least(1),
    doc="The largest request, in bytes; a connection that announces a larger one is closed.",
)
QUEUED_MAX_REQUEST_BYTES = setting(
    "queued.max.request.bytes",
    LONG,
    default=-1,
    valid=any_valid(equals(-1), at_least(1)),
    doc="The shared memory that requests in flight lie in, in bytes; when it is full, sockets are "
    "not read. It is divided equally among the network processors. -1 takes "
    "`socket.request.max.bytes` for each network processor. Requests of at most 64 KiB have "
    "memory of their own beside it, at most 4 MiB for each network processor.",
)
QUEUED_MAX_REQUEST_BYTES_PER_IP = setting(
    "queued.max.request.bytes.per.ip",
    LONG,
    default=-1,
    valid=any_valid(equals(-1), at_least(1)),
    doc="How many bytes of each network processor's request memory one client address may hold "
    "for requests that have not arrived whole; its further ones wait, and those of other addresses "
    "do not. One request is always admitted. -1 takes half of the memory. Raise it if many clients "
    "with large requests come from one address, such as a proxy's. Not a Kafka setting.",
)
QUEUED_MAX_REQUESTS = setting(
    "queued.max.requests",
    INT,
    default=500,
    valid=at_least(1),
    doc="How many requests each network processor may have under way at each I/O worker; further "
    "ones wait. Fetch, JoinGroup and SyncGroup, which may wait for records or members, do not "
    "count.",
)
SOCKET_LISTEN_BACKLOG_SIZE = setting(
    "socket.listen.backlog.size",
    INT,
    default=1024,
    kafka_default=50,
    valid=at_least(1),
    doc="How many connections the system may hold for a listener before they are accepted. "
    "Further ones are tried again by the client's system a second later.",
)
SOCKET_SEND_BUFFER_BYTES = setting(
    "socket.send.buffer.bytes",
    INT,
    default=256 * 1024,
    kafka_default=100 * 1024,
    valid=any_valid(equals(-1), at_least(1)),
    doc="SO_SNDBUF of client connections, in bytes; -1 leaves it to the system, whose growing "
    "buffers make a consumer on the same machine wait longer for its first bytes.",
)
SOCKET_RECEIVE_BUFFER_BYTES = setting(
    "socket.receive.buffer.bytes",
    INT,
    default=-1,
    kafka_default=100 * 1024,
    valid=any_valid(equals(-1), at_least(1)),
    doc="SO_RCVBUF of client connections, in bytes; -1 leaves it to the system, which lets the "
    "buffers of producers with large requests grow.",
)
CONNECTIONS_MAX_IDLE_MS = setting(
    "connections.max.idle.ms",
    LONG,
    default=10 * 60 * 1000,
    doc="A connection that has been silent for this long is closed; negative means never.",
)

# -------------------------------------------------------------------------------------- topics

AUTO_CREATE_TOPICS_ENABLE = setting(
    "auto.create.topics.enable",
    BOOLEAN,
    default=True,
    doc="Whether asking for the metadata of a topic that does not exist creates it.",
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
    doc="How many partitions a topic gets when nobody says.",
)
DEFAULT_REPLICATION_FACTOR = setting(
    "default.replication.factor",
    INT,
    default=1,
    valid=between(1, 32767),
    doc=f"How many replicas a topic gets when nobody says; {_ONE_BROKER}.",
)
MIN_INSYNC_REPLICAS = setting(
    "min.insync.replicas",
    INT,
    default=1,
    valid=at_least(1),
    dynamic=True,
    doc="How many replicas must be in sync for acks=all; topics may override it. One broker has "
    "one, so with more acks=all is refused (NOT_ENOUGH_REPLICAS).",
)
FETCH_MAX_BYTES = setting(
    "fetch.max.bytes",
    INT,
    default=55 * 1024 * 1024,
    valid=at_least(1024),
    doc="The most bytes of records one fetch response carries (a first batch that is larger is "
    "sent whole).",
)

# ---------------------------------------------------------------------------------------- logs

MESSAGE_MAX_BYTES = setting(
    "message.max.bytes",
    INT,
    default=1024 * 1024 + 12,
    valid=at_least(0),
    dynamic=True,
    doc="The largest record batch, in bytes, compressed if it is; topics may override it.",
)
COMPRESSION_TYPE = setting(
    "compression.type",
    STRING,
    default="producer",
    valid=one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    dynamic=True,
    doc="The codec of stored batches; topics may override it. `producer` keeps what the producer "
    "chose, any other value has the broker compress batches anew that come differently.",
)
LOG_SEGMENT_BYTES = setting(
    "log.segment.bytes",
    INT,
    default=1024 * 1024 * 1024,
    valid=at_least(14),
    dynamic=True,
    doc="The size at which a log begins a new segment file, in bytes. Small values are allowed, "
    "so that rolling and retention can be tried; Kafka 4 wants 1 MiB at least.",
)
LOG_ROLL_MS = setting(
    "log.roll.ms",
    _OPTIONAL_LONG,
    default=None,
    default_text="log.roll.hours",
    valid=at_least(1),
    dynamic=True,
    doc="The age at which a log begins a new segment file, in milliseconds.",
)
LOG_ROLL_HOURS = setting(
    "log.roll.hours",
    INT,
    default=168,
    valid=at_least(1),
    doc="The same in hours, used when `log.roll.ms` is not given.",
)
LOG_RETENTION_MS = setting(
    "log.retention.ms",
    _OPTIONAL_LONG,
    default=None,
    default_text="log.retention.minutes, else log.retention.hours",
    valid=at_least(-1),
    dynamic=True,
    doc="How long records are kept at least, in milliseconds; -1 keeps them for ever.",
)
LOG_RETENTION_MINUTES = setting(
    "log.retention.minutes",
    _OPTIONAL_INT,
    default=None,
    default_text="log.retention.hours",
    valid=at_least(-1),
    doc="The same in minutes, used when `log.retention.ms` is not given.",
)
LOG_RETENTION_HOURS = setting(
    "log.retention.hours",
    INT,
    default=168,
    valid=at_least(-1),
    doc="The same in hours, used when neither of the other two is given.",
)
LOG_RETENTION_BYTES = setting(
    "log.retention.bytes",
    LONG,
    default=-1,
    valid=at_least(-1),
    dynamic=True,
    doc="How many bytes of a partition are kept; -1 sets no bound.",
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
    doc="What happens to old segments; topics may override it. `delete` drops them by retention; "
    "`compact` alone keeps them: nothing is compacted but the committed offsets.",
)
LOG_INDEX_INTERVAL_BYTES = setting(
    "log.index.interval.bytes",
    INT,
    default=4096,
    valid=at_least(0),
    dynamic=True,
    doc="How many bytes of records lie between two entries of an index.",
)
LOG_INDEX_SIZE_MAX_BYTES = setting(
    "log.index.size.max.bytes",
    INT,
    default=10 * 1024 * 1024,
    valid=at_least(4),
    dynamic=True,
    doc="The largest index file, in bytes; a full index begins a new segment.",
)
LOG_FLUSH_INTERVAL_MESSAGES = setting(
    "log.flush.interval.messages",
    LONG,
    default=LONG_MAX,
    valid=at_least(1),
    dynamic=True,
    doc="After how many records a log is synced to the disk.",
)
LOG_FLUSH_INTERVAL_MS = setting(
    "log.flush.interval.ms",
    _OPTIONAL_LONG,
    default=None,
    default_text="log.flush.scheduler.interval.ms",
    valid=at_least(0),
    dynamic=True,
    doc="After how long records that are not synced yet are synced to the disk, in milliseconds.",
)
LOG_FLUSH_SCHEDULER_INTERVAL_MS = setting(
    "log.flush.scheduler.interval.ms",
    LONG,
    default=LONG_MAX,
    valid=at_least(1),
    doc="How often logs are checked for records to sync, in milliseconds.",
)
LOG_MESSAGE_TIMESTAMP_TYPE = setting(
    "log.message.timestamp.type",
    STRING,
    default="CreateTime",
    valid=one_of("CreateTime", "LogAppendTime"),
    dynamic=True,
    doc="Whether records keep the producer's timestamp or get the broker's.",
)
LOG_MESSAGE_TIMESTAMP_BEFORE_MAX_MS = setting(
    "log.message.timestamp.before.max.ms",
    LONG,
    default=LONG_MAX,
    valid=at_least(0),
    dynamic=True,
    doc="How far a record's timestamp may lie behind the broker's clock, in milliseconds.",
)
LOG_MESSAGE_TIMESTAMP_AFTER_MAX_MS = setting(
    "log.message.timestamp.after.max.ms",
    LONG,
    default=60 * 60 * 1000,
    valid=at_least(0),
    dynamic=True,
    doc="How far a record's timestamp may lie ahead of the broker's clock, in milliseconds.",
)
LOG_SEGMENT_DELETE_DELAY_MS = setting(
    "log.segment.delete.delay.ms",
    LONG,
    default=60_000,
    valid=at_least(0),
    dynamic=True,
    doc="How long a segment's files stay after the segment was dropped, in milliseconds.",
)
PRODUCER_ID_EXPIRATION_MS = setting(
    "producer.id.expiration.ms",
    INT,
    default=24 * 60 * 60 * 1000,
    valid=at_least(1),
    dynamic=True,
    doc="How long a log remembers an idempotent producer that has fallen silent.",
)

# --------------------------------------------------------- defaults for topics, accepted as given

_NOT_COMPACTED = "topics of users are not compacted"

LOG_CLEANER_DELETE_RETENTION_MS = setting(
    "log.cleaner.delete.retention.ms",
    LONG,
    default=24 * 60 * 60 * 1000,
    valid=at_least(0),
    dynamic=True,
    doc="How long a compacted log keeps tombstones, in milliseconds.",
    no_effect=_NOT_COMPACTED,
)
LOG_CLEANER_MIN_COMPACTION_LAG_MS = setting(
    "log.cleaner.min.compaction.lag.ms",
    LONG,
    default=0,
    valid=at_least(0),
    dynamic=True,
    doc="How long a record stays as it is in a compacted log, in milliseconds.",
    no_effect=_NOT_COMPACTED,
)
LOG_CLEANER_MAX_COMPACTION_LAG_MS = setting(
    "log.cleaner.max.compaction.lag.ms",
    LONG,
    default=LONG_MAX,
    valid=at_least(1),
    dynamic=True,
    doc="The age at which a record must be compacted, in milliseconds.",
    no_effect=_NOT_COMPACTED,
)
LOG_CLEANER_MIN_CLEANABLE_RATIO = setting(
    "log.cleaner.min.cleanable.ratio",
    DOUBLE,
    default=0.5,
    valid=between(0, 1),
    dynamic=True,
    doc="The share of a log that must be dirty before it is compacted.",
    no_effect=_NOT_COMPACTED,
)
UNCLEAN_LEADER_ELECTION_ENABLE = setting(
    "unclean.leader.election.enable",
    BOOLEAN,
    default=False,
    dynamic=True,
    doc="Whether a replica that is out of sync may become the leader.",
    no_effect="with one broker there is nobody else to elect",
)
