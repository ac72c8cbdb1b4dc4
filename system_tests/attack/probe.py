"""Honest clients whose latency is measured, as a process of their own.

Each client has one connection, to a known processor, and one partition, of a known worker, so that
a slow request can be compared with what happened to exactly these processes. The program owns its
sockets and clocks; the verdict is in ``stalls``. The invariant: every request of every client is
timed, and each that was slow or failed is reported with how late this process itself was scheduled
and how long the serving processes waited for a processor.
"""

from __future__ import annotations

import json
import os
import ssl
import sys
import threading
import time
import traceback
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from minibroker_protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from minibroker_protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from minibroker_protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from minibroker_protocol.records import Record, build_batch
from minibroker_protocol.schema import Message
from system_tests.attack.stalls import SLOW_S, Sample
from system_tests.attack.targets import ask_control
from system_tests.connections.dialling import Client
from system_tests.peers.records import produce

PAUSE_S: Final = 0.1
"""Between two rounds of requests of one client."""

TICK_S: Final = 0.02
LATE_S: Final = 0.005
"""How often this process looks at the clock, and from when on it counts as late."""

RECONNECT_PAUSE_S: Final = 0.05
CONNECTS_MAX: Final = 30
"""Attempts to be served by the wanted processor."""

SAMPLES_MAX: Final = 5000
PRODUCE_VERSION, FETCH_VERSION, METADATA_VERSION, COMMIT_VERSION = 9, 12, 9, 8


class ProbeTarget(NamedTuple):
    """The process's argument: the broker, and the partition of each client."""

    host: str
    port: int
    control_url: str
    topic: str
    paths: list[tuple[str, int, str]]
    """Processor, partition and the worker that owns it, for each client."""
    authority: str = ""
    """The certificates that a TLS listener is checked against; empty for plain text."""


class WrongAnswer(Exception):
    """The broker answered with an error, or with something that was not produced."""


class Metronome(threading.Thread):
    """Wakes at a steady pace and notes how late each time: the machine's share of a delay."""

    def __init__(self) -> None:
        super().__init__(name="metronome", daemon=True)
        self._late: list[tuple[float, float]] = []

    def run(self) -> None:
        while True:
            due = time.monotonic() + TICK_S
            time.sleep(TICK_S)
            late = time.monotonic() - due
            if late > LATE_S:
                self._late.append((due, late))

    def late_s(self, started: float, ended: float) -> float:
        """How late it was in all between two moments."""
        return sum(late for due, late in list(self._late) if started - TICK_S <= due <= ended)


