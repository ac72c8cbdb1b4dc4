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

from minibroker_protocol.errors import ErrorCode

PAST_TRANSITIONS_MAX: Final = 16
"""Number of past transitions that a group keeps for ``InvalidGroupTransition``."""


class GroupState(enum.Enum):
    """The state of a group. The value is its name in responses."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class TransitionCause(enum.Enum):
    """The cause of a transition."""

    REBALANCE = "members have to rejoin"
    NEW_GENERATION = "the members of a new generation are known"
    NO_MEMBERS = "a rebalance ended without members"
    ASSIGNED = "the leader's assignment is in the log"
    REMOVED = "the group was deleted or unloaded"


TRANSITIONS: Final[dict[GroupState, dict[TransitionCause, GroupState]]] = {
    GroupState.EMPTY: {
        TransitionCause.REBALANCE: GroupState.PREPARING_REBALANCE,
        TransitionCause.REMOVED: GroupState.DEAD,
    },
    GroupState.PREPARING_REBALANCE: {
        TransitionCause.NEW_GENERATION: GroupState.COMPLETING_REBALANCE,
        TransitionCause.NO_MEMBERS: GroupState.EMPTY,
        TransitionCause.REMOVED: GroupState.DEAD,
    },
    GroupState.COMPLETING_REBALANCE: {
        TransitionCause.ASSIGNED: GroupState.STABLE,
        TransitionCause.REBALANCE: GroupState.PREPARING_REBALANCE,
        TransitionCause.REMOVED: GroupState.DEAD,
    },
    GroupState.STABLE: {
        TransitionCause.REBALANCE: GroupState.PREPARING_REBALANCE,
        TransitionCause.REMOVED: GroupState.DEAD,
    },
    GroupState.DEAD: {},
}

HEARTBEAT_ERRORS: Final[dict[GroupState, ErrorCode]] = {
    GroupState.EMPTY: ErrorCode.UNKNOWN_MEMBER_ID,
    GroupState.PREPARING_REBALANCE: ErrorCode.REBALANCE_IN_PROGRESS,
    GroupState.COMPLETING_REBALANCE: ErrorCode.NONE,
    GroupState.STABLE: ErrorCode.NONE,
    GroupState.DEAD: ErrorCode.COORDINATOR_NOT_AVAILABLE,
}
"""Error code for a heartbeat of a member of the current generation. It reports a rebalance while
members must rejoin, but no error while they wait for their assignment."""

COMMIT_ERRORS: Final[dict[GroupState, ErrorCode]] = {
    GroupState.EMPTY: ErrorCode.UNKNOWN_MEMBER_ID,
    GroupState.PREPARING_REBALANCE: ErrorCode.NONE,
    GroupState.COMPLETING_REBALANCE: ErrorCode.REBALANCE_IN_PROGRESS,
    GroupState.STABLE: ErrorCode.NONE,
    GroupState.DEAD: ErrorCode.COORDINATOR_NOT_AVAILABLE,
}
"""Error for an offset commit of a member of the current generation. Commits are accepted during
PreparingRebalance, because consumers commit their offsets before partitions are revoked."""


class StateTransition(NamedTuple):
    """A past transition of a group of any type: states and a cause with their names."""

    time: float
    before: enum.Enum
    cause: enum.Enum
    after: enum.Enum


class InvalidGroupTransition(RuntimeError):
    """A transition that is not in the table. This is a bug in the rules, not a client error."""

    def __init__(
        self,
        group_id: str,
        state: GroupState,
        cause: TransitionCause,
        transitions: list[StateTransition],
    ) -> None:
        self.group_id = group_id
        self.state = state
        self.cause = cause
        self.transitions = transitions
        history = "; ".join(
            f"{past.time:.3f} {past.before.value} -> {past.after.value} ({past.cause.value})"
            for past in transitions
        )
        super().__init__(
            f"group {group_id!r} in state {state.value} cannot change because {cause.value}; "
            f"earlier transitions: {history or 'none'}"
        )


def next_state(
    group_id: str, state: GroupState, cause: TransitionCause, transitions: list[StateTransition]
) -> GroupState:
    """Return the state after a transition.

    Raises ``InvalidGroupTransition`` if the table does not allow it.
    """
    after = TRANSITIONS[state].get(cause)
    if after is None:
        raise InvalidGroupTransition(group_id, state, cause, transitions)
    return after
