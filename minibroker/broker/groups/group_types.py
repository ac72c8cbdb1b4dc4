"""The group types that this coordinator supports, in one table.

Each entry creates, restores and runs the groups of one type. The decoders of their records are in
``records.RECORD_DECODERS``. Kafka's counterpart is ``Group.GroupType``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from minibroker.broker.groups.classic_group import ClassicGroup, restore_group
from minibroker.broker.groups.events import Decision, Event, GroupRecord, Moment
from minibroker.broker.groups.group import Group
from minibroker.broker.groups.group_state_machine import handle
from minibroker.broker.groups.limits import GroupLimits
from minibroker.broker.groups.records import CLASSIC, GroupEntry


class CreateGroup(Protocol):
    """Creates an empty group."""

    def __call__(
        self, group_id: str, limits: GroupLimits, make_id: Callable[[], str], time: Moment, /
    ) -> Group: ...


class RestoreGroup(Protocol):
    """Creates a group from its one or more records. Its first event must be ``Restored``."""

    def __call__(
        self,
        group_id: str,
        records: Sequence[GroupRecord],
        limits: GroupLimits,
        make_id: Callable[[], str],
        time: Moment,
        /,
    ) -> Group: ...


class GroupType(NamedTuple):
    """The functions of one group type. ``handle`` accepts groups of this type only."""

    create: CreateGroup
    restore: RestoreGroup
    handle: Callable[[Any, Event, Moment], list[Decision]]


def _restore_classic(
    group_id: str,
    records: Sequence[GroupRecord],
    limits: GroupLimits,
    make_id: Callable[[], str],
    time: Moment,
) -> ClassicGroup:
    entry = records[-1]
    assert isinstance(entry, GroupEntry)
    assert entry.image is not None
    return restore_group(group_id, entry.image, limits, make_id, time)


GROUP_TYPES: Final[dict[str, GroupType]] = {
    CLASSIC: GroupType(ClassicGroup, _restore_classic, handle),
}
