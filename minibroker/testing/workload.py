"""Runs a workload against a broker: client processes carry out operations, and a history results.

Owns the mix of operations of each workload, the client processes, and the order of lines in the
history. It must never know a client library: a client is a program that reads options and
invocations as lines of JSON and writes completions. Invariant: the same seed gives each process the
same operations, and values are unique within a key; each program has one operation at a time, and
the history is written by this process alone, so its order is a real-time order. The workloads
queue, abort and list-append are those of Jepsen's tests. Example::

    python -m minibroker.testing.workload --bootstrap-servers localhost:9092 --workload abort \\
        --client confluent-kafka --client kafka-python --topic t --output history.jsonl
"""

from __future__ import annotations

import argparse
import itertools
import json
import select
import shlex
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

from minibroker.lab.checker.history import INVOKE, Consumers, HistorySettings, IsolationLevel
from minibroker.python_command import python_command
from minibroker.testing.histories import HistoryWriter

STEPS_MAX: Final = 4
"""Steps of one operation."""
PROCESSES_MAX: Final = 1000
"""Processes of one run."""


class WorkloadKind(NamedTuple):
    """What the processes of a workload do, in shares of their operations."""

    about: str
    transactional: bool = False
    shared_transactional_ids: bool = False
    """Whether pairs of processes use one transactional id, so that they fence each other."""
    consumers: Consumers = Consumers.ASSIGN
    polls: float = 0.0
    """Share of operations that poll outside of a transaction."""
    aborts: float = 0.0
    """Share of transactions that the client aborts."""
    assigns: float = 0.1
    from_beginning: float = 0.0
    """Share of assignments that start at the beginning."""
    reopens: float = 0.0


WORKLOADS: Final = {
    "queue": WorkloadKind("idempotent sends, and polls of assigned keys"),
    "abort": WorkloadKind(
        "transactions that send and poll; the client aborts one in four",
        transactional=True,
        aborts=0.25,
    ),
    "auto-commit": WorkloadKind(
        "sends, and polls of a group that commits automatically; clients are replaced",
        consumers=Consumers.SUBSCRIBE,
        assigns=0.05,
        reopens=0.05,
    ),
    "list-append": WorkloadKind(
        "transactions that append to a key and read keys again from their beginning",
        transactional=True,
        assigns=0.4,
        from_beginning=0.9,
    ),
    "producer-fencing": WorkloadKind(
        "transactions of processes that fence each other with one transactional id",
        transactional=True,
        shared_transactional_ids=True,
        polls=0.4,
        aborts=0.1,
        reopens=0.15,
    ),
}
"""The workloads by name."""


class WorkloadGenerator:
    """Draws the operations of a run."""

    def __init__(
        self, name: str, keys: Sequence[str], seed: int, *, idempotence: bool = True
    ) -> None:
        if WORKLOADS[name].transactional and not idempotence:
            raise ValueError(f"the producers of {name} are transactional, and so idempotent")
        self.idempotence = idempotence
        self.name = name
        self.kind = WORKLOADS[name]
        self.keys = list(keys)
        self._seed = seed
        self._random: dict[int, Random] = {}
        self._values: dict[tuple[int, str], Iterator[int]] = {}
        self._reopened: set[int] = set()

    def settings(self, clients: Sequence[str]) -> HistorySettings:
        """Return the header of the run's history, given the name of each process's client."""
        return HistorySettings(
            workload=self.name,
            isolation_level=IsolationLevel.READ_COMMITTED,
            idempotence=self.idempotence,
            consumers=self.kind.consumers,
            final_polls=True,
            clients=dict(enumerate(clients)),
        )

    def client_options(self, process: int, run: str) -> dict[str, Any]:
        """Return how the client of a process is configured, in a run of this name."""
        owner = process // 2 if self.kind.shared_transactional_ids else process
        transactional_id = f"{run}-{owner}" if self.kind.transactional else None
        group = run if self.kind.consumers is Consumers.SUBSCRIBE else None
        return {
            "process": process,
            "transactional_id": transactional_id,
            "group": group,
            "idempotence": self.idempotence,
        }

    def first(self, process: int) -> dict[str, Any]:
        """Return the first operation of a process: it assigns or subscribes."""
        return self._assign(process, self.keys)

    def next(self, process: int) -> dict[str, Any]:
        """Draw the next operation of a process."""
        if process in self._reopened:
            self._reopened.remove(process)
            return self.first(process)
        random = self._random_of(process)
        kind = self.kind
        chance = random.random()
        if chance < kind.reopens:
            self._reopened.add(process)
            return self._invocation(process, "reopen")
        if chance < kind.reopens + kind.assigns:
            keys = random.sample(self.keys, random.randint(1, len(self.keys)))
            return self._assign(process, keys)
        if random.random() < kind.polls:
            return self.poll(process)
        steps = [self._step(process, random) for _ in range(random.randint(1, STEPS_MAX))]
        if kind.transactional:
            fields: dict[str, Any] = {"steps": steps}
            if random.random() < kind.aborts:
                fields["abort"] = True
            return self._invocation(process, "txn", **fields)
        if "poll" in steps[0]:
            return self.poll(process)
        sends = [step for step in steps if "send" in step]
        return self._invocation(process, "send", steps=sends)

    def poll(self, process: int) -> dict[str, Any]:
        """Return an operation that polls once, outside of a transaction."""
        return self._invocation(process, "poll", steps=[{"poll": {}}])

    def _random_of(self, process: int) -> Random:
        if process not in self._random:
            self._random[process] = Random(  # noqa: S311 - seeded, so that a run can be replayed
                f"{self.name} {self._seed} {process}"
            )
        return self._random[process]

    def _step(self, process: int, random: Random) -> dict[str, Any]:
        if random.random() < 0.5:
            return {"poll": {}}
        key = random.choice(self.keys)
        values = self._values.setdefault((process, key), itertools.count(process, PROCESSES_MAX))
        return {"send": key, "value": next(values)}

    def _assign(self, process: int, keys: Sequence[str]) -> dict[str, Any]:
        if self.kind.consumers is Consumers.SUBSCRIBE:
            return self._invocation(process, "subscribe", keys=sorted(self.keys))
        fields: dict[str, Any] = {"keys": sorted(keys)}
        if self._random_of(process).random() < self.kind.from_beginning:
            fields["from_beginning"] = True
        return self._invocation(process, "assign", **fields)

    @staticmethod
    def _invocation(process: int, operation: str, **fields: Any) -> dict[str, Any]:
        return {"process": process, "type": INVOKE, "operation": operation, **fields}


