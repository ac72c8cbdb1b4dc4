"""Runs the container image as its users do, in the ways that docs/guides/container.md shows.

Owns what the image promises. Needs an engine with which `docker`'s words work (ENGINE, by default
podman) and a Kafka client. It must never read files of the checkout: all that is checked is in the
image. Invariant: every container and volume that it made is removed, also if a check fails.
"""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.request import urlopen

from confluent_kafka import Consumer, Producer

ENGINE = shlex.split(os.environ.get("ENGINE", "podman"))
IMAGE = os.environ.get("IMAGE", "minibroker")
PATIENCE_S = 60
NEVER_IN_IMAGE = ("pyspark", "numba", "duckdb", "pandas", "pyarrow", "pytest")

TESTCONTAINERS = """\
KAFKA_LISTENER_SECURITY_PROTOCOL_MAP=BROKER:PLAINTEXT,PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
KAFKA_LISTENERS=PLAINTEXT://0.0.0.0:9092,BROKER://0.0.0.0:9093,CONTROLLER://0.0.0.0:9094
KAFKA_INTER_BROKER_LISTENER_NAME=BROKER
KAFKA_CONTROLLER_LISTENER_NAMES=CONTROLLER
KAFKA_CONTROLLER_QUORUM_VOTERS=1@localhost:9094
KAFKA_PROCESS_ROLES=broker,controller
KAFKA_NODE_ID=1
KAFKA_BROKER_ID=1
KAFKA_REST_BOOTSTRAP_SERVERS=PLAINTEXT://0.0.0.0:9092
KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR=1
KAFKA_OFFSETS_TOPIC_NUM_PARTITIONS=1
KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR=1
KAFKA_TRANSACTION_STATE_LOG_MIN_ISR=1
KAFKA_LOG_FLUSH_INTERVAL_MESSAGES=9223372036854775807
KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS=0
CLUSTER_ID=4L6g3nShT-eMCtK--X86sw
"""
"""Variables that Testcontainers' modules set."""

PREPARE = """
sed -i '/KAFKA_ZOOKEEPER_CONNECT/d' /etc/confluent/docker/configure
echo 'kafka-storage format --ignore-formatted -t ID' >> /etc/confluent/docker/configure
echo '' > /etc/confluent/docker/ensure
"""
SCRIPT = "/tmp/testcontainers_start.sh"  # noqa: S108 - in a container
CONFLUENT = "/etc/confluent/docker"
START_SCRIPTS = {
    "Java": ("", SCRIPT, "", "/etc/kafka/docker/run \n"),
    "Java, Confluent's": ("", SCRIPT, "", f"{CONFLUENT}/run \n"),
    "Node.js": ("sh", SCRIPT, "", f"{CONFLUENT}/run \n"),
    "Go": (
        *("sh", "/usr/sbin/testcontainers_start.sh", f"source {CONFLUENT}/bash-config\n"),
        f"{PREPARE}{CONFLUENT}/configure\n{CONFLUENT}/launch",
    ),
    "Python": (
        *("", "/tc-start.sh", PREPARE),
        f". {CONFLUENT}/bash-config\n{CONFLUENT}/configure\n{CONFLUENT}/launch",
    ),
}
"""By module: entry point, path of the script, and what it does before and after it exports the
addresses."""
LINES_OF_KAFKA = ("Transitioning from RECOVERY to RUNNING", "Kafka Server started")


class CheckFailed(Exception):
    """The image does not keep a promise."""


