"""Environment variables: the settings that they name, and which ones are rejected or ignored."""

from __future__ import annotations

import pytest

from minibroker.broker.settings.environment import NOT_SETTINGS, read_environment, setting_name
from minibroker.broker.settings.setting import BROKER_SETTINGS
from minibroker.broker.settings.settings import ConfigError, SettingEntry, Settings


def variable_of(name: str) -> str:
    """The variable of a setting by the rule of Kafka's image."""
    return name.replace("_", "__").replace("-", "___").replace(".", "_").upper()


def test_each_setting_has_a_variable_by_the_rule_of_kafka_s_image_and_a_plain_one() -> None:
    for name in BROKER_SETTINGS:
        assert setting_name(variable_of(name)) == name
        assert setting_name(name.replace(".", "_").replace("-", "_").upper()) == name


@pytest.mark.parametrize(
    ("variable", "name"),
    [
        (
            "LISTENER_NAME_SASL__SSL_SCRAM___SHA___512_SASL_JAAS_CONFIG",
            "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config",
        ),
        ("CONTROLLER_QUORUM_VOTERS", "controller.quorum.voters"),
        ("ZOOKEEPER_CLIENTCNXNSOCKET", "zookeeper.clientcnxnsocket"),
    ],
)
def test_name_that_is_not_in_the_table_follows_the_rule(variable: str, name: str) -> None:
    assert setting_name(variable) == name


def test_own_variable_takes_precedence_over_that_of_kafka() -> None:
    found = read_environment(
        {"MINIBROKER_NUM_PARTITIONS": "3", "KAFKA_NUM_PARTITIONS": "2", "PATH": "/bin"}
    )
    assert found.entries == [
        SettingEntry("num.partitions", "2", "$KAFKA_NUM_PARTITIONS"),
        SettingEntry("num.partitions", "3", "$MINIBROKER_NUM_PARTITIONS"),
    ]
    assert found.ignored == []


def test_mistyped_variables_are_all_rejected_with_the_nearest_setting() -> None:
    with pytest.raises(ConfigError) as caught:
        read_environment({"MINIBROKER_NUM_PARTITION": "3", "KAFKA_LOG_RETENTION_M": "2"})
    problem = "{} (${}): there is no such setting; did you mean {}?"
    assert caught.value.problems == (
        problem.format("log.retention.m", "KAFKA_LOG_RETENTION_M", "log.retention.ms"),
        problem.format("num.partition", "MINIBROKER_NUM_PARTITION", "num.partitions"),
    )


def test_own_variable_that_resembles_nothing_is_rejected_too() -> None:
    with pytest.raises(ConfigError, match=r"colour \(\$MINIBROKER_COLOUR\): there is no such"):
        read_environment({"MINIBROKER_COLOUR": "red"})


def test_kafka_variables_of_other_programs_are_ignored_with_a_warning() -> None:
    others = {
        "KAFKA_BOOTSTRAP_SERVERS": "k:9092",
        "KAFKA_PORT_9092_TCP_PROTO": "tcp",
        "KAFKA_SERVICE_HOST": "10.0.0.1",
    }
    found = read_environment(others | dict.fromkeys(NOT_SETTINGS, "x"))
    assert found.entries == []
    assert [entry.name for entry in found.ignored] == sorted(others)
    settings = Settings.from_entries([], ignored=found.ignored)
    assert all(name in settings.warnings[0] for name in others)


def test_settings_that_only_kafka_has_are_ignored_as_in_a_file() -> None:
    found = read_environment({"KAFKA_PROCESS_ROLES": "broker,controller"})
    settings = Settings.from_entries(found.entries)
    assert [entry.name for entry in settings.ignored] == ["process.roles"]
