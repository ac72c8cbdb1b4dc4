"""The table of broker settings: constant, name, type, default, valid values, description.

Owns only the declarations; it must never read a file or hold a configured value. Rows stand in the
order of the reference. The invariant: a setting with a name from Kafka has Kafka's meaning and
unit, except that keystores and truststores are PEM files; other settings say whose they are.
Kafka's ``KafkaConfig`` and its config classes.
"""

from __future__ import annotations

import sys
from typing import Any, Final

from minibroker.broker.personas.persona import NAMES, Persona, load
from minibroker.broker.settings.listeners import (
    LISTENERS_TYPE,
    PROTOCOL_MAP_TYPE,
    SECURITY_PROTOCOLS,
    Listener,
)
from minibroker.broker.settings.setting import (
    AUTHORIZER,
    AUTHORIZERS,
    BOOLEAN,
    CONNECT_STRING,
    DOUBLE,
    FILE_URL,
    HOST_LIMITS,
    HOST_PORT,
    INT,
    INT_MAX,
    IP_LIMITS,
    JAAS,
    LIST,
    LONG,
    LONG_MAX,
    MECHANISM_LIST,
    MECHANISMS,
    PASSWORD,
    PRINCIPALS,
    SHORT,
    STORE_TYPE,
    STRING,
    BadValueError,
    HostPort,
    Kind,
    Setting,
    SettingType,
    Valid,
    any_valid,
    at_least,
    between,
    equals,
    one_of,
    optional,
    similar_names,
    some_of,
)

_OPTIONAL_INT = optional(INT)
_OPTIONAL_LONG = optional(LONG)
_OPTIONAL_STRING = optional(STRING)
_OPTIONAL_PASSWORD = optional(PASSWORD)
_AUTOMATIC = "auto"
_TOKEN: SettingType[str | None] = SettingType(
    Kind.PASSWORD,
    "password",
    lambda text: None if text == _AUTOMATIC else text,
    lambda token: _AUTOMATIC if token is None else token,
)
"""A password that may be empty, which is not the same as None."""

_MINUS_ONE_OR_POSITIVE = any_valid(equals(-1), at_least(1))


def _parse_persona(name: str) -> Persona:
    if name in NAMES:
        return load(name)
    nearest = similar_names(name, NAMES, count_max=3, similarity_min=0.6)
    hint = f"; did you mean {' or '.join(nearest)}?" if nearest else ""
    raise BadValueError(f"must be one of {', '.join(NAMES)}{hint}")


_PERSONA = SettingType(Kind.STRING, "persona", _parse_persona, str)

# A table by hand: the row of a setting starts with its constant and ends with its description.
# fmt: off

# --------------------------------------------------------------------------- identity and addresses

NODE_ID = Setting("node.id", INT, 1, at_least(0),
    doc="The node id of the broker, which clients see in metadata.")
BROKER_ID = Setting("broker.id", _OPTIONAL_INT, None, at_least(-1), default_text="node.id",
    doc="The older name of `node.id`; -1 means `node.id`. If both are set, they must be equal.")
BROKER_RACK = Setting("broker.rack", _OPTIONAL_STRING, None,
    doc="The rack of the broker, which clients see in metadata.")
CLUSTER_ID = Setting("cluster.id", _OPTIONAL_STRING, None,
    default_text="generated at the first start and kept in the config store",
    doc="The cluster id for a new config store. If the store has another id, the broker does not "
    "start. Not a Kafka setting: Kafka writes the id with `kafka-storage format --cluster-id`.")
LISTENERS = Setting("listeners", LISTENERS_TYPE, (Listener("PLAINTEXT", "127.0.0.1", 9092),),
    doc="The addresses for clients: a comma-separated list of NAME://host:port. An empty host "
    "means all interfaces, and port 0 a free port. Put an IPv6 host in brackets.")
ADVERTISED_LISTENERS = Setting("advertised.listeners", optional(LISTENERS_TYPE), None,
    dynamic=True, per_broker=True, default_text="listeners",
    doc="The addresses that clients use to connect, if they differ from `listeners`. Port 0 means "
    "the actual port of the listener, and an empty host the hostname; in a change while the broker "
    "runs, they mean what was advertised at the start. The host `*` means the address that the "
    "client connected to, or `localhost` if the client comes through a forwarded port, e.g. of a "
    "container; see [addresses](../guides/container.md#addresses). `*` is not Kafka's.")
LISTENER_SECURITY_PROTOCOL_MAP = Setting("listener.security.protocol.map", PROTOCOL_MAP_TYPE, (),
    default_text="each protocol's own name",
    doc="The security protocol of each listener name, as NAME:PROTOCOL pairs. The protocols are "
    f"{', '.join(SECURITY_PROTOCOLS)}.")
CONTROLLER_LISTENER_NAMES = Setting("controller.listener.names", LIST, (),
    doc="Listener names of the controllers in a KRaft configuration. The broker does not open "
    "these listeners, because only its own processes connect to its controller.")
INTER_BROKER_LISTENER_NAME = Setting("inter.broker.listener.name", optional(STRING), None,
    default_text="the listener of `security.inter.broker.protocol`",
    doc="The listener for other brokers. If there is more than one listener, connections to this "
    "one do not wait for `max.connections`: the broker closes the least recently used connection "
    "of another listener instead.")
SECURITY_INTER_BROKER_PROTOCOL = Setting("security.inter.broker.protocol", STRING, "PLAINTEXT",
    one_of(*SECURITY_PROTOCOLS),
    doc="If `inter.broker.listener.name` is not set, the listener with the name of this security "
    "protocol is the one for other brokers.")
CONTROL_LISTENER = Setting("control.listener", HOST_PORT, HostPort("127.0.0.1", 0),
    doc="The address of the HTTP control API and /metrics, as host:port; port 0 means a free port. "
    "Not a Kafka setting.")
CONTROL_TOKEN = Setting("control.token", _TOKEN, None,
    default_text="auto: none on loopback, otherwise one that is created at each start",
    doc="The token for the HTTP control API, which `minibroker start` prints as part of its URL. "
    "If it is empty, everyone who can connect may use the API. Not a Kafka setting.")
CONTROL_SECURITY_DIR = Setting("control.security.dir", _OPTIONAL_STRING, None, default_text="none",
    doc="The folder of certificates, passwords and token keys that `start --tls` and `--sasl` have "
    "created. With it, the control API issues tokens and changes the certificate on request. Not a "
    "Kafka setting.")
LOG_DIRS = Setting("log.dirs", LIST, (),
    default_text="a temporary directory, removed when the broker stops",
    doc="The directory of the logs and the config store. Only one directory is supported.")
LOG_DIR = Setting("log.dir", _OPTIONAL_STRING, None, default_text="log.dirs",
    doc="The older name of `log.dirs`, used if that is not set.")
PERSONA = Setting("persona", optional(_PERSONA),
    None, default_text="none: everything that this broker serves",
    doc="The broker whose versions, features and answers clients get, e.g. `kafka-2.8`; see "
    "[personas](personas.md). A persona only narrows what this broker serves. Not a Kafka setting.")

# ---------------------------------------------------------------------------- processes and sockets

SINGLE: Final = "single"
SHARDED: Final = "sharded"
COMBINED: Final = "combined"
SEPARATE: Final = "separate"

ACCEPTOR_MODE = Setting("acceptor.mode", STRING, SINGLE, one_of(SINGLE, SHARDED),
    doc="Which processes accept connections. `single`: one acceptor process, which assigns "
    "connections to network processors in turn, as in Kafka. `sharded`: each network processor "
    "accepts its own connections, and the kernel distributes them. In this mode, only "
    "`kafka_connections_max`, `kafka_connections_max_per_ip` and `kafka_connections_max_overrides` "
    "limit connections. Not a Kafka setting.")
PROCESS_MODE = Setting("process.mode", STRING, COMBINED, one_of(COMBINED, SEPARATE),
    doc="How network processors and I/O workers share processes. `combined`: one of each runs in a "
    "process, which executes requests for its own partitions and groups without sending them to "
    "another process; small requests are fastest with one of each. `separate`: each has a process "
    "of its own. Not a Kafka setting.")
RUNTIME_PORTABLE = Setting("runtime.portable", BOOLEAN, False,
    doc="Whether the broker uses only what Linux and macOS have in common; see "
    "[platforms](../guides/platforms.md). Always true on macOS. As a variable "
    "(`MINIBROKER_RUNTIME_PORTABLE=true`), it also applies to test brokers. Not a Kafka setting.")
NUM_NETWORK_THREADS = Setting("num.network.threads", INT, 1, between(1, 64), kafka_default=3,
    doc="The number of network processors, which handle the sockets. Each is a process, not a "
    "thread; see `process.mode`.")
