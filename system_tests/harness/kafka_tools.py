"""Kafka's command-line programs, several commands in one JVM.

Owns that process and the form of its lines; what the JVM does with them is in
`java/tools/Tools.java`. No expectations are here. Invariant: one command at a time, answered with
its exit code and its complete output, or reported if the JVM ends or stays silent.
"""

from __future__ import annotations

import base64
import select
import subprocess
from typing import NamedTuple

from system_tests.harness.jars import kafka_tools
from system_tests.harness.jvm import QUIET, SHORT, end_jvm, short_jvm
from system_tests.harness.waiting import PATIENCE_S

MEMORY = "-Xmx128m"
END = "\x04"


class Done(NamedTuple):
    """How a command ended; ``printed`` is all of its output, the errors at the end."""

    code: int
    printed: str

    @property
    def lines(self) -> list[str]:
        """The lines that are neither empty nor about deprecation."""
        return [
            line.rstrip()
            for line in self.printed.splitlines()
            if line.strip()
            and "deprecated" not in line
            and not line.startswith("Use --bootstrap-server")
        ]


class KafkaTools:
    """One JVM, with the present programs or those of an older line."""

    def __init__(self, line: str | None = None, *, logging: str = QUIET, option: str = "") -> None:
        """``option`` is a further one of the JVM."""
        jvm = short_jvm() if line is None else SHORT
        options = [MEMORY, logging, *([option] if option else [])]
        command = [*jvm, *options, "-cp", kafka_tools(line), "Tools"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def topics(self, *words: str) -> Done:
        """kafka-topics.sh"""
        return self.run("kafka.admin.TopicCommand", *words)

    def configs(self, *words: str) -> Done:
        """kafka-configs.sh"""
        return self.run("kafka.admin.ConfigCommand", *words)

    def run(self, *words: str, says: str = "") -> Done:
        """Run a program, given by its class, with its arguments and its input."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line_words = (base64.b64encode(says.encode()).decode(), *words)
        self._process.stdin.write("\t".join(line_words) + "\n")
        printed: list[str] = []
        # The first line is waited for; what follows it comes at once, or the JVM ends.
        if not select.select([self._process.stdout], [], [], PATIENCE_S)[0]:
            raise RuntimeError(f"the JVM did not answer {words}")
        for line in self._process.stdout:
            if line.startswith(END):
                return Done(int(line.strip(END)), "".join(printed).removesuffix("\n"))
            printed.append(line)
        raise RuntimeError(f"the JVM ended over {words}: {printed}")

    def close(self) -> None:
        """End the JVM."""
        end_jvm(self._process)
