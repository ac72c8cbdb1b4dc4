"""The five states of a classic group and the moves between them, as one table.

Theory of operation. A group without members is *Empty*; it may still hold offsets. The first
member that joins, or any change in who the members are or what they ask for, starts a rebalance:
in *PreparingRebalance* members (re)join and wait; when all have, or time is up, a new generation
begins and everybody gets the answer to the join. In *CompletingRebalance* the members wait for
the leader's assignment; once that is written to the log the group is *Stable* until the next
change. A deleted group is *Dead* and never lives again; a new group may take its name.

This module must never know what makes a move happen (``group`` does). Its invariant: a move that
the table does not list raises ``InvalidTransition``, which carries the moves that led there. The
table is Kafka's ``ClassicGroupState`` with its ``validPreviousStates`` turned round.
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

from protocol.errors import ErrorCode

STORY_LENGTH_MAX: Final = 16
"""How many past moves a group remembers for ``InvalidTransition``."""


class GroupState(enum.Enum):
    """A group's state; the value is the name that clients see."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class Move(enum.Enum):
    """Why a group changes its state."""

    REBALANCE = "members have to rejoin"
    NEW_GENERATION = "the members of a new generation are known"
    ALL_GONE = "a rebalance ended without members"
    ASSIGNED = "the leader's assignment is in the log"
    REMOVED = "the group was deleted or its owner let go of it"


TRANSITIONS: Final[dict[GroupState, dict[Move, GroupState]]] = {
    GroupState.EMPTY: {
        Move.REBALANCE: GroupState.PREPARING_REBALANCE,
        Move.REMOVED: GroupState.DEAD,
    },
    GroupState.PREPARING_REBALANCE: {
        Move.NEW_GENERATION: GroupState.COMPLETING_REBALANCE,
        Move.ALL_GONE: GroupState.EMPTY,
        Move.REMOVED: GroupState.DEAD,
    },
    GroupState.COMPLETING_REBALANCE: {
        Move.ASSIGNED: GroupState.STABLE,
        Move.REBALANCE: GroupState.PREPARING_REBALANCE,
        Move.REMOVED: GroupState.DEAD,
    },
    GroupState.STABLE: {
        Move.REBALANCE: GroupState.PREPARING_REBALANCE,
        Move.REMOVED: GroupState.DEAD,
    },
    GroupState.DEAD: {},
}

HEARTBEAT_ANSWERS: Final[dict[GroupState, ErrorCode]] = {
    GroupState.EMPTY: ErrorCode.UNKNOWN_MEMBER_ID,
    GroupState.PREPARING_REBALANCE: ErrorCode.REBALANCE_IN_PROGRESS,
    GroupState.COMPLETING_REBALANCE: ErrorCode.NONE,
    GroupState.STABLE: ErrorCode.NONE,
    GroupState.DEAD: ErrorCode.COORDINATOR_NOT_AVAILABLE,
}
"""What a member of the current generation hears. It learns of a rebalance from its heartbeat; one
that has its join answered but not yet its assignment is only asked to stay alive."""

COMMIT_ANSWERS: Final[dict[GroupState, ErrorCode]] = {
    GroupState.EMPTY: ErrorCode.UNKNOWN_MEMBER_ID,
    GroupState.PREPARING_REBALANCE: ErrorCode.NONE,
    GroupState.COMPLETING_REBALANCE: ErrorCode.REBALANCE_IN_PROGRESS,
    GroupState.STABLE: ErrorCode.NONE,
    GroupState.DEAD: ErrorCode.COORDINATOR_NOT_AVAILABLE,
}
"""Whether a member of the current generation may commit offsets. While a rebalance is prepared
it may: that is when consumers commit what they are about to hand over."""


class Step(NamedTuple):
    """One move that a group has made."""

    at: float
    before: GroupState
    move: Move
    after: GroupState


class InvalidTransition(RuntimeError):
    """A rule asked for a move that the table does not have: a bug here, not a client's fault."""

    def __init__(self, group_id: str, state: GroupState, move: Move, story: list[Step]) -> None:
        self.group_id = group_id
        self.state = state
        self.move = move
        self.story = story
        told = "; ".join(
            f"{step.at:.3f} {step.before.value} -> {step.after.value} ({step.move.value})"
            for step in story
        )
        super().__init__(
            f"group {group_id!r} in state {state.value} cannot move because {move.value}; "
            f"so far: {told or 'nothing happened'}"
        )


def next_state(group_id: str, state: GroupState, move: Move, story: list[Step]) -> GroupState:
    """The state that ``move`` leads to; raises ``InvalidTransition`` if the table has none."""
    after = TRANSITIONS[state].get(move)
    if after is None:
        raise InvalidTransition(group_id, state, move, story)
    return after
