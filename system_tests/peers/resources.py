"""Configs of groups, client metrics and loggers: described, set, and refused."""

from __future__ import annotations

from typing import Final

from minibroker_protocol.messages.alter_configs import AlterableConfig as WholeConfig
from minibroker_protocol.messages.alter_configs import AlterConfigsRequest
from minibroker_protocol.messages.alter_configs import AlterConfigsResource as WholeResource
from minibroker_protocol.messages.list_config_resources import ListConfigResourcesRequest
from system_tests.peers.configs import APPEND, DELETE, SET, SUBTRACT, THIS, alter, describe
from system_tests.peers.conversation import SendRequest

LOGGER: Final = 8
METRICS: Final = 16
GROUP: Final = 32


def whole(kind: int, name: str, *configs: tuple[str, str | None]) -> AlterConfigsRequest:
    values = [WholeConfig(name=key, value=value) for key, value in configs]
    resource = WholeResource(resource_type=kind, resource_name=name, configs=values)
    return AlterConfigsRequest(resources=[resource])


GROUP_VALUES: Final = (
    ("consumer.session.timeout.ms", "50000"),
    ("consumer.session.timeout.ms", "1"),
    ("consumer.session.timeout.ms", "99999999"),
    ("consumer.session.timeout.ms", "many"),
    ("consumer.session.timeout.ms", None),
    ("consumer.heartbeat.interval.ms", "6000"),
    ("consumer.heartbeat.interval.ms", "4999"),
    ("consumer.heartbeat.interval.ms", "15001"),
    ("consumer.assignment.interval.ms", "0"),
    ("consumer.assignment.interval.ms", "-1"),
    ("share.delivery.count.limit", "7"),
    ("share.delivery.count.limit", "1"),
    ("share.delivery.count.limit", "11"),
    ("share.auto.offset.reset", "earliest"),
    ("share.auto.offset.reset", "by_duration:PT1H"),
    ("share.auto.offset.reset", "by_duration:-PT1H"),
    ("share.auto.offset.reset", "never"),
    ("share.isolation.level", "read_committed"),
    ("share.isolation.level", "serializable"),
    ("share.record.lock.duration.ms", "14999"),
    ("share.partition.max.record.locks", "4001"),
    ("share.renew.acknowledge.enable", "false"),
    ("share.renew.acknowledge.enable", "perhaps"),
    ("streams.num.standby.replicas", "2"),
    ("streams.num.standby.replicas", "3"),
    ("streams.session.timeout.ms", "46000"),
    ("streams.assignor.name", "sticky"),
    ("streams.assignor.name", "none"),
    ("errors.deadletterqueue.topic.name", "dlq"),
    ("errors.deadletterqueue.topic.name", "__dlq"),
    ("group.consumer.session.timeout.ms", "50000"),
    ("no.such.config", "1"),
    ("", "1"),
)


def of_groups(ask: SendRequest) -> None:
    ask("unset", describe(GROUP, "bare"), 4)
    for key, value in GROUP_VALUES:
        for how in (SET, DELETE):
            ask(f"{key} {how} {value}", alter(GROUP, "g-1", (key, how, value)), 1)
    ask(
        "session below heartbeat",
        alter(
            GROUP,
            "g-1",
            ("consumer.session.timeout.ms", SET, "45000"),
            ("consumer.heartbeat.interval.ms", SET, "15000"),
        ),
        1,
    )
    for how in (APPEND, SUBTRACT):
        ask(f"list {how}", alter(GROUP, "g-1", ("streams.rack.aware.assignment.tags", how, "a")), 1)
        ask(f"number {how}", alter(GROUP, "g-1", ("consumer.session.timeout.ms", how, "1")), 1)
    ask("repeated tags", alter(GROUP, "g-1", ("streams.rack.aware.assignment.tags", SET, "a,a")), 1)
    ask("without a name", alter(GROUP, "", ("consumer.session.timeout.ms", SET, "50000")), 1)
    ask(
        "tried",
        alter(GROUP, "g-2", ("consumer.session.timeout.ms", SET, "50000"), validate_only=True),
        1,
    )
    ask(
        "set",
        alter(
            GROUP,
            "g-3",
            ("consumer.session.timeout.ms", SET, "50000"),
            ("share.auto.offset.reset", SET, "earliest"),
        ),
        1,
    )
    ask("described", describe(GROUP, "g-3"), 4)
    ask("described in part", describe(GROUP, "g-3", "consumer.session.timeout.ms"), 4)
    ask("described without a name", describe(GROUP, ""), 4)
    ask("as a whole", whole(GROUP, "g-3", ("consumer.heartbeat.interval.ms", "6000")), 2)
    ask("described after", describe(GROUP, "g-3"), 1)
    ask("listed", ListConfigResourcesRequest(resource_types=[GROUP]), 1)
    ask("removed", alter(GROUP, "g-3", ("consumer.heartbeat.interval.ms", DELETE, None)), 1)
    ask("listed after", ListConfigResourcesRequest(resource_types=[GROUP]), 1)