def queued_ns(pid: int) -> int:
    """How long a process has waited for a processor since its start."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1])
    except (OSError, IndexError):
        return 0


@dataclass
class Seen:
    """What all clients of this process saw."""

    requests: Counter[str] = field(default_factory=Counter)
    samples: list[Sample] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


class Prober(threading.Thread):
    """One honest client: it produces, reads back what it produced, and asks for metadata."""

    def __init__(
        self, target: ProbeTarget, path: tuple[str, int, str], metronome: Metronome
    ) -> None:
        super().__init__(name=f"prober of {path[0]} and {path[2]}", daemon=True)
        self._target = target
        self._processor, self._partition, self._worker = path
        self._metronome = metronome
        self._client: Client | None = None
        self._pids: dict[str, int] = {}
        self._served_by: str | None = None
        self.ending = threading.Event()
        self.seen = Seen()

    def run(self) -> None:
        try:
            self._probe()
        except Exception:  # noqa: BLE001 (a probe that ends would see no stalls)
            self.seen.failures.append(f"{self.name} failed: {traceback.format_exc()}")

    def _probe(self) -> None:
        count = 0
        while not self.ending.wait(PAUSE_S):
            try:
                if self._client is None:
                    self._connect()
                count += 1
                self._work(b"%s %d" % (self.name.encode(), count))
            except (OSError, WrongAnswer, AssertionError):
                self._disconnect()
                self.ending.wait(RECONNECT_PAUSE_S)

    def _work(self, value: bytes) -> None:
        if self._served_by is None and self._client is not None:
            self._served_by = self._processor_of(self._client)
        serving = () if self._served_by is None else (self._served_by,)
        # While the control API is away, nothing is known of the processes.
        both = (*serving, self._worker) if serving else ()
        if not all(queued_ns(self._pids.get(name, 0)) for name in both):
            self._look_up_pids()
        offset = self._timed("Produce", both, lambda: self._produce(value))
        self._timed("Fetch", both, lambda: self._fetch(offset, value))
        self._timed("Metadata", serving, self._metadata)
        # Its group's coordinator may be any worker.
        workers = tuple(name for name in self._pids if name.startswith("worker"))
        self._timed("OffsetCommit", serving, lambda: self._commit(offset), workers)

    def _timed(
        self,
        request: str,
        processes: tuple[str, ...],
        work: Any,
        candidates: tuple[str, ...] = (),
    ) -> Any:
        """Time a request that `processes` and one of the `candidates` serve."""
        pids = {self._pids[name] for name in processes if name in self._pids}
        others = {self._pids[name] for name in candidates} - pids
        before = {pid: queued_ns(pid) for pid in pids | others}
        started = time.monotonic()
        error = ""
        try:
            return work()
        except (OSError, WrongAnswer, AssertionError) as failed:
            error = f"{type(failed).__name__}: {failed}"
            raise
        finally:
            ended = time.monotonic()
            self.seen.requests[request] += 1
            if (error or ended - started > SLOW_S) and len(self.seen.samples) < SAMPLES_MAX:
                late = self._metronome.late_s(started, ended)
                # A process that died while the request waited counts for nothing.
                queued = {pid: max(0, queued_ns(pid) - before[pid]) / 1e9 for pid in before}
                queued_s = sum(queued[pid] for pid in pids)
                queued_s += max((queued[pid] for pid in others), default=0.0)
                serving = () if candidates else processes
                self.seen.samples.append(
                    Sample(started, ended, request, serving, late, queued_s, error)
                )

    def _connect(self) -> None:
        """Connect until the wanted processor serves, or another after many attempts."""
        rejected: list[Client] = []
        try:
            for _ in range(CONNECTS_MAX):
                if self._client is not None:
                    rejected.append(self._client)
                # Each attempt alone: an honest client connects once.
                client = self._timed("Connect", (), self._open)
                self._served_by = self._processor_of(client)
                if self._served_by in {self._processor, None}:
                    break
        finally:
            for each in rejected:
                each.close()
        self._look_up_pids()

    def _open(self) -> Client:
        self._client = client = self._dial()
        self._metadata()
        return client

    def _look_up_pids(self) -> None:
        health = ask_control(self._target.control_url, "/v1/health") or {"processes": []}
        self._pids = {each["name"]: each["pid"] for each in health["processes"] if each["pid"]}

    def _dial(self) -> Client:
        client = Client((self._target.host, self._target.port), client_id="honest-probe")
        if self._target.authority:
            context = ssl.create_default_context(cafile=self._target.authority)
            client.socket = context.wrap_socket(client.socket, server_hostname="localhost")
        return client

    def _processor_of(self, client: Client) -> str | None:
        host, port = client.socket.getsockname()[:2]
        found = ask_control(self._target.control_url, "/v1/connections") or {"processors": []}
        for processor in found["processors"]:
            if any(each["client_address"] == f"{host}:{port}" for each in processor["connections"]):
                return str(processor["processor"])
        return None

    def _ask(self, request: Message, version: int) -> Any:
        assert self._client is not None
        return self._client.ask(request, version)

    def _produce(self, value: bytes) -> int:
        batch = build_batch([Record(timestamp=int(time.time() * 1000), value=value)])
        answer = self._ask(produce(self._target.topic, batch, self._partition), PRODUCE_VERSION)
        [partition] = answer.responses[0].partition_responses
        if partition.error_code:
            raise WrongAnswer(f"Produce was answered with error {partition.error_code}")
        return int(partition.base_offset)

    def _fetch(self, offset: int, value: bytes) -> None:
        part = FetchPartition(
            partition=self._partition, fetch_offset=offset, partition_max_bytes=1024 * 1024
        )
        topics = [FetchTopic(topic=self._target.topic, partitions=[part])]
        request = FetchRequest(
            max_wait_ms=0, min_bytes=0, max_bytes=1024 * 1024, session_epoch=-1, topics=topics
        )
        [partition] = self._ask(request, FETCH_VERSION).responses[0].partitions
        if partition.error_code:
            raise WrongAnswer(f"Fetch was answered with error {partition.error_code}")
        if value not in bytes(partition.records or b""):
            raise WrongAnswer(f"offset {offset} does not hold what was produced there")

    def _metadata(self) -> None:
        topics = [MetadataRequestTopic(name=self._target.topic)]
        answer = self._ask(MetadataRequest(topics=topics), METADATA_VERSION)
        if answer.topics[0].error_code:
            raise WrongAnswer(f"Metadata was answered with error {answer.topics[0].error_code}")

    def _commit(self, offset: int) -> None:
        part = OffsetCommitRequestPartition(
            partition_index=self._partition, committed_offset=offset, committed_metadata=""
        )
        topics = [OffsetCommitRequestTopic(name=self._target.topic, partitions=[part])]
        request = OffsetCommitRequest(
            group_id=f"{self._target.topic}-{self._partition}",
            generation_id_or_member_epoch=-1,
            topics=topics,
        )
        code = self._ask(request, COMMIT_VERSION).topics[0].partitions[0].error_code
        if code:
            raise WrongAnswer(f"OffsetCommit was answered with error {code}")

    def _disconnect(self) -> None:
        if self._client is not None:
            with suppress(OSError):
                self._client.close()
        self._client = None


def main(argument: str) -> None:
    """Probe until standard input ends; print what was seen."""
    target = ProbeTarget(**json.loads(argument))
    target = target._replace(paths=[(each[0], each[1], each[2]) for each in target.paths])
    metronome = Metronome()
    metronome.start()
    probers = [Prober(target, path, metronome) for path in target.paths]
    for prober in probers:
        prober.start()
    sys.stdin.read()
    for prober in probers:
        prober.ending.set()
    for prober in probers:
        prober.join(10)
    seen = Seen()
    for prober in probers:
        seen.requests += prober.seen.requests
        seen.samples += prober.seen.samples
        seen.failures += prober.seen.failures
        if prober.is_alive():
            seen.failures.append(f"{prober.name} did not end")
    print(json.dumps(vars(seen)), flush=True)
    os._exit(0)  # A client that waits for ever would keep the process.


if __name__ == "__main__":
    main(sys.argv[1])
