"""Reports of changed states of groups and transactions.

Owns how the change of a state is recognized. It must never know where reports go. Invariant: every
transition of a classic group is reported, also several in one event. Kafka logs them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from minibroker.broker.groups.classic_group import ClassicGroup
from minibroker.broker.transactions.states import STATE_NAMES

if TYPE_CHECKING:
    from minibroker.broker.groups.group import Group
    from minibroker.broker.groups.states import StateTransition
    from minibroker.broker.transactions.metadata import TransactionMetadata

OnState = Callable[[str, str, str | None, str | None], object]
"""Takes what has the state, its name, and the states before and after; None if there is none."""

GROUP = "group"
TRANSACTION = "transaction"


def last_transition(group: Group) -> StateTransition | None:
    """Return the newest transition of a group, to report those after it later."""
    known = group.past_transitions if isinstance(group, ClassicGroup) else None
    return known[-1] if known else None


def report_transitions(
    on_state: OnState | None, group: Group, since: StateTransition | None
) -> None:
    """Report the transitions of a group after one of them."""
    if on_state is None or last_transition(group) is since or not isinstance(group, ClassicGroup):
        return
    new: list[StateTransition] = []
    for transition in reversed(group.past_transitions):
        if transition is since:
            break
        new.append(transition)
    for _, before, _, after in reversed(new):
        on_state(GROUP, group.group_id, before.value, after.value)


def report_transaction(
    on_state: OnState | None,
    transactional_id: str,
    before: TransactionMetadata | None,
    after: TransactionMetadata | None,
) -> None:
    """Report the state of a transaction if it has changed."""
    if on_state is None:
        return
    old = None if before is None else STATE_NAMES[before.state]
    new = None if after is None else STATE_NAMES[after.state]
    if old != new:
        on_state(TRANSACTION, transactional_id, old, new)
