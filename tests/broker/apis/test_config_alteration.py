"""Resources of a request: rejections before any config is validated."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.broker.apis.config_alteration import (
    BROKER_LOGGER_TYPE,
    BROKER_TYPE,
    CLIENT_METRICS_TYPE,
    GROUP_TYPE,
    TOPIC_TYPE,
    ConfigChange,
    alter_configs,
)
from minibroker.broker.metadata.configs import ConfigOperation, Op
from minibroker.runtime import hosts

STEP = (ConfigOperation("max.connections", Op.SET, "5"),)


async def ask(
    apis: Any, *wishes: ConfigChange, validate_only: bool = False
) -> list[tuple[int, str] | None]:
    found = await alter_configs(apis.controller, wishes, replace=False, validate_only=validate_only)
    return list(found)


async def test_config_changes_are_answered_in_request_order(apis: Any) -> None:
    unknown, fine, topic = await ask(
        apis,
        ConfigChange(64, "1", STEP),
        ConfigChange(BROKER_TYPE, "1", STEP),
        ConfigChange(TOPIC_TYPE, "missing", (ConfigOperation("retention.ms", Op.SET, "5"),)),
    )
    assert unknown == (42, "Unknown resource type 64")
    assert fine is None
    assert topic is not None
    assert topic[0] == 3
    assert apis.controller.at_processor.configs["brokers", "1"] == {"max.connections": "5"}


async def test_duplicate_resource_is_rejected(apis: Any) -> None:
    other = (ConfigOperation("max.connections", Op.SET, "6"),)
    answers = await ask(
        apis, ConfigChange(BROKER_TYPE, "1", STEP), ConfigChange(BROKER_TYPE, "1", other)
    )
    assert answers == [(42, "Each resource must appear at most once.")] * 2
    assert ("brokers", "1") not in apis.cluster.image.configs


async def test_validate_only_changes_are_not_applied(apis: Any) -> None:
    assert await ask(apis, ConfigChange(BROKER_TYPE, "1", STEP), validate_only=True) == [None]
    assert apis.controller.published == []


async def test_connection_limit_of_unresolvable_host_is_rejected(
    apis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def look_up(host: str) -> list[str]:
        if host != "here.test":
            raise OSError(f"nobody knows {host}")
        return ["10.0.0.1"]

    monkeypatch.setattr(hosts, "look_up", look_up)

    def overrides(text: str) -> ConfigChange:
        name = "max.connections.per.ip.overrides"
        return ConfigChange(BROKER_TYPE, "1", (ConfigOperation(name, Op.SET, text),))

    text = "max.connections.per.ip.overrides: cannot resolve gone.test; name hosts that can be "
    text += "looked up, or their addresses"
    assert await ask(apis, overrides("gone.test:1, 10.0.0.2:3, here.test:2")) == [(42, text)]
    assert apis.controller.published == []
    assert await ask(apis, overrides("here.test:2,10.0.0.2:3")) == [None]
    [refusal] = await ask(apis, overrides("10.0.0.0#:3"))
    assert refusal is not None
    assert refusal[0] == 42
    assert "an entry is host:number" in refusal[1]


async def test_unusable_keystore_is_rejected(apis: Any) -> None:
    name = "listener.name.ssl.ssl.keystore.location"
    apis.controller.bad_keys = ["bad.pem"]
    bad, good = (
        ConfigChange(BROKER_TYPE, "1", (ConfigOperation(name, Op.SET, location), *STEP))
        for location in ("bad.pem", "good.pem")
    )
    assert await ask(apis, bad) == [(42, "bad.pem")]
    assert apis.controller.published == []
    assert await ask(apis, bad, validate_only=True) == [(42, "bad.pem")]
    assert await ask(apis, good) == [None]


LEVEL = (ConfigOperation("root", Op.SET, "DEBUG"),)


async def test_log_levels_are_changed_one_by_one_only(apis: Any) -> None:
    wish = ConfigChange(BROKER_LOGGER_TYPE, "1", LEVEL)
    [refused] = await alter_configs(apis.controller, (wish,), replace=True, validate_only=False)
    assert refused == (42, "Unknown resource type 8")
    assert await ask(apis, wish) == [None]
    assert apis.controller.at_processor.configs["broker-loggers", "1"] == {"root": "DEBUG"}


async def test_groups_and_client_metrics_are_stored_under_encoded_names(apis: Any) -> None:
    session = (ConfigOperation("consumer.session.timeout.ms", Op.SET, "50000"),)
    interval = (ConfigOperation("interval.ms", Op.SET, "1000"),)
    answers = await ask(
        apis,
        ConfigChange(GROUP_TYPE, "a/b", session),
        ConfigChange(CLIENT_METRICS_TYPE, "all clients", interval),
    )
    assert answers == [None, None]
    configs = apis.controller.at_processor.configs
    assert configs["groups", "a%2Fb"] == {"consumer.session.timeout.ms": "50000"}
    assert configs["client-metrics", "all%20clients"] == {"interval.ms": "1000"}
