"""Kafka's scripts, as clients' tests call them, for the jars that Maven fetched.

Owns the scripts' names and classes. It must never know tests. Invariant: a script runs the program
of Kafka itself, in a JVM of its own.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Final

from system_tests.harness.jars import classpath, kafka_jars
from system_tests.harness.jvm import QUIET, short_jvm
from system_tests.harness.kafka_tools import MEMORY

PROGRAMS: Final = {
    "kafka-acls.sh": "org.apache.kafka.tools.AclCommand",
    "kafka-run-class.sh": "",
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
}


def write_scripts(kafka: Path) -> None:
    """Write the scripts to `bin`, next to the jars in `libs`, as in a release of Kafka."""
    (kafka / "bin").mkdir(parents=True, exist_ok=True)
    (kafka / "libs").unlink(missing_ok=True)
    (kafka / "libs").symlink_to(kafka_jars())
    java = shlex.join(short_jvm(MEMORY, QUIET))
    jars = shlex.quote(classpath(kafka_jars()))
    for name, program in PROGRAMS.items():
        write_script(kafka / "bin" / name, f'exec {java} -cp {jars}:"$CLASSPATH" {program} "$@"')


def write_script(file: Path, command: str) -> None:
    """Write an executable script of one command."""
    file.write_text(f"#!/bin/sh\n{command}\n")
    file.chmod(0o755)
