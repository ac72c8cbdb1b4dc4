"""Measures of log compaction: its speed, and what it costs a producer of the same broker.

Owns amounts and row names; it starts no peer and prints nothing. Invariant: bytes are those of keys
and values, so that a rate does not depend on how records are batched. Only minibroker compacts a
topic on request; Kafka's cleaner decides by itself.
"""

from __future__ import annotations

import statistics
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from system_tests.benchmarks.client import RunFailed, paced
from system_tests.benchmarks.measures import (
    SMALL_RECORD_BYTES,
    TICKS_PER_S,
    Figures,
    topic_of,
)
from system_tests.benchmarks.peers import Peer

RECORDS: Final = 500_000
KEYS: Final = RECORDS // 2
KEY_BYTES: Final = 12
ROUNDS_BEFORE: Final = 3
PRODUCED: Final = 1000
PAUSE_US: Final = 1000
PATIENCE_S: Final = 120
CLEANER: Final = b"minibroker.broker.process.log_cleaner"
CPU_TIMES: Final = slice(11, 13), slice(13, 15)
"""User and system time in /proc/PID/stat, behind the name: its own, and of children that ended."""

SPEED: Final = "compaction of 100-byte records, one core"
BEFORE: Final = "record each ms, p99 before a compaction"
DURING: Final = "record each ms, p99 during a compaction"
RATIO: Final = "record each ms, p99 during to before"


def compaction(peer: Peer) -> Figures:
    """Compact a topic on request while a client produces to another one."""
    with topic_of(peer, "compacted", 1) as topic, topic_of(peer, "beside", 1) as other:
        make_compacted(peer, topic)
        fill(peer, topic)
        with paced(peer.servers, other, PRODUCED, SMALL_RECORD_BYTES, PAUSE_US) as client:
            before = [client.produce()["p99_us"] for _ in range(ROUNDS_BEFORE)]
            with ThreadPoolExecutor(1) as threads:
                compacted = threads.submit(compact, peer, topic)
                during = [client.produce()["p99_us"]]
                while not compacted.done():
                    during.append(client.produce()["p99_us"])
            used = compacted.result()
    megabytes = RECORDS * (SMALL_RECORD_BYTES + KEY_BYTES) / 1e6
    alone, beside = statistics.median(before), statistics.median(during)
    return {SPEED: megabytes / used, BEFORE: alone, DURING: beside, RATIO: beside / alone}


def make_compacted(peer: Peer, topic: str) -> None:
    """Compact the topic on request only: a log is never dirtier than completely."""
    configs = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "1"}
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in configs.items()
    ]
    admin = AdminClient({"bootstrap.servers": peer.servers, "log_level": 0})
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    for each in admin.incremental_alter_configs([resource]).values():
        each.result(PATIENCE_S)


def fill(peer: Peer, topic: str) -> None:
    """Write each key twice."""
    producer = Producer({
        "bootstrap.servers": peer.servers,
        "log_level": 0,
        "queue.buffering.max.messages": RECORDS,
    })  # fmt: skip
    for number in range(RECORDS):
        key, value = b"%012d" % (number * 7919 % KEYS), b"%0100d" % number
        producer.produce(topic, value, key=key)
        if not number % 1000:
            producer.poll(0)
    if producer.flush(PATIENCE_S):
        raise RunFailed("not all records were acknowledged")


def compact(peer: Peer, topic: str) -> float:
    """Compact a topic; return the processor time that this took."""
    request = urllib.request.Request(f"{peer.control_url}/v1/compact/{topic}", method="POST")
    before_s = cleaner_cpu_seconds(peer.pid)
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
        response.read()
    used_s = cleaner_cpu_seconds(peer.pid) - before_s
    if not used_s:
        raise RunFailed("no process cleaned logs")
    return used_s


def cleaner_cpu_seconds(root: int) -> float:
    """Processor time of the processes that clean logs, and of those that have ended.

    A process ends as soon as no log is dirty; its time is then in the sum of its parent's children.
    """
    ticks = None
    while ticks != (ticks := _cleaner_ticks(root)):
        pass  # A process ended between two files that were read.
    return ticks / TICKS_PER_S


def _cleaner_ticks(root: int) -> int:
    ticks = 0
    pids = [root]
    for pid in pids:
        folder = Path(f"/proc/{pid}")
        with suppress(FileNotFoundError, ProcessLookupError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            own, of_ended_children = (sum(map(int, fields[times])) for times in CPU_TIMES)
            command = (folder / "cmdline").read_bytes()
            # A process that ended and was not waited for has no command; others don't end.
            ticks += of_ended_children + (own if CLEANER in command or not command else 0)
            for children in folder.glob("task/*/children"):
                pids += map(int, children.read_text().split())
    return ticks
