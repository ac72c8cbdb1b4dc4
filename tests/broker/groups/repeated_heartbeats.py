"""Heartbeats that are recognized when they are repeated, as by `GroupService.extend_session`."""

from __future__ import annotations

from typing import Any, NamedTuple

from minibroker.broker.groups.group import EpochGroup


class _Known(NamedTuple):
    event: Any
    member: Any
    image: object


class RepeatedHeartbeats:
    """Checks that a repeated heartbeat extends a session if and only if the complete check says so.

    The group has the current image and time.
    """

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        """The newest heartbeat of each member that has only extended its session."""
        self.count = 0
        """Heartbeats that were recognized."""

    def only_extends_session(self, group: EpochGroup[Any], event: Any) -> bool:
        """What the complete check says of a heartbeat, which is compared if it is repeated."""
        extends = group.only_extends_session(event)
        known = self._known.get(event.member_id)
        member = group.data.members.get(event.member_id)
        if known is not None and known.image is group.image and known.event == event:
            is_same = member is known.member
            is_recognized = is_same and group.expects_only(known.member, event)
            assert is_recognized == (extends and is_same)
            self.count += is_recognized
        if extends:
            self._known[event.member_id] = _Known(event, member, group.image)
        return extends