NUM_IO_THREADS = Setting("num.io.threads", INT, 1, between(1, 64), kafka_default=8,
    doc="The number of I/O workers, which own partitions and groups. Each is a process, not a "
    "thread; see `process.mode`.")
SOCKET_REQUEST_MAX_BYTES = Setting("socket.request.max.bytes", INT, 100 * 1024 * 1024, at_least(1),
    doc="The largest request, in bytes; the broker closes a connection that sends a larger one.")
QUEUED_MAX_REQUEST_BYTES = Setting("queued.max.request.bytes", LONG, -1,
    _MINUS_ONE_OR_POSITIVE,
    doc="The size of the shared memory for requests in flight, in bytes, divided equally among the "
    "network processors. When it is full, a processor stops reading from sockets. -1 means "
    "`socket.request.max.bytes` for each network processor. Requests of up to 64 KiB use separate "
    "memory of at most 4 MiB for each network processor.")
QUEUED_MAX_REQUEST_BYTES_PER_IP = Setting("queued.max.request.bytes.per.ip", LONG, -1,
    _MINUS_ONE_OR_POSITIVE,
    doc="How many bytes of each network processor's request memory one client IP address may use "
    "for requests that have not arrived completely. Its further requests wait; those of other "
    "addresses do not. One request is always admitted. -1 means half of the memory. Raise it if "
    "many clients with large requests share an address, such as that of a proxy. Not a Kafka "
    "setting.")
QUEUED_MAX_REQUESTS = Setting("queued.max.requests", INT, 500, at_least(1),
    doc="The number of requests that each network processor may have in flight at each I/O worker; "
    "further ones wait. Fetch, JoinGroup and SyncGroup do not count, because they may wait for "
    "records or members.")
SOCKET_LISTEN_BACKLOG_SIZE = Setting("socket.listen.backlog.size", INT, 1024, at_least(1),
    kafka_default=50,
    doc="The length of a listener's queue of connections that are not accepted yet. When it is "
    "full, the client's operating system tries again after a second.")
SOCKET_SEND_BUFFER_BYTES = Setting("socket.send.buffer.bytes", INT, 256 * 1024,
    _MINUS_ONE_OR_POSITIVE, kafka_default=100 * 1024,
    doc="SO_SNDBUF of client connections, in bytes. With -1 the operating system grows the "
    "buffers, so a consumer on the same machine waits longer for its first bytes.")
SOCKET_RECEIVE_BUFFER_BYTES = Setting("socket.receive.buffer.bytes", INT, -1,
    _MINUS_ONE_OR_POSITIVE, kafka_default=100 * 1024,
    doc="SO_RCVBUF of client connections, in bytes. With -1 the operating system grows the buffers "
    "of producers with large requests.")
CONNECTIONS_MAX_IDLE_MS = Setting("connections.max.idle.ms", LONG, 10 * 60 * 1000,
    doc="How long a connection may be idle before it is closed, in milliseconds; negative means "
    "unlimited.")

# ---------------------------------------------------------------------------- limits of connections

MAX_CONNECTIONS = Setting("max.connections", INT, INT_MAX, at_least(0), dynamic=True,
    per_listener=True,
    doc="The maximum number of connections to the broker; further ones wait to be accepted. "
    "`listener.name.<listener>.max.connections` limits the connections of one listener.")
MAX_CONNECTIONS_PER_IP = Setting("max.connections.per.ip", INT, INT_MAX, at_least(0), dynamic=True,
    doc="The maximum number of connections from one client IP address; further ones are closed.")
MAX_CONNECTIONS_PER_IP_OVERRIDES = Setting("max.connections.per.ip.overrides", HOST_LIMITS, (),
    dynamic=True,
    doc="Overrides of `max.connections.per.ip` for single hosts, as a comma-separated list of "
    "host:number. A host that cannot be resolved is rejected.")
MAX_CONNECTION_CREATION_RATE = Setting("max.connection.creation.rate", INT, INT_MAX, at_least(0),
    dynamic=True, per_listener=True,
    doc="The maximum number of connections accepted per second; further ones wait. "
    "`listener.name.<listener>.max.connection.creation.rate` limits the rate of one listener.")
CONNECTION_IP_THROTTLE_RECHECK = Setting("connection.ip.throttle.recheck", BOOLEAN, True,
    doc="A connection from an IP address that exceeds its `connection_creation_rate` is delayed "
    "until the rate is met. After the delay, `true` checks the rate again and accepts or closes "
    "the connection, as described in KIP-612; `false` closes it, as Kafka does. Not a Kafka "
    "setting.")
KAFKA_CONNECTIONS_MAX = Setting("kafka_connections_max", _OPTIONAL_INT, None, at_least(0),
    dynamic=True, default_text="no limit",
    doc="The maximum number of connections to the broker; further ones are closed at once. It is "
    "checked before `max.connections`. Redpanda's setting.")
KAFKA_CONNECTIONS_MAX_PER_IP = Setting("kafka_connections_max_per_ip", _OPTIONAL_INT, None,
    at_least(0), dynamic=True, default_text="no limit",
    doc="The maximum number of connections from one client IP address; further ones are closed at "
    "once. Redpanda's setting.")
KAFKA_CONNECTIONS_MAX_OVERRIDES = Setting("kafka_connections_max_overrides", IP_LIMITS, (),
    dynamic=True,
    doc="Limits for single IP addresses, as a comma-separated list of ip:number. They apply even "
    "if `kafka_connections_max_per_ip` is not set. Redpanda's setting.")

ONE_ACCEPTOR_ONLY = (
    *(MAX_CONNECTIONS, MAX_CONNECTIONS_PER_IP, MAX_CONNECTIONS_PER_IP_OVERRIDES),
    MAX_CONNECTION_CREATION_RATE,
)
"""Limits that need a single acceptor, which knows all connections and when they were used."""

SHARDED_ADVICE = (
    "one acceptor is needed for it: set acceptor.mode=single, or use kafka_connections_max, "
    "kafka_connections_max_per_ip or kafka_connections_max_overrides"
)
"""Advice for the error about such a limit in sharded mode."""

# ----------------------------------------------------------------------------------------- requests

FETCH_MAX_BYTES = Setting("fetch.max.bytes", INT, 55 * 1024 * 1024, at_least(1024),
    doc="The maximum size of the records in a fetch response, in bytes. If the first batch is "
    "larger, it is returned anyway.")
MAX_INCREMENTAL_FETCH_SESSION_CACHE_SLOTS = Setting("max.incremental.fetch.session.cache.slots",
    INT, 1000, at_least(0),
    doc="The maximum number of incremental fetch sessions. Each network processor has an equal "
    "share of them, and a client uses its session at the processor that created it.")
ADVERTISE_CONTROLLER_REQUESTS = Setting("advertise.controller.requests", BOOLEAN, False,
    doc="Whether ApiVersions lists LeaderAndIsr, StopReplica, UpdateMetadata and "
    "ControlledShutdown, which controllers sent to brokers before Kafka 4. With "
    "`zookeeper.connect` they are always listed. Clients that guess the version of a broker take "
    "one that lists them for an old one. Not a Kafka setting.")
MAX_REQUEST_PARTITION_SIZE_LIMIT = Setting("max.request.partition.size.limit", INT, 2000,
    at_least(1),
    doc="The most partitions in one response to DescribeTopicPartitions. The client requests the "
    "rest with the cursor of the response.")
TELEMETRY_MAX_BYTES = Setting("telemetry.max.bytes", INT, 1_048_576, at_least(1),
    doc="The largest push of metrics of a client, compressed, in bytes (KIP-714).")

# ---------------------------------------------------------------------------------- topics and logs

AUTO_CREATE_TOPICS_ENABLE = Setting("auto.create.topics.enable", BOOLEAN, True,
    doc="Whether a metadata request for a topic that does not exist creates the topic.")
DELETE_TOPIC_ENABLE = Setting("delete.topic.enable", BOOLEAN, True,
    doc="Whether topics may be deleted.")
NUM_PARTITIONS = Setting("num.partitions", INT, 1, at_least(1),
    doc="The default number of partitions of a topic.")
DEFAULT_REPLICATION_FACTOR = Setting("default.replication.factor", INT, 1, between(1, 32767),
    doc="The default number of replicas of a topic; there is only one broker, so values above 1 "
    "cannot be satisfied.")
MIN_INSYNC_REPLICAS = Setting("min.insync.replicas", INT, 1, at_least(1), dynamic=True,
    no_effect="as in Kafka, a partition never needs more than it has, and each has one",
    doc="How many replicas must be in sync for acks=all; topics can override it.")
