"""The persona of a broker: its name, what follows from it, and what contradicts it."""

from __future__ import annotations

import pickle

import pytest

from minibroker.broker.personas.persona import NAMES
from minibroker.broker.settings import (
    GROUP_MAX_SESSION_TIMEOUT_MS,
    MESSAGE_MAX_BYTES,
    PERSONA,
    QUOTA_THROTTLE_MODE,
    ConfigError,
    Settings,
)


@pytest.mark.parametrize("name", NAMES)
def test_persona_of_settings_is_shown_by_its_name(name: str) -> None:
    settings = pickle.loads(pickle.dumps(Settings.from_sources(pairs=[f"persona={name}"])))
    persona = settings[PERSONA]
    assert persona is not None
    assert settings.text("persona") == persona.name == name


def test_no_persona_changes_nothing() -> None:
    assert Settings.from_sources()[PERSONA] is None
    assert Settings.from_sources(pairs=["persona="])[PERSONA] is None


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("kafka-2.9", "; did you mean kafka-2.0 or kafka-2.4 or kafka-2.8?"),
        ("redpnda", "; did you mean redpanda?"),
        ("x", ""),
    ],
)
def test_unknown_persona_is_refused_with_the_nearest_names(name: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Settings.from_sources(pairs=[f"persona={name}"])
    text = f"persona={name} (--set): must be one of {', '.join(NAMES)}{hint}"
    assert str(caught.value) == text


@pytest.mark.parametrize(("name", "mode"), [("kafka-1.1", "delay"), ("kafka-2.0", "mute")])
def test_throttle_mode_follows_from_the_persona(name: str, mode: str) -> None:
    settings = Settings.from_sources(pairs=[f"persona={name}"])
    assert settings[QUOTA_THROTTLE_MODE] == mode
    assert not settings.is_given(QUOTA_THROTTLE_MODE)


def test_defaults_follow_from_the_persona_unless_they_are_set() -> None:
    settings = Settings.from_sources(pairs=["persona=kafka-1.1", "message.max.bytes=5"])
    assert settings[MESSAGE_MAX_BYTES] == 5
    assert settings[GROUP_MAX_SESSION_TIMEOUT_MS] == 300_000


@pytest.mark.parametrize("pair", ["advertise.controller.requests=true", "zookeeper.connect=zk:1"])
def test_persona_without_controllers_requests_contradicts_what_needs_them(pair: str) -> None:
    Settings.from_sources(pairs=["persona=kafka-2.8", pair])
    with pytest.raises(ConfigError, match=r"LeaderAndIsr .* persona=kafka-4\.0 does not have"):
        Settings.from_sources(pairs=["persona=kafka-4.0", pair])
