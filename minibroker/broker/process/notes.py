"""Notes of a process about itself, for a listener: states, rejections, the clock.

Owns how notes are made. It must never know the listener. Invariant: without one, a note costs one
comparison. Kafka logs state changes in ``state-change.log``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection

    from minibroker.broker.process.environment import Environment, NotedClient, NotedHeader


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