MESSAGE_MAX_BYTES = Setting("message.max.bytes", INT, 1024 * 1024 + 12, at_least(0), dynamic=True,
    doc="The largest record batch, in bytes after compression; topics can override it.")
COMPRESSION_TYPE = Setting("compression.type", STRING, "producer",
    one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"), dynamic=True,
    doc="The codec of stored batches; topics can override it. With `producer`, batches keep the "
    "producer's codec. With other values, the broker recompresses batches with another codec.")
LOG_SEGMENT_BYTES = Setting("log.segment.bytes", INT, 1024 * 1024 * 1024, at_least(14),
    dynamic=True,
    doc="The size at which a log rolls to a new segment file, in bytes. Small values are allowed "
    "for testing rolling and retention; Kafka 4 requires at least 1 MiB.")
LOG_ROLL_MS = Setting("log.roll.ms", _OPTIONAL_LONG, None, at_least(1), dynamic=True,
    default_text="log.roll.hours",
    doc="The age at which a log rolls to a new segment file, in milliseconds.")
LOG_ROLL_HOURS = Setting("log.roll.hours", INT, 168, at_least(1),
    doc="The age at which a log rolls to a new segment file, in hours; used if `log.roll.ms` is "
    "not set.")
LOG_RETENTION_MS = Setting("log.retention.ms", _OPTIONAL_LONG, None, _MINUS_ONE_OR_POSITIVE,
    dynamic=True, default_text="log.retention.minutes, else log.retention.hours",
    doc="How long records are kept at least, in milliseconds; -1 means forever.")
LOG_RETENTION_MINUTES = Setting("log.retention.minutes", _OPTIONAL_INT, None,
    _MINUS_ONE_OR_POSITIVE, default_text="log.retention.hours",
    doc="How long records are kept at least, in minutes; used if `log.retention.ms` is not set.")
LOG_RETENTION_HOURS = Setting("log.retention.hours", INT, 168, _MINUS_ONE_OR_POSITIVE,
    doc="How long records are kept at least, in hours; used if neither `log.retention.ms` nor "
    "`log.retention.minutes` is set.")
LOG_RETENTION_BYTES = Setting("log.retention.bytes", LONG, -1, at_least(-1), dynamic=True,
    doc="The size of a partition above which old segments are deleted, in bytes; -1 means "
    "unlimited.")
LOG_RETENTION_CHECK_INTERVAL_MS = Setting("log.retention.check.interval.ms", LONG, 5 * 60 * 1000,
    at_least(1), doc="How often logs are checked for segments to delete, in milliseconds.")
LOG_CLEANUP_POLICY = Setting("log.cleanup.policy", LIST, ("delete",), some_of("compact", "delete"),
    dynamic=True,
    doc="What happens to old segments; topics can override it. `delete` deletes them by retention. "
    "`compact` keeps the last value of each key.")
LOG_INDEX_INTERVAL_BYTES = Setting("log.index.interval.bytes", INT, 4096, at_least(0), dynamic=True,
    doc="How many bytes of records are appended between two index entries.")
LOG_INDEX_SIZE_MAX_BYTES = Setting("log.index.size.max.bytes", INT, 10 * 1024 * 1024, at_least(4),
    dynamic=True,
    doc="The maximum size of an index file, in bytes; a full index rolls the segment.")
LOG_FLUSH_INTERVAL_MESSAGES = Setting("log.flush.interval.messages", LONG, LONG_MAX, at_least(1),
    dynamic=True, doc="The number of records after which a log is flushed to disk.")
LOG_FLUSH_INTERVAL_MS = Setting("log.flush.interval.ms", _OPTIONAL_LONG, None, at_least(0),
    dynamic=True, default_text="log.flush.scheduler.interval.ms",
    doc="How long records may stay in memory before they are flushed to disk, in milliseconds.")
LOG_FLUSH_SCHEDULER_INTERVAL_MS = Setting("log.flush.scheduler.interval.ms", LONG, LONG_MAX,
    at_least(1), doc="How often logs are checked for records to flush, in milliseconds.")
LOG_MESSAGE_TIMESTAMP_TYPE = Setting("log.message.timestamp.type", STRING, "CreateTime",
    one_of("CreateTime", "LogAppendTime"), dynamic=True,
    doc="Whether records have the producer's timestamp or the broker's append time.")
LOG_MESSAGE_TIMESTAMP_BEFORE_MAX_MS = Setting("log.message.timestamp.before.max.ms", LONG, LONG_MAX,
    at_least(0), dynamic=True,
    doc="How far a record's timestamp may be before the broker's time, in milliseconds.")
LOG_MESSAGE_TIMESTAMP_AFTER_MAX_MS = Setting("log.message.timestamp.after.max.ms", LONG,
    60 * 60 * 1000, at_least(0), dynamic=True,
    doc="How far a record's timestamp may be after the broker's time, in milliseconds.")
LOG_SEGMENT_DELETE_DELAY_MS = Setting("log.segment.delete.delay.ms", LONG, 60_000, at_least(0),
    dynamic=True, doc="How long the files of a deleted segment stay on disk, in milliseconds.")
PRODUCER_ID_EXPIRATION_MS = Setting("producer.id.expiration.ms", INT, 24 * 60 * 60 * 1000,
    at_least(1), dynamic=True,
    doc="How long a log keeps the state of an inactive idempotent producer, in milliseconds.")
PRODUCER_ID_EXPIRATION_CHECK_INTERVAL_MS = Setting("producer.id.expiration.check.interval.ms", INT,
    10 * 60 * 1000, at_least(1), doc="How often inactive producers are expired, in milliseconds.")
UNCLEAN_LEADER_ELECTION_ENABLE = Setting("unclean.leader.election.enable", BOOLEAN, False,
    dynamic=True, no_effect="with one broker there is no other replica to elect",
    doc="Whether a replica that is not in sync may become the leader.")

# -------------------------------------------------------------------------------------- log cleaner

LOG_CLEANER_ENABLE = Setting("log.cleaner.enable", BOOLEAN, True,
    doc="Whether logs with `cleanup.policy=compact` are compacted. A request to compact a topic "
    "works nevertheless.")
LOG_CLEANER_THREADS = Setting("log.cleaner.threads", INT, 1, at_least(0), dynamic=True,
    no_effect="each I/O worker compacts its logs in one process of its own",
    doc="The number of threads that compact logs.")
LOG_CLEANER_DEDUPE_BUFFER_SIZE = Setting("log.cleaner.dedupe.buffer.size", LONG, 128 * 1024 * 1024,
    dynamic=True,
    doc="Memory for the keys of the logs that are compacted, of all I/O workers together, in "
    "bytes. A key takes 256 bytes. A log with more keys is compacted in several passes.")
LOG_CLEANER_IO_BUFFER_LOAD_FACTOR = Setting("log.cleaner.io.buffer.load.factor", DOUBLE, 0.9,
    dynamic=True, doc="Share of `log.cleaner.dedupe.buffer.size` that is used.")
LOG_CLEANER_IO_BUFFER_SIZE = Setting("log.cleaner.io.buffer.size", INT, 512 * 1024, at_least(0),
    dynamic=True,
    doc="Memory for buffers to read and write logs that are compacted, of all I/O workers "
    "together, in bytes.")
LOG_CLEANER_IO_MAX_BYTES_PER_SECOND = Setting("log.cleaner.io.max.bytes.per.second", DOUBLE,
    sys.float_info.max, dynamic=True,
    doc="How many bytes are read and written at most to compact logs, by all I/O workers together.")
LOG_CLEANER_BACKOFF_MS = Setting("log.cleaner.backoff.ms", LONG, 15_000, at_least(0), dynamic=True,
    doc="The pause before logs are checked again if there was nothing to compact, in milliseconds.")
LOG_CLEANER_DELETE_RETENTION_MS = Setting("log.cleaner.delete.retention.ms", LONG,
    24 * 60 * 60 * 1000, at_least(0), dynamic=True,
    doc="How long a compacted log keeps tombstones, in milliseconds.")
LOG_CLEANER_MIN_COMPACTION_LAG_MS = Setting("log.cleaner.min.compaction.lag.ms", LONG, 0,
    at_least(0), dynamic=True,
    doc="How long a record stays uncompacted at least in a compacted log, in milliseconds.")
LOG_CLEANER_MAX_COMPACTION_LAG_MS = Setting("log.cleaner.max.compaction.lag.ms", LONG, LONG_MAX,
    at_least(1), dynamic=True,
    doc="The age at which a record becomes eligible for compaction at the latest, in milliseconds.")
