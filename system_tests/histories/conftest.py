"""The commands of all clients that run workloads: three of Python, Java's and franz-go."""

from __future__ import annotations

from pathlib import Path

import pytest

from minibroker.testing.workload import CLIENTS
from system_tests.conftest import without_toolchain
from system_tests.harness.compiling import built_with_go
from system_tests.harness.jars import ToolchainMissing, java_driver
from system_tests.harness.jvm import short_jvm

FRANZ = Path(__file__).parent / "franz_workload"
NAMES = (*CLIENTS, "java", "franz-go")


def command_of(name: str) -> list[str]:
    """Return the command of a client; skip the test if its toolchain is missing."""
    try:
        if name == "java":
            return [*short_jvm(), "-cp", java_driver(), "WorkloadClient"]
        if name == "franz-go":
            return [str(built_with_go(FRANZ))]
    except ToolchainMissing as missing:
        without_toolchain(missing)
    return CLIENTS[name]


@pytest.fixture(
    params=[
        pytest.param(name, id=name, marks=[pytest.mark.java] if name == "java" else [])
        for name in NAMES
    ]
)
def client_command(request: pytest.FixtureRequest) -> list[str]:
    """The command of each client in turn."""
    return command_of(request.param)
