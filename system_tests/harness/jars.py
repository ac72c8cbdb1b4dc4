"""The jars of Kafka and ZooKeeper, fetched once through Maven into the project's cache folder.

Owns the cache and what a complete toolchain is; it never starts a process that stays. Invariant:
its functions either return something that can be run or raise `ToolchainMissing` with a sentence
that says what to install. The versions are those of the POM files in `system_tests`, the only
places that name them.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

PROJECT = Path(__file__).resolve().parents[2]
CACHE = (PROJECT / ".cache").resolve()  # A JVM knows an archive of classes by their path.
JAVA = PROJECT / "system_tests" / "java"
ZOOKEEPER = PROJECT / "system_tests" / "zookeeper"
PIPELINE = PROJECT / "system_tests" / "pipeline"
PERSONAS = PROJECT / "system_tests" / "personas"
FETCH_PATIENCE_S = 800
ANSWERS_PATIENCE_S: Final = 120
FETCH_TRIES = 3  # A network may fail once; registries are not what is tested.


def import_path(checkout: Path) -> str:
    """Return the PYTHONPATH with which programs import both packages of a checkout."""
    return f"{checkout}:{checkout / 'protocol'}"


class ToolchainMissing(Exception):
    """Something outside Python is not installed or could not be fetched; the text says what."""


def kafka_jars() -> Path:
    """Return the folder of Kafka's jars, fetched with Maven if need be."""
    return _fetched(JAVA / "pom.xml", "kafka")


def zookeeper_jars() -> Path:
    """Return the folder of the ZooKeeper server's jars, fetched with Maven if need be."""
    return _fetched(ZOOKEEPER / "pom.xml", "zookeeper")


def connector_jars() -> Path:
    """Return the folder of the jars of Spark's Kafka connector, fetched with Maven if need be."""
    return _fetched(PIPELINE / "pom.xml", "connector")


def kafka_tools(line: str | None = None) -> str:
    """Return the class path of `Tools` and of Kafka's programs: the present ones and our own, or
    those of a line, e.g. 2.8, that still speak to ZooKeeper.
    """
    if line is None:
        return f"{java_driver()}:{_compiled(JAVA / 'tools', kafka_jars())}"
    jars = _fetched(ZOOKEEPER / f"tools-{line}.xml", f"kafka-{line}")
    return classpath(_compiled(JAVA / "tools", jars), jars)


def kafka_broker_jars(version: str, scala: str, zookeeper: str | None = None) -> Path:
    """Return the folder of the jars of a broker of any version, e.g. 2.8.2 for Scala 2.13, with
    its own version of ZooKeeper's client or another one.
    """
    values = {"kafka.version": version, "scala.line": scala}
    if zookeeper is not None:
        values["zookeeper.version"] = zookeeper
    return _fetched(PERSONAS / "pom.xml", f"kafka-{version}-broker", values)


def _fetched(pom: Path, name: str, values: Mapping[str, str] | None = None) -> Path:
    """``values`` are properties of the POM file."""
    _require("java", "a JDK of version 17 or later")
    folder = CACHE / f"{name}-jars-{_digest([pom])}"
    with one_at_a_time("jars"):
        if not folder.is_dir():
            _require("mvn", "Apache Maven")
            fresh = folder.with_suffix(".part")
            shutil.rmtree(fresh, ignore_errors=True)
            fetch(
                [
                    *["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"],
                    *[f"-DoutputDirectory={fresh}", "-DincludeScope=runtime"],
                    *[f"-D{key}={value}" for key, value in (values or {}).items()],
                ],
                f"Maven could not fetch the jars of {name}",
            )
            fresh.rename(folder)
    return folder


def classpath(*folders: Path) -> str:
    """Return a Java class path of every jar (or class) in `folders`."""
    return ":".join(
        str(folder / "*") if any(folder.glob("*.jar")) else str(folder) for folder in folders
    )


def java_driver() -> str:
    """Return the class path of the Java test client, compiled if it is not up to date."""
    jars = kafka_jars()
    return classpath(jars, _compiled(JAVA / "src", jars))


def java_answers(program: str, lines: Iterable[str]) -> list[Any]:
    """What a program of the Java test client answers to each line, which is JSON as the answer."""
    answered = subprocess.run(
        ["java", "-Xmx256m", "-XX:+UseSerialGC", "-cp", java_driver(), program],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        timeout=ANSWERS_PATIENCE_S,
        check=True,
    )
    return [json.loads(line) for line in answered.stdout.splitlines()]


def _compiled(folder: Path, jars: Path) -> Path:
    _require("javac", "a JDK of version 17 or later")
    sources = sorted(folder.glob("*.java"))
    classes = CACHE / f"java-classes-{_digest(sources)}"
    with one_at_a_time("classes"):
        if not classes.is_dir():
            fresh = classes.with_suffix(".part")
            shutil.rmtree(fresh, ignore_errors=True)
            run(
                ["javac", "-nowarn", "-cp", classpath(jars), "-d", str(fresh), *map(str, sources)],
                f"javac could not compile {sources[0].name}",
            )
            fresh.rename(classes)
    return classes


def _require(program: str, what: str) -> None:
    if shutil.which(program) is None:
        raise ToolchainMissing(f"`{program}` is not on the path: install {what}")


def _digest(files: list[Path]) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


def fetch(command: list[str], failure: str, folder: Path = PROJECT) -> None:
    """Run what fetches something from elsewhere, and again if that failed."""
    for _ in range(FETCH_TRIES - 1):
        with suppress(ToolchainMissing):
            return run(command, failure, folder)
    return run(command, failure, folder)


def run(command: list[str], failure: str, folder: Path = PROJECT) -> None:
    """Run a tool of the toolchain. Raises ``ToolchainMissing`` with its output if it fails."""
    try:
        done = subprocess.run(
            command,
            check=False,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=FETCH_PATIENCE_S,
        )
    except subprocess.TimeoutExpired as late:
        raise ToolchainMissing(f"{failure} in {FETCH_PATIENCE_S} s") from late
    if done.returncode != 0:
        raise ToolchainMissing(f"{failure}:\n{(done.stdout + done.stderr).strip()[-2000:]}")


@contextmanager
def one_at_a_time(name: str) -> Iterator[None]:
    """Hold a lock file, so that the workers of one pytest-xdist run fetch and compile once."""
    CACHE.mkdir(exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