LOG_CLEANER_MIN_CLEANABLE_RATIO = Setting("log.cleaner.min.cleanable.ratio", DOUBLE, 0.5,
    between(0, 1), dynamic=True,
    doc="The ratio of dirty log to total log at which a log is compacted.")

# --------------------------------------------------------------------- groups and committed offsets

GROUP_INITIAL_REBALANCE_DELAY_MS = Setting("group.initial.rebalance.delay.ms", INT, 100,
    at_least(0), kafka_default=3000,
    doc="How long a new group waits for more members before the first rebalance, in milliseconds.")
GROUP_MIN_SESSION_TIMEOUT_MS = Setting("group.min.session.timeout.ms", INT, 6000, at_least(1),
    doc="The minimum session timeout of a member, in milliseconds.")
GROUP_MAX_SESSION_TIMEOUT_MS = Setting("group.max.session.timeout.ms", INT, 30 * 60 * 1000,
    at_least(1), doc="The maximum session timeout of a member, in milliseconds.")
GROUP_MAX_SIZE = Setting("group.max.size", INT, INT_MAX, at_least(1),
    doc="The maximum number of members of a group.")
GROUP_COORDINATOR_REBALANCE_PROTOCOLS = Setting("group.coordinator.rebalance.protocols", LIST,
    ("classic", "consumer", "streams"), some_of("classic", "consumer", "share", "streams"),
    doc="The group protocols that are served. Without `consumer` or `streams`, clients with that "
    "`group.protocol` get UNSUPPORTED_VERSION.")
GROUP_CONSUMER_SESSION_TIMEOUT_MS = Setting("group.consumer.session.timeout.ms", INT, 45_000,
    at_least(1), doc="The time after which a silent member of a consumer group is removed, in "
    "milliseconds.")
GROUP_CONSUMER_MIN_SESSION_TIMEOUT_MS = Setting("group.consumer.min.session.timeout.ms", INT,
    45_000, at_least(1),
    doc="The minimum session timeout that a consumer group may have, in milliseconds.")
GROUP_CONSUMER_MAX_SESSION_TIMEOUT_MS = Setting("group.consumer.max.session.timeout.ms", INT,
    60_000, at_least(1),
    doc="The maximum session timeout that a consumer group may have, in milliseconds.")
GROUP_CONSUMER_HEARTBEAT_INTERVAL_MS = Setting("group.consumer.heartbeat.interval.ms", INT, 5_000,
    at_least(1), doc="The interval of heartbeats that members of consumer groups are given, in "
    "milliseconds.")
GROUP_CONSUMER_MIN_HEARTBEAT_INTERVAL_MS = Setting("group.consumer.min.heartbeat.interval.ms", INT,
    5_000, at_least(1),
    doc="The minimum heartbeat interval that a consumer group may have, in milliseconds.")
GROUP_CONSUMER_MAX_HEARTBEAT_INTERVAL_MS = Setting("group.consumer.max.heartbeat.interval.ms", INT,
    15_000, at_least(1),
    doc="The maximum heartbeat interval that a consumer group may have, in milliseconds.")
GROUP_CONSUMER_ASSIGNMENT_INTERVAL_MS = Setting("group.consumer.assignment.interval.ms", INT,
    1_000, at_least(0),
    doc="The shortest time between two assignments of a consumer group, in milliseconds.")
GROUP_CONSUMER_MIN_ASSIGNMENT_INTERVAL_MS = Setting("group.consumer.min.assignment.interval.ms",
    INT, 0, at_least(0),
    doc="The minimum assignment interval that a consumer group may have, in milliseconds.")
GROUP_CONSUMER_MAX_ASSIGNMENT_INTERVAL_MS = Setting("group.consumer.max.assignment.interval.ms",
    INT, 15_000, at_least(0),
    doc="The maximum assignment interval that a consumer group may have, in milliseconds.")
GROUP_CONSUMER_MAX_SIZE = Setting("group.consumer.max.size", INT, INT_MAX, at_least(1),
    doc="The maximum number of members of a consumer group.")
GROUP_CONSUMER_ASSIGNORS = Setting("group.consumer.assignors", LIST, ("uniform", "range"),
    some_of("uniform", "range"),
    doc="The assignors of consumer groups. The first is used if members name none.")
GROUP_CONSUMER_MIGRATION_POLICY = Setting("group.consumer.migration.policy", STRING,
    "bidirectional", one_of("bidirectional", "upgrade", "downgrade", "disabled"),
    doc="Whether groups change between the classic and the consumer type while they have members.")
GROUP_CONSUMER_REGEX_REFRESH_INTERVAL_MS = Setting("group.consumer.regex.refresh.interval.ms", INT,
    600_000, at_least(10_000),
    doc="How often regular expressions that members subscribe to are matched again, in "
    "milliseconds.")
GROUP_SHARE_SESSION_TIMEOUT_MS = Setting("group.share.session.timeout.ms", INT, 45_000,
    at_least(1), doc="The time after which a silent member of a share group is removed, in "
    "milliseconds.")
GROUP_SHARE_MIN_SESSION_TIMEOUT_MS = Setting("group.share.min.session.timeout.ms", INT, 45_000,
    at_least(1), doc="The minimum session timeout that a share group may have, in milliseconds.")
GROUP_SHARE_MAX_SESSION_TIMEOUT_MS = Setting("group.share.max.session.timeout.ms", INT, 60_000,
    at_least(1), doc="The maximum session timeout that a share group may have, in milliseconds.")
GROUP_SHARE_HEARTBEAT_INTERVAL_MS = Setting("group.share.heartbeat.interval.ms", INT, 5_000,
    at_least(1), doc="The interval of heartbeats that members of share groups are given, in "
    "milliseconds.")
GROUP_SHARE_MIN_HEARTBEAT_INTERVAL_MS = Setting("group.share.min.heartbeat.interval.ms", INT,
    5_000, at_least(1),
    doc="The minimum heartbeat interval that a share group may have, in milliseconds.")
GROUP_SHARE_MAX_HEARTBEAT_INTERVAL_MS = Setting("group.share.max.heartbeat.interval.ms", INT,
    15_000, at_least(1),
    doc="The maximum heartbeat interval that a share group may have, in milliseconds.")
GROUP_SHARE_ASSIGNMENT_INTERVAL_MS = Setting("group.share.assignment.interval.ms", INT, 1_000,
    at_least(0), doc="The shortest time between two assignments of a share group, in milliseconds.")
GROUP_SHARE_MAX_SIZE = Setting("group.share.max.size", INT, 200, between(1, 1000),
    doc="The maximum number of members of a share group.")
GROUP_SHARE_RECORD_LOCK_DURATION_MS = Setting("group.share.record.lock.duration.ms", INT, 30_000,
    at_least(1_000), doc="How long a consumer's lock of a record lasts, in milliseconds.")
GROUP_SHARE_MIN_RECORD_LOCK_DURATION_MS = Setting("group.share.min.record.lock.duration.ms", INT,
    15_000, at_least(1_000),
    doc="The minimum lock duration that a share group may have, in milliseconds.")
GROUP_SHARE_MAX_RECORD_LOCK_DURATION_MS = Setting("group.share.max.record.lock.duration.ms", INT,
    60_000, at_least(1_000),
    doc="The maximum lock duration that a share group may have, in milliseconds.")
GROUP_SHARE_DELIVERY_COUNT_LIMIT = Setting("group.share.delivery.count.limit", INT, 5, at_least(2),
    doc="How often the delivery of a record to a share group is tried.")
GROUP_SHARE_PARTITION_MAX_RECORD_LOCKS = Setting("group.share.partition.max.record.locks", INT,
    2_000, at_least(100),
    doc="The most records of a partition that are in flight in a share group at a time.")
GROUP_SHARE_MAX_SHARE_SESSIONS = Setting("group.share.max.share.sessions", INT, 2_000, at_least(1),
    doc="The most share sessions of a network processor.")
GROUP_STREAMS_SESSION_TIMEOUT_MS = Setting("group.streams.session.timeout.ms", INT, 45_000,
    at_least(1), doc="When a silent member of a streams group is removed, in milliseconds.")
GROUP_STREAMS_MIN_SESSION_TIMEOUT_MS = Setting("group.streams.min.session.timeout.ms", INT, 45_000,
    at_least(1), doc="The minimum session timeout that a streams group may have, in milliseconds.")
GROUP_STREAMS_MAX_SESSION_TIMEOUT_MS = Setting("group.streams.max.session.timeout.ms", INT, 60_000,
    at_least(1), doc="The maximum session timeout that a streams group may have, in milliseconds.")
GROUP_STREAMS_HEARTBEAT_INTERVAL_MS = Setting("group.streams.heartbeat.interval.ms", INT, 5_000,
    at_least(1), doc="The interval of a streams group's heartbeats, in milliseconds.")
