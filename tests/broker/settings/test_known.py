"""Kafka's settings that are not served are distinguished from served and misspelt ones."""

from __future__ import annotations

import pytest

from minibroker.broker.settings import BROKER_SETTINGS
from minibroker.broker.settings.known import KNOWN_UNSERVED, is_unsupported_kafka_setting


def test_no_served_setting_is_listed_as_unserved() -> None:
    assert not KNOWN_UNSERVED & set(BROKER_SETTINGS)


@pytest.mark.parametrize(
    "name",
    [
        "ssl.keystore.password",
        "zookeeper.clientCnxnSocket",
        "remote.log.storage.system.enable",
        "listener.name.internal.ssl.keystore.password",
        "listener.name.internal.plain.sasl.login.class",
        "listener.name.internal.num.network.threads",
    ],
)
def test_kafka_config_name_is_known(name: str) -> None:
    assert is_unsupported_kafka_setting(name)


@pytest.mark.parametrize("name", ["ssl.keystor.location", "listener.name.a", "num.io.threads", ""])
def test_other_config_name_is_unknown(name: str) -> None:
    assert not is_unsupported_kafka_setting(name)