def _client_command(module: str) -> list[str]:
    program = "import runpy, sys; runpy.run_module(sys.argv.pop(), run_name='__main__')"
    return python_command(program, module)


CLIENTS: Final = {
    "confluent-kafka": _client_command("minibroker.testing.clients.confluent"),
    "kafka-python": _client_command("minibroker.testing.clients.pure"),
    "aiokafka": _client_command("minibroker.testing.clients.aio"),
}
"""The commands of clients that are included, by the name of the library."""
ANSWER_S_MAX: Final = 120
"""How long a client may work on one operation."""
FINAL_POLLS_S: Final = 30
"""How long the last polls continue without a new record."""
EMPTY_POLLS_MIN: Final = 3
"""Polls without a record that end the last polls."""


class WorkloadFailed(RuntimeError):
    """A client program ended or did not answer."""


class ClientProgram:
    """A client in a process of its own."""

    def __init__(self, command: Sequence[str], options: Mapping[str, Any]) -> None:
        self._command = command
        self._process = subprocess.Popen(  # noqa: S603 - the caller's own command
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.name = str(self.ask(options)["client"])

    def close(self) -> None:
        """End the program; kill it if it does not end by itself."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # Closing sends what a write left behind.
            self._process.stdin.close()
        try:
            self._process.wait(ANSWER_S_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def ask(self, line: Mapping[str, Any]) -> dict[str, Any]:
        """Send a line and return the answer. Raises ``WorkloadFailed``."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(line) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failed("ended") from None
        ready, _, _ = select.select([self._process.stdout], [], [], ANSWER_S_MAX)
        answer = self._process.stdout.readline() if ready else ""
        if not answer:
            self._process.kill()
            raise self._failed("ended" if ready else f"did not answer in {ANSWER_S_MAX} s")
        decoded: dict[str, Any] = json.loads(answer)
        return decoded

    def _failed(self, what: str) -> WorkloadFailed:
        return WorkloadFailed(f"the client {shlex.join(self._command)} {what}")


class WorkloadRun:
    """One run: threads that each drive one client program."""

    def __init__(
        self, generator: WorkloadGenerator, programs: Sequence[ClientProgram], path: Path
    ) -> None:
        self._generator = generator
        self._programs = programs
        self._history = HistoryWriter(path, generator.settings([each.name for each in programs]))
        self._lock = threading.Lock()
        self._missing: set[tuple[str, int]] = set()
        """Committed records that no poll has returned."""
        self._unknown: dict[tuple[str, int], set[tuple[str, int]]] = {}
        """Records of transactions of unknown outcome, with all records of the same transaction."""
        self._polled: set[tuple[str, int]] = set()
        self._news = time.monotonic()
        """When a poll last returned a new record."""
        self._errors: list[BaseException] = []

    def run(self, operations: int) -> None:
        """Let each process do a number of operations, then poll everything. May raise."""
        with self._history:
            self._in_threads(lambda process: self._work(process, operations))
            self._in_threads(self._poll_to_the_end)

    def _in_threads(self, work: Callable[[int], None]) -> None:
        def guarded(process: int) -> None:
            try:
                work(process)
            except BaseException as error:  # noqa: BLE001 - raised again below
                self._errors.append(error)

        threads = [
            threading.Thread(target=guarded, args=(process,))
            for process in range(len(self._programs))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._errors:
            raise self._errors[0]

    def _work(self, process: int, operations: int) -> None:
        self._do(process, self._generator.first(process))
        for _ in range(operations):
            self._do(process, self._generator.next(process))

    def _poll_to_the_end(self, process: int) -> None:
        self._do(process, self._generator.first(process))
        empty = 0
        with self._lock:
            self._news = time.monotonic()
        while self._is_incomplete() or empty < EMPTY_POLLS_MIN:
            done = self._do(process, self._generator.poll(process))
            empty = 0 if any(step["poll"] for step in done.get("steps", ())) else empty + 1

    def _is_incomplete(self) -> bool:
        with self._lock:
            return bool(self._missing) and time.monotonic() < self._news + FINAL_POLLS_S

    def _do(self, process: int, invocation: Mapping[str, Any]) -> dict[str, Any]:
        self._history.write(invocation)
        done = self._programs[process].ask(invocation)
        self._history.write(done)
        steps = done.get("steps", ())
        sent = {(step["send"], step["value"]) for step in steps if "send" in step}
        with self._lock:
            if done["type"] == "ok":
                self._missing |= sent - self._polled
            elif done["type"] == "unknown" and done["operation"] == "txn":
                self._unknown |= dict.fromkeys(sent, sent)
                self._note_committed(sent & self._polled)
            for step in steps:
                if "poll" in step:
                    self._note_polled(step["poll"])
        return done

    def _note_committed(self, polled: Set[tuple[str, int]]) -> None:
        """Expect all records of transactions of which some were polled."""
        for record in polled & self._unknown.keys():
            self._missing |= self._unknown[record] - self._polled

    def _note_polled(self, polled: Mapping[str, Sequence[tuple[int, int]]]) -> None:
        found = {(key, value) for key, records in polled.items() for _, value in records}
        if found - self._polled:
            self._news = time.monotonic()
        self._polled |= found
        self._missing -= found
        self._note_committed(found)


def run_workload(
    path: Path,
    workload: str,
    *,
    bootstrap_servers: str,
    topic: str,
    partitions: int,
    clients: Sequence[Sequence[str]],
    operations: int,
    seed: int,
    idempotence: bool = True,
) -> None:
    """Run a workload with a client process for each command, and write its history.

    The topic must exist. Raises ``WorkloadFailed``, and ValueError if the workload needs idempotent
    producers.
    """
    keys = [f"{topic}-{partition}" for partition in range(partitions)]
    generator = WorkloadGenerator(workload, keys, seed, idempotence=idempotence)
    name = f"{topic}-{uuid.uuid4().hex[:8]}"
    programs: list[ClientProgram] = []
    try:
        for process, command in enumerate(clients):
            options = generator.client_options(process, name)
            programs.append(
                ClientProgram(command, {"bootstrap_servers": bootstrap_servers, **options})
            )
        WorkloadRun(generator, programs, path).run(operations)
    finally:
        for program in programs:
            program.close()


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m minibroker.testing.workload")
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--workload", required=True, choices=list(WORKLOADS))
    parser.add_argument("--topic", required=True, help="a topic that exists and is empty")
    parser.add_argument("--partitions", type=int, default=3, help="partitions to use")
    parser.add_argument(
        "--client",
        action="append",
        required=True,
        help=f"one process; may be repeated: {', '.join(CLIENTS)}, or the command of a program",
    )
    parser.add_argument("--operations", type=int, default=100, help="of each process")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-idempotence", action="store_true", help="in queue and auto-commit")
    parser.add_argument("--output", type=Path, required=True, help="the history")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the workload of the command line."""
    options = parsed(arguments)
    run_workload(
        options.output,
        options.workload,
        bootstrap_servers=options.bootstrap_servers,
        topic=options.topic,
        partitions=options.partitions,
        clients=[CLIENTS.get(client) or shlex.split(client) for client in options.client],
        operations=options.operations,
        seed=options.seed,
        idempotence=not options.no_idempotence,
    )


if __name__ == "__main__":
    main()
