"""Configs of topics and of the broker: described, set one by one or all at once, and refused."""

from __future__ import annotations

from typing import Final

from minibroker_protocol.messages.alter_configs import AlterableConfig as WholeConfig
from minibroker_protocol.messages.alter_configs import AlterConfigsRequest
from minibroker_protocol.messages.alter_configs import AlterConfigsResource as WholeResource
from minibroker_protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from minibroker_protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from system_tests.peers.conversation import SendRequest
from system_tests.peers.topics import create, topic

TOPIC: Final = 2
BROKER: Final = 4
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
THIS: Final = "1"

Change = tuple[str, int, str | None]


def alter(
    kind: int, name: str, *changes: Change, validate_only: bool = False
) -> IncrementalAlterConfigsRequest:
    configs = [
        AlterableConfig(name=key, config_operation=how, value=value) for key, how, value in changes
    ]
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    return IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)


def describe(kind: int, name: str, *keys: str) -> DescribeConfigsRequest:
    resource = DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=list(keys) or None
    )
    return DescribeConfigsRequest(resources=[resource], include_synonyms=True)


def of_broker(ask: SendRequest) -> None:
    for key, value in (
        ("max.connections", "100"),
        ("max.connections", "0"),
        ("max.connections", "-1"),
        ("max.connections", "many"),
        ("max.connections", None),
        ("max.connections.per.ip", "9"),
        ("max.connections.per.ip", "0"),
        ("max.connections.per.ip.overrides", "127.0.0.1:100"),
        ("max.connections.per.ip.overrides", "a:b"),
        ("max.connections.per.ip.overrides", "a"),
        ("max.connections.per.ip.overrides", ""),
        ("max.connection.creation.rate", "100"),
        ("max.connection.creation.rate", "0"),
        ("max.connection.creation.rate", "1.5"),
        ("listener.name.plaintext.max.connections", "100"),
        ("sasl.kerberos.service.name", "kafka"),
        ("replica.fetch.max.bytes", "1"),
        ("listener.name.plaintext.max.connections", "0"),
        ("listener.name.plaintext.max.connections", "x"),
        ("listener.name.plaintext.max.connection.creation.rate", "100"),
        ("listener.name.other.max.connections", "10"),
        ("ssl.keystore.location", "/nowhere.pem"),
        ("listener.name.plaintext.ssl.keystore.location", "/nowhere.pem"),
        ("listener.name.plaintext.ssl.key.password", "secret"),
        ("listener.name.plaintext.ssl.keystore.type", "PEM"),
        ("log.dirs", "/x"),
        ("num.partitions", "3"),
        ("message.max.bytes", "1000"),
    ):
        ask(f"{key}={value}", alter(BROKER, THIS, (key, SET, value)), 1)
    for name in ("", "77", "x"):
        ask(f"broker {name!r}", alter(BROKER, name, ("max.connections", SET, "100")), 1)
    shown = ("listener.name.plaintext.ssl.keystore.location", SET, "/nowhere.pem")
    ask("shown by all brokers", alter(BROKER, "", shown), 1)
    ask("of one at all", alter(BROKER, "", ("listeners", SET, "PLAINTEXT://:1")), 1)
    ask("deleted, never set", alter(BROKER, THIS, ("log.cleaner.threads", DELETE, None)), 1)
    ask("deleted", alter(BROKER, THIS, ("max.connections.per.ip", DELETE, None)), 1)
    ask("appended to a number", alter(BROKER, THIS, ("max.connections", APPEND, "5")), 1)
    ask("done somehow", alter(BROKER, THIS, ("max.connections", 9, "5")), 1)
    twice = [("max.connections", SET, "5"), ("max.connections", SET, "6")]
    ask("twice", alter(BROKER, THIS, *twice), 1)
    ask("none", alter(BROKER, THIS), 1)
    ask("nothing", IncrementalAlterConfigsRequest(resources=[]), 1)
    ask("of something else", alter(99, "x", ("a", SET, "1")), 1)
    both = alter(BROKER, THIS, ("max.connections", SET, "7"))
    both.resources *= 2
    ask("a resource twice", both, 1)
    ask("only to try", alter(BROKER, THIS, ("max.connections", SET, "55"), validate_only=True), 1)
    keys = ("max.connections", "max.connections.per.ip", "max.connections.per.ip.overrides")
    ask("described", describe(BROKER, THIS, *keys, "max.connection.creation.rate"), 4)
    ask("of all brokers", describe(BROKER, "", "max.connections"), 4)
    for name in ("9", "x"):
        ask(f"of broker {name}", describe(BROKER, name, "max.connections"), 4)
    ask("what is shown", describe(BROKER, THIS, "ssl.keystore.location", "ssl.key.password"), 4)
    ask("no such key", describe(BROKER, THIS, "nope"), 4)
    for key in (keys[0], "message.max.bytes"):  # Other conversations need their defaults.
        ask(f"{key} undone", alter(BROKER, THIS, (key, DELETE, None)), 1)
        ask(f"{key} undone for all", alter(BROKER, "", (key, DELETE, None)), 1)


