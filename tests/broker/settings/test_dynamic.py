"""Changes while the broker runs: which ones count, in which order, and which are refused."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.settings import Settings
from minibroker.broker.settings.definitions import (
    KAFKA_CONNECTIONS_MAX,
    LOG_RETENTION_MS,
    MAX_CONNECTIONS,
    MESSAGE_MAX_BYTES,
    NUM_IO_THREADS,
    SSL_KEYSTORE_LOCATION,
)
from minibroker.broker.settings.dynamic import (
    BROKERS,
    DEFAULT_NAME,
    DYNAMIC_SOURCE,
    Configs,
    DynamicSettings,
    bad_values,
    effective,
    layers,
    problems,
    thread_count_problems,
)

STATIC = Settings.from_sources(pairs=["message.max.bytes=300", "node.id=7"])
INTERNAL = "listener.name.internal.max.connections"
MAP = "listener.security.protocol.map=INTERNAL:PLAINTEXT"


def changed(own: dict[str, str] | None = None, default: dict[str, str] | None = None) -> Settings:
    configs = {(BROKERS, "7"): own or {}, (BROKERS, DEFAULT_NAME): default or {}}
    return effective(STATIC, configs)


def test_config_precedence_is_broker_then_all_brokers_then_static() -> None:
    assert Settings.from_sources()[MESSAGE_MAX_BYTES] == 1024 * 1024 + 12
    assert changed()[MESSAGE_MAX_BYTES] == 300
    assert changed(default={"message.max.bytes": "200"})[MESSAGE_MAX_BYTES] == 200
    both = changed({"message.max.bytes": "100"}, {"message.max.bytes": "200"})
    assert both[MESSAGE_MAX_BYTES] == 100
    assert both.where(MESSAGE_MAX_BYTES) == DYNAMIC_SOURCE
    assert pickle.loads(pickle.dumps(both)) == both


def test_settings_without_dynamic_configs_are_the_static_object() -> None:
    assert changed() is STATIC
    assert effective(STATIC, {("topics", "7"): {"max.connections": "1"}}) is STATIC
    assert effective(STATIC, {(BROKERS, "8"): {"max.connections": "1"}}) is STATIC


def test_listener_value_overrides_broker_value() -> None:
    assert changed({"max.connections": "5"}).at_listener("INTERNAL", MAX_CONNECTIONS) == 5
    both = changed({INTERNAL: "3"}, {"max.connections": "5"})
    assert both.at_listener("INTERNAL", MAX_CONNECTIONS) == 3
    assert both.at_listener("EXTERNAL", MAX_CONNECTIONS) == 5
    assert both[MAX_CONNECTIONS] == 5


def test_listener_value_may_be_static() -> None:
    settings = Settings.from_sources(pairs=["listeners=INTERNAL://:9092", MAP, f"{INTERNAL}=3"])
    assert not settings.warnings
    assert settings.at_listener("Internal", MAX_CONNECTIONS) == 3
    assert settings.text(INTERNAL) == "3"
    dynamic = effective(settings, {(BROKERS, DEFAULT_NAME): {INTERNAL: "4"}})
    assert dynamic.at_listener("INTERNAL", MAX_CONNECTIONS) == 4


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("message.max.bytes", "many"),
        ("max.connections", "-1"),
        ("max.connections", "0"),
        ("max.connection.creation.rate", "0"),
        (INTERNAL, "0"),
        ("num.io.threads", "4"),
        ("listener.name.internal.log.retention.ms", "4"),
        ("no.such.setting", "4"),
    ],
)
def test_invalid_dynamic_config_is_ignored_and_reported(name: str, text: str) -> None:
    settings = changed({name: text, "log.retention.ms": "9"})
    assert settings[LOG_RETENTION_MS] == 9
    assert settings[NUM_IO_THREADS] == STATIC[NUM_IO_THREADS]
    assert settings[MESSAGE_MAX_BYTES] == 300
    assert layers(STATIC, {(BROKERS, "7"): {name: text}}).own == {}
    [problem] = problems(STATIC, {name: text})
    assert name in problem


def test_valid_dynamic_config_has_no_problems() -> None:
    assert list(problems(STATIC, {"log.retention.ms": "9", INTERNAL: "1"})) == []


def test_unchanged_configs_are_parsed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parsed = []

    def count(settings: Settings, configs: Configs) -> Settings:
        parsed.append(configs)
        return effective(settings, configs)

    monkeypatch.setattr("minibroker.broker.settings.dynamic.effective", count)
    dynamic_settings = DynamicSettings(STATIC)
    assert dynamic_settings.of({}) is STATIC
    first: Configs = {(BROKERS, "7"): {"log.retention.ms": "8"}}
    second: Configs = {(BROKERS, "7"): {"log.retention.ms": "9"}}
    parsed.clear()
    found = [
        dynamic_settings.of(configs)[LOG_RETENTION_MS] for configs in (first, first, second, first)
    ]
    assert found == [8, 8, 9, 8]
    assert parsed == [first, second, first]


KEYSTORE = "ssl.keystore.location"
AT_LISTENER = f"listener.name.internal.{KEYSTORE}"


def test_keystore_change_requires_listener_prefix_and_broker_id() -> None:
    assert list(problems(STATIC, {AT_LISTENER: "new.pem"})) == []
    assert changed({AT_LISTENER: "new.pem"}).at_listener("INTERNAL", SSL_KEYSTORE_LOCATION)
    [bare] = bad_values({KEYSTORE: "new.pem"})
    assert bare.startswith("These security configs can be dynamically updated only per-listener")
    assert bare.endswith(f"set listener.name.<listener>.{KEYSTORE}")
    [for_all] = bad_values({AT_LISTENER: "new.pem"}, for_all=True)
    assert "Cannot update these configs at default cluster level" in for_all
    others = changed({KEYSTORE: "a.pem"}, {AT_LISTENER: "b.pem"})
    assert others.at_listener("INTERNAL", SSL_KEYSTORE_LOCATION) is None
    [fixed] = bad_values({"listener.name.internal.ssl.client.auth": "none"})
    assert fixed.startswith("Cannot update these configs dynamically")


def test_misspelled_dynamic_config_suggests_nearest_name() -> None:
    [problem] = problems(STATIC, {"max.conections": "4"})
    assert problem == "Unknown config name: max.conections; did you mean max.connections?"


@given(st.dictionaries(st.sampled_from(["message.max.bytes", INTERNAL, "x"]), st.text()))
def test_any_dynamic_config_text_yields_valid_settings(own: dict[str, str]) -> None:
    settings = changed(own)
    assert settings[MESSAGE_MAX_BYTES] >= 0
    assert settings.at_listener("INTERNAL", MAX_CONNECTIONS) > 0


def test_single_acceptor_limits_in_sharded_mode_are_ignored() -> None:
    sharded = Settings.from_sources(pairs=["acceptor.mode=sharded"])
    written = {"max.connections": "5", INTERNAL: "4"}
    configs = {(BROKERS, DEFAULT_NAME): written}
    assert effective(sharded, configs) is sharded
    configs = {(BROKERS, DEFAULT_NAME): {**written, "kafka_connections_max": "3"}}
    found = effective(sharded, configs)
    assert (found[KAFKA_CONNECTIONS_MAX], found[MAX_CONNECTIONS]) == (3, 2**31 - 1)
    assert found.at_listener("INTERNAL", MAX_CONNECTIONS) == 2**31 - 1


def test_setting_of_kafka_that_is_not_supported_cannot_be_changed() -> None:
    [problem] = bad_values({"request.timeout.ms": "2", "max.connections": "5"})
    assert problem == "Cannot update these configs dynamically: request.timeout.ms"


@pytest.mark.parametrize(
    ("count", "problem"),
    [
        ("4", "be at least half the current value 10"),
        ("5", None),
        ("20", None),
        ("21", "not be greater than double the current value 10"),
    ],
)
def test_number_of_threads_changes_by_half_or_double_at_most(
    count: str, problem: str | None
) -> None:
    changed = {"background.threads": count, "max.connections": "5"}
    found = list(thread_count_problems(Settings.from_sources(), changed))
    text = f"Dynamic thread count update validation failed for background.threads={count}, value"
    assert found == ([] if problem is None else [f"{text} should {problem}"])


def test_cleaner_keeps_a_thread() -> None:
    [problem] = thread_count_problems(Settings.from_sources(), {"log.cleaner.threads": "0"})
    assert problem.endswith("value should be at least 1")


def test_settings_of_kerberos_are_changed_for_one_broker_only() -> None:
    change = {"sasl.kerberos.service.name": "kafka"}
    assert list(bad_values(change)) == []
    [problem] = bad_values(change, for_all=True)
    assert problem.startswith("Cannot update these configs at default cluster level")
