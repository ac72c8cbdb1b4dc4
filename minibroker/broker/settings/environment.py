"""Settings from environment variables, by the names that Kafka's container image takes.

Owns how the name of a variable becomes the name of a setting. It must never read the environment of
the process: variables are an argument. Invariant: no variable that starts with ``MINIBROKER_`` is
ignored; one that starts with ``KAFKA_`` is ignored with a warning if it neither is nor resembles a
setting, because applications have such variables too, and Kubernetes sets some in each container
for a service with the name ``kafka``. Kafka's ``KafkaDockerWrapper``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from minibroker.broker.settings.names import is_unsupported_kafka_setting, similar_names
from minibroker.broker.settings.setting import BROKER_SETTINGS, broker_setting
from minibroker.broker.settings.settings import ConfigError, SettingEntry, unknown_name

OWN: Final = "MINIBROKER_"
KAFKA: Final = "KAFKA_"

NOT_SETTINGS: Final = frozenset(
    {
        "KAFKA_GC_LOG_OPTS",
        "KAFKA_HEAP_OPTS",
        "KAFKA_JMX_HOSTNAME",
        "KAFKA_JMX_OPTS",
        "KAFKA_JVM_PERFORMANCE_OPTS",
        "KAFKA_LOG4J_LOGGERS",
        "KAFKA_LOG4J_OPTS",
        "KAFKA_LOG4J_ROOT_LOGLEVEL",
        "KAFKA_OPTS",
        "KAFKA_TOOLS_LOG4J_LOGLEVEL",
        "KAFKA_VERSION",
        "MINIBROKER_BOOTSTRAP_SERVER",
        "MINIBROKER_COMMAND_CONFIG",
        "MINIBROKER_CONTROL",
        "MINIBROKER_SEED",
    }
)
"""Variables for options of commands, and those that Kafka's image does not take for settings."""

TYPING_ERROR: Final = 0.85
"""Least similarity to a setting at which a variable that starts with ``KAFKA_`` is rejected."""


class EnvironmentSettings(NamedTuple):
    """``entries`` are in order of increasing precedence; ``ignored`` ones name no setting."""

    entries: list[SettingEntry]
    ignored: list[SettingEntry]


def read_environment(variables: Mapping[str, str]) -> EnvironmentSettings:
    """The settings that variables name; those with ``MINIBROKER_`` take precedence.

    Raises ``ConfigError`` with all variables that were meant to be settings and are not.
    """
    entries: list[SettingEntry] = []
    ignored: list[SettingEntry] = []
    problems: list[str] = []
    for prefix in (KAFKA, OWN):
        for variable, value in sorted(variables.items()):
            if not variable.startswith(prefix) or variable in NOT_SETTINGS:
                continue
            name = setting_name(variable.removeprefix(prefix))
            if broker_setting(name) is not None or is_unsupported_kafka_setting(name):
                entries.append(SettingEntry(name, value, f"${variable}"))
            elif prefix == OWN or _resembles_setting(name):
                suggestion = unknown_name(name, BROKER_SETTINGS)
                problems.append(f"{name} (${variable}): there is no such setting{suggestion}")
            else:
                ignored.append(SettingEntry(variable, value, f"${variable}"))
    if problems:
        raise ConfigError(problems)
    return EnvironmentSettings(entries, ignored)


def setting_name(variable: str) -> str:
    """The setting of a variable without its prefix.

    Three underscores stand for a hyphen, two for an underscore and one for a period, as in Kafka's
    image. One underscore may stand for each of them where this names a setting.
    """
    name = variable.lower().replace("___", "-").replace("__", "\0")
    name = name.replace("_", ".").replace("\0", "_")
    return name if broker_setting(name) is not None else _BY_VARIABLE.get(variable, name)


def _resembles_setting(name: str) -> bool:
    return bool(similar_names(name, BROKER_SETTINGS, count_max=1, similarity_min=TYPING_ERROR))


_BY_VARIABLE: Final = {
    "".join(letter if letter.isalnum() else "_" for letter in name).upper(): name
    for name in BROKER_SETTINGS
}
"""Settings by their names in upper case with underscores only."""
