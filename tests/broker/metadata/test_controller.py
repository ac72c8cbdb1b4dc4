"""The controller: its changes are in the store, in the image, numbered in order, and there again
after a restart.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import trio

from minibroker.broker.metadata.acls import (
    Binding,
    CredentialChange,
    Filter,
    find_token,
    plan_token,
)
from minibroker.broker.metadata.bootstrap import ControllerStartError, new_uuid
from minibroker.broker.metadata.configs import Alteration, ConfigOperation, Op
from minibroker.broker.metadata.controller import (
    PRODUCER_IDS_PER_BLOCK,
    ClusterController,
    next_producer_ids,
    unavailable_rejection,
)
from minibroker.broker.metadata.features import (
    TRANSACTION_VERSION,
    FeatureUpdate,
    UpgradeType,
    level,
)
from minibroker.broker.metadata.image import (
    BROKER,
    TOPIC,
    USER,
    ChangeRejected,
    Image,
    Update,
    apply_update,
)
from minibroker.broker.metadata.quotas import QuotaChange
from minibroker.broker.metadata.store.sqlite import MEMORY, SqliteStore
from minibroker.broker.metadata.store.tree import (
    Create,
    NodeExistsError,
    Operation,
    Store,
    StoreError,
    UnavailableError,
    UnwritableError,
)
from minibroker.broker.metadata.topics import (
    NewPartitions,
    NewTopic,
)
from minibroker.broker.security.acl import Pattern, Resource
from minibroker.broker.security.principal import Principal
from minibroker.broker.security.scram import Credential, TokenLifetimes, issue
from minibroker.broker.settings import Settings
from minibroker_protocol.errors import ErrorCode

ENDPOINTS = {"PLAINTEXT": ("127.0.0.1", 9092)}
OFFSETS = "__consumer_offsets"


async def started(store: Store, *pairs: str, seed: int = 1) -> ClusterController:
    return await ClusterController.start(
        store,
        Settings.from_sources(pairs=pairs),
        endpoints=ENDPOINTS,
        random=Random(seed),
        wall_ms=1_000,
    )


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    made = SqliteStore(MEMORY)
    yield made
    await made.close()


@pytest.fixture
async def controller(store: Store) -> ClusterController:
    return await started(store)


def follow(image: Image, updates: list[Update]) -> Image:
    for update in updates:
        image = apply_update(image, update)
    return image


async def test_first_start_creates_a_cluster(store: Store) -> None:
    image = (await started(store, "broker.rack=r1")).image
    assert image.controller_epoch == 1
    assert image.number == 0
    assert image.controller_id == 1
    assert len(base64.urlsafe_b64decode(image.cluster_id + "==")) == 16
    assert image.brokers[1].endpoints == ENDPOINTS
    assert image.brokers[1].rack == "r1"
    assert list(image.topics) == [OFFSETS]
    assert image.topics[OFFSETS].internal
    assert len(image.topics[OFFSETS].partitions) == 50
    assert json.loads((await store.get("/brokers/ids/1")).data)["port"] == 9092
    assert json.loads((await store.get("/controller")).data)["brokerid"] == 1


async def test_same_seed_creates_same_cluster() -> None:
    first = await started(SqliteStore(MEMORY), seed=7)
    second = await started(SqliteStore(MEMORY), seed=7)
    assert first.image == second.image
    other = await started(SqliteStore(MEMORY), seed=8)
    assert other.image.cluster_id != first.image.cluster_id


async def test_restart_restores_image_and_increments_epoch(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store")
    before = await started(store)
    await before.create_topics([NewTopic("a", 3, config=[("retention.ms", "5")]), NewTopic("b")])
    await before.create_partitions([NewPartitions("b", 2)])
    await store.close()
    store = SqliteStore(tmp_path / "store")
    after = await started(store, seed=2)
    assert after.image.controller_epoch == before.image.controller_epoch + 1
    assert after.image.number == 0
    assert after.image.cluster_id == before.image.cluster_id
    assert after.image.topics == before.image.topics
    assert after.image.configs == before.image.configs
    assert after.image.topics[OFFSETS].internal
    await store.close()


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ("node.id=2", r"node.id=2 \(--set\): the data directory belongs to node 1"),
        ("cluster.id=other", r"cluster.id=other \(--set\): the config store belongs to cluster"),
        ("offsets.topic.num.partitions=9", "the data directory has 50"),
    ],
)
async def test_store_with_mismatched_settings_is_rejected(
    tmp_path: Path, pair: str, message: str
) -> None:
    store = SqliteStore(tmp_path / "store")
    await started(store)
    await store.close()
    store = SqliteStore(tmp_path / "store")
    with pytest.raises(ControllerStartError, match=message):
        await started(store, pair)
    await store.close()


async def test_second_controller_on_same_store_is_rejected(store: Store) -> None:
    await started(store)
    with pytest.raises(ControllerStartError, match="/controller exists already"):
        await started(store)


async def test_configured_cluster_id_is_used(store: Store) -> None:
    assert (await started(store, "cluster.id=mine")).image.cluster_id == "mine"


async def test_created_topic_is_stored_and_update_is_numbered(
    store: Store, controller: ClusterController
) -> None:
    before = controller.image
    outcome = await controller.create_topics([NewTopic("a", 2, config=[("retention.ms", "5")])])
    [made] = outcome.topics
    assert made.rejection is None
    assert made.topic == controller.image.topics["a"]
    assert made.config == {"retention.ms": "5"}
    assert [update.number for update in outcome.updates] == [1]
    assert follow(before, outcome.updates) == controller.image
    assert await store.exists("/brokers/topics/a")
    assert await store.exists("/config/topics/a")


async def test_one_failed_topic_does_not_fail_others_of_the_request(
    controller: ClusterController,
) -> None:
    outcome = await controller.create_topics([
        NewTopic("good"), NewTopic("bad name"), NewTopic("x.y"), NewTopic("x_y"),
        NewTopic("twice"), NewTopic("twice"),
    ])  # fmt: skip
    codes = [made.rejection.code if made.rejection else None for made in outcome.topics]
    assert codes == [
        None,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        None,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
    ]
    assert set(controller.image.topics) == {OFFSETS, "good", "x.y"}
    assert len(outcome.updates) == 1


async def test_request_without_changes_publishes_no_update(controller: ClusterController) -> None:
    before = controller.image
    assert (await controller.create_topics([NewTopic("bad name")])).updates == []
    assert (await controller.delete_topics(["missing"])).updates == []
    assert (await controller.create_topics([NewTopic("a")], validate_only=True)).updates == []
    assert controller.image is before


async def test_deleted_topics_are_removed_from_store(
    store: Store, controller: ClusterController
) -> None:
    await controller.create_topics([NewTopic("a", config=[("retention.ms", "5")]), NewTopic("b")])
    kept = controller.image
    outcome = await controller.delete_topics(["a", "missing", OFFSETS, "b"])
    codes = [gone.rejection.code if gone.rejection else None for gone in outcome.topics]
    assert codes == [
        None,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_REQUEST,
        None,
    ]
    assert outcome.topics[0].topic == kept.topics["a"]
    assert follow(kept, outcome.updates) == controller.image
    assert set(controller.image.topics) == {OFFSETS}
    assert await store.children("/brokers/topics") == [OFFSETS]
    assert await store.children("/config/topics") == [OFFSETS]


async def test_recreated_topic_has_new_topic_id(controller: ClusterController) -> None:
    first = (await controller.create_topics([NewTopic("a")])).topics[0].topic
    await controller.delete_topics(["a"])
    second = (await controller.create_topics([NewTopic("a")])).topics[0].topic
    assert first is not None
    assert second is not None
    assert first.topic_id != second.topic_id


async def test_create_partitions_adds_partitions(
    store: Store, controller: ClusterController
) -> None:
    await controller.create_topics([NewTopic("a", 1)])
    before = controller.image
    dry = await controller.create_partitions([NewPartitions("a", 3)], validate_only=True)
    assert dry.updates == []
    assert controller.image is before
    outcome = await controller.create_partitions([NewPartitions("a", 3), NewPartitions("b", 3)])
    assert outcome.topics[1].rejection is not None
    assert follow(before, outcome.updates) == controller.image
    assert len(controller.image.topics["a"].partitions) == 3
    assert len(json.loads((await store.get("/brokers/topics/a")).data)["partitions"]) == 3
    twice = await controller.create_partitions([NewPartitions("a", 4), NewPartitions("a", 5)])
    assert {made.rejection and made.rejection.code for made in twice.topics} == {
        ErrorCode.INVALID_REQUEST
    }


async def test_elections_raise_leader_epochs_that_survive_a_restart(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store")
    controller = await started(store)
    await controller.create_topics([NewTopic("a", 3)])
    await controller.write_leaders(["a"])
    before = controller.image
    count, updates = await controller.elect_leaders("a", None, 2)
    assert count == 3
    assert follow(before, updates) == controller.image
    assert (await controller.elect_leaders("a", 1, 5))[0] == 1
    assert leader_epochs(controller) == [2, 7, 2]
    state = json.loads((await store.get("/brokers/topics/a/partitions/1/state")).data)
    assert state["leader_epoch"] == 7
    await controller.create_partitions([NewPartitions("a", 4)])
    assert leader_epochs(controller) == [2, 7, 2, 0]
    await store.close()
    store = SqliteStore(tmp_path / "store")
    controller = await started(store)
    assert leader_epochs(controller) == [2, 7, 2, 0]
    await controller.delete_topics(["a"])
    await controller.create_topics([NewTopic("a", 1)])
    await store.close()
    store = SqliteStore(tmp_path / "store")
    assert leader_epochs(await started(store)) == [0]
    await store.close()


def leader_epochs(controller: ClusterController) -> list[int]:
    return [each.leader_epoch for each in controller.image.topics["a"].partitions]


@pytest.mark.parametrize(
    ("topic", "partition", "epochs", "code"),
    [
        ("none", None, 1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("a", 1, 1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (OFFSETS, None, 1, ErrorCode.INVALID_REQUEST),
        ("a", None, 2**31, ErrorCode.INVALID_REQUEST),
    ],
)
async def test_impossible_election_is_rejected(
    controller: ClusterController, topic: str, partition: int | None, epochs: int, code: ErrorCode
) -> None:
    await controller.create_topics([NewTopic("a", 1)])
    rejection, updates = await controller.elect_leaders(topic, partition, epochs)
    assert isinstance(rejection, ChangeRejected)
    assert (rejection.code, updates) == (code, [])


SCRAM = "listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config"
SCRAM_USERS = (
    "listeners=SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms=SCRAM-SHA-256,SCRAM-SHA-512",
    f'{SCRAM}=org.apache.kafka.common.security.scram.ScramLoginModule required user_alice="x";',
)


async def test_scram_users_of_the_settings_exist_from_the_start(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store")
    controller = await started(store, *SCRAM_USERS)
    assert controller.image.number == 0
    (name,) = (name for kind, name in controller.image.configs if kind == USER)
    config = controller.image.configs[USER, name]
    assert (name, [*config]) == ("alice", ["SCRAM-SHA-512"])
    await store.close()
    store = SqliteStore(tmp_path / "store")
    again = await started(store, *SCRAM_USERS)
    assert again.image.configs[USER, "alice"] == config  # A changed password stays, too.
    await store.close()


async def test_producer_ids_are_unique_across_restarts(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store")
    controller = await started(store)
    blocks = [await controller.allocate_producer_ids() for _ in range(2)]
    await store.close()
    store = SqliteStore(tmp_path / "store")
    controller = await started(store)
    await controller.reset()
    blocks.append(await controller.allocate_producer_ids())
    assert [block.first for block in blocks] == [0, 1000, 2000]
    assert {block.size for block in blocks} == {PRODUCER_IDS_PER_BLOCK}
    await store.close()


async def test_reset_restores_an_empty_cluster(store: Store, controller: ClusterController) -> None:
    fresh = controller.image
    await controller.create_topics([NewTopic("a", config=[("retention.ms", "5")]), NewTopic("b")])
    before = controller.image
    updates = await controller.reset()
    after = controller.image
    assert follow(before, updates) == after
    assert after.brokers == fresh.brokers
    assert after.configs == fresh.configs
    assert list(after.topics) == [OFFSETS]
    assert after.topics[OFFSETS].topic_id != fresh.topics[OFFSETS].topic_id
    assert after.topics[OFFSETS].partitions == fresh.topics[OFFSETS].partitions
    assert await store.children("/brokers/topics") == [OFFSETS]
    assert await store.children("/config/topics") == [OFFSETS]


async def test_concurrent_changes_get_consecutive_update_numbers(
    controller: ClusterController,
) -> None:
    before = controller.image
    returned: list[Update] = []

    async def create(name: str) -> None:
        returned.extend((await controller.create_topics([NewTopic(name)])).updates)

    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(create, f"t{number % 5}")
    assert [update.number for update in returned] == [1, 2, 3, 4, 5]
    assert follow(before, returned) == controller.image


def test_ids_are_random_uuids_without_leading_dash() -> None:
    random = Random(1)
    for _ in range(500):
        made = new_uuid(random)
        assert made[6] >> 4 == 4
        assert made[8] >> 6 == 2
        assert not base64.urlsafe_b64encode(made).startswith(b"-")


RATE = "connection_creation_rate"


def setting(kind: str, name: str, key: str, value: str) -> Alteration:
    return Alteration(kind, name, (ConfigOperation(key, Op.SET, value),))


async def test_altered_configs_are_stored_notified_and_reloaded(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store")
    controller = await started(store)
    await controller.create_topics([NewTopic("t")])
    before = controller.image
    done = await controller.alter_configs(
        [
            setting("topics", "t", "retention.ms", "5"),
            setting("brokers", "1", "max.connections", "6"),
            setting("brokers", "", "max.connections", "7"),
        ]
    )
    quotas = await controller.alter_quotas(
        [
            QuotaChange((("ip", "::1"),), ((RATE, 8.0),)),
            QuotaChange((("ip", None),), ((RATE, 9.0),)),
        ]
    )
    assert done.rejections == (None, None, None)
    assert quotas.rejections == (None, None)
    wanted = {
        ("topics", "t"): {"retention.ms": "5"},
        ("brokers", "1"): {"max.connections": "6"},
        ("brokers", "<default>"): {"max.connections": "7"},
        ("ips", "::1"): {RATE: "8"},
        ("ips", "<default>"): {RATE: "9"},
    }
    assert wanted.items() <= controller.image.configs.items()
    assert follow(before, [*done.updates, *quotas.updates]) == controller.image
    for (kind, name), config in wanted.items():
        data = json.loads((await store.get(f"/config/{kind}/{name}")).data)
        assert data == {"version": 1, "config": config}
    result = [
        json.loads((await store.get(f"/config/changes/{name}")).data)["entity_path"]
        for name in await store.children("/config/changes")
    ]
    assert result == [f"{kind}/{name}" for kind, name in wanted]
    await store.close()
    store = SqliteStore(tmp_path / "store")
    assert (await started(store)).image.configs == controller.image.configs
    await store.close()


async def test_changed_advertised_listeners_are_registered_published_and_reloaded(
    tmp_path: Path,
) -> None:
    store = SqliteStore(tmp_path / "store")
    controller = await started(store)
    before = controller.image
    moved = setting("brokers", "1", "advertised.listeners", "PLAINTEXT://h:7")
    done = await controller.alter_configs([moved])
    assert follow(before, done.updates) == controller.image
    assert controller.image.brokers[1].endpoints == {"PLAINTEXT": ("h", 7)}
    registered = json.loads((await store.get("/brokers/ids/1")).data)
    assert (registered["endpoints"], registered["timestamp"]) == (["PLAINTEXT://h:7"], "1000")
    await store.close()
    store = SqliteStore(tmp_path / "store")
    controller = await started(store)
    assert controller.image.brokers[1].endpoints == {"PLAINTEXT": ("h", 7)}
    assert json.loads((await store.get("/brokers/ids/1")).data)["host"] == "h"
    gone = Alteration("brokers", "1", (ConfigOperation("advertised.listeners", Op.DELETE),))
    await controller.alter_configs([gone])
    assert controller.image.brokers[1].endpoints == ENDPOINTS
    await store.close()


async def test_advertised_listeners_that_another_program_stores_are_applied(
    controller: ClusterController, store: Store
) -> None:
    data = json.dumps({"version": 1, "config": {"advertised.listeners": "PLAINTEXT://h:7"}})
    await store.create("/config/brokers/1", data.encode())
    await controller.apply_config("brokers", "1")
    assert controller.image.brokers[1].endpoints == {"PLAINTEXT": ("h", 7)}
    assert json.loads((await store.get("/brokers/ids/1")).data)["host"] == "h"


async def test_advertised_listeners_of_all_brokers_or_other_listeners_are_rejected(
    controller: ClusterController,
) -> None:
    for_all = setting("brokers", "", "advertised.listeners", "PLAINTEXT://h:7")
    unknown = setting("brokers", "1", "advertised.listeners", "OTHER://h:7")
    outcome = await controller.alter_configs([for_all, unknown])
    assert all(outcome.rejections)
    assert not outcome.updates


async def test_listener_advertised_by_connection_is_localhost_for_tools(store: Store) -> None:
    pairs = ("listeners=PLAINTEXT://0.0.0.0:9092", "advertised.listeners=PLAINTEXT://*:0")
    broker = (await started(store, *pairs)).image.brokers[1]
    assert broker.endpoints == {"PLAINTEXT": ("localhost", 9092)}
    assert broker.endpoint("PLAINTEXT", None) == ("localhost", 9092)
    assert broker.endpoint("PLAINTEXT", ("10.0.0.7", 9092)) == ("10.0.0.7", 9092)
    assert json.loads((await store.get("/brokers/ids/1")).data)["host"] == "localhost"


async def test_config_without_values_has_no_node(
    controller: ClusterController, store: Store
) -> None:
    await controller.alter_configs([setting("brokers", "1", "max.connections", "6")])
    gone = Alteration("brokers", "1", (ConfigOperation("max.connections", Op.DELETE),))
    outcome = await controller.alter_configs([gone])
    assert outcome.updates
    assert ("brokers", "1") not in controller.image.configs
    assert await store.children("/config/brokers") == []


async def test_rejected_alteration_is_atomic_and_others_apply(
    controller: ClusterController, store: Store
) -> None:
    await controller.create_topics([NewTopic("t")])
    bad = Alteration(
        "topics",
        "t",
        (ConfigOperation("retention.ms", 0, "5"), ConfigOperation("segment.ms", 0, "x")),
    )
    good = setting("brokers", "", "max.connections", "7")
    outcome = await controller.alter_configs([bad, good])
    refusal, fine = outcome.rejections
    assert refusal is not None
    assert refusal.code == ErrorCode.INVALID_CONFIG
    assert fine is None
    assert controller.image.topic_overrides("t") == {}
    assert ("brokers", "<default>") in controller.image.configs


async def test_validate_only_changes_are_not_applied(
    controller: ClusterController, store: Store
) -> None:
    before = controller.image
    wanted = setting("brokers", "1", "max.connections", "6")
    assert await controller.alter_configs([wanted], validate_only=True) == ((None,), [])
    quota = QuotaChange((("ip", "::1"),), ((RATE, 8.0),))
    assert await controller.alter_quotas([quota], validate_only=True) == ((None,), [])
    assert controller.image is before
    assert await store.children("/config/changes") == []


async def test_ip_rate_quota_with_sharded_acceptor_is_rejected(store: Store) -> None:
    sharded = await started(store, "acceptor.mode=sharded")
    address, user = (("ip", "::1"),), (("user", "u"),)
    wanted = [
        QuotaChange(address, ((RATE, 8.0),)),
        QuotaChange((("ip", "::2"),), ((RATE, None),)),
        QuotaChange(user, (("request_percentage", 8.0),)),
    ]
    refusal, removed, other = (await sharded.alter_quotas(wanted)).rejections
    assert refusal is not None
    assert refusal.code == ErrorCode.INVALID_REQUEST
    assert "set acceptor.mode=single" in refusal.text
    assert removed is other is None


async def test_duplicate_entity_in_request_is_rejected(controller: ClusterController) -> None:
    quota = QuotaChange((("ip", "::1"),), ((RATE, 8.0),))
    outcome = await controller.alter_quotas([quota, quota])
    assert [refusal.code for refusal in outcome.rejections if refusal] == [
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
    ]
    assert outcome.updates == []


async def test_ip_quota_for_unresolvable_host_is_rejected(controller: ClusterController) -> None:
    quota = QuotaChange((("ip", "nowhere"),), ((RATE, 8.0),))
    [refusal] = (await controller.alter_quotas([quota], unresolvable={"nowhere"})).rejections
    assert refusal is not None


async def test_foreign_changes_in_store_are_applied_to_image(
    controller: ClusterController, store: Store
) -> None:
    await store.create("/config/ips/1.1.1.1", b'{"version":1,"config":{"%s":"3"}}' % RATE.encode())
    before = controller.image
    updates = await controller.apply_config("ips", "1.1.1.1")
    assert follow(before, updates) == controller.image
    assert controller.image.configs["ips", "1.1.1.1"] == {RATE: "3"}
    assert await controller.apply_config("ips", "1.1.1.1") == []
    await store.set("/config/ips/1.1.1.1", b"")
    assert await controller.apply_config("ips", "1.1.1.1") != []
    assert ("ips", "1.1.1.1") not in controller.image.configs


@pytest.mark.parametrize("resource", [("users", "u"), ("topics", "gone"), ("ips", "gone")])
async def test_apply_config_of_unchanged_node_publishes_nothing(
    controller: ClusterController, resource: tuple[str, str]
) -> None:
    assert await controller.apply_config(*resource) == []


async def test_apply_all_configs_publishes_one_update(
    controller: ClusterController, store: Store
) -> None:
    await controller.create_topics([NewTopic("t", config=[("retention.ms", "5")])])
    await controller.alter_configs([setting("brokers", "1", "max.connections", "6")])
    await store.delete("/config/brokers/1")
    await store.set("/config/topics/t", b'{"config":{"retention.ms":"6"}}')
    await store.create("/config/topics/stranger", b'{"config":{"retention.ms":"6"}}')
    [update] = await controller.apply_all_configs()
    assert controller.image.topic_overrides("t") == {"retention.ms": "6"}
    assert ("brokers", "1") not in controller.image.configs
    assert ("topics", "stranger") not in controller.image.configs
    assert len(update.changes) == 2


async def test_corrupt_config_node_is_ignored(controller: ClusterController, store: Store) -> None:
    await store.create("/config/ips/1.1.1.1", b"{")
    assert await controller.apply_all_configs() == []


async def test_existing_config_node_allows_topic_create_and_delete(
    controller: ClusterController, store: Store
) -> None:
    await store.create("/config/topics/t", b'{"version":1,"config":{}}')
    await controller.create_topics([NewTopic("t", config=[("retention.ms", "5")])])
    assert controller.image.topic_overrides("t") == {"retention.ms": "5"}
    await store.set("/config/topics/t", b'{"version":1,"config":{}}')
    await controller.delete_topics(["t"])
    assert "t" not in await store.children("/config/topics")


async def test_changes_while_store_cannot_be_reached_time_out(
    store: Store, controller: ClusterController, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_: object) -> None:
        raise UnavailableError("/brokers", "no ZooKeeper answered")

    monkeypatch.setattr(store, "multi", fail)
    before = controller.image
    (topic,), updates = await controller.create_topics([NewTopic("orders")])
    setting = ConfigOperation("max.connections", Op.SET, "5")
    configs = await controller.alter_configs([Alteration("brokers", "1", (setting,))])
    feature, _ = await controller.update_features(
        [FeatureUpdate(TRANSACTION_VERSION.name, 1, UpgradeType.SAFE_DOWNGRADE)]
    )
    for rejection in (topic.rejection, *configs.rejections, feature):
        assert rejection is not None
        assert rejection.code is ErrorCode.REQUEST_TIMED_OUT
    assert updates == []
    assert controller.image is before


def test_changes_time_out_while_store_cannot_be_reached() -> None:
    rejection = unavailable_rejection(UnavailableError("/a", "no ZooKeeper answered"))
    assert rejection.code is ErrorCode.REQUEST_TIMED_OUT
    assert "no ZooKeeper answered" in rejection.text


def test_changes_fail_while_store_cannot_be_written() -> None:
    rejection = unavailable_rejection(UnwritableError("/a", "the disk is full"))
    assert rejection.code is ErrorCode.KAFKA_STORAGE_ERROR


async def test_producer_id_blocks_of_all_brokers_are_consecutive() -> None:
    store = SqliteStore(MEMORY)
    blocks = [await next_producer_ids(store, broker_id) for broker_id in (1, 2, 1)]
    assert [block.first for block in blocks] == [n * PRODUCER_IDS_PER_BLOCK for n in range(3)]
    assert {block.size for block in blocks} == {PRODUCER_IDS_PER_BLOCK}
    await store.close()


READ = Binding(2, "cats", 3, "User:alice", "*", 3, 3)
ON = "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer"


async def restarted(store: Store, *pairs: str) -> ClusterController:
    for path in ("/controller", "/brokers/ids/1"):
        await store.delete(path)
    return await started(store, *pairs)


async def test_acls_survive_a_restart() -> None:
    store = SqliteStore(MEMORY)
    cluster = await started(store, ON)
    before = cluster.image
    rejections, updates = await cluster.create_acls([READ, READ._replace(operation=0)])
    assert rejections[0] is None
    assert isinstance(rejections[1], ChangeRejected)
    for update in updates:
        before = apply_update(before, update)
    assert before.acls == cluster.image.acls
    again = await restarted(store, ON)
    assert again.image.acls == cluster.image.acls
    answers, _ = await again.delete_acls([Filter(2, "cats", 3, None, None, 1, 1)])
    assert isinstance(answers[0], list)
    assert len(answers[0]) == 1
    assert not again.image.acls
    assert (await restarted(store, ON)).image.acls == {}
    assert (await again.create_acls([]))[1] == []
    await store.close()


async def test_foreign_acls_in_store_are_applied_to_image() -> None:
    store = SqliteStore(MEMORY)
    cluster = await started(store, ON)
    await cluster.create_acls([READ])
    rules = (await store.get("/kafka-acl/Topic/cats")).data
    await store.multi([Create("/kafka-acl/Topic/dogs", rules)])
    await store.delete("/kafka-acl/Topic/cats")
    dogs, cats = Pattern(Resource.TOPIC, "dogs"), Pattern(Resource.TOPIC, "cats")
    assert await cluster.apply_acls(dogs)
    assert set(cluster.image.acls) == {cats, dogs}
    assert await cluster.apply_all_acls()
    assert set(cluster.image.acls) == {dogs}
    assert await cluster.apply_all_acls() == []
    await store.close()


async def test_unreadable_acls_prevent_start_with_authorizer() -> None:
    store = SqliteStore(MEMORY)
    await started(store)
    await store.ensure("/kafka-acl/Topic")
    await store.multi([Create("/kafka-acl/Topic/cats", b"nonsense")])
    await restarted(store)
    with pytest.raises(ControllerStartError, match="/kafka-acl/Topic/cats"):
        await restarted(store, ON)
    await store.close()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UnwritableError, ErrorCode.KAFKA_STORAGE_ERROR),
        (UnavailableError, ErrorCode.REQUEST_TIMED_OUT),
    ],
)
async def test_failed_acl_writes_are_rejected_and_keep_image(
    monkeypatch: pytest.MonkeyPatch, error: type[UnavailableError], code: ErrorCode
) -> None:
    store = SqliteStore(MEMORY)
    cluster = await started(store, ON)
    await cluster.create_acls([READ])
    before = cluster.image

    async def fail(_: object) -> None:
        raise error("store", "cannot be written")

    monkeypatch.setattr(store, "multi", fail)
    bad = READ._replace(operation=0)
    rejections, updates = await cluster.create_acls([READ._replace(name="dogs"), bad])
    assert [refusal and refusal.code for refusal in rejections] == [
        code,
        ErrorCode.INVALID_REQUEST,
    ]
    assert updates == []
    everything = Filter(1, None, 1, None, None, 1, 1)
    nothing = everything._replace(name="dogs", resource=2, pattern_type=3)
    answers, updates = await cluster.delete_acls([everything, nothing])
    assert isinstance(answers[0], ChangeRejected)
    assert answers[0].code is code
    assert answers[1:] == [[]]
    assert updates == []
    assert cluster.image == before


LOWER = FeatureUpdate(TRANSACTION_VERSION.name, 1, UpgradeType.SAFE_DOWNGRADE)


async def test_level_is_stored(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "metadata.db"))
    cluster = await started(store)
    assert await cluster.update_features([LOWER], validate_only=True) == (None, [])
    assert level(cluster.image.features, TRANSACTION_VERSION) == 2
    rejection, updates = await cluster.update_features([LOWER])
    assert rejection is None
    assert len(updates) == 1
    assert await cluster.update_features([LOWER]) == (None, [])
    await store.close()
    store = SqliteStore(str(tmp_path / "metadata.db"))
    again = await started(store)
    assert level(again.image.features, TRANSACTION_VERSION) == 1
    assert again.image.features.epoch == 1
    await store.close()


ALICE = Principal("User", "alice")


async def test_tokens_and_credentials_are_stored(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "metadata.db"))
    cluster = await started(store)
    lifetimes = TokenLifetimes(100, 10)
    token = issue(
        cluster.new_token_id(), ALICE, ALICE, (), now_ms=0, requested_ms=-1, lifetimes=lifetimes
    )
    outcome = await cluster.change_tokens(lambda image: [plan_token(image, token)])
    assert outcome.rejections == (None,)
    kept = Credential(b"salt", b"stored", b"server", 4096)
    rejections, updates = await cluster.alter_credentials([CredentialChange("alice", 1, kept)])
    assert rejections == {"alice": None}
    assert updates
    await store.close()
    store = SqliteStore(str(tmp_path / "metadata.db"))
    again = await started(store)
    assert find_token(again.image, token.token_id) == token
    assert "SCRAM-SHA-256" in again.image.configs["users", "alice"]
    await store.close()


async def test_ids_of_tokens_differ() -> None:
    store = SqliteStore(MEMORY)
    cluster = await started(store)
    assert len({cluster.new_token_id() for _ in range(50)}) == 50
    await store.close()


async def test_restore_returns_to_topics_and_configs_but_repeats_no_number(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.sqlite")
    cluster = await started(store)
    await cluster.create_topics([NewTopic("kept", 2), NewTopic("deleted", 1)])
    await cluster.alter_configs([setting(BROKER, "", "log.cleaner.backoff.ms", "7")])
    first = await cluster.allocate_producer_ids()
    saved = cluster.image
    async with cluster.saved(str(tmp_path / "copy")):
        pass
    await cluster.delete_topics(["deleted"])
    await cluster.create_topics([NewTopic("new", 1), NewTopic("deleted", 3)])
    await cluster.alter_configs([setting(TOPIC, "kept", "segment.bytes", "5000000")])
    changed = cluster.image
    (update,) = await cluster.restore(str(tmp_path / "copy"))
    expected = replace(
        saved,
        number=changed.number + 1,
        broker_configs_number=changed.number + 1,
    )
    assert cluster.image == expected
    assert apply_update(changed, update) == expected
    second = await cluster.allocate_producer_ids()
    assert second.first >= first.first + first.size
    await store.close()
    store = SqliteStore(tmp_path / "store.sqlite")
    again = await started(store)
    assert again.image.topics == saved.topics
    assert again.image.configs == saved.configs
    assert again.image.controller_epoch == saved.controller_epoch + 1
    await store.close()


async def test_damaged_copy_changes_nothing(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.sqlite")
    cluster = await started(store)
    before = cluster.image
    with pytest.raises(StoreError):
        await cluster.restore(str(tmp_path / "missing" / "copy"))
    assert cluster.image == before
    await cluster.create_topics([NewTopic("t", 1)])
    assert "t" in cluster.image.topics
    await store.close()


async def test_acl_and_feature_changes_are_tried_again_after_a_conflict(
    store: Store, controller: ClusterController, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = store.multi
    conflicting = ["/feature", "/kafka-acl-changes/acl_changes_"]

    async def conflict_first(operations: Sequence[Operation]) -> Sequence[object]:
        if operations[-1].path in conflicting:
            conflicting.remove(operations[-1].path)
            raise NodeExistsError(operations[-1].path, "another program created it")
        return await write(operations)

    monkeypatch.setattr(store, "multi", conflict_first)
    assert (await controller.create_acls([READ]))[0] == (None,)
    assert (await controller.update_features([LOWER]))[0] is None
    assert conflicting == []
    assert controller.image.acls
    assert level(controller.image.features, TRANSACTION_VERSION) == 1
