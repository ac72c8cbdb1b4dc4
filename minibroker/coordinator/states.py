"""The five states of a classic group and the transitions between them, as one table.

Theory of operation. A group without members is *Empty*; it may still have offsets. The first join,
or any change of members or subscriptions, starts a rebalance. In *PreparingRebalance* the members
join or rejoin and wait. When all have rejoined, or after a timeout, a new generation starts and all
join requests are answered. In *CompletingRebalance* the members wait for the leader's assignment.
Once it is written to the log, the group is *Stable* until the next change. A deleted group is
*Dead* forever; a new group may reuse its id.

This module must never know the causes of transitions; they are in ``classic_group``. Invariant: a
transition that is not in the table raises ``InvalidGroupTransition``, which contains the
transitions before it. The table is the inverse of ``validPreviousStates`` in Kafka's
``ClassicGroupState``.
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

from protocol.errors import ErrorCode

STORY_LENGTH_MAX: Final = 16
"""Number of past transitions that a group keeps for ``InvalidGroupTransition``."""


class GroupState(enum.Enum):
    """The state of a group. The value is its name in responses."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class Move(enum.Enum):
    """The cause of a transition."""

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
"""Response to a heartbeat of a member of the current generation. It reports a rebalance while
members must rejoin, but no error while they wait for their assignment."""

COMMIT_ANSWERS: Final[dict[GroupState, ErrorCode]] = {
    GroupState.EMPTY: ErrorCode.UNKNOWN_MEMBER_ID,
    GroupState.PREPARING_REBALANCE: ErrorCode.NONE,
    GroupState.COMPLETING_REBALANCE: ErrorCode.REBALANCE_IN_PROGRESS,
    GroupState.STABLE: ErrorCode.NONE,
    GroupState.DEAD: ErrorCode.COORDINATOR_NOT_AVAILABLE,
}
"""Response to an offset commit of a member of the current generation. Commits are accepted during
PreparingRebalance, because consumers commit their offsets before they give up partitions."""


class StateTransition(NamedTuple):
    """A past transition of a group."""

    at: float
    before: GroupState
    move: Move
    after: GroupState


class InvalidGroupTransition(RuntimeError):
    """A transition that is not in the table. This is a bug in the rules, not a client error."""

    def __init__(
        self, group_id: str, state: GroupState, move: Move, transitions: list[StateTransition]
    ) -> None:
        self.group_id = group_id
        self.state = state
        self.move = move
        self.transitions = transitions
        history = "; ".join(
            f"{step.at:.3f} {step.before.value} -> {step.after.value} ({step.move.value})"
            for step in transitions
        )
        super().__init__(
            f"group {group_id!r} in state {state.value} cannot move because {move.value}; "
            f"so far: {history or 'nothing happened'}"
        )


def next_state(
    group_id: str, state: GroupState, move: Move, transitions: list[StateTransition]
) -> GroupState:
    """Return the state after ``move``.

    Raises ``InvalidGroupTransition`` if the table does not allow it.
    """
    after = TRANSITIONS[state].get(move)
    if after is None:
        raise InvalidGroupTransition(group_id, state, move, transitions)
    return after
