"""A broker and its clients as one seeded simulation that writes histories.

Owns logs with transactions, a consumer group, and clients whose steps interleave; it can be made to
misbehave once. It must never know the checker. Invariant: without a `Tampering` the history is one
that Kafka may produce, with failed, aborted and unknown operations among the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import Any

from minibroker.lab.checker.history import header_line
from minibroker.testing.workload import WorkloadGenerator

POLLED_MAX = 5
Line = dict[str, Any]


class Tampering(StrEnum):
    """One thing that the broker does wrong, to the n-th record to which it can be done."""

    LOSE = "lose"
    """Acknowledge a record and never return it."""
    DOUBLE = "double"
    """Append a record twice."""
    REORDER = "reorder"
    """Append a record before the previous one of the same operation."""
    OVERWRITE = "overwrite"
    """Append a record at the offset of one that was polled."""
    COMMIT_ABORTED = "commit aborted"
    """Commit a transaction that the client aborts."""
    SKIP = "skip"
    """Pass over a record in one poll."""
    REPEAT = "repeat"
    """Return a record twice in one poll."""


@dataclass(eq=False)
class LogRecord:
    value: int | None
    """None is a control record."""
    transaction: SimulatedTransaction | None = None
    hidden: bool = False
    was_polled: bool = False
    overwritten_at: int | None = None
    """The offset that a later record has now."""


@dataclass(eq=False)
class SimulatedTransaction:
    state: str = "open"
    keys: set[str] = field(default_factory=set)


class Fenced(Exception):
    pass


@dataclass
class SimulatedBroker:
    keys: list[str]
    random: Random
    tampering: Tampering | None = None
    countdown: int = 0
    """How many chances to tamper pass unused."""

    def __post_init__(self) -> None:
        self.logs: dict[str, list[LogRecord]] = {key: [] for key in self.keys}
        self.epochs: dict[str, int] = {}
        self.open: dict[str, SimulatedTransaction] = {}
        self.tampered: LogRecord | None = None
        """The record that was lost, doubled, ..."""
        self.committed_by_mistake: SimulatedTransaction | None = None
        self.has_tampered = False
        self.group: dict[int, list[str]] = {}
        self.committed = dict.fromkeys(self.keys, 0)

    def _tampers(self, kind: Tampering) -> bool:
        if self.tampering is not kind or self.has_tampered:
            return False
        self.countdown -= 1
        self.has_tampered = self.countdown < 0
        return self.has_tampered

    def append(
        self, key: str, value: int, transaction: SimulatedTransaction | None, own: list[LogRecord]
    ) -> LogRecord:
        """Append a record; `own` are those that the same operation appended to this key."""
        log = self.logs[key]
        record = LogRecord(value, transaction)
        if transaction is not None:
            transaction.keys.add(key)
        movable = bool(own and log and log[-1] is own[-1] and not log[-1].was_polled)
        if movable and self._tampers(Tampering.REORDER):
            log.insert(-1, record)
            self.tampered = record
        elif log and log[-1].was_polled and self._tampers(Tampering.OVERWRITE):
            log[-1].overwritten_at = len(log) - 1
            log[-1] = self.tampered = record
        else:
            log.append(record)
        if self._tampers(Tampering.LOSE):
            record.hidden = True
            self.tampered = record
        if self._tampers(Tampering.DOUBLE):
            log.append(LogRecord(value, transaction))
            self.tampered = record
        return record

    def init_producer(self, transactional_id: str) -> int:
        if transactional_id in self.open:
            self._end(transactional_id, "aborted")
        self.epochs[transactional_id] = self.epochs.get(transactional_id, 0) + 1
        return self.epochs[transactional_id]

    def begin(self, transactional_id: str, epoch: int) -> SimulatedTransaction:
        self.check_epoch(transactional_id, epoch)
        return self.open.setdefault(transactional_id, SimulatedTransaction())

    def check_epoch(self, transactional_id: str, epoch: int) -> None:
        if self.epochs[transactional_id] != epoch:
            raise Fenced

    def end(self, transactional_id: str, epoch: int, state: str) -> None:
        self.check_epoch(transactional_id, epoch)
        if state == "aborted" and self._tampers(Tampering.COMMIT_ABORTED):
            self.committed_by_mistake = self.open[transactional_id]
            state = "committed"
        self._end(transactional_id, state)

    def _end(self, transactional_id: str, state: str) -> None:
        transaction = self.open.pop(transactional_id)
        transaction.state = state
        for key in transaction.keys:
            self.logs[key].append(LogRecord(None))

    def last_stable_offset(self, key: str) -> int:
        for offset, record in enumerate(self.logs[key]):
            if record.transaction is not None and record.transaction.state == "open":
                return offset
        return len(self.logs[key])

    def poll(self, key: str, position: int) -> tuple[list[list[int]], int]:
        """Return records from a position, and the position after them."""
        found: list[list[int]] = []
        end = self.last_stable_offset(key)
        records_max = self.random.randint(1, POLLED_MAX)
        while position < end and len(found) < records_max:
            record = self.logs[key][position]
            aborted = record.transaction is not None and record.transaction.state == "aborted"
            if record.value is not None and not aborted and not record.hidden:
                record.was_polled = True
                found.append([position, record.value])
            position += 1
        if len(found) > 2 and self._tampers(Tampering.SKIP):
            found.pop(1)
        if len(found) > 1 and self._tampers(Tampering.REPEAT):
            found.insert(1, found[0])
        return found, position

    def join(self, process: int) -> None:
        self.group.setdefault(process, [])
        self._assign()

    def leave(self, process: int) -> None:
        self.group.pop(process, None)
        self._assign()

    def _assign(self) -> None:
        for index, member in enumerate(sorted(self.group)):
            self.group[member] = self.keys[index :: len(self.group)]


@dataclass
class SimulatedClient:
    """One process: it carries out invocations step by step."""

    broker: SimulatedBroker
    process: int
    transactional_id: str | None
    subscribes: bool
    random: Random

    def __post_init__(self) -> None:
        self.positions: dict[str, int] = {}
        self.owned: list[str] = []
        self.open_producer()

    def open_producer(self) -> None:
        if self.transactional_id is not None:
            self.epoch = self.broker.init_producer(self.transactional_id)

    def run(self, invocation: Line) -> Iterator[Line | None]:
        """Yield None between steps, and the completion at the end."""
        operation = invocation["operation"]
        if operation in ("send", "poll", "txn"):
            yield from self._steps(invocation)
            return
        if operation == "reopen":
            self.positions.clear()
            self.broker.leave(self.process)
            self.owned = []
            self.open_producer()
        elif operation == "assign":
            kept = {} if invocation.get("from_beginning") else self.positions
            self.positions = {key: kept.get(key, 0) for key in invocation["keys"]}
        else:
            self.broker.join(self.process)
        yield {**invocation, "type": "ok"}

    def _steps(self, invocation: Line) -> Iterator[Line | None]:
        done: Line = {**invocation, "steps": []}
        done.pop("abort", None)
        before = dict(self.positions)
        appended: dict[str, list[LogRecord]] = {}
        records: list[tuple[Line, LogRecord]] = []
        rebalanced: set[str] = set()
        try:
            transaction = None
            if invocation["operation"] == "txn":
                assert self.transactional_id is not None
                transaction = self.broker.begin(self.transactional_id, self.epoch)
            for step in invocation["steps"]:
                yield None
                if "poll" in step:
                    done["steps"].append({"poll": self._poll(rebalanced)})
                    continue
                if self.transactional_id is not None:
                    self.broker.check_epoch(self.transactional_id, self.epoch)
                own = appended.setdefault(step["send"], [])
                record = self.broker.append(step["send"], step["value"], transaction, own)
                own.append(record)
                sent = dict(step)
                done["steps"].append(sent)
                records.append((sent, record))
            yield None
            done["type"] = self._end(invocation)
        except Fenced:
            done["type"] = "fail"
            self.open_producer()
        for sent, record in records:
            if done["type"] == "ok" or self.random.random() < 0.5:
                sent["offset"] = self._offset(sent["send"], record)
        if done["type"] != "ok" and not self.subscribes:
            self.positions = before
        if rebalanced:
            done["rebalanced"] = sorted(rebalanced)
        yield done

    def _offset(self, key: str, record: LogRecord) -> int:
        if record.overwritten_at is not None:
            return record.overwritten_at
        return self.broker.logs[key].index(record)

    def _end(self, invocation: Line) -> str:
        """End the transaction, and say how the operation ended."""
        is_lost = self.random.random() < 0.1
        if invocation["operation"] != "txn":
            return "unknown" if is_lost and invocation["operation"] == "send" else "ok"
        assert self.transactional_id is not None
        if invocation.get("abort") or self.random.random() < 0.05:
            self.broker.end(self.transactional_id, self.epoch, "aborted")
            return "fail"
        if not is_lost:
            self.broker.end(self.transactional_id, self.epoch, "committed")
            return "ok"
        if self.random.random() < 0.5:
            self.broker.end(self.transactional_id, self.epoch, "committed")
        self.open_producer()
        return "unknown"

    def _poll(self, rebalanced: set[str]) -> Mapping[str, list[list[int]]]:
        if self.subscribes:
            self._follow_group(rebalanced)
        polled = {}
        for key in sorted(self.positions):
            found, self.positions[key] = self.broker.poll(key, self.positions[key])
            if found:
                polled[key] = found
        return polled

    def _follow_group(self, rebalanced: set[str]) -> None:
        """Commit what was polled before, and take over the present assignment."""
        assigned = self.broker.group.get(self.process, [])
        for key in self.owned:
            if key in assigned:
                self.broker.committed[key] = self.positions[key]
        rebalanced |= set(assigned) ^ set(self.owned)
        self.positions = {
            key: self.positions[key] if key in self.owned else self.broker.committed[key]
            for key in assigned
        }
        self.owned = list(assigned)


@dataclass
class SimulatedRun:
    lines: list[Line]
    broker: SimulatedBroker
    results: dict[tuple[str, int], str]
    """OperationResult of the operation that sent each value of each key."""


def simulate(
    workload: str,
    seed: int,
    *,
    processes: int = 4,
    operations: int = 60,
    tampering: Tampering | None = None,
    countdown: int = 0,
) -> SimulatedRun:
    """Run clients until they have done a number of operations, then poll all keys to their end."""
    keys = [f"k-{number}" for number in range(3)]
    generator = WorkloadGenerator(workload, keys, seed)
    random = Random(seed)
    broker = SimulatedBroker(keys, random, tampering, countdown)
    clients = []
    for process in range(processes):
        options = generator.client_options(process, "run")
        subscribes = options["group"] is not None
        clients.append(
            SimulatedClient(broker, process, options["transactional_id"], subscribes, random)
        )
    run = SimulatedRun([header_line(generator.settings(["simulated"] * processes))], broker, {})
    running = {
        client.process: _invoke(run, client, generator.first(client.process)) for client in clients
    }
    left = operations
    while running:
        process = random.choice(sorted(running))
        if not _advance(run, running[process]):
            continue
        del running[process]
        if left > 0:
            left -= 1
            running[process] = _invoke(run, clients[process], generator.next(process))
    for transactional_id in list(broker.open):
        broker.init_producer(transactional_id)
    _poll_to_the_end(run, clients, generator)
    return run


def _invoke(run: SimulatedRun, client: SimulatedClient, invocation: Line) -> Iterator[Line | None]:
    run.lines.append(invocation)
    return client.run(invocation)


def _advance(run: SimulatedRun, running: Iterator[Line | None]) -> bool:
    """Do one step; return whether the operation is complete."""
    line = next(running)
    if line is None:
        return False
    run.lines.append(line)
    for step in line.get("steps", ()):
        if "send" in step:
            run.results[step["send"], step["value"]] = line["type"]
    return True


def _poll_to_the_end(
    run: SimulatedRun, clients: list[SimulatedClient], generator: WorkloadGenerator
) -> None:
    idle = 0
    while idle <= len(clients):
        for client in clients:
            for invocation in _final_operations(client, generator):
                running = _invoke(run, client, invocation)
                while not _advance(run, running):
                    pass
            idle = 0 if any(run.lines[-1]["steps"][0]["poll"].values()) else idle + 1


def _final_operations(client: SimulatedClient, generator: WorkloadGenerator) -> list[Line]:
    if client.subscribes:
        polls_all = client.process in client.broker.group
    else:
        polls_all = set(client.positions) == set(client.broker.keys)
    first = [] if polls_all else [generator.first(client.process)]
    return [*first, generator.poll(client.process)]
