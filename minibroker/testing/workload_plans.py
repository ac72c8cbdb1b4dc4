"""Workloads: which operations the processes of a run do, drawn with a seed.

Owns the mix of operations of each workload. It must never know a client library or a broker: it
makes the invocations of a history, and whatever executes them writes the completions. Invariant:
the same seed gives each process the same operations, and values are unique within a key. The
workloads queue, abort and list-append are those of Jepsen's tests.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, Final, NamedTuple

from minibroker.lab.checker.client_history import Consumers, HistorySettings, IsolationLevel
from minibroker.lab.checker.history_format import INVOKE

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