GROUP_STREAMS_MIN_HEARTBEAT_INTERVAL_MS = Setting("group.streams.min.heartbeat.interval.ms", INT,
    5_000, at_least(1), doc="The minimum of that interval for a group, in milliseconds.")
GROUP_STREAMS_MAX_HEARTBEAT_INTERVAL_MS = Setting("group.streams.max.heartbeat.interval.ms", INT,
    15_000, at_least(1), doc="The maximum of that interval for a group, in milliseconds.")
GROUP_STREAMS_ASSIGNMENT_INTERVAL_MS = Setting("group.streams.assignment.interval.ms", INT, 1_000,
    at_least(0), doc="The shortest time between two assignments, in milliseconds.")
GROUP_STREAMS_INITIAL_REBALANCE_DELAY_MS = Setting("group.streams.initial.rebalance.delay.ms", INT,
    3_000, at_least(0), doc="How long a new group waits for further members, in milliseconds.")
GROUP_STREAMS_MAX_SIZE = Setting("group.streams.max.size", INT, INT_MAX, at_least(1),
    doc="The maximum number of members of a streams group.")
GROUP_STREAMS_TOPOLOGY_DESCRIPTION_PLUGIN_CLASS = Setting(
    "group.streams.topology.description.plugin.class", _OPTIONAL_STRING, None,
    doc="With any name, StreamsGroupDescribe has the topology that members are asked for "
    "(KIP-1331), until the broker restarts. The class itself is not loaded.")
GROUP_STREAMS_NUM_STANDBY_REPLICAS = Setting("group.streams.num.standby.replicas", INT, 0,
    at_least(0), doc="The number of standby tasks of each task with a state.")
GROUP_STREAMS_MAX_STANDBY_REPLICAS = Setting("group.streams.max.standby.replicas", INT, 2,
    at_least(0), doc="The most standby tasks of each task that a streams group may have.")
GROUP_STREAMS_RACK_AWARE_ASSIGNMENT_TAGS = Setting("group.streams.rack.aware.assignment.tags",
    LIST, (), doc="The client tags over whose values standby tasks are distributed.")
GROUP_STREAMS_TASK_OFFSET_INTERVAL_MS = Setting("group.streams.task.offset.interval.ms", INT,
    60_000, at_least(1), doc="How often members report their tasks' offsets, in milliseconds.")
GROUP_STREAMS_MIN_TASK_OFFSET_INTERVAL_MS = Setting("group.streams.min.task.offset.interval.ms",
    INT, 15_000, at_least(1), doc="The minimum of that interval for a group, in milliseconds.")
GROUP_STREAMS_ACCEPTABLE_RECOVERY_LAG = Setting("group.streams.acceptable.recovery.lag", LONG,
    10_000, at_least(0), doc="The lag up to which a member takes a task's state as restored.")
ERRORS_DEADLETTERQUEUE_AUTO_CREATE_TOPICS_ENABLE = Setting(
    "errors.deadletterqueue.auto.create.topics.enable", BOOLEAN, False, dynamic=True,
    doc="Whether the dead-letter queue of a share group is created when it is needed.")
ERRORS_DEADLETTERQUEUE_TOPIC_NAME_PREFIX = Setting(
    "errors.deadletterqueue.topic.name.prefix", STRING, "dlq.", dynamic=True,
    doc="How the name of a dead-letter queue has to start; if empty, every name is allowed.")
SHARE_COORDINATOR_STATE_TOPIC_NUM_PARTITIONS = Setting(
    "share.coordinator.state.topic.num.partitions", INT, 50, between(1, 1000),
    doc="The number of partitions of `__share_group_state`. Share partitions are assigned to them "
    "by hash, so do not change it for an existing data directory.")
SHARE_COORDINATOR_STATE_TOPIC_SEGMENT_BYTES = Setting(
    "share.coordinator.state.topic.segment.bytes", INT, 104_857_600, at_least(1),
    doc="The segment size of `__share_group_state`, in bytes.")
SHARE_COORDINATOR_SNAPSHOT_UPDATE_RECORDS_PER_SNAPSHOT = Setting(
    "share.coordinator.snapshot.update.records.per.snapshot", INT, 500, between(0, 500),
    doc="The number of updates of a share partition's state between two snapshots of it.")
OFFSETS_TOPIC_NUM_PARTITIONS = Setting("offsets.topic.num.partitions", INT, 50, between(1, 1000),
    doc="The number of partitions of `__consumer_offsets`. Groups are assigned to partitions by "
    "hash, so do not change it for an existing data directory.")
OFFSETS_TOPIC_REPLICATION_FACTOR = Setting("offsets.topic.replication.factor", SHORT, 1,
    at_least(1), kafka_default=3,
    no_effect="it always has one, because there is one broker; with Kafka's default of 3, groups "
    "would never work on a single broker", doc="The number of replicas of `__consumer_offsets`.")
OFFSETS_TOPIC_SEGMENT_BYTES = Setting("offsets.topic.segment.bytes", INT, 100 * 1024 * 1024,
    at_least(14), doc="The segment size of `__consumer_offsets`, in bytes.")
OFFSETS_RETENTION_MINUTES = Setting("offsets.retention.minutes", INT, 7 * 24 * 60, at_least(1),
    doc="How long the offsets of a group without members are kept, in minutes.")
OFFSETS_RETENTION_CHECK_INTERVAL_MS = Setting("offsets.retention.check.interval.ms", LONG, 600_000,
    at_least(1), doc="How often groups are checked for offsets to expire, in milliseconds.")
OFFSET_METADATA_MAX_BYTES = Setting("offset.metadata.max.bytes", INT, 4096, at_least(0),
    doc="The maximum size of the metadata of a committed offset, in bytes.")

# ------------------------------------------------------------------------------------- transactions

_ONE_REPLICA = "it always has one replica, because there is one broker"

TRANSACTION_STATE_LOG_NUM_PARTITIONS = Setting("transaction.state.log.num.partitions", INT, 50,
    between(1, 1000),
    doc="The number of partitions of `__transaction_state`. Transactional ids are assigned to "
    "partitions by hash, so do not change it for an existing data directory.")
TRANSACTION_STATE_LOG_REPLICATION_FACTOR = Setting("transaction.state.log.replication.factor",
    SHORT, 1, at_least(1), kafka_default=3, no_effect=_ONE_REPLICA,
    doc="The number of replicas of `__transaction_state`.")
TRANSACTION_STATE_LOG_MIN_ISR = Setting("transaction.state.log.min.isr", INT, 1, at_least(1),
    kafka_default=2, no_effect=_ONE_REPLICA,
    doc="The number of in-sync replicas that a write to `__transaction_state` needs.")
TRANSACTION_STATE_LOG_SEGMENT_BYTES = Setting("transaction.state.log.segment.bytes", INT,
    100 * 1024 * 1024, at_least(14), doc="The segment size of `__transaction_state`, in bytes.")
TRANSACTION_MAX_TIMEOUT_MS = Setting("transaction.max.timeout.ms", INT, 15 * 60 * 1000, at_least(1),
    doc="The maximum `transaction.timeout.ms` of a producer, in milliseconds. An open transaction "
    "keeps consumers with `isolation.level=read_committed` waiting.")
TRANSACTION_PARTITION_VERIFICATION_ENABLE = Setting("transaction.partition.verification.enable",
    BOOLEAN, True, dynamic=True,
    doc="Whether the first batch of a transaction on a partition is appended only if the "
    "transaction coordinator confirms that the transaction includes the partition. Clients of "
    "transaction version 2 are verified in any case.")
TRANSACTIONAL_ID_EXPIRATION_MS = Setting("transactional.id.expiration.ms", INT, 7 * 24 * 3_600_000,
    at_least(1),
    doc="How long a transactional id without an open transaction is kept after its last use, in "
    "milliseconds.")
TRANSACTION_ABORT_TIMED_OUT_TRANSACTION_CLEANUP_INTERVAL_MS = Setting(
    "transaction.abort.timed.out.transaction.cleanup.interval.ms", INT, 10_000, at_least(1),
    doc="How often transactions are checked for their timeout, in milliseconds.")
TRANSACTION_REMOVE_EXPIRED_TRANSACTION_CLEANUP_INTERVAL_MS = Setting(
    "transaction.remove.expired.transaction.cleanup.interval.ms", INT, 3_600_000, at_least(1),
    doc="How often transactional ids are checked for expiry, in milliseconds.")

# ------------------------------------------------------------------------------------------- quotas

MUTE: Final = "mute"
DELAY: Final = "delay"

QUOTA_WINDOW_NUM = Setting("quota.window.num", INT, 11, at_least(1),
    doc="The number of samples for rates of connections, bytes and request time.")
