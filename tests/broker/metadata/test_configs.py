"""Alterations of configs: the four operations, and Kafka's texts of rejections."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.metadata.configs import (
    NAME_MAX,
    RESOURCES_MAX,
    Alteration,
    ConfigOperation,
    Op,
    config_steps,
    config_steps_with_notifications,
    load_config,
    plan_alteration,
    plan_levels,
    resource_config,
    resource_names,
    resource_problem,
    stored_names,
    valid_config,
)
from minibroker.broker.metadata.image import (
    BROKER_LOGGER,
    CLIENT_METRICS,
    GROUP,
    ChangeRejected,
    ConfigChanged,
    Image,
    PartitionRegistration,
    Topic,
    TopicCreated,
    apply,
)
from minibroker.broker.metadata.layout import PERSISTENT_PATHS
from minibroker.broker.metadata.store.sqlite import MEMORY, SqliteStore
from minibroker.broker.metadata.store.tree import Create, Delete, NoNodeError, Set, Store
from minibroker.broker.settings import Settings
from minibroker.broker.settings.dynamic import Configs, effective
from minibroker.broker.settings.topics import topic_config
from minibroker_protocol.errors import ErrorCode

SETTINGS = Settings.from_sources(pairs=["message.max.bytes=300"])
TOPIC = Topic("t", b"1" * 16, (PartitionRegistration(0, 1, 0, (1,), (1,)),))
IMAGE = apply(Image(), TopicCreated(TOPIC, {"retention.ms": "5", "cleanup.policy": "compact"}))
OWN = apply(IMAGE, ConfigChanged("brokers", "1", {"message.max.bytes": "9", "colour": "red"}))


def plan(
    kind: str, name: str, *operations: tuple[str, int, str | None], image: Image = IMAGE
) -> ConfigChanged | ChangeRejected:
    steps = tuple(ConfigOperation(*operation) for operation in operations)
    return plan_alteration(image, SETTINGS, Alteration(kind, name, steps))


def test_topic_config_is_set_and_deleted() -> None:
    changed = plan(
        "topics",
        "t",
        ("retention.ms", Op.DELETE, None),
        ("segment.bytes", Op.SET, "1000"),
        ("retention.bytes", Op.DELETE, "not set at all"),
    )
    assert changed == ("topics", "t", {"cleanup.policy": "compact", "segment.bytes": "1000"})


@pytest.mark.parametrize(
    ("name", "op", "value", "result"),
    [
        ("cleanup.policy", Op.APPEND, "delete", "compact,delete"),
        ("cleanup.policy", Op.APPEND, "compact", "compact"),
        ("cleanup.policy", Op.APPEND, "delete,compact,delete", "compact,delete"),
        ("leader.replication.throttled.replicas", Op.APPEND, "0:1,0:2", "0:1,0:2"),
        ("leader.replication.throttled.replicas", Op.SUBTRACT, "0:1", ""),
    ],
)
def test_append_and_subtract_change_list_config(name: str, op: Op, value: str, result: str) -> None:
    changed = plan("topics", "t", (name, op, value))
    assert isinstance(changed, ConfigChanged)
    assert changed.config[name] == result


def test_append_to_unset_list_config_extends_default() -> None:
    bare = apply(IMAGE, ConfigChanged("topics", "t", {}))
    changed = plan("topics", "t", ("cleanup.policy", Op.APPEND, "compact"), image=bare)
    assert changed == ("topics", "t", {"cleanup.policy": "delete,compact"})


def test_replacement_removes_unlisted_configs() -> None:
    steps = (ConfigOperation("segment.bytes", Op.SET, "1000"),)
    changed = plan_alteration(IMAGE, SETTINGS, Alteration("topics", "t", steps, replace=True))
    assert changed == ("topics", "t", {"segment.bytes": "1000"})


@pytest.mark.parametrize(
    ("kind", "name", "operation", "code", "text"),
    [
        ("topics", "", ("a", 0, "1"), 42, "Default topic resources are not allowed"),
        ("topics", "a b", ("retention.ms", 0, "1"), 17, "Topic name is invalid"),
        ("topics", "u", ("retention.ms", 0, "1"), 3, "'u' does not exist"),
        ("topics", "t", ("retention.ms", 0, "x"), 40, "Invalid value x for configuration"),
        ("topics", "t", ("colour", 0, "x"), 40, "Unknown topic config name: colour"),
        ("topics", "t", ("retention.ms", 2, "1"), 40, "Can't APPEND to key retention.ms"),
        ("topics", "t", ("cleanup.policy", 3, "compact"), 40, "Invalid value"),
        ("topics", "t", ("retention.ms", 0, None), 42, "Null value not supported for : rete"),
        ("topics", "t", ("retention.ms", 9, "1"), 42, "Unknown operations type 9"),
        ("brokers", "one", ("max.connections", 0, "1"), 42, "must be an integer, but it is: one"),
        ("brokers", "<default>", ("max.connections", 0, "1"), 42, "must be an integer"),
        ("brokers", "2", ("max.connections", 0, "1"), 42, "expected 1, but received 2"),
        ("brokers", "1", ("num.io.threads", 0, "1"), 42, "Cannot update these configs dynamically"),
        ("brokers", "", ("max.connections", 0, "x"), 42, "Invalid value x"),
        ("brokers", "", ("num.replica.fetchers", 0, "x"), 42, "Invalid value x"),
        ("brokers", "1", ("num.replica.fetchers", 0, "3"), 42, "not be greater than double"),
        ("brokers", "", ("max.connections", 2, "1"), 40, "Can't APPEND"),
        ("brokers", "", ("colour", 0, "red"), 42, "Unknown config name: colour"),
    ],
)
def test_invalid_alteration_is_rejected_with_kafka_error_code(
    kind: str, name: str, operation: tuple[str, int, str | None], code: int, text: str
) -> None:
    refusal = plan(kind, name, operation)
    assert isinstance(refusal, ChangeRejected)
    assert refusal.code == code
    assert text in refusal.text


def test_duplicate_config_key_is_rejected() -> None:
    refusal = plan("topics", "t", ("retention.ms", 0, "1"), ("retention.ms", 1, None))
    assert refusal == (ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")


def test_broker_config_and_cluster_default_are_stored_separately() -> None:
    step = ("log.cleanup.policy", Op.APPEND, "compact")
    assert plan("brokers", "1", step) == (
        "brokers",
        "1",
        {"log.cleanup.policy": "delete,compact"},
    )
    assert plan("brokers", "", step, image=OWN) == (
        "brokers",
        "<default>",
        {"log.cleanup.policy": "delete,compact"},
    )


def test_conflicting_broker_and_default_configs_are_rejected() -> None:
    overrides = ("max.connections.per.ip.overrides", Op.SET, "127.0.0.1:5")
    nobody = ("max.connections.per.ip", Op.SET, "0")
    for name in ("1", ""):
        assert isinstance(plan("brokers", name, nobody), ChangeRejected)
    for first, second in (("", "1"), ("1", "")):
        one = plan("brokers", first, overrides)
        assert isinstance(one, ConfigChanged)
        image = apply(IMAGE, one)
        two = plan("brokers", second, nobody, image=image)
        assert isinstance(two, ConfigChanged)
        image = apply(image, two)
        gone = (overrides[0], Op.DELETE, None)
        assert isinstance(plan("brokers", first, gone, image=image), ChangeRejected)
        hidden = plan("brokers", first, (nobody[0], Op.SET, "x"), image=image)
        assert isinstance(hidden, ChangeRejected)


def test_sharded_acceptor_rejects_new_limits_and_allows_removal() -> None:
    sharded = Settings.from_sources(pairs=["acceptor.mode=sharded"])
    image = apply(IMAGE, ConfigChanged("brokers", "1", {"max.connections": "5"}))

    def plan_sharded(name: str, op: Op, value: str | None) -> ConfigChanged | ChangeRejected:
        wanted = Alteration("brokers", "1", (ConfigOperation(name, op, value),))
        return plan_alteration(image, sharded, wanted)

    for name in ("max.connections", "listener.name.plaintext.max.connection.creation.rate"):
        refusal = plan_sharded(name, Op.SET, "7")
        assert isinstance(refusal, ChangeRejected)
        assert refusal.code == ErrorCode.INVALID_CONFIG
        assert refusal.text.startswith(f"{name}: not with acceptor.mode=sharded: ")
    assert plan_sharded("max.connections", Op.DELETE, None) == ConfigChanged("brokers", "1", {})
    both = {"max.connections": "5", "kafka_connections_max": "3"}
    changed = plan_sharded("kafka_connections_max", Op.SET, "3")
    assert changed == ConfigChanged("brokers", "1", both)


AT_LISTENER = "listener.name.ssl.ssl.keystore.location"


def test_ssl_key_files_are_checked_before_broker_config_is_stored() -> None:
    looked: list[Configs] = []

    def unusable(configs: Configs) -> list[str]:
        looked.append(configs)
        return [] if len(looked) > 1 else ["the first one never fits"]

    wanted = Alteration("brokers", "1", (ConfigOperation(AT_LISTENER, Op.SET, "new.pem"),))
    refusal = plan_alteration(OWN, SETTINGS, wanted, (), unusable)
    assert refusal == ChangeRejected(ErrorCode.INVALID_REQUEST, "the first one never fits")
    assert plan_alteration(OWN, SETTINGS, wanted, (), unusable) == (
        "brokers",
        "1",
        {"message.max.bytes": "9", AT_LISTENER: "new.pem"},
    )
    assert looked[0]["brokers", "1"][AT_LISTENER] == "new.pem"
    assert looked[0]["topics", "t"] == OWN.configs["topics", "t"]
    for_all = Alteration("brokers", "", (ConfigOperation("max.connections", Op.SET, "5"),))
    plan_alteration(OWN, SETTINGS, for_all, (), unusable)
    assert len(looked) == 2


def test_secrets_are_stored_only_in_protected_nodes() -> None:
    shared = Settings.from_sources(pairs=["zookeeper.connect=localhost:2181"])
    name = "listener.name.ssl.ssl.key.password"
    wanted = Alteration("brokers", "1", (ConfigOperation(name, Op.SET, "secret"),))
    refusal = plan_alteration(OWN, shared, wanted)
    assert isinstance(refusal, ChangeRejected)
    assert refusal.code == ErrorCode.INVALID_CONFIG
    assert "Password encoder secret not configured" in refusal.text
    assert "secret" not in refusal.text.replace("secret not", "").replace("secrets", "")
    assert isinstance(plan_alteration(OWN, SETTINGS, wanted), ConfigChanged)
    gone = Alteration("brokers", "1", (ConfigOperation(name, Op.DELETE),))
    assert isinstance(plan_alteration(OWN, shared, gone), ConfigChanged)


def test_alteration_drops_invalid_foreign_configs() -> None:
    assert plan("brokers", "1", ("max.connections", Op.SET, "5"), image=OWN) == (
        "brokers",
        "1",
        {"message.max.bytes": "9", "max.connections": "5"},
    )


@pytest.mark.parametrize(
    ("kind", "config", "usable"),
    [
        ("topics", {"retention.ms": "5", "colour": "red"}, {"retention.ms": "5"}),
        ("brokers", {"num.io.threads": "5", "max.connections": "3"}, {"max.connections": "3"}),
        ("ips", {"connection_creation_rate": "5", "x": "1"}, {"connection_creation_rate": "5"}),
        ("ips", {"connection_creation_rate": "5.0"}, {"connection_creation_rate": "5.0"}),
        ("ips", {"connection_creation_rate": "5.5"}, {}),
        ("ips", {"connection_creation_rate": "fast"}, {}),
        ("clients", {"producer_byte_rate": "5", "SCRAM-SHA-256": "x"}, {"producer_byte_rate": "5"}),
        ("users", {"request_percentage": "0.5", "x": "1"}, {"request_percentage": "0.5"}),
        ("users", {"request_percentage": "0", "producer_byte_rate": "a"}, {}),
        ("users", {"SCRAM-SHA-256": "x"}, {"SCRAM-SHA-256": "x"}),
    ],
)
def test_invalid_stored_configs_are_ignored(
    kind: str, config: dict[str, str], usable: dict[str, str]
) -> None:
    assert valid_config(kind, config) == usable


NAMES = st.sampled_from(["cleanup.policy", "retention.ms", "log.cleanup.policy", "max.connections"])
VALUES = st.one_of(st.none(), st.sampled_from(["delete", "compact", "5", "-1", "", ","]))
STEPS = st.lists(st.tuples(NAMES, st.integers(-1, 4), VALUES), max_size=3)


@given(st.lists(st.tuples(st.sampled_from([("topics", "t"), ("brokers", "")]), STEPS), max_size=6))
def test_altered_configs_are_always_valid(
    alterations: list[tuple[tuple[str, str], list[tuple[str, int, str | None]]]],
) -> None:
    image = IMAGE
    for resource, steps in alterations:
        changed = plan(*resource, *steps, image=image)
        if isinstance(changed, ConfigChanged):
            image = apply(image, changed)
    topic_config(effective(SETTINGS, image.configs), image.topic_overrides("t"))
    for (kind, _), config in image.configs.items():
        assert valid_config(kind, config) == config


PLAIN_SETTINGS = Settings.from_sources()
STORAGE = "minibroker.storage"


def plan_levels_of(
    *operations: tuple[str, int, str | None], name: str = "1", image: Image | None = None
) -> ConfigChanged | ChangeRejected:
    return plan_levels(
        image or Image(),
        PLAIN_SETTINGS,
        name,
        [ConfigOperation(*operation) for operation in operations],
    )


def test_levels_are_set_and_unset() -> None:
    changed = plan_levels_of(("root", Op.SET, "WARN"), (STORAGE, Op.SET, "TRACE"))
    assert changed == ConfigChanged(BROKER_LOGGER, "1", {"root": "WARN", STORAGE: "TRACE"})
    assert isinstance(changed, ConfigChanged)
    image = apply(Image(), changed)
    unset = plan_levels_of((STORAGE, Op.DELETE, None), image=image)
    assert unset == ConfigChanged(BROKER_LOGGER, "1", {"root": "WARN"})


@pytest.mark.parametrize(
    ("operation", "error"),
    [
        (("root", Op.SET, "LOUD"), ErrorCode.INVALID_CONFIG),
        (("root", Op.SET, "info"), ErrorCode.INVALID_CONFIG),
        (("root", Op.DELETE, None), ErrorCode.INVALID_REQUEST),
        (("root", 2, "INFO"), ErrorCode.INVALID_REQUEST),
        (("none", Op.SET, "INFO"), ErrorCode.INVALID_CONFIG),
        (("none", Op.DELETE, None), ErrorCode.INVALID_CONFIG),
    ],
)
def test_invalid_level_is_rejected(
    operation: tuple[str, int, str | None], error: ErrorCode
) -> None:
    refused = plan_levels_of(operation)
    assert isinstance(refused, ChangeRejected)
    assert refused.code == error


@pytest.mark.parametrize("name", ["", "2", "one"])
def test_loggers_of_another_broker_are_rejected(name: str) -> None:
    refused = plan_levels_of(("root", Op.SET, "INFO"), name=name)
    assert isinstance(refused, ChangeRejected)
    assert refused.code == ErrorCode.INVALID_REQUEST


SESSION = {"consumer.session.timeout.ms": "50000"}
RESOURCES = replace(Image(), configs={(GROUP, "a%2Fb"): SESSION, (CLIENT_METRICS, "m"): {"a": "b"}})


def resource_error(kind: str, name: str, config: dict[str, str], image: Image = RESOURCES) -> int:
    problem = resource_problem(image, PLAIN_SETTINGS, kind, name, config)
    return ErrorCode.NONE if problem is None else problem.code


@pytest.mark.parametrize(
    ("kind", "name", "config", "code"),
    [
        (GROUP, "g", SESSION, ErrorCode.NONE),
        (GROUP, "", SESSION, ErrorCode.INVALID_REQUEST),
        (GROUP, "g", {"a": "b"}, ErrorCode.INVALID_CONFIG),
        (GROUP, "/" * NAME_MAX, SESSION, ErrorCode.INVALID_REQUEST),
        (CLIENT_METRICS, "m", {"interval.ms": "1000"}, ErrorCode.NONE),
        (CLIENT_METRICS, "", {}, ErrorCode.INVALID_REQUEST),
        (CLIENT_METRICS, "m", {"a": "b"}, ErrorCode.INVALID_REQUEST),
        (CLIENT_METRICS, "m", {"interval.ms": "1"}, ErrorCode.INVALID_REQUEST),
        (CLIENT_METRICS, "m", {"interval.ms": "x"}, ErrorCode.INVALID_CONFIG),
        (CLIENT_METRICS, "m", {"match": "a"}, ErrorCode.INVALID_CONFIG),
    ],
)
def test_resource_config_is_rejected_with_kafkas_error(
    kind: str, name: str, config: dict[str, str], code: ErrorCode
) -> None:
    assert resource_error(kind, name, config) == code


def test_number_of_resources_is_limited() -> None:
    full = {(CLIENT_METRICS, f"m{n}"): SESSION for n in range(RESOURCES_MAX[CLIENT_METRICS])}
    image = replace(Image(), configs=full)
    config = {"interval.ms": "1000"}
    assert resource_error(CLIENT_METRICS, "more", config, image) == ErrorCode.POLICY_VIOLATION
    assert resource_error(CLIENT_METRICS, "m0", config, image) == ErrorCode.NONE
    assert resource_error(CLIENT_METRICS, "more", {}, image) == ErrorCode.NONE
    assert resource_error(GROUP, "g", SESSION, image) == ErrorCode.NONE


def test_names_of_resources_are_decoded() -> None:
    assert resource_names(RESOURCES, GROUP) == ["a/b"]
    assert resource_config(RESOURCES, GROUP, "a/b") == SESSION
    assert resource_config(RESOURCES, GROUP, "c") == {}


def test_alteration_of_a_group_changes_single_configs() -> None:
    steps = (ConfigOperation("consumer.heartbeat.interval.ms", Op.SET, "6000"),)
    plan = plan_alteration(RESOURCES, PLAIN_SETTINGS, Alteration(GROUP, "a/b", steps))
    config = {**SESSION, "consumer.heartbeat.interval.ms": "6000"}
    assert plan == ConfigChanged(GROUP, "a%2Fb", config)
    removal = (ConfigOperation("consumer.session.timeout.ms", Op.DELETE),)
    plan = plan_alteration(RESOURCES, PLAIN_SETTINGS, Alteration(GROUP, "a/b", removal))
    assert plan == ConfigChanged(GROUP, "a%2Fb", {})


@pytest.mark.parametrize("op", [Op.APPEND, Op.SUBTRACT])
def test_config_of_a_group_cannot_be_appended_to(op: Op) -> None:
    steps = (ConfigOperation("streams.rack.aware.assignment.tags", op, "a"),)
    plan = plan_alteration(RESOURCES, PLAIN_SETTINGS, Alteration(GROUP, "g", steps))
    assert isinstance(plan, ChangeRejected)
    assert plan.code == ErrorCode.INVALID_CONFIG


def test_stored_configs_that_are_invalid_are_ignored() -> None:
    assert valid_config(GROUP, {**SESSION, "a": "b", "share.isolation.level": "c"}) == SESSION
    stored = {"interval.ms": "1000", "match": "a", "b": "c"}
    assert valid_config(CLIENT_METRICS, stored) == {"interval.ms": "1000"}


RATE = {"connection_creation_rate": "5"}


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    made = SqliteStore(MEMORY)
    for path in PERSISTENT_PATHS:
        await made.ensure(path)
    yield made
    await made.close()


async def test_config_node_is_created_updated_and_deleted(store: Store) -> None:
    [create] = await config_steps(store, "ips", "::1", RATE)
    assert isinstance(create, Create)
    await store.multi([create])
    assert await stored_names(store, "ips") == ["::1"]
    assert await load_config(store, "ips", "::1") == RATE
    [change] = await config_steps(store, "ips", "::1", RATE)
    assert isinstance(change, Set)
    [delete] = await config_steps(store, "ips", "::1", {})
    assert delete == Delete("/config/ips/::1")
    await store.multi([delete])
    assert await config_steps(store, "ips", "::1", {}) == []
    assert await load_config(store, "ips", "::1") == {}


async def test_notice_is_printed_last(store: Store) -> None:
    steps = await config_steps_with_notifications(store, [ConfigChanged("ips", "::1", RATE)])
    await store.multi(steps)
    [notice] = await store.children("/config/changes")
    data = (await store.get(f"/config/changes/{notice}")).data
    assert json.loads(data) == {"version": 2, "entity_path": "ips/::1"}
    assert len(steps) == 2
    assert steps[-1].path.startswith("/config/changes/")


async def test_empty_store_has_no_configs() -> None:
    made = SqliteStore(MEMORY)
    with pytest.raises(NoNodeError):
        await stored_names(made, "ips")
    assert await load_config(made, "ips", "::1") == {}
    await made.close()


QUOTA = {"producer_byte_rate": "5"}


async def test_client_quotas_of_user_are_child_nodes(store: Store) -> None:
    async def write(*changes: tuple[str, dict[str, str]]) -> None:
        made = [ConfigChanged("users", name, config) for name, config in changes]
        await store.multi(await config_steps_with_notifications(store, made))

    await write(("u/clients/c", QUOTA), ("u/clients/d", QUOTA), ("v", QUOTA))
    assert sorted(await stored_names(store, "users")) == [
        "u",
        "u/clients/c",
        "u/clients/d",
        "v",
    ]
    assert await load_config(store, "users", "u") == {}
    assert await load_config(store, "users", "u/clients/c") == QUOTA
    await write(("u", QUOTA), ("u/clients/d", {}))
    await write(("u/clients/c", {}))
    assert not await store.exists("/config/users/u/clients")
    assert await load_config(store, "users", "u") == QUOTA
    await write(("u/clients/c", QUOTA))
    await write(("u", {}))
    assert await store.exists("/config/users/u/clients/c")
    await write(("u/clients/c", {}), ("v", {}))
    assert await store.children("/config/users") == []


async def test_user_and_last_client_may_be_removed_together(store: Store) -> None:
    both = ["u", "u/clients/c"]
    for config in (QUOTA, {}):
        changes = [ConfigChanged("users", name, config) for name in both]
        await store.multi(await config_steps_with_notifications(store, changes))
    assert await store.children("/config/users") == []