def of_topics(ask: SendRequest) -> None:
    ask("made", create(topic("t-configs", 1, 1, retention_ms="5000")), 2)
    for key, how, value in (
        ("retention.ms", SET, "1000"),
        ("retention.ms", SET, "-1"),
        ("retention.ms", SET, "-2"),
        ("retention.ms", SET, "x"),
        ("retention.ms", SET, None),
        ("no.such", SET, "1"),
        ("cleanup.policy", APPEND, "compact"),
        ("cleanup.policy", APPEND, "compact"),
        ("cleanup.policy", SUBTRACT, "delete"),
        ("cleanup.policy", SUBTRACT, "nothing"),
        ("cleanup.policy", SET, "burn"),
        ("cleanup.policy", SET, "compact,delete"),
        ("compression.type", SET, "zstd"),
        ("compression.type", SET, "lz5"),
        ("compression.gzip.level", SET, "5"),
        ("compression.gzip.level", SET, "99"),
        ("retention.ms", APPEND, "1"),
        ("retention.ms", DELETE, None),
        ("retention.ms", DELETE, "9"),
        ("max.message.bytes", SET, "0"),
        ("segment.ms", SET, "0"),
        ("message.timestamp.type", SET, "LogAppendTime"),
        ("min.cleanable.dirty.ratio", SET, "2"),
        ("min.cleanable.dirty.ratio", SET, "0.25"),
        ("preallocate", SET, "TRUE"),
        ("preallocate", SET, "yes"),
        ("leader.replication.throttled.replicas", SET, "0:1"),
        ("leader.replication.throttled.replicas", SET, "zero"),
    ):
        ask(
            f"{key} {how} {value} {len(ask.answers)}",
            alter(TOPIC, "t-configs", (key, how, value)),
            1,
        )
    ask("described", describe(TOPIC, "t-configs"), 4)
    ask("described in an old version", describe(TOPIC, "t-configs", "retention.ms"), 1)
    ask("missing", describe(TOPIC, "missing"), 4)
    ask("named nothing", describe(TOPIC, ""), 4)
    ask("named badly", describe(TOPIC, "a/b"), 4)
    ask("missing, set", alter(TOPIC, "missing", ("retention.ms", SET, "1")), 1)
    ask("named nothing, set", alter(TOPIC, "", ("retention.ms", SET, "1")), 1)
    for value in ("77", "x", None):
        whole = WholeResource(
            resource_type=TOPIC,
            resource_name="t-configs",
            configs=[WholeConfig(name="retention.ms", value=value)],
        )
        for trying in (True, False):
            request = AlterConfigsRequest(resources=[whole], validate_only=trying)
            ask(f"whole {value} {trying}", request, 2)
    ask("described at last", describe(TOPIC, "t-configs", "retention.ms", "cleanup.policy"), 4)


UNUSED: Final = {
    "background.threads": ("4", "5", "20", "21", "x"),
    "num.replica.fetchers": ("0", "1", "2", "3"),
    "num.recovery.threads.per.data.dir": ("0", "1", "4", "5"),
    "log.cleaner.threads": ("0", "2", "3"),
    "compression.gzip.level": ("0", "9", "10", "-1"),
    "compression.lz4.level": ("0", "17", "18"),
    "compression.zstd.level": ("-131073", "22", "23"),
    "log.preallocate": ("true", "yes"),
    "log.roll.jitter.ms": ("-1", "1"),
    "log.local.retention.ms": ("-3", "-2", "0"),
    "log.local.retention.bytes": ("-3", "-2", "99"),
    "log.remote.copy.lag.ms": ("-2", "-1", "9"),
    "log.remote.copy.lag.bytes": ("-2", "-1", "9"),
    "leader.replication.throttled.rate": ("-1", "1", "x"),
    "follower.replication.throttled.rate": ("-1", "1", "x"),
    "replica.alter.log.dirs.io.max.bytes.per.second": ("-1", "1", "x"),
    "remote.fetch.max.wait.ms": ("0", "1"),
    "remote.list.offsets.request.timeout.ms": ("0", "1"),
    "remote.log.index.file.cache.total.size.bytes": ("0", "1"),
    "remote.log.manager.copier.thread.pool.size": ("0", "4", "5", "20", "21"),
    "remote.log.manager.expiration.thread.pool.size": ("0", "4", "20"),
    "remote.log.manager.follower.thread.pool.size": ("0", "1", "4", "5"),
    "remote.log.manager.copy.max.bytes.per.second": ("0", "1"),
    "remote.log.manager.fetch.max.bytes.per.second": ("0", "1"),
    "remote.log.reader.threads": ("0", "5", "21"),
    "follower.fetch.last.tiered.offset.enable": ("true", "x"),
    "transaction.partition.verification.enable": ("false", "x"),
    "num.io.threads": ("0", "x"),
    "log.segment.bytes": ("0", "1048576"),
    "log.retention.ms": ("0", "5", "-1"),
    "log.flush.interval.messages": ("0", "1"),
    "log.cleanup.policy": ("compact", "burn", "delete,compact"),
    "log.message.timestamp.type": ("LogAppendTime", "Now"),
    "compression.type": ("zstd", "lz5"),
    "unclean.leader.election.enable": ("true", "perhaps"),
    "producer.id.expiration.ms": ("0", "1"),
    "num.partitions": ("2",),
    "auto.create.topics.enable": ("false",),
    "transaction.max.timeout.ms": ("1",),
    "group.max.session.timeout.ms": ("1",),
    "offsets.retention.minutes": ("1",),
    "broker.id": ("1",),
    "node.id": ("1",),
    "message.max.bytes": ("-1", "0"),
    "max.incremental.fetch.session.cache.slots": ("1",),
}
"""Values that are only tried: most of these settings mean nothing to one broker."""


def only_tried(ask: SendRequest) -> None:
    for key, values in UNUSED.items():
        for value in values:
            for name in (THIS, ""):
                change = alter(BROKER, name, (key, SET, value), validate_only=True)
                ask(f"{key}={value} at {name!r}", change, 1)


CONVERSATIONS: Final = (of_broker, of_topics, only_tried)
