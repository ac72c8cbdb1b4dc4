"""What can be held about the image without an engine: its files exist and its options are ours."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from minibroker.broker.settings import (
    ADVERTISED_LISTENERS,
    CONTROL_TOKEN,
    ZOOKEEPER_CONNECT,
    Settings,
)
from minibroker.cli.start import read_settings

DOCKER = Path(__file__).parent.parent / "docker"
DOCKERFILE = (DOCKER / "Dockerfile").read_text()


def words(instruction: str) -> list[str]:
    """The words of ENTRYPOINT or CMD."""
    (found,) = re.findall(rf"^{instruction} (\[.*\])$", DOCKERFILE, re.MULTILINE)
    parsed: list[str] = json.loads(found)
    return parsed


COMPOSE = yaml.safe_load((DOCKER / "compose.yaml").read_text())


def service() -> dict[str, Any]:
    described: dict[str, Any] = COMPOSE["services"]["minibroker"]
    return described


def started_with(tmp_path: Path, *arguments: str) -> list[str]:
    """The command that the entry point runs for these arguments."""
    minibroker = tmp_path / "minibroker"
    minibroker.write_text('#!/bin/sh\necho minibroker "$@"\n')
    minibroker.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    command = [str(DOCKER / "entrypoint"), *arguments]
    printed = subprocess.check_output(command, env={"PATH": path}, text=True)
    return printed.split()


def settings_of(options: list[str]) -> Settings:
    """The settings that a container started with these options would have."""
    pairs = list(zip(options[::2], options[1::2], strict=True))
    return read_settings(
        listeners=[value for name, value in pairs if name == "--listener"],
        data_dir=None,
        config=DOCKER / "broker.properties",
        pairs=[value for name, value in pairs if name == "--set"],
        profile="laptop",
        control=None,
    )


START = ["minibroker", "start", "--config", "/etc/minibroker/broker.properties"]


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (words("CMD"), START),
        ([], START),
        (["--set", "num.partitions=3"], [*START, "--set", "num.partitions=3"]),
        (["start", "--profile", "kafka"], [*START, "--profile", "kafka"]),
        (["topics", "list"], ["minibroker", "topics", "list"]),
        (["sh", "-c", "echo a shell"], ["a", "shell"]),
        (["/bin/echo", "a", "path"], ["a", "path"]),
    ],
)
def test_entry_point_starts_a_broker_or_runs_a_command(
    tmp_path: Path, arguments: list[str], command: list[str]
) -> None:
    assert started_with(tmp_path, *arguments) == command


@pytest.mark.parametrize(
    ("options", "listeners"),
    [([], ["PLAINTEXT"]), (service()["command"], ["OUTSIDE", "INSIDE"])],
    ids=["Dockerfile", "compose"],
)
def test_broker_accepts_the_options_of_the_image(options: list[str], listeners: list[str]) -> None:
    assert words("ENTRYPOINT") == ["entrypoint"]
    settings = settings_of(options)
    assert [listener.name for listener in settings.client_listeners] == listeners


TESTCONTAINERS = {
    "CLUSTER_ID": "4L6g3nShT-eMCtK--X86sw",
    "KAFKA_LISTENERS": "PLAINTEXT://:9092,BROKER://:9093,CONTROLLER://:9094",
    "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "BROKER:PLAINTEXT,PLAINTEXT:PLAINTEXT,"
    "CONTROLLER:PLAINTEXT",
    "KAFKA_INTER_BROKER_LISTENER_NAME": "BROKER",
    "KAFKA_PROCESS_ROLES": "broker,controller",
    "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
    "KAFKA_NODE_ID": "1",
    "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
    "KAFKA_OFFSETS_TOPIC_NUM_PARTITIONS": "1",
    "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
    "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
    "KAFKA_LOG_FLUSH_INTERVAL_MESSAGES": str(2**63 - 1),
    "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
    "KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT://localhost:32768,BROKER://4cf1d2e0a1b2:9093",
}
"""Variables that Testcontainers' class for Kafka sets."""