QUOTA_WINDOW_SIZE_SECONDS = Setting("quota.window.size.seconds", INT, 1, at_least(1),
    doc="The length of each sample, in seconds; also the longest throttle for connection rates and "
    "request time.")
CONTROLLER_QUOTA_WINDOW_NUM = Setting("controller.quota.window.num", INT, 11, at_least(1),
    doc="How many windows of unused `controller_mutation_rate` a client can accumulate and use at "
    "once.")
CONTROLLER_QUOTA_WINDOW_SIZE_SECONDS = Setting("controller.quota.window.size.seconds", INT, 1,
    at_least(1), doc="The length of each window of `controller_mutation_rate`, in seconds.")
QUOTA_THROTTLE_MODE = Setting("quota.throttle.mode", STRING, MUTE, one_of(MUTE, DELAY),
    doc="How a client that exceeds a quota is throttled. `mute`: the broker responds at once with "
    "the throttle time, and mutes the connection for that time (KIP-219). `delay`: the broker "
    "delays the response, first for the byte rate, then for the request time (KIP-55, KIP-124). "
    "Not a Kafka setting.")
QUOTA_PRODUCER_DEFAULT = Setting("quota.producer.default", LONG, LONG_MAX, at_least(1),
    doc="Deprecated: the bytes per second that a client-id may produce if no quota applies to it. "
    "Set the quota `producer_byte_rate` of the default client instead.")
QUOTA_CONSUMER_DEFAULT = Setting("quota.consumer.default", LONG, LONG_MAX, at_least(1),
    doc="Deprecated: the bytes per second that a client-id may fetch if no quota applies to it. "
    "Set the quota `consumer_byte_rate` of the default client instead.")

# ------------------------------------------------------------------------------- TLS and principals

SSL_KEYSTORE_TYPE = Setting("ssl.keystore.type", STORE_TYPE, "PEM", per_listener=True,
    dynamic_at_listener=True, no_effect="PEM is the only supported format",
    doc="The format of the keystore. Convert a Java keystore to PEM.")
SSL_KEYSTORE_LOCATION = Setting("ssl.keystore.location", _OPTIONAL_STRING, None, per_listener=True,
    dynamic_at_listener=True, default_text="none",
    doc="A PEM file with the private key and certificate chain of SSL and SASL_SSL listeners.")
SSL_KEYSTORE_CERTIFICATE_CHAIN = Setting("ssl.keystore.certificate.chain", _OPTIONAL_PASSWORD, None,
    per_listener=True, dynamic_at_listener=True, default_text="none",
    doc="The certificate chain as PEM text instead of a file, together with `ssl.keystore.key`.")
SSL_KEYSTORE_KEY = Setting("ssl.keystore.key", _OPTIONAL_PASSWORD, None, per_listener=True,
    dynamic_at_listener=True, default_text="none",
    doc="The private key as PEM text instead of a file.")
SSL_KEY_PASSWORD = Setting("ssl.key.password", _OPTIONAL_PASSWORD, None, per_listener=True,
    dynamic_at_listener=True, default_text="none", doc="The password of an encrypted private key.")
SSL_TRUSTSTORE_TYPE = Setting("ssl.truststore.type", STORE_TYPE, "PEM", per_listener=True,
    dynamic_at_listener=True, no_effect="PEM is the only supported format",
    doc="The format of the truststore.")
SSL_TRUSTSTORE_LOCATION = Setting("ssl.truststore.location", _OPTIONAL_STRING, None,
    per_listener=True, dynamic_at_listener=True, default_text="none",
    doc="A PEM file with the certificate authorities that sign client certificates.")
SSL_TRUSTSTORE_CERTIFICATES = Setting("ssl.truststore.certificates", _OPTIONAL_PASSWORD, None,
    per_listener=True, dynamic_at_listener=True, default_text="none",
    doc="The certificates of the truststore as PEM text instead of a file.")
SSL_ALLOW_DN_CHANGES = Setting("ssl.allow.dn.changes", BOOLEAN, False, per_listener=True,
    doc="Whether a renewed certificate may have another subject.")
SSL_ALLOW_SAN_CHANGES = Setting("ssl.allow.san.changes", BOOLEAN, False, per_listener=True,
    doc="Whether a renewed certificate may lack a subject alternative name of the old one.")
SSL_CLIENT_AUTH = Setting("ssl.client.auth", STRING, "none",
    one_of("none", "requested", "required"), per_listener=True,
    doc="Whether the broker requests a certificate from clients, and whether it requires one.")
SSL_ENABLED_PROTOCOLS = Setting("ssl.enabled.protocols", LIST, ("TLSv1.2", "TLSv1.3"),
    some_of("TLSv1.2", "TLSv1.3"), per_listener=True, doc="The TLS versions that clients may use.")
SSL_PRINCIPAL_MAPPING_RULES = Setting("ssl.principal.mapping.rules", STRING, "DEFAULT",
    per_listener=True,
    doc="Rules that map the subject of a client's certificate to a user name: a list of "
    "RULE:pattern/replacement/, of which the first match applies. L or U at the end of a rule "
    "converts the name to lower or upper case. DEFAULT uses the subject unchanged.")
PRINCIPAL_BUILDER_CLASS = Setting("principal.builder.class", _OPTIONAL_STRING, None,
    default_text="SASL user, else certificate, else ANONYMOUS",
    doc="A function that builds principals, as package.module:callable. Its argument is a "
    "`minibroker.broker.security.principal.Introduction`, which includes the client's address. It "
    "returns a `Principal` or a text such as User:alice. An exception is logged and closes the "
    "connection.")
CONNECTION_FAILED_AUTHENTICATION_DELAY_MS = Setting("connection.failed.authentication.delay.ms",
    INT, 100, at_least(0),
    doc="How long the broker waits after a failed authentication before it responds and closes the "
    "connection, in milliseconds.")

SSL_RENEWED: tuple[Setting[Any], ...] = (
    *(SSL_KEYSTORE_TYPE, SSL_KEYSTORE_LOCATION, SSL_KEYSTORE_CERTIFICATE_CHAIN, SSL_KEYSTORE_KEY),
    *(SSL_KEY_PASSWORD, SSL_TRUSTSTORE_TYPE, SSL_TRUSTSTORE_LOCATION, SSL_TRUSTSTORE_CERTIFICATES),
)
"""Settings that can be renewed while a listener is open."""

# --------------------------------------------------------------------------------------------- SASL

SASL_ENABLED_MECHANISMS = Setting("sasl.enabled.mechanisms", MECHANISM_LIST, (), per_listener=True,
    default_text="none; a SASL listener needs at least one (Kafka: GSSAPI, not supported)",
    doc=f"The SASL mechanisms that clients may use: {', '.join(MECHANISMS)}.")
SASL_JAAS_CONFIG = Setting("sasl.jaas.config", optional(JAAS), None, per_listener=True,
    per_mechanism=True, default_text="none",
    doc='The options of a login module: for PLAIN the users, as `user_alice="secret"`; for SCRAM '
    'users that are created at the start if they do not exist; for '
    'OAUTHBEARER without keys `unsecuredValidatorPrincipalClaimName`, '
    '`unsecuredValidatorScopeClaimName`, `unsecuredValidatorRequiredScope`, '
    '`unsecuredValidatorAllowableClockSkewMs`.')
SASL_SERVER_MAX_RECEIVE_SIZE = Setting("sasl.server.max.receive.size", INT, 512 * 1024, at_least(1),
    per_listener=True, doc="The largest request of a client that has not authenticated, in bytes.")
CONNECTIONS_MAX_REAUTH_MS = Setting("connections.max.reauth.ms", LONG, 0, at_least(0),
    per_listener=True, per_mechanism=True,
    doc="The maximum lifetime of a session without reauthentication, in milliseconds. When it has "
    "expired, the broker closes the connection at the next request. With 0, a session ends only "
    "when its token expires.")
SASL_OAUTHBEARER_JWKS_ENDPOINT_URL = Setting("sasl.oauthbearer.jwks.endpoint.url",
    optional(FILE_URL), None, per_listener=True, per_mechanism=True,
    default_text="none: unsigned tokens are accepted; use this only in tests",
    doc="A JWKS file with the public keys for verifying tokens, which is read again when it has "
    "changed. Requires `pip install minibroker[oauth]`.")
SASL_OAUTHBEARER_EXPECTED_AUDIENCE = Setting("sasl.oauthbearer.expected.audience", LIST, (),
    per_listener=True, per_mechanism=True,
    doc="The audiences (`aud`) of which a token must have one. If empty, signed tokens with an "
    "audience are rejected.")
