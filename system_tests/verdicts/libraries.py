"""The clients of the scenario: how the program of each is installed or compiled.

Owns the commands. A program reads options and operations as lines of JSON, as those of
`minibroker.testing.workload`, and answers each line; the scenario looks at the journal only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from minibroker.testing.workload import CLIENTS
from system_tests.harness.compiling import (
    built_with_cargo,
    built_with_go,
    built_with_npm,
    installed_with_npm,
)
from system_tests.harness.jars import java_driver
from system_tests.harness.jvm import short_jvm

HERE: Final = Path(__file__).parent / "clients"
FRANZ: Final = Path(__file__).parents[1] / "histories/franz_workload"
NATIVE: Final = "@confluentinc/kafka-javascript"
"""A package with a program in C++, which the registry has as source."""


def _java() -> list[str]:
    return [*short_jvm(), "-cp", java_driver(), "WorkloadClient"]


def _go(folder: Path) -> list[str]:
    return [str(built_with_go(folder))]


def _node(package: str) -> list[str]:
    folder = HERE / "node_client"
    installed = built_with_npm(folder, NATIVE) if package == NATIVE else installed_with_npm(folder)
    return ["node", str(installed / "client.mjs"), package]


def _rust() -> list[str]:
    return [str(built_with_cargo(HERE / "rdkafka_client"))]


_COMMANDS: Final[Mapping[str, Callable[[], list[str]]]] = {
    **{name: partial(list, command) for name, command in CLIENTS.items()},
    "java": _java,
    "franz-go": partial(_go, FRANZ),
    "sarama": partial(_go, HERE / "sarama_client"),
    "kafka-go": partial(_go, HERE / "kafka_go_client"),
    "kafkajs": partial(_node, "kafkajs"),
    "@platformatic/kafka": partial(_node, "@platformatic/kafka"),
    NATIVE: partial(_node, NATIVE),
    "rdkafka": _rust,
}
LIBRARIES: Final = tuple(_COMMANDS)


def command_of(library: str) -> list[str]:
    """Return the command of a client's program. Raises ``ToolchainMissing``."""
    return _COMMANDS[library]()