def of_client_metrics(ask: SendRequest) -> None:
    ask("unset", describe(METRICS, "bare"), 4)
    for key, value in (
        ("metrics", "org.apache.kafka.producer."),
        ("metrics", "*"),
        ("metrics", ""),
        ("metrics", "a,a"),
        ("interval.ms", "100"),
        ("interval.ms", "99"),
        ("interval.ms", "3600000"),
        ("interval.ms", "3600001"),
        ("interval.ms", "soon"),
        ("match", "client_id=app.*"),
        ("match", "client_software_name=apache-kafka-java,client_software_version=11.1.*"),
        ("match", "client_id"),
        ("match", "client_id=[a"),
        ("match", "client_id=a=b"),
        ("match", "color=red"),
        ("no.such.config", "1"),
    ):
        for how in (SET, DELETE):
            ask(f"{key} {how} {value}", alter(METRICS, "s-1", (key, how, value)), 1)
    for how in (APPEND, SUBTRACT):
        ask(f"list {how}", alter(METRICS, "s-1", ("metrics", how, "a")), 1)
        ask(f"number {how}", alter(METRICS, "s-1", ("interval.ms", how, "1000")), 1)
    ask("without a name", alter(METRICS, "", ("interval.ms", SET, "1000")), 1)
    ask("tried", alter(METRICS, "s-2", ("interval.ms", SET, "1000"), validate_only=True), 1)
    ask("set", alter(METRICS, "s-3", ("interval.ms", SET, "1000"), ("metrics", SET, "a,b")), 1)
    ask("described", describe(METRICS, "s-3"), 4)
    ask("described in part", describe(METRICS, "s-3", "metrics"), 4)
    ask("described without a name", describe(METRICS, ""), 4)
    ask("as a whole", whole(METRICS, "s-3", ("metrics", "c")), 2)
    ask("described after", describe(METRICS, "s-3"), 1)
    ask("listed", ListConfigResourcesRequest(), 0)
    ask("removed", alter(METRICS, "s-3", ("metrics", DELETE, None)), 1)
    ask("listed after", ListConfigResourcesRequest(resource_types=[METRICS]), 1)


def of_loggers(ask: SendRequest) -> None:
    for value in ("DEBUG", "INFO", "info", "LOUD", "", "OFF", None):
        for how in (SET, DELETE, APPEND, SUBTRACT, 4):
            ask(
                f"root {how} {value}",
                alter(LOGGER, THIS, ("root", how, value), validate_only=True),
                1,
            )
    ask("unknown logger", alter(LOGGER, THIS, ("no.such.logger", SET, "INFO")), 1)
    ask("unknown logger unset", alter(LOGGER, THIS, ("no.such.logger", DELETE, None)), 1)
    ask("the same", alter(LOGGER, THIS, ("root", SET, "INFO")), 1)
    for name in ("", "7", "one"):
        ask(f"of {name!r}", alter(LOGGER, name, ("root", SET, "INFO")), 1)
        ask(f"described {name!r}", describe(LOGGER, name), 4)
        ask(f"as a whole {name!r}", whole(LOGGER, name, ("root", "INFO")), 2)
    ask("as a whole", whole(LOGGER, THIS, ("root", "INFO")), 2)
    ask("described", describe(LOGGER, THIS, "root"), 4)
    ask("described as nothing", describe(LOGGER, THIS, "no.such.logger"), 4)


CONVERSATIONS: Final = (of_groups, of_client_metrics, of_loggers)
