"""A role's place in the house: its name, its tools, and how it reaches the others.

Owns names only; everything in it is made by whoever lays the roles out (``minibroker.broker``),
as processes or as tasks. Invariant: a role that is given an ``Environment`` needs nothing else,
so it can't tell which of the two it is in.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

import trio

from minibroker.observability.conditions import Conditions

if TYPE_CHECKING:
    from minibroker.config import Settings
    from minibroker.observability.metrics import ProcessMetrics
    from minibroker.quotas.ledger import Ledger
    from minibroker.runtime.arena import Arena
    from minibroker.runtime.clock import ControlledClock
    from minibroker.runtime.listening import ConnectionSource
    from minibroker.runtime.roles import RoleStatus
    from minibroker.runtime.switchboard import Switchboard
    from minibroker.runtime.worktime import WorkTime

ACCEPTOR: Final = "acceptor"
PROCESSOR: Final = "processor"
WORKER: Final = "worker"
CONTROLLER: Final = "controller"
RECORDER: Final = "recorder"

FIRST_LIFE: Final = 1
"""The incarnation of a role that has not died yet: what is wrong then is wrong with the start."""


class RoleRefusedError(Exception):
    """What a role was given does not let it serve; the text tells people why and what to do."""


def role_name(role: str, index: int) -> str:
    """The name of a process, which is also the name under which it listens."""
    return role if role in (ACCEPTOR, CONTROLLER, RECORDER) else f"{role}-{index}"


def handoff_name(processor: int) -> str:
    """The name under which a processor takes new connections."""
    return f"{PROCESSOR}-{processor}.connections"


def tokens_name(processor: int) -> str:
    """The name under which a processor takes the calls of others that accept for themselves."""
    return f"{PROCESSOR}-{processor}.tokens"


@dataclass(slots=True)
class Environment:
    """Everything one life of a role is given.

    ``started_us`` is when the broker was, in real microseconds since 1970: all its roles and all
    their lives have the same, and no other broker of this data directory does.
    ``ready`` tells that the role serves; ``stopping`` is set when it shall finish what it does
    and return. ``listeners`` are the sources of connections by listener name, of whoever accepts;
    ``endpoints`` what clients of each are told to dial. ``control`` is the listening socket of
    the control API, ``statuses`` tells how all processes are (both the controller's).
    ``rebuild_topics`` asks the controller to rebuild the topics of a lost config store.
    ``conditions`` are what is wrong in this process, for ``/v1/health``.
    ``secret`` is known to all roles of one run, and to nobody else.
    """

    role: str
    index: int
    incarnation: int
    processors: int
    workers: int
    settings: Settings
    switchboard: Switchboard
    clock: ControlledClock
    arena: Arena
    ledger: Ledger
    started_us: int
    metrics: ProcessMetrics
    work_time: WorkTime
    random: Random
    data_dir: Path
    ready: Callable[[], None]
    rebuild_topics: bool = False
    conditions: Conditions = field(default_factory=Conditions)
    control: socket.socket | None = None
    statuses: Callable[[], Sequence[RoleStatus]] = tuple
    listeners: Mapping[str, ConnectionSource] = field(default_factory=dict)
    endpoints: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    secret: bytes = field(default_factory=partial(os.urandom, 32), repr=False)
    stopping: trio.Event = field(default_factory=trio.Event)

    @property
    def name(self) -> str:
        return role_name(self.role, self.index)
