"""Records of a process for the journal, other than requests and responses.

Owns how they are built. It must never know where the journal is kept. Invariant: while the journal
is off, a note costs one comparison. Kafka logs state changes in ``state-change.log``.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection

    from minibroker.broker.process.environment import Environment
    from minibroker.lab.journal.records import NoteHeader, Peer


def note(
    env: Environment,
    kind: str,
    details: dict[str, Any],
    peer: Peer | None = None,
    header: NoteHeader | None = None,
) -> None:
    """Record something if the journal is on.

    ``kind`` is the value of an ``EntryKind``; ``peer`` is the connection.
    """
    journal = env.journal
    if journal is not None:
        from minibroker.lab.journal.records import note_record

        now_ns, now = time.perf_counter_ns(), env.clock.now()
        record = note_record(now_ns, now, kind, details, peer=peer, header=header)
        journal.add(record, len(record[-1]))


def note_state(
    env: Environment, what: str, name: str, before: str | None, after: str | None
) -> None:
    """Record a changed state; None means that there was or is no such thing."""
    note(env, "state", {"what": what, "name": name, "from": before, "to": after})


def note_clock(env: Environment, before_ms: float) -> None:
    """Record that the clock was changed; ``before_ms`` is its time before, since 1970."""
    state = env.clock.state()
    details = {"from": before_ms, "to": state.wall_ms, "rate": state.rate, "frozen": state.frozen}
    note(env, "clock", details)


def note_topics(env: Environment, before: Collection[str], after: Collection[str]) -> None:
    """Record the topics that were created or deleted."""
    if env.journal is None or before is after:
        return
    for name in sorted(set(before) - set(after)):
        note_state(env, "topic", name, "exists", None)
    for name in sorted(set(after) - set(before)):
        note_state(env, "topic", name, None, "exists")
