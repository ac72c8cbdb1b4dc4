"""The image without an engine: its files exist, its options are ours, its scripts work."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import tarfile
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType
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
from minibroker.ready import Ready, as_text
from tests.test_release import load

DOCKER = Path(__file__).parent.parent / "docker"
DOCKERFILE = (DOCKER / "Dockerfile").read_text()


@pytest.fixture(scope="module")
def image() -> ModuleType:
    return load("image")


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
        (["minibroker", "topics", "list"], ["minibroker", "topics", "list"]),
        (["--version"], ["minibroker", "--version"]),
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


def test_ports_that_are_published_are_ports_that_are_opened() -> None:
    properties = (DOCKER / "broker.properties").read_text()
    opened = set(re.findall(r":(\d+)\b", " ".join([properties, *service()["command"]])))
    published = {port.rpartition(":")[2] for port in service()["ports"]}
    assert published <= opened
    assert set(re.findall(r"^EXPOSE (.*)$", DOCKERFILE, re.MULTILINE)[0].split()) == published


def test_image_has_only_files_that_its_program_makes(image: ModuleType) -> None:
    instructions = re.findall(r"^(FROM|ADD|COPY|RUN)\b(.*)$", DOCKERFILE, re.MULTILINE)
    assert instructions == [
        ("FROM", " scratch"),
        ("ADD", " base-${TARGETARCH}.tar /"),
        ("ADD", " minibroker-${TARGETARCH}.tar /"),
    ]
    assert all((DOCKER / name).is_file() for name in image.SCRIPTS)
    targets = [f"/{target}" for target in image.SCRIPTS.values()]
    assert START[-1] in targets
    assert {f"/usr/local/bin/{words('ENTRYPOINT')[0]}", "/usr/local/bin/healthcheck"} < {*targets}
    assert set(image.LINKS.values()) <= set(targets)


def test_user_of_the_image_is_not_root_and_owns_the_volume(image: ModuleType) -> None:
    assert re.search(rf"^USER {image.USER_ID}$", DOCKERFILE, re.MULTILINE)
    assert f"\nminibroker:x:{image.USER_ID}:" in image.FILES["etc/passwd"]
    packed = image.anonymous(tarfile.TarInfo("data"))
    assert (packed.uid, packed.gid, packed.mode) == (image.USER_ID, 0, 0o775)
    other = tarfile.TarInfo("usr/bin/bash")
    other.uid, other.mode, other.mtime = 1234, 0o4755, 5
    packed = image.anonymous(other)
    assert (packed.uid, packed.mode, packed.mtime) == (0, 0o755, 0)


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        ("usr/bin/python3.13", True),
        ("usr/bin/pydoc3.13", False),
        ("usr/lib/python3.13/ssl.py", True),
        ("usr/lib/python3.13/pydoc_data/topics.py", False),
        ("usr/lib/python3.13/lib-dynload/_ssl.cpython-313-x86_64-linux-gnu.so", True),
        ("usr/lib/python3.13/lib-dynload/_testcapi.cpython-313-x86_64-linux-gnu.so", False),
        ("usr/lib/x86_64-linux-gnu/libzstd.so.1", True),
        ("usr/lib/x86_64-linux-gnu/gconv/UTF-16.so", False),
        ("usr/share/doc/bash/copyright", True),
        ("usr/share/doc/bash/changelog.gz", False),
        ("usr/sbin/", True),
        ("usr/sbin/zic", False),
    ],
)
def test_image_has_licences_and_what_a_broker_needs(
    image: ModuleType, path: str, kept: bool
) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as packed:
        member = tarfile.TarInfo(f"./{path.rstrip('/')}")
        member.type = tarfile.DIRTYPE if path.endswith("/") else tarfile.REGTYPE
        packed.addfile(member)
    archive.seek(0)
    with tarfile.open(fileobj=archive) as package:
        assert bool(list(image.needed(package))) == kept


def test_library_that_the_image_lacks_is_reported(image: ModuleType, tmp_path: Path) -> None:
    shutil.copy(os.path.realpath("/bin/sh"), tmp_path / "sh")
    [missing] = image.missing_libraries(tmp_path)
    (tmp_path / missing).touch()
    assert not image.missing_libraries(tmp_path)


LINES_OF_KAFKA = ["Transitioning from RECOVERY to RUNNING", "Kafka Server started"]
"""Testcontainers' modules wait for one of them."""


def test_start_scripts_for_kafka_see_lines_of_its_log(tmp_path: Path) -> None:
    entrypoint = tmp_path / "entrypoint"
    ready = as_text(Ready("localhost:9092", "http://127.0.0.1:8080", "/data", False, 7))
    entrypoint.write_text(f'#!/bin/sh\nprintf "$* $$ "\ncat <<END\n{ready}\nEND\n')
    entrypoint.chmod(0o755)
    run = tmp_path / "run"
    run.write_text(
        (DOCKER / "run").read_text().replace("/usr/local/bin/entrypoint", str(entrypoint))
    )
    with subprocess.Popen(["bash", str(run)], stdout=subprocess.PIPE, text=True) as started:
        printed, _ = started.communicate()
    first, second, *others = printed.splitlines()
    # The broker is the process that was started, so that it gets the signals of the engine.
    assert first.startswith(f"start {started.pid} minibroker ")
    assert all(line in second for line in LINES_OF_KAFKA)
    assert others == ready.splitlines()[1:]


@pytest.mark.parametrize("status", [200, 503])
@pytest.mark.parametrize("variable", ["MINIBROKER_CONTROL_LISTENER", "KAFKA_CONTROL_LISTENER"])
def test_container_is_healthy_if_the_broker_is(status: int, variable: str) -> None:
    class Health(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/v1/health" else 404)
            self.end_headers()

        def log_message(self, *words: object) -> None:
            """Print nothing."""

    with HTTPServer(("127.0.0.1", 0), Health) as server:
        environment = {"PATH": os.environ["PATH"], variable: f"0.0.0.0:{server.server_port}"}
        with subprocess.Popen([str(DOCKER / "healthcheck")], env=environment) as check:
            server.handle_request()
    assert (check.returncode == 0) == (status == 200)


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


def test_broker_of_the_project_finds_the_zookeeper_of_the_project(image: ModuleType) -> None:
    settings = settings_of(service()["command"])
    connect = settings[ZOOKEEPER_CONNECT]
    assert connect is not None
    [server] = map(str, connect.servers)
    assert server == "zookeeper:2181"
    assert service()["depends_on"] == {"zookeeper": {"condition": "service_healthy"}}
    # Without kazoo it would not start, and its data must be persistent as ZooKeeper's is.
    assert "zookeeper" in image.EXTRAS.split(",")
    assert f"broker-data:{settings.data_dir}" in service()["volumes"]