SASL_OAUTHBEARER_EXPECTED_ISSUER = Setting("sasl.oauthbearer.expected.issuer", _OPTIONAL_STRING,
    None, per_listener=True, per_mechanism=True, default_text="any",
    doc="The required issuer (`iss`) of tokens.")
SASL_OAUTHBEARER_SUB_CLAIM_NAME = Setting("sasl.oauthbearer.sub.claim.name", STRING, "sub",
    per_listener=True, per_mechanism=True, doc="The claim of a token that contains the user name.")
SASL_OAUTHBEARER_CLOCK_SKEW_SECONDS = Setting("sasl.oauthbearer.clock.skew.seconds", INT, 30,
    at_least(0), per_listener=True, per_mechanism=True,
    doc="The allowed difference between the clocks of the token issuer and the broker, in seconds.")

_NO_KERBEROS = "the mechanism GSSAPI is not supported"

SASL_KERBEROS_KINIT_CMD = Setting("sasl.kerberos.kinit.cmd", STRING, "/usr/bin/kinit", dynamic=True,
    per_broker=True, no_effect=_NO_KERBEROS, doc="The path of the command `kinit`.")
SASL_KERBEROS_MIN_TIME_BEFORE_RELOGIN = Setting("sasl.kerberos.min.time.before.relogin", LONG,
    60_000, dynamic=True, per_broker=True, no_effect=_NO_KERBEROS,
    doc="The shortest time between two logins.")
SASL_KERBEROS_PRINCIPAL_TO_LOCAL_RULES = Setting("sasl.kerberos.principal.to.local.rules", LIST,
    ("DEFAULT",), dynamic=True, per_broker=True, no_effect=_NO_KERBEROS,
    doc="Rules from principals to user names.")
SASL_KERBEROS_SERVICE_NAME = Setting("sasl.kerberos.service.name", _OPTIONAL_STRING, None,
    dynamic=True, per_broker=True, default_text="none", no_effect=_NO_KERBEROS,
    doc="The name of the principal that Kafka runs as.")
SASL_KERBEROS_TICKET_RENEW_JITTER = Setting("sasl.kerberos.ticket.renew.jitter", DOUBLE, 0.05,
    dynamic=True, per_broker=True, no_effect=_NO_KERBEROS,
    doc="The random part of the time of a renewal.")
SASL_KERBEROS_TICKET_RENEW_WINDOW_FACTOR = Setting("sasl.kerberos.ticket.renew.window.factor",
    DOUBLE, 0.8, dynamic=True, per_broker=True, no_effect=_NO_KERBEROS,
    doc="The share of a ticket's lifetime before a renewal.")

# -------------------------------------------------------------- authorization and delegation tokens

AUTHORIZER_CLASS_NAME = Setting("authorizer.class.name", AUTHORIZER, "",
    doc="The authorizer for ACLs. If empty, every request is authorized. Kafka's "
    f"{AUTHORIZERS[0]} and {AUTHORIZERS[2]} both select the built-in authorizer.")
SUPER_USERS = Setting("super.users", PRINCIPALS, (),
    doc="Principals that may do everything, regardless of ACLs, e.g. User:admin;User:root.")
ALLOW_EVERYONE_IF_NO_ACL_FOUND = Setting("allow.everyone.if.no.acl.found", BOOLEAN, False,
    doc="Whether every principal may use a resource that has no ACL.")
DELEGATION_TOKEN_SECRET_KEY = Setting("delegation.token.secret.key", optional(PASSWORD), None,
    default_text="no delegation tokens",
    doc="The key that the secrets of delegation tokens are made with. Without it, or if it is "
    "empty, the broker has no delegation tokens. Tokens of another key are invalid.")
DELEGATION_TOKEN_MAX_LIFETIME_MS = Setting("delegation.token.max.lifetime.ms", LONG,
    7 * 24 * 3_600_000, at_least(1),
    doc="The time after which a delegation token cannot be renewed any more.")
DELEGATION_TOKEN_EXPIRY_TIME_MS = Setting("delegation.token.expiry.time.ms", LONG, 24 * 3_600_000,
    at_least(1), doc="The time after which a delegation token expires unless it is renewed.")
DELEGATION_TOKEN_EXPIRY_CHECK_INTERVAL_MS = Setting("delegation.token.expiry.check.interval.ms",
    LONG, 3_600_000, at_least(1),
    doc="The interval at which expired delegation tokens are removed.")

# ---------------------------------------------------------------------------------------- ZooKeeper

ZOOKEEPER_CONNECT = Setting("zookeeper.connect", optional(CONNECT_STRING), None,
    default_text="none: the config store is a file in the data directory",
    doc="The ZooKeeper servers, as host:port,host:port/chroot. The cluster's metadata is stored "
    "below the chroot, in Kafka's layout. Requires ZooKeeper 3.6 or newer and `pip install "
    "minibroker[zookeeper]`.")
ZOOKEEPER_SESSION_TIMEOUT_MS = Setting("zookeeper.session.timeout.ms", INT, 18_000, at_least(100),
    doc="The timeout of the ZooKeeper session, in milliseconds; the server limits its range.")
ZOOKEEPER_CONNECTION_TIMEOUT_MS = Setting("zookeeper.connection.timeout.ms", optional(INT), None,
    at_least(1), default_text="zookeeper.session.timeout.ms",
    doc="How long the broker waits for ZooKeeper at startup, and for a change while disconnected, "
    "in milliseconds of real time.")
ZOOKEEPER_SET_ACL = Setting("zookeeper.set.acl", BOOLEAN, False,
    doc="Whether the broker creates znodes with ACLs, so that only clients with its credentials "
    "can change them, and read the configs of users and brokers.")
ZOOKEEPER_DIGEST_USERNAME = Setting("zookeeper.digest.username", _OPTIONAL_STRING, None,
    doc="The user name for ZooKeeper's digest authentication. Not a Kafka setting.")
ZOOKEEPER_DIGEST_PASSWORD = Setting("zookeeper.digest.password", _OPTIONAL_PASSWORD, None,
    doc="The password for ZooKeeper's digest authentication. Not a Kafka setting.")
ZOOKEEPER_SSL_CLIENT_ENABLE = Setting("zookeeper.ssl.client.enable", BOOLEAN, False,
    doc="Whether to connect to ZooKeeper with TLS.")
ZOOKEEPER_SSL_TRUSTSTORE_LOCATION = Setting("zookeeper.ssl.truststore.location", _OPTIONAL_STRING,
    None, default_text="the system's certificate authorities",
    doc="A PEM file with the certificate authorities that sign ZooKeeper's certificate.")
ZOOKEEPER_SSL_KEYSTORE_LOCATION = Setting("zookeeper.ssl.keystore.location", _OPTIONAL_STRING, None,
    doc="A PEM file with the broker's private key and certificate chain, for servers that require "
    "client certificates.")
ZOOKEEPER_SSL_KEYSTORE_PASSWORD = Setting("zookeeper.ssl.keystore.password", _OPTIONAL_PASSWORD,
    None,
    doc="The password of the private key in `zookeeper.ssl.keystore.location`, if it is encrypted.")
ZOOKEEPER_SSL_ENDPOINT_IDENTIFICATION_ALGORITHM = Setting(
    "zookeeper.ssl.endpoint.identification.algorithm", STRING, "HTTPS",
    one_of("HTTPS", "https", ""),
    doc="Whether the server's certificate must match its hostname; an empty value disables the "
    "check.")

# ----------------------------------------------------------------------------- journal and activity

JOURNAL_BYTES_MIN: Final = 1024 * 1024
RETENTION_BYTES_MIN: Final = 8 * 1024 * 1024
FORMAT_ARROW: Final = "arrow"
FORMAT_JSON: Final = "json"

JOURNAL_ENABLE = Setting("journal.enable", BOOLEAN, False,
    doc="Whether the broker records every request and response, connection, fault, change of the "
    "clock and changed state from its start on. The control API can switch it on later. Not a "
    "Kafka setting.")
JOURNAL_MAX_BYTES = Setting("journal.max.bytes", LONG, 64 * 1024 * 1024,
    at_least(JOURNAL_BYTES_MIN),
    doc="The memory of the journal in bytes, above which the oldest entries are dropped. Not a "
    "Kafka setting.")
ACTIVITY_ENABLE = Setting("activity.enable", BOOLEAN, False,
    doc="Whether the broker writes an event for every request and every change of a connection to "
    "the topic `__minibroker_activity`. Requests never wait for events: events that cannot be "
    "written in time are dropped and counted. Not a Kafka setting.")
