"""Settings of access rules: Kafka's class names, and principals that are some."""

from __future__ import annotations

import pytest

from minibroker.broker.settings import AUTHORIZER_CLASS_NAME, SUPER_USERS, ConfigError, Settings
from minibroker.broker.settings.access_definitions import AUTHORIZERS


def test_authorizer_is_unset_by_default_and_unknown_class_rejected() -> None:
    assert not Settings.from_sources()[AUTHORIZER_CLASS_NAME]
    for name in AUTHORIZERS:
        settings = Settings.from_sources(pairs=[f"authorizer.class.name={name}"])
        assert settings[AUTHORIZER_CLASS_NAME] == name
    with pytest.raises(ConfigError, match="must be empty or one of"):
        Settings.from_sources(pairs=["authorizer.class.name=org.example.Mine"])


def test_super_users_are_parsed_as_principals() -> None:
    settings = Settings.from_sources(pairs=["super.users=User:CN=a,O=b; User:root;"])
    assert settings[SUPER_USERS] == ("User:CN=a,O=b", "User:root")
    assert settings.text("super.users") == "User:CN=a,O=b;User:root"
    with pytest.raises(ConfigError, match="a principal is KIND:NAME"):
        Settings.from_sources(pairs=["super.users=root"])
