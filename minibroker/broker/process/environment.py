"""The environment of a role: its name, its tools, and its access to the other roles.

Owns the names of the roles. It must never create what it holds; ``minibroker.launch`` does, for
roles that run as processes or as tasks. Invariant: an ``Environment`` is all that a role needs, so
a role does not know which of the two it is.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import trio

from minibroker.broker.groups.hooks import NO_HOLD_POINTS, HoldPoints
from minibroker.broker.metrics.conditions import Conditions

if TYPE_CHECKING:
    from collections.abc import Collection

    from minibroker.broker.metrics.metrics import ProcessMetrics
    from minibroker.broker.process.journal_counts import JournalCounts
    from minibroker.broker.process.local_worker import LocalWorker
    from minibroker.broker.quotas.ledger import QuotaLedger
    from minibroker.broker.settings import Settings
    from minibroker.runtime.addressing import ConnectionSource, Transport
    from minibroker.runtime.arena import Arena
    from minibroker.runtime.clock import ControlledClock
    from minibroker.runtime.roles import RoleStatus
    from minibroker.runtime.worktime import WorkTime


NotedClient: TypeAlias = tuple[int, str, int]
"""Number of a connection, host and port of its client."""

NotedHeader: TypeAlias = tuple[int | None, int | None, int | None, str | None]
"""API key, version, correlation id and client id."""

NoteListener: TypeAlias = Callable[
    [str, dict[str, Any], NotedClient | None, NotedHeader | None], object
]
"""Called with the kind of a note, its details, and the connection and request that it is about."""

ACCEPTOR: Final = "acceptor"
PROCESSOR: Final = "processor"
WORKER: Final = "worker"
CONTROLLER: Final = "controller"
RECORDER: Final = "recorder"

FIRST_INCARNATION: Final = 1
"""The first incarnation of a role: its failures are failures of the start."""


class RoleRefusedError(Exception):
    """A role cannot serve with its environment; the text says why and what to do."""


def role_name(role: str, index: int) -> str:
    """Name of a process, and the address at which it listens."""
    return role if role in (ACCEPTOR, CONTROLLER, RECORDER) else f"{role}-{index}"


def handoff_name(processor: int) -> str:
    """Address at which a processor receives accepted connections."""
    return f"{PROCESSOR}-{processor}.connections"


def tokens_name(processor: int) -> str:
    """Address at which a processor exchanges tokens with the others in the sharded mode."""
    return f"{PROCESSOR}-{processor}.tokens"


def _ignore_role(_: object) -> None:
    pass


@dataclass(slots=True)
class Environment:
    """Everything that one incarnation of a role receives.

    ``started_us`` is the start of the broker in real microseconds since 1970: the same for all its
    roles and incarnations, and different for every start on this data directory.
    The role calls ``ready`` when it serves; ``stopping`` is set when it must finish and return.
    ``listeners`` are the sources of connections by listener name, for roles that accept;
    ``endpoints`` are the advertised addresses. ``control`` is the listening socket of the control
    API and ``statuses`` returns the states of all processes, both for the controller.
    ``rebuild_topics`` tells the controller to rebuild the topics of a lost config store, and
    ``seed`` what to create before the first start is complete.
    ``conditions`` are what is wrong in this process, for ``/v1/health``.
    ``local_worker`` is the I/O worker of a process that it shares with a processor, for both.
    ``starts_processes`` permits processes of the role's own, which a simulation cannot control.
    ``secret`` is shared by all roles of one run and by nothing else.
    ``observe`` is called with the role before it runs: what watches or changes its work attaches
    itself there. ``on_note`` listens to the role's notes, and ``hold_points`` hold its groups and
    transactions. ``journal_counts`` are those of the journal of all roles; a role never reads them.
    """

    role: str
    index: int
    incarnation: int
    processors: int
    workers: int
    settings: Settings
    transport: Transport
    clock: ControlledClock
    arena: Arena
    ledger: QuotaLedger
    started_us: int
    metrics: ProcessMetrics
    work_time: WorkTime
    random: Random
    data_dir: Path
    journal_counts: JournalCounts
    ready: Callable[[], None]
    rebuild_topics: bool = False
    seed: Mapping[str, Any] | None = None
    starts_processes: bool = False
    conditions: Conditions = field(default_factory=Conditions)
    control: socket.socket | None = None
    statuses: Callable[[], Sequence[RoleStatus]] = tuple
    listeners: Mapping[str, ConnectionSource] = field(default_factory=dict)
    endpoints: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    secret: bytes = field(default_factory=partial(os.urandom, 32), repr=False)
    stopping: trio.Event = field(default_factory=trio.Event)
    local_worker: LocalWorker | None = None
    observe: Callable[[Any], None] = _ignore_role
    on_note: NoteListener | None = None
    hold_points: HoldPoints = NO_HOLD_POINTS

    @property
    def name(self) -> str:
        return role_name(self.role, self.index)

    def busy_ns(self) -> int:
        """Return how long the role has worked so far."""
        local = self.local_worker
        if local is None:
            return self.work_time.busy_ns()
        return local.worker_busy_ns() if self.role == WORKER else local.processor_busy_ns()


# --------------------------------------------------------------------------------------------------
# Notes of a process about itself, for a listener: states, rejections, the clock.
#
# Owns how notes are made. It must never know the listener. Invariant: without one, a note costs one
# comparison. Kafka logs state changes in ``state-change.log``.


def note(
    env: Environment,
    kind: str,
    details: dict[str, Any],
    client: NotedClient | None = None,
    header: NotedHeader | None = None,
) -> None:
    """Pass a note to the listener, if there is one."""
    if env.on_note is not None:
        env.on_note(kind, details, client, header)


def note_state(
    env: Environment, what: str, name: str, before: str | None, after: str | None
) -> None:
    """Note a changed state; None means that there was or is no such thing."""
    note(env, "state", {"what": what, "name": name, "from": before, "to": after})


def note_clock(env: Environment, before_ms: float) -> None:
    """Note that the clock was changed; ``before_ms`` is its time before, since 1970."""
    state = env.clock.state()
    details = {"from": before_ms, "to": state.wall_ms, "rate": state.rate, "frozen": state.frozen}
    note(env, "clock", details)


def note_topics(env: Environment, before: Collection[str], after: Collection[str]) -> None:
    """Note the topics that were created or deleted."""
    if env.on_note is None or before is after:
        return
    for name in sorted(set(before) - set(after)):
        note_state(env, "topic", name, "exists", None)
    for name in sorted(set(after) - set(before)):
        note_state(env, "topic", name, None, "exists")
