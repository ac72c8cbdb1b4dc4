"""The ``watch`` job as a process, and a load that raises alerts.

Owns the command line, the client that exceeds its quota, and how alerts are read back from their
topic; the expectations belong to the tests. Invariant: the command's processes are one group, so
that all of them can be ended, or killed, together.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, Producer, TopicPartition

from system_tests.harness.processes import is_running, tree
from system_tests.harness.waiting import PATIENCE_S, wait_until
from system_tests.pipeline.job_launchers import Launcher, by_minibroker

CLIENT: Final = "reports"
BYTES_PER_SECOND: Final = 20_000
ALERTS: Final = "alerts"

Config = Mapping[str, Any]
"""Configuration of confluent's clients: the servers and the credentials."""


def set_quota(server: str) -> None:
    """Set the client's quota in bytes per second."""
    command = [sys.executable, "-m", "minibroker", "configs", "-b", server]
    quota = f"producer_byte_rate={BYTES_PER_SECOND}"
    subprocess.run([*command, "--client", CLIENT, "--alter", "--add-config", quota], check=True)


def produce(config: Config) -> None:
    """Produce what the quota allows in ten seconds, then 25 records that are each throttled for a
    fifth of a second.
    """
    producer = Producer({**config, "client.id": CLIENT, "linger.ms": 0})
    for size in (10 * BYTES_PER_SECOND, *[BYTES_PER_SECOND // 5] * 25):
        producer.produce("orders", b"x" * size)
        assert producer.flush(PATIENCE_S) == 0


class Watch:
    """A running watch; its output is in two files of a folder."""

    def __init__(
        self, folder: Path, server: str, *words: str, by: Launcher = by_minibroker
    ) -> None:
        self._out, self._err = folder / "out", folder / "err"
        words += ("--alerts-to", ALERTS, "--from-beginning")
        words += ("--every", "1", "--intervals", "2", "--late", "1")
        start = by("watch", "--from", server, *words)
        with self._out.open("a") as out, self._err.open("a") as err:
            self.process = subprocess.Popen(
                start.args, env=start.env, stdout=out, stderr=err, start_new_session=True
            )

    def printed(self) -> str:
        """The output so far. Fails if the watch has ended."""
        assert self.process.poll() is None, self.complaints()[-3000:]
        return self._out.read_text()

    def complaints(self) -> str:
        return self._err.read_text()

    def kill(self) -> None:
        """Kill the watch with all its processes."""
        family = tree(self.process.pid)
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)
        wait_until(lambda: not [pid for pid in family if is_running(pid)], "the watch to end")


def alerts(config: Config) -> list[dict[str, Any]]:
    """All alerts on the topic, in order; the key of each record is the alert's ``id``."""
    consumer = Consumer({**config, "group.id": "unused", "auto.offset.reset": "earliest"})
    partition = TopicPartition(ALERTS, 0, 0)
    try:
        _, end = consumer.get_watermark_offsets(partition, timeout=PATIENCE_S)
        consumer.assign([partition])
        found: list[dict[str, Any]] = []
        while len(found) < end:
            (record,) = consumer.consume(1, timeout=PATIENCE_S)
            assert record.error() is None
            value = json.loads(record.value() or b"")
            assert value["id"] == (record.key() or b"").decode()
            found.append(value)
        return found
    finally:
        consumer.close()