def test_broker_accepts_the_variables_of_testcontainers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in TESTCONTAINERS.items():
        monkeypatch.setenv(name, value)
    settings = settings_of([])
    assert [listener.port for listener in settings.client_listeners] == [9092, 9093]
    advertised = settings[ADVERTISED_LISTENERS]
    assert advertised is not None
    assert [listener.port for listener in advertised] == [32768, 9093]


def test_prometheus_of_the_project_needs_no_token() -> None:
    assert settings_of(service()["command"])[CONTROL_TOKEN] == ""
    assert settings_of([])[CONTROL_TOKEN] is None


def test_data_is_in_a_volume_and_the_image_has_a_health_check() -> None:
    assert settings_of([]).data_dir == "/data"
    assert re.search(r"^VOLUME /data$", DOCKERFILE, re.MULTILINE)
    assert re.search(r"^HEALTHCHECK .* CMD .*healthcheck", DOCKERFILE, re.MULTILINE)
    assert re.search(r"^USER minibroker$", DOCKERFILE, re.MULTILINE)


def test_ports_that_are_published_are_ports_that_are_opened() -> None:
    properties = (DOCKER / "broker.properties").read_text()
    opened = set(re.findall(r":(\d+)\b", " ".join([properties, *service()["command"]])))
    published = {port.rpartition(":")[2] for port in service()["ports"]}
    assert published <= opened
    assert set(re.findall(r"^EXPOSE (.*)$", DOCKERFILE, re.MULTILINE)[0].split()) == published


def test_everything_that_is_copied_is_in_the_context() -> None:
    kept = {
        line[1:]
        for line in (DOCKER / "Dockerfile.dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE)
    assert {name for line in copied for name in line.split()} == kept
    assert all((DOCKER.parent / name).exists() for name in kept)


@pytest.mark.parametrize("name", COMPOSE["services"])
def test_service_names_only_what_there_is(name: str) -> None:
    described = COMPOSE["services"][name]
    known = {"image", "build", "depends_on", "command", "environment", "ports", "shm_size"}
    assert described.keys() <= known | {"volumes", "healthcheck"}
    assert ("image" in described) != ("build" in described)
    assert "build" in described or re.fullmatch(r"[a-z/]+:v?\d[\d.]*", described["image"])
    assert set(described.get("depends_on", ())) <= COMPOSE["services"].keys()
    for volume in described.get("volumes", ()):
        source, target, *mode = volume.split(":")
        if source.startswith("."):
            assert (DOCKER / source).is_dir()
            assert mode == ["ro"]
        else:
            assert source in COMPOSE["volumes"]
        assert target.startswith("/")


def test_every_service_has_a_health_check_and_binds_to_loopback() -> None:
    services = COMPOSE["services"].values()
    for described in services:
        assert described["healthcheck"]["test"][0] in {"CMD", "CMD-SHELL"}
    published = [port for described in services for port in described.get("ports", ())]
    assert all(port.startswith("127.0.0.1:") for port in published)
    assert len({port.split(":")[1] for port in published}) == len(published)
    mounted = {
        volume.split(":")[0] for described in services for volume in described.get("volumes", ())
    }
    assert {name for name in mounted if not name.startswith(".")} == COMPOSE["volumes"].keys()


def test_broker_of_the_project_finds_the_zookeeper_of_the_project() -> None:
    settings = settings_of(service()["command"])
    connect = settings[ZOOKEEPER_CONNECT]
    assert connect is not None
    [server] = map(str, connect.servers)
    assert server == "zookeeper:2181"
    assert service()["depends_on"] == {"zookeeper": {"condition": "service_healthy"}}
    # Without kazoo it would not start, and its data must be persistent as ZooKeeper's is.
    assert re.search(r"pip install .*\[zookeeper\]", DOCKERFILE)
    assert f"broker-data:{settings.data_dir}" in service()["volumes"]
