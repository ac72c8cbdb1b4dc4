"""The table of fault actions, and which fields of a rule belong to each.

Owns one row for each action: what it does, where it can happen, and its fields. It must never know
how an action is carried out. Invariant: every action of ``faults.fault_rule`` has a row, and a
field of a rule is a selector, says when the rule fires, or belongs to an action.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from minibroker_protocol.meanings import Meaning

BEFORE, AFTER, MIDDLE = "before", "after", "middle"

CRC, TAGGED_FIELD = "crc", "tagged_field"
"""Parts of a response that are corrupted before it is encoded."""

REQUEST_FIELDS: Final = ("api", "version_min", "version_max", "correlation_id")
CONNECTION_FIELDS: Final = ("connection", "address", "listener")
CLIENT_FIELDS: Final = ("client_id", "principal")

ENTITY_FIELDS: Final = {
    "topic": Meaning.TOPIC,
    "topic_id": Meaning.TOPIC_ID,
    "partition": Meaning.PARTITION,
    "group": Meaning.GROUP,
    "member": Meaning.MEMBER,
    "transactional_id": Meaning.TRANSACTIONAL_ID,
    "resource": Meaning.RESOURCE,
}
"""Selectors that match entities of a request, with their keys."""

SELECTORS: Final = (*REQUEST_FIELDS, *CLIENT_FIELDS, *CONNECTION_FIELDS, *ENTITY_FIELDS)
COUNTS: Final = ("first", "nth", "every", "probability")
"""Fields that say which matches fire; a rule has one of them at most."""

WHEN_FIELDS: Final = (*COUNTS, "seed", "after_ms", "until_ms")


STORAGE_FIELDS: Final = ("topic", "partition")
"""Selectors of appends, of clients and of the broker itself."""


class ActionKind(NamedTuple):
    """One action: what it does, the fields that it needs or may have, and where it can happen."""

    summary: str
    needed: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    places: tuple[str, ...] = ()
    """The first one is the default."""
    selectors: tuple[str, ...] = SELECTORS
    is_final: bool = False
    """Whether it decides about the response, so that later rules do not fire for the same."""

    @property
    def fields(self) -> tuple[str, ...]:
        """All fields of the action itself."""
        return (*self.needed, *self.optional, *(("at",) if self.places else ()))


ACTIONS: Final[dict[str, ActionKind]] = {
    "error": ActionKind(
        "Answers with an error code. The matching entities of a request fail and the others are "
        "served; `after` the work is done and its acknowledgement is lost.",
        needed=("error",),
        optional=("whole",),
        places=(BEFORE, AFTER),
        is_final=True,
    ),
    "delay": ActionKind(
        "Delays the response, or the execution, on the broker's clock.",
        needed=("delay_ms",),
        places=(AFTER, BEFORE),
    ),
    "hold": ActionKind(
        "Holds the request, or what passes a hold point, until the rule is released or removed.",
        optional=("point",),
        places=(BEFORE, AFTER),
    ),
    "reorder": ActionKind(
        "Exchanges two matches of different connections: every second one is answered first, and "
        "the one before it waits for that, with its execution or its response.",
        places=(AFTER, BEFORE),
    ),
    "disconnect": ActionKind(
        "Closes the connection; in the `middle` a part of the response is sent before.",
        optional=("bytes", "reset"),
        places=(BEFORE, AFTER, MIDDLE),
        is_final=True,
    ),
    "never_answer": ActionKind(
        "Sends no response, nor any later one on the connection, which stays open.",
        places=(BEFORE, AFTER),
        is_final=True,
    ),
    "throttle": ActionKind(
        "Sets the throttle time of the response, and mutes the connection for as long; with "
        "`quota.throttle.mode=delay`, the default of personas before Kafka 2.0, the response is "
        "delayed instead.",
        needed=("throttle_ms",),
        optional=("mute",),
    ),
    "slow": ActionKind(
        "Sends the response slowly; the broker's clock counts from when the rule fires.",
        needed=("bytes_per_s",),
    ),
    "corrupt": ActionKind(
        "Damages the response.",
        needed=("part",),
        optional=("bytes",),
        is_final=True,
    ),
    "replace": ActionKind(
        "Replaces fields of the response; `before` the others have their defaults.",
        needed=("response",),
        places=(AFTER, BEFORE),
        is_final=True,
    ),
    "observe": ActionKind("Counts only."),
    "kill": ActionKind(
        "Kills a process of the broker, which is restarted; `after` the work, its response is "
        "lost if that process has to send it.",
        needed=("process",),
        places=(BEFORE, AFTER),
    ),
    "pause": ActionKind(
        "Stops a process of the broker for some time; the request waits as long.",
        needed=("process", "pause_ms"),
        places=(BEFORE, AFTER),
    ),
    "advance": ActionKind(
        "Advances the broker's clock.", needed=("advance_ms",), places=(BEFORE, AFTER)
    ),
    "fail_append": ActionKind(
        "Lets appends to logs fail as on a full disk. With `bytes`, so much of the batch reaches "
        "the file and stays there; with `crash`, the process is killed then.",
        optional=("errno", "bytes", "crash"),
        selectors=STORAGE_FIELDS,
    ),
    "stall_append": ActionKind(
        "Lets the worker wait in an append with all its partitions, like a disk that is stuck.",
        needed=("pause_ms",),
        selectors=STORAGE_FIELDS,
    ),
    "refuse": ActionKind(
        "Closes new connections with a TCP reset.", selectors=CONNECTION_FIELDS, is_final=True
    ),
    "silent": ActionKind(
        "Accepts new connections, reads their requests and answers none.",
        selectors=CONNECTION_FIELDS,
        is_final=True,
    ),
    "close": ActionKind(
        "Closes the connections that are open when the rule is added.",
        selectors=(*CLIENT_FIELDS, *CONNECTION_FIELDS),
    ),
}

BROKER_ACTIONS: Final = frozenset({"kill", "pause", "advance"})
"""Actions that the controller carries out while the request waits."""

STORAGE_ACTIONS: Final = frozenset({"fail_append", "stall_append"})
"""Actions that the worker carries out at each append that they match."""

ENDINGS: Final = frozenset({"disconnect", "never_answer"})
"""Actions after which a request gets no response."""

REPLACING_ACTIONS: Final = ("error", "replace", "corrupt")
"""Actions that change more of a response than its throttle time."""

RESPONSE_ACTIONS: Final = frozenset({*REPLACING_ACTIONS, "throttle", "slow"})
"""Actions on the response, which have no effect without one."""

NEW_CONNECTION_ACTIONS: Final = frozenset({"refuse", "silent"})
CONNECTION_ACTIONS: Final = NEW_CONNECTION_ACTIONS | {"close"}


def place_of_action(action: str, at: str | None) -> str:
    """Where in the course of a request an action happens that has no hold point."""
    places = ACTIONS[action].places
    return at or (places[0] if places else AFTER)