ACTIVITY_FORMAT = Setting("activity.format", STRING, FORMAT_ARROW,
    one_of(FORMAT_ARROW, FORMAT_JSON),
    doc="How events are encoded in the topic. `arrow`: a record contains up to 1,000 events as an "
    "Apache Arrow IPC stream, which the pipeline reads several times as fast; it needs the package "
    "pyarrow. `json`: a record contains one event as a JSON object, which any consumer can show. "
    "Not a Kafka setting.")
ACTIVITY_SAMPLE = Setting("activity.sample", DOUBLE, 1.0,
    Valid("above 0 and at most 1", lambda share: 0 < share <= 1),
    doc="The share of connections whose events are written. For each connection, all events or "
    "none are written. Not a Kafka setting.")
ACTIVITY_RETENTION_BYTES = Setting("activity.retention.bytes", LONG, 512 * 1024 * 1024,
    at_least(RETENTION_BYTES_MIN),
    doc="The size of the topic above which the oldest events are deleted, checked every "
    "`log.retention.check.interval.ms`. It applies when the broker creates the topic; for an "
    "existing topic, change its `retention.bytes`. Not a Kafka setting.")

# --------------------- settings that Kafka can change while it runs and that have nothing to act on

_NO_OTHER_REPLICA = "there is no other replica"
_CODEC_LEVEL = "every codec compresses at its default level"
_NOT_TIERED = "there is no tiered storage"

COMPRESSION_GZIP_LEVEL = Setting("compression.gzip.level", INT, -1,
    any_valid(equals(-1), between(1, 9)), dynamic=True, no_effect=_CODEC_LEVEL,
    doc="The gzip level for recompression by the broker.")
COMPRESSION_LZ4_LEVEL = Setting("compression.lz4.level", INT, 9, between(1, 17), dynamic=True,
    no_effect=_CODEC_LEVEL, doc="The lz4 level for recompression by the broker.")
COMPRESSION_ZSTD_LEVEL = Setting("compression.zstd.level", INT, 3, between(-131072, 22),
    dynamic=True, no_effect=_CODEC_LEVEL, doc="The zstd level for recompression by the broker.")
LOG_PREALLOCATE = Setting("log.preallocate", BOOLEAN, False, dynamic=True,
    no_effect="files grow as they are written",
    doc="Whether segment files are allocated at full size when they are created.")
LOG_ROLL_JITTER_MS = Setting("log.roll.jitter.ms", LONG, 0, at_least(0), dynamic=True,
    no_effect="segments are rolled without jitter",
    doc="The maximum random jitter subtracted from `log.roll.ms`, in milliseconds.")
BACKGROUND_THREADS = Setting("background.threads", INT, 10, at_least(1), dynamic=True,
    no_effect="the roles do it in processes of their own",
    doc="The number of threads for background work.")
NUM_RECOVERY_THREADS_PER_DATA_DIR = Setting("num.recovery.threads.per.data.dir", INT, 2,
    at_least(1), dynamic=True, no_effect="each I/O worker recovers its own logs",
    doc="The number of threads that recover logs.")
NUM_REPLICA_FETCHERS = Setting("num.replica.fetchers", INT, 1, at_least(1), dynamic=True,
    no_effect=_NO_OTHER_REPLICA, doc="The number of threads that fetch from leaders.")
LEADER_REPLICATION_THROTTLED_RATE = Setting("leader.replication.throttled.rate", LONG, LONG_MAX,
    at_least(0), dynamic=True, no_effect=_NO_OTHER_REPLICA,
    doc="The bytes per second that throttled leaders send to replicas.")
FOLLOWER_REPLICATION_THROTTLED_RATE = Setting("follower.replication.throttled.rate", LONG, LONG_MAX,
    at_least(0), dynamic=True, no_effect=_NO_OTHER_REPLICA,
    doc="The bytes per second that throttled replicas fetch.")
REPLICA_ALTER_LOG_DIRS_IO_MAX_BYTES_PER_SECOND = Setting(
    "replica.alter.log.dirs.io.max.bytes.per.second", LONG, LONG_MAX, at_least(0), dynamic=True,
    no_effect="there is one data directory",
    doc="The bytes per second at which logs are moved between directories.")
LOG_LOCAL_RETENTION_BYTES = Setting("log.local.retention.bytes", LONG, -2, at_least(-2),
    dynamic=True, no_effect=_NOT_TIERED,
    doc="How many bytes of a log with remote copies are kept; -2 means `log.retention.bytes`.")
LOG_LOCAL_RETENTION_MS = Setting("log.local.retention.ms", LONG, -2, at_least(-2), dynamic=True,
    no_effect=_NOT_TIERED,
    doc="How long a log with remote copies is kept, in milliseconds; -2 means `log.retention.ms`.")
LOG_REMOTE_COPY_LAG_BYTES = Setting("log.remote.copy.lag.bytes", LONG, -1, at_least(-1),
    dynamic=True, no_effect=_NOT_TIERED, doc="By how many bytes remote copies may be behind.")
LOG_REMOTE_COPY_LAG_MS = Setting("log.remote.copy.lag.ms", LONG, 0, at_least(-1), dynamic=True,
    no_effect=_NOT_TIERED, doc="By how many milliseconds remote copies may be behind.")
REMOTE_FETCH_MAX_WAIT_MS = Setting("remote.fetch.max.wait.ms", INT, 500, at_least(1), dynamic=True,
    no_effect=_NOT_TIERED, doc="How long a fetch waits for remote copies, in milliseconds.")
REMOTE_LIST_OFFSETS_REQUEST_TIMEOUT_MS = Setting("remote.list.offsets.request.timeout.ms", LONG,
    30_000, at_least(1), dynamic=True, no_effect=_NOT_TIERED,
    doc="How long ListOffsets waits for remote copies, in milliseconds.")
REMOTE_LOG_INDEX_FILE_CACHE_TOTAL_SIZE_BYTES = Setting(
    "remote.log.index.file.cache.total.size.bytes", LONG, 1024 * 1024 * 1024, at_least(1),
    dynamic=True, no_effect=_NOT_TIERED, doc="The size of the cache of remote indexes, in bytes.")
REMOTE_LOG_MANAGER_COPIER_THREAD_POOL_SIZE = Setting("remote.log.manager.copier.thread.pool.size",
    INT, 10, at_least(1), dynamic=True, no_effect=_NOT_TIERED,
    doc="The number of threads that make remote copies.")
REMOTE_LOG_MANAGER_EXPIRATION_THREAD_POOL_SIZE = Setting(
    "remote.log.manager.expiration.thread.pool.size", INT, 10, at_least(1), dynamic=True,
    no_effect=_NOT_TIERED, doc="The number of threads that delete remote copies.")
REMOTE_LOG_MANAGER_FOLLOWER_THREAD_POOL_SIZE = Setting(
    "remote.log.manager.follower.thread.pool.size", INT, 2, at_least(1), dynamic=True,
    no_effect=_NOT_TIERED, doc="The number of threads that follow remote copies.")
REMOTE_LOG_READER_THREADS = Setting("remote.log.reader.threads", INT, 10, at_least(1), dynamic=True,
    no_effect=_NOT_TIERED, doc="The number of threads that read remote copies.")
REMOTE_LOG_MANAGER_COPY_MAX_BYTES_PER_SECOND = Setting(
    "remote.log.manager.copy.max.bytes.per.second", LONG, LONG_MAX, at_least(1), dynamic=True,
    no_effect=_NOT_TIERED, doc="The bytes per second that are copied.")
REMOTE_LOG_MANAGER_FETCH_MAX_BYTES_PER_SECOND = Setting(
    "remote.log.manager.fetch.max.bytes.per.second", LONG, LONG_MAX, at_least(1), dynamic=True,
    no_effect=_NOT_TIERED, doc="The bytes per second that are read from remote copies.")
FOLLOWER_FETCH_LAST_TIERED_OFFSET_ENABLE = Setting("follower.fetch.last.tiered.offset.enable",
    BOOLEAN, False, dynamic=True, no_effect=_NOT_TIERED,
    doc="Whether new replicas start after the segments that have remote copies.")

THREAD_COUNTS = frozenset({
    BACKGROUND_THREADS.name, LOG_CLEANER_THREADS.name, NUM_RECOVERY_THREADS_PER_DATA_DIR.name,
    NUM_REPLICA_FETCHERS.name, REMOTE_LOG_MANAGER_COPIER_THREAD_POOL_SIZE.name,
    REMOTE_LOG_MANAGER_EXPIRATION_THREAD_POOL_SIZE.name,
    REMOTE_LOG_MANAGER_FOLLOWER_THREAD_POOL_SIZE.name, REMOTE_LOG_READER_THREADS.name,
})
"""Numbers of threads, which one change may at most double and at least halve."""