def engine(*words: str) -> str:
    """Return what a command of the engine prints."""
    done = subprocess.run(  # noqa: S603 - our own command
        [*ENGINE, *words], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise CheckFailed(f"{shlex.join(words)}: {done.stdout}{done.stderr}")
    return done.stdout.strip()


def run(*words: str) -> str:
    """Run a container to its end and return what it prints."""
    return engine("run", "--rm", *words)


@contextmanager
def container(*words: str) -> Iterator[str]:
    """Start a container that is removed at the end."""
    name = engine("run", "--detach", *words).splitlines()[-1]
    try:
        yield name
    except Exception:
        subprocess.run([*ENGINE, "logs", name], check=False)  # noqa: S603 - our own command
        raise
    finally:
        # It may have ended, and a shell as the first process ignores a request to end.
        subprocess.run(  # noqa: S603 - our own command
            [*ENGINE, "kill", name],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )
        engine("rm", "--force", "--volumes", name)


def wait_until(what: str, holds: Callable[[], bool]) -> None:
    """Poll until a condition holds."""
    until = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > until:
            raise CheckFailed(f"not seen for {PATIENCE_S} s: {what}")
        time.sleep(0.05)


def is_healthy(name: str) -> bool:
    """Whether the command of HEALTHCHECK succeeds."""
    try:
        engine("exec", name, "healthcheck")
    except CheckFailed:
        return False
    return True


def wait_for_health(name: str) -> None:
    """Wait until the broker of a container is healthy."""
    wait_until(f"{name} is healthy", lambda: is_healthy(name))


def free_port() -> int:
    """Return a port that is free."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def produce(servers: str, topic: str) -> None:
    """Produce a message with a client outside of the container."""
    producer = Producer({"bootstrap.servers": servers})
    producer.produce(topic, "hello")
    if producer.flush(PATIENCE_S):
        raise CheckFailed(f"{servers} did not acknowledge a message")


def consume(servers: str, topic: str) -> None:
    """Consume it again."""
    settings = {"bootstrap.servers": servers, "group.id": "check", "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    values = [message.value() for message in consumer.consume(1, PATIENCE_S)]
    consumer.close()
    if values != [b"hello"]:
        raise CheckFailed(f"{servers} returned {values}")


def check_commands() -> None:
    """Commands and shells run as words after the image, and the user is not root."""
    if not run(IMAGE, "--version").startswith("minibroker "):
        raise CheckFailed("--version prints no version")
    if run(IMAGE, "sh", "-c", "id -u") != "1000":
        raise CheckFailed("the user of the image is root")
    program = "import importlib.util as u; print([n for n in '{}'.split() if u.find_spec(n)])"
    found = run(IMAGE, "/usr/bin/python3", "-c", program.format(" ".join(NEVER_IN_IMAGE)))
    if found != "[]":
        raise CheckFailed(f"no broker needs {found}")
    used = "import minibroker.cli.start, jwt, kazoo, trustme, cramjam, crc32c, sqlite3, ssl"
    run(
        IMAGE,
        "/usr/bin/python3",
        "-c",
        f"{used}; assert ssl.create_default_context().get_ca_certs()",
    )


def check_published_port() -> None:
    """Clients outside and inside reach a broker with settings from variables; it stops at once."""
    port = free_port()
    words = ["-p", f"127.0.0.1:{port}:9092", "-e", "KAFKA_NUM_PARTITIONS=3"]
    words += ["-e", f"KAFKA_ADVERTISED_LISTENERS=PLAINTEXT://*:{port}", IMAGE]
    with container(*words) as name:
        wait_for_health(name)
        produce(f"localhost:{port}", "cats")
        consume(f"localhost:{port}", "cats")
        topics = engine("exec", name, "minibroker", "topics", "list")
        if "cats            3" not in topics:
            raise CheckFailed(f"KAFKA_NUM_PARTITIONS has no effect: {topics}")
        started = time.monotonic()
        engine("stop", "--time", "10", name)
        status = engine("inspect", "--format", "{{.State.ExitCode}}", name)
        if status != "0" or time.monotonic() - started > 9:
            raise CheckFailed(f"the broker ended with status {status}")


def check_service() -> None:
    """GitHub Actions starts a service in a network, for jobs on the machine and in containers."""
    network = engine("network", "create", f"minibroker-check-{os.getpid()}")
    port = free_port()
    words = ["--network", network, "--network-alias", "kafka", "-p", "127.0.0.1::8080"]
    words += ["-p", f"127.0.0.1:{port}:9092", "-e", "MINIBROKER_CONTROL_TOKEN="]
    words += ["-e", f"KAFKA_ADVERTISED_LISTENERS=PLAINTEXT://*:{port}", IMAGE]
    try:
        with container(*words) as name:
            wait_for_health(name)
            produce(f"localhost:{port}", "cats")
            consume(f"localhost:{port}", "cats")
            job = ["--network", network, IMAGE, "consume", "cats", "-b", "kafka:9092"]
            consumed = run(*job, "--from-beginning", "--max-messages", "1")
            if consumed != "hello":
                raise CheckFailed(f"a job in a container consumed {consumed!r}")
            control = engine("port", name, "8080/tcp").rpartition(":")[2]
            with urlopen(f"http://127.0.0.1:{control}/v1/topics") as response:
                if "cats" not in response.read().decode():
                    raise CheckFailed("the control API does not list the topic")
    finally:
        engine("network", "rm", network)


def check_health() -> None:
    """Without a broker, a container is not healthy."""
    with container(IMAGE, "sh", "-c", "sleep 60") as name:
        if is_healthy(name):
            raise CheckFailed("healthy without a broker")


def check_volume() -> None:
    """Data survives a container, also with a read-only root and as any user of group 0."""
    volume = engine("volume", "create")
    try:
        mounted = ["-v", f"{volume}:/data", "--read-only", "--tmpfs", "/tmp", IMAGE]  # noqa: S108
        with container(*mounted) as name:
            wait_for_health(name)
            engine("exec", name, "minibroker", "topics", "create", "kept")
            engine("stop", name)
        with container(*mounted) as name:
            wait_for_health(name)
            if "kept" not in engine("exec", name, "minibroker", "topics", "list"):
                raise CheckFailed("the topic of the volume is lost")
    finally:
        engine("volume", "rm", volume)
    with container("--user", "12345:0", IMAGE) as name:
        wait_for_health(name)


def check_start_script(entry: str, path: str, before: str, after: str) -> None:
    """A module of Testcontainers overrides the command, copies a script and waits for a line."""
    loop = f"while [ ! -f {path} ]; do sleep 0.1; done; sh {path}"
    command = [IMAGE, "-c", loop] if entry else [IMAGE, "sh", "-c", loop]
    words = [*(["--entrypoint", entry] if entry else []), "-p", "127.0.0.1::9092"]
    for variable in TESTCONTAINERS.splitlines():
        words += ["-e", variable]
    with container(*words, *command) as name, TemporaryDirectory() as folder:
        servers = f"localhost:{engine('port', name, '9092/tcp').rpartition(':')[2]}"
        host = engine("inspect", "--format", "{{.Config.Hostname}}", name)
        script = Path(folder) / "script"
        addresses = f"PLAINTEXT://{servers},BROKER://{host}:9093"
        export = f"export KAFKA_ADVERTISED_LISTENERS={addresses}\n"
        script.write_text(f"#!/bin/bash\n{before}{export}{after}")
        script.chmod(0o777)
        engine("cp", str(script), f"{name}:{path}")

        def says_that_it_runs() -> bool:
            logs = engine("logs", name)
            return all(line in logs for line in LINES_OF_KAFKA)

        wait_until("a line of Kafka's log", says_that_it_runs)
        produce(servers, "cats")
        consume(servers, "cats")


def main() -> None:
    """Run all checks."""
    checks: list[tuple[str, Callable[..., None], Sequence[str]]] = [
        ("commands and user", check_commands, ()),
        ("published port", check_published_port, ()),
        ("service of a job", check_service, ()),
        ("health", check_health, ()),
        ("volume", check_volume, ()),
    ]
    for module, script in START_SCRIPTS.items():
        checks.append((f"start script of {module} module", check_start_script, script))
    for what, check, arguments in checks:
        started = time.monotonic()
        check(*arguments)
        print(f"{what}: passed in {time.monotonic() - started:.1f} s", flush=True)


if __name__ == "__main__":
    main()
