"""Settings of ZooKeeper: Kafka's defaults, dependencies, and hidden values."""

from __future__ import annotations

import pytest

from minibroker.broker import settings as config
from minibroker.broker.settings import ConfigError, Settings

CONNECT = "zookeeper.connect=localhost"
USER = "zookeeper.digest.username=us"
PASSWORD = "zookeeper.digest.password=secret"


@pytest.mark.parametrize("profile", ["laptop", "kafka"])
def test_zookeeper_defaults_match_kafka(profile: str) -> None:
    settings = Settings.from_sources(profile=profile)
    assert settings[config.ZOOKEEPER_CONNECT] is None
    assert settings[config.ZOOKEEPER_SESSION_TIMEOUT_MS] == 18_000
    assert settings[config.ZOOKEEPER_CONNECTION_TIMEOUT_MS] is None
    assert settings[config.ZOOKEEPER_SET_ACL] is False
    assert settings[config.ZOOKEEPER_SSL_CLIENT_ENABLE] is False
    assert settings[config.ZOOKEEPER_SSL_ENDPOINT_IDENTIFICATION_ALGORITHM] == "HTTPS"


@pytest.mark.parametrize("text", ["", ":2181", "a:0", "a:99999", "a:1,,b:1", "a/x//y", "a/../b"])
def test_invalid_connect_string_is_rejected(text: str) -> None:
    if not text:
        assert Settings.from_sources(pairs=["zookeeper.connect="])[config.ZOOKEEPER_CONNECT] is None
        return
    with pytest.raises(ConfigError, match=r"zookeeper\.connect="):
        Settings.from_sources(pairs=[f"zookeeper.connect={text}"])


@pytest.mark.parametrize("alone", [USER, PASSWORD])
def test_digest_user_without_password_is_rejected(alone: str) -> None:
    with pytest.raises(ConfigError, match="must be given together") as caught:
        Settings.from_sources(pairs=[CONNECT, alone])
    assert "secret" not in str(caught.value)


def test_zookeeper_acl_without_credentials_is_rejected() -> None:
    wanted = [CONNECT, "zookeeper.set.acl=true"]
    with pytest.raises(ConfigError, match="needs credentials"):
        Settings.from_sources(pairs=wanted)
    with pytest.raises(ConfigError, match="needs credentials"):
        Settings.from_sources(pairs=[*wanted, "zookeeper.ssl.keystore.location=/k.pem"])
    Settings.from_sources(pairs=[*wanted, USER, PASSWORD])
    tls = ["zookeeper.ssl.client.enable=true", "zookeeper.ssl.keystore.location=/k.pem"]
    Settings.from_sources(pairs=[*wanted, *tls])


def test_digest_password_is_not_in_repr() -> None:
    settings = Settings.from_sources(pairs=[CONNECT, USER, PASSWORD])
    assert settings[config.ZOOKEEPER_DIGEST_PASSWORD] == "secret"
    assert config.ZOOKEEPER_DIGEST_PASSWORD.sensitive
    assert "secret" not in repr(settings)
