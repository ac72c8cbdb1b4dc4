"""What can be held about the image without an engine: its files exist and its options are ours."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from minibroker.broker.settings import ZOOKEEPER_CONNECT, Settings
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


def settings_of(options: list[str]) -> Settings:
    """The settings that a container started with these options would have."""
    pairs = list(zip(options[::2], options[1::2], strict=True))
    control = [value for name, value in pairs if name == "--control"]
    return read_settings(
        listeners=[value for name, value in pairs if name == "--listener"],
        data_dir=Path(value) if (value := dict(pairs).get("--data-dir")) else None,
        config=None,
        pairs=[value for name, value in pairs if name == "--set"],
        profile="laptop",
        control=control[0],
    )


@pytest.mark.parametrize(
    ("command", "listeners"),
    [(words("CMD"), ["PLAINTEXT"]), (service()["command"], ["OUTSIDE", "INSIDE"])],
    ids=["Dockerfile", "compose"],
)
def test_broker_accepts_the_options_of_the_image(command: list[str], listeners: list[str]) -> None:
    entry = words("ENTRYPOINT")
    assert entry[:2] == ["minibroker", "start"]
    settings = settings_of([*entry[2:], *command])
    assert [listener.name for listener in settings.client_listeners] == listeners


def test_ports_that_are_published_are_ports_that_are_opened() -> None:
    opened = set(re.findall(r":(\d+)\b", " ".join(words("ENTRYPOINT") + service()["command"])))
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
    entry = words("ENTRYPOINT")
    settings = settings_of([*entry[2:], *service()["command"]])
    connect = settings[ZOOKEEPER_CONNECT]
    assert connect is not None
    [server] = map(str, connect.servers)
    assert server == "zookeeper:2181"
    assert service()["depends_on"] == {"zookeeper": {"condition": "service_healthy"}}
    # Without kazoo it would not start, and its data must be persistent as ZooKeeper's is.
    assert re.search(r"pip install .*\[zookeeper\]", DOCKERFILE)
    assert f"broker-data:{settings.data_dir}" in service()["volumes"]
