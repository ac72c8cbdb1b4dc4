"""What can be held about the image without an engine: its files exist and its options are ours."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from minibroker.cli.start import read_settings
from minibroker.config import Settings

DOCKER = Path(__file__).parent.parent / "docker"
DOCKERFILE = (DOCKER / "Dockerfile").read_text()


def words(instruction: str) -> list[str]:
    """The words of ENTRYPOINT or CMD."""
    (found,) = re.findall(rf"^{instruction} (\[.*\])$", DOCKERFILE, re.MULTILINE)
    parsed: list[str] = json.loads(found)
    return parsed


def service() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())
    described: dict[str, Any] = found["services"]["minibroker"]
    return described


def settings_of(options: list[str]) -> Settings:
    """The settings that a container started with these options would have."""
    pairs = list(zip(options[::2], options[1::2], strict=True))
    control = [value for name, value in pairs if name == "--control"]
    return read_settings(
        listeners=[value for name, value in pairs if name == "--listener"],
        data_dir=None,
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
def test_the_broker_accepts_the_options_of_the_image(
    command: list[str], listeners: list[str]
) -> None:
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
