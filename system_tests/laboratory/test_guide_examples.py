"""The Java and the Go programs of the guides about fault rules and share groups."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from minibroker.testing import MiniBroker
from minibroker.testing.external import ExternalKafka
from system_tests.conftest import without_toolchain
from system_tests.harness.compiling import fetch_go_modules
from system_tests.harness.jars import ToolchainMissing, java_driver
from system_tests.harness.jvm import QUIET

pytestmark = pytest.mark.minibroker

ROOT = Path(__file__).parents[2]
GUIDES = ROOT / "docs" / "guides"
GO_MODULE = ROOT / "system_tests" / "histories" / "franz_workload"
LIMIT_S = 240


@pytest.fixture
def broker() -> Iterator[MiniBroker]:
    with MiniBroker() as broker:
        broker.create_topic("orders")
        yield broker


@pytest.fixture
def share_broker() -> Iterator[MiniBroker]:
    """A broker with one record, which the group ``packers`` reads from the start."""
    settings = {
        "group.share.min.heartbeat.interval.ms": 100,
        "group.share.heartbeat.interval.ms": 100,
    }
    with MiniBroker(settings=settings) as broker:
        broker.create_topic("orders")
        broker.produce("orders", ["book"])
        entry = ConfigEntry(
            "share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET
        )
        group = ConfigResource(ConfigResource.Type.GROUP, "packers", incremental_configs=[entry])
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.incremental_alter_configs([group])[group].result()
        yield broker


def program(guide: str, language: str) -> str:
    """The only program of a guide in a language."""
    text = (GUIDES / f"{guide}.md").read_text()
    [found] = re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return str(found)


def output_of(broker: MiniBroker, folder: Path, *command: str) -> str:
    """What a program prints that has the addresses of a broker as its arguments."""
    done = subprocess.run(
        [*command, broker.bootstrap_servers, broker.control_url],
        check=False,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_java(broker: MiniBroker, folder: Path, guide: str, name: str) -> str:
    source = folder / f"{name}.java"
    source.write_text(program(guide, "java"))
    return output_of(broker, folder, "java", QUIET, "-cp", java_driver(), str(source))


def run_go(broker: MiniBroker, folder: Path, guide: str) -> str:
    try:
        fetch_go_modules(GO_MODULE)
    except ToolchainMissing as missing:
        without_toolchain(missing)
    for name in ("go.mod", "go.sum"):
        (folder / name).write_bytes((GO_MODULE / name).read_bytes())
    (folder / "main.go").write_text(program(guide, "go"))
    return output_of(broker, folder, "go", "run", "-mod=mod", ".")


def assert_acknowledged(broker: MiniBroker, output: str) -> None:
    """Check that one record is appended, of which the acknowledgement was lost."""
    assert output == "acknowledged at offset 0\n"
    [partition] = broker.control.get("v1", "topics", "orders")["partitions"]
    assert partition["log_end_offset"] == 1
    assert broker.faults.list() == []


@pytest.mark.usefixtures("kafka_libs")
def test_java_program_gets_its_record_acknowledged(broker: MiniBroker, tmp_path: Path) -> None:
    assert_acknowledged(broker, run_java(broker, tmp_path, "faults", "LostAcknowledgement"))


def test_go_program_gets_its_record_acknowledged(broker: MiniBroker, tmp_path: Path) -> None:
    assert_acknowledged(broker, run_go(broker, tmp_path, "faults"))


def assert_accepted_at_last(broker: MiniBroker, output: str) -> None:
    """Check that the record was accepted when it was delivered for the last time."""
    assert output == "delivered 5 times\n"
    ExternalKafka(broker.bootstrap_servers).wait_for_group("packers", "Empty", lag=0)


@pytest.mark.usefixtures("kafka_libs")
def test_java_program_gets_its_record_for_the_last_time(
    share_broker: MiniBroker, tmp_path: Path
) -> None:
    output = run_java(share_broker, tmp_path, "test-share-groups", "LastDelivery")
    assert_accepted_at_last(share_broker, output)


def test_go_program_gets_its_record_for_the_last_time(
    share_broker: MiniBroker, tmp_path: Path
) -> None:
    output = run_go(share_broker, tmp_path, "test-share-groups")
    assert_accepted_at_last(share_broker, output)
