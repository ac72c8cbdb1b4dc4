"""Configs in a store without a broker: validation and output, with an in-memory store."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import AsyncIterator
from random import Random

import pytest

from minibroker.broker.metadata.controller import ClusterController
from minibroker.broker.metadata.store import zookeeper
from minibroker.broker.metadata.store.sqlite import MEMORY, SqliteStore
from minibroker.broker.metadata.store.tree import Store
from minibroker.broker.metadata.store.zookeeper import ZooKeeperAccess
from minibroker.broker.metadata.topics import NewTopic
from minibroker.broker.quotas.command_lines import ArgumentMistake, Entities
from minibroker.broker.security.scram import credential, parse_credential, salted
from minibroker.broker.settings import ZOOKEEPER_CONNECTION_TIMEOUT_MS, Settings
from minibroker.broker.settings.setting import parse_connect_string
from minibroker.cli.output import CliError, InvalidUsage, Unreachable
from minibroker.cli.zookeeper_configs import alter, describe, in_zookeeper
from minibroker.client.connection import REQUEST_TIMEOUT_S
from minibroker.client.errors import BrokerError

RATE = "connection_creation_rate"


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    made = SqliteStore(MEMORY)
    yield made
    await made.close()


def one(kind: str, *names: str) -> Entities:
    return Entities((kind,), names)


async def test_ip_quotas_are_altered_and_described_in_the_store(
    store: Store,
) -> None:
    assert await describe(store, one("ips")) == []
    line = await alter(store, one("ips", "1.2.3.4"), {RATE: "5"}, [])
    assert line == "Completed updating config for entity: ips '1.2.3.4'."
    line = await alter(store, one("ips", ""), {RATE: "7"}, [])
    assert line == "Completed updating config for entity: default ips."
    assert await describe(store, one("ips")) == [
        f"Configs for ips '1.2.3.4' are {RATE}=5",
        f"Configs for default ips are {RATE}=7",
    ]
    await alter(store, one("ips", "1.2.3.4"), {}, [RATE])
    assert await describe(store, one("ips", "1.2.3.4")) == ["Configs for ips '1.2.3.4' are "]
    assert len(await store.children("/config/changes")) == 3


async def test_broker_and_topic_configs_are_validated_in_the_store(store: Store) -> None:
    cluster = await ClusterController.start(
        store, Settings.from_sources(), endpoints={"P": ("h", 1)}, random=Random(1), wall_ms=0
    )
    await cluster.create_topics([NewTopic("t")])
    line = await alter(store, one("topics", "t"), {"retention.ms": "5"}, [])
    assert line == "Completed updating config for entity: topic 't'."
    await alter(store, one("brokers", "7"), {"max.connections": "5"}, [])
    await alter(store, one("brokers", ""), {"max.connections": "6"}, [])
    data = (await store.get("/config/brokers/7")).data
    assert json.loads(data) == {"version": 1, "config": {"max.connections": "5"}}
    await cluster.apply_all_configs()
    assert cluster.image.topic_overrides("t") == {"retention.ms": "5"}
    assert cluster.image.configs["brokers", "<default>"] == {"max.connections": "6"}


@pytest.mark.parametrize(
    ("kind", "name", "changes", "expected"),
    [
        ("ips", "1.2.3.4", {RATE: "x"}, "Cannot parse quota"),
        ("ips", "1.2.3.4", {"colour": "1"}, "Invalid configuration key colour"),
        ("ips", "1.2.3.4", {RATE: None}, "Invalid config"),
        ("brokers", "1", {"num.io.threads": "3"}, "Cannot update these configs dynamically"),
        ("brokers", "1", {"listener.name.l.ssl.key.password": "x"}, "Password encoder secret not"),
        ("brokers", "-3", {"max.connections": "3"}, "must be at least 0"),
        ("topics", "gone", {"retention.ms": "3"}, "does not exist"),
        ("users", "u", {"request_percentage": "0"}, "greater than 0"),
    ],
)
async def test_invalid_config_is_not_written(
    store: Store, kind: str, name: str, changes: dict[str, str | None], expected: str
) -> None:
    additions = {key: value for key, value in changes.items() if value is not None}
    deletions = [key for key in changes if key not in additions]
    with pytest.raises((CliError, BrokerError, ArgumentMistake), match=expected):
        await alter(store, one(kind, name), additions, deletions)
    assert not await store.exists("/config")


def test_invalid_zookeeper_address_is_rejected() -> None:
    with pytest.raises(InvalidUsage, match=r"--zookeeper :0: .*must be host:port"):
        in_zookeeper(":0", lambda store: store.get("/"))


def test_unreachable_zookeeper_is_reported_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    access = ZooKeeperAccess(parse_connect_string("127.0.0.1:1"), 0.2, 0.2)
    wanted: list[Settings] = []

    def access_from(settings: Settings) -> ZooKeeperAccess:
        wanted.append(settings)
        return access

    monkeypatch.setattr(zookeeper, "access_from", access_from)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    with pytest.raises(Unreachable, match="no ZooKeeper answered at"):
        in_zookeeper("127.0.0.1:1", lambda store: store.get("/"))
    assert capsys.readouterr().err == ""
    assert wanted[0][ZOOKEEPER_CONNECTION_TIMEOUT_MS] == REQUEST_TIMEOUT_S * 1000


async def test_users_and_clients_are_altered_and_described(store: Store) -> None:
    both = ("users", "clients")
    quota = {"producer_byte_rate": "5"}
    line = await alter(store, Entities(both, ("a b", "c")), quota, [])
    assert line == "Completed updating config for entity: user-principal 'a b', client-id 'c'."
    await alter(store, Entities(both, ("", "")), quota, [])
    await alter(store, Entities(("clients",), ("c*",)), quota, [])
    await alter(store, Entities(("users",), ("v",)), quota, [])
    users = [
        "Configs for default user-principal, default client-id are producer_byte_rate=5",
        "Configs for user-principal 'a b', client-id 'c' are producer_byte_rate=5",
    ]
    assert sorted(await describe(store, Entities(both, ()))) == users
    assert await describe(store, Entities(both, ("a b",))) == users[1:]
    assert await describe(store, Entities(both, ("", ""))) == users[:1]
    assert await describe(store, Entities(("users",), ())) == [
        "Configs for user-principal 'v' are producer_byte_rate=5"
    ]
    assert await describe(store, one("clients")) == [
        "Configs for client-id 'c*' are producer_byte_rate=5"
    ]
    data = (await store.get("/config/users/a%20b/clients/c")).data
    assert json.loads(data) == {"version": 1, "config": quota}
    await alter(store, Entities(both, ("a b", "c")), {}, list(quota))
    assert not await store.exists("/config/users/a%20b")


SCRAM = "SCRAM-SHA-512"


async def test_password_is_stored_as_by_a_broker_with_quotas(store: Store) -> None:
    alice = one("users", "al ice")
    await alter(store, alice, {"producer_byte_rate": "5"}, [])
    given = {SCRAM: "iterations=4096,password=wonder,land", "SCRAM-SHA-256": "password=x"}
    line = await alter(store, alice, given, [])
    assert line == "Completed updating config for entity: user-principal 'al ice'."
    data = (await store.get("/config/users/al%20ice")).data
    assert b"land" not in data
    config = json.loads(data)["config"]
    assert config["producer_byte_rate"] == "5"
    assert re.fullmatch(
        r"salt=[^,]+,stored_key=[^,]+,server_key=[^,]+,iterations=4096", config[SCRAM]
    )
    kept = parse_credential(config[SCRAM])
    assert kept is not None
    password = salted(SCRAM, "wonder,land", kept.salt, kept.iterations)
    assert credential(SCRAM, password, kept.salt, kept.iterations) == kept
    await alter(store, alice, {}, [SCRAM])
    assert sorted(json.loads((await store.get("/config/users/al%20ice")).data)["config"]) == [
        "SCRAM-SHA-256",
        "producer_byte_rate",
    ]
    assert len(await store.children("/config/changes")) == 3


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("u", {SCRAM: "hunter2"}, "Invalid credential property"),
        ("u", {SCRAM: "iterations=9,password=hunter2"}, "less than the minimum"),
        ("u", {SCRAM: "iterations=99999,password=hunter2"}, "Too many iterations"),
        ("u", {SCRAM: "password=hunter2", "request_percentage": "1"}, "both quota and SCRAM"),
        ("", {SCRAM: "password=hunter2"}, "not allowed with User SCRAM Credentials"),
        ("u", {SCRAM: None}, "Invalid config"),
    ],
)
async def test_invalid_credentials_are_not_written(
    store: Store, name: str, changes: dict[str, str | None], expected: str
) -> None:
    additions = {key: value for key, value in changes.items() if value is not None}
    deletions = [key for key in changes if key not in additions]
    with pytest.raises((CliError, BrokerError), match=expected) as refused:
        await alter(store, one("users", name), additions, deletions)
    assert "hunter2" not in str(refused.value)
    assert not await store.exists("/config")
