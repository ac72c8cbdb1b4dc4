"""The Java and the Go program of the guide about fault rules."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from minibroker.testing import MiniBroker
from system_tests.conftest import without_toolchain
from system_tests.harness.compiling import fetch_go_modules
from system_tests.harness.jars import ToolchainMissing, java_driver
from system_tests.harness.jvm import QUIET

pytestmark = pytest.mark.minibroker

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guides" / "faults.md"
GO_MODULE = ROOT / "system_tests" / "histories" / "franz_workload"
LIMIT_S = 240


@pytest.fixture
def broker() -> Iterator[MiniBroker]:
    with MiniBroker() as broker:
        broker.create_topic("orders")
        yield broker


def program(language: str) -> str:
    """The only program of the guide in a language."""
    [found] = re.findall(rf"^```{language}\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    return str(found)


def run(broker: MiniBroker, folder: Path, *command: str) -> None:
    """Run a program that produces one record, of which the acknowledgement is lost."""
    done = subprocess.run(
        [*command, broker.bootstrap_servers, broker.control_url],
        check=False,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert (done.returncode, done.stdout) == (0, "acknowledged at offset 0\n"), done.stderr
    [partition] = broker.control.get("v1", "topics", "orders")["partitions"]
    assert partition["log_end_offset"] == 1
    assert broker.faults.list() == []


@pytest.mark.usefixtures("kafka_libs")
def test_java_program_gets_its_record_acknowledged(broker: MiniBroker, tmp_path: Path) -> None:
    source = tmp_path / "LostAcknowledgement.java"
    source.write_text(program("java"))
    run(broker, tmp_path, "java", QUIET, "-cp", java_driver(), str(source))


def test_go_program_gets_its_record_acknowledged(broker: MiniBroker, tmp_path: Path) -> None:
    try:
        fetch_go_modules(GO_MODULE)
    except ToolchainMissing as missing:
        without_toolchain(missing)
    for name in ("go.mod", "go.sum"):
        (tmp_path / name).write_bytes((GO_MODULE / name).read_bytes())
    (tmp_path / "main.go").write_text(program("go"))
    run(broker, tmp_path, "go", "run", "-mod=mod", ".")
