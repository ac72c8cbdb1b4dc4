"""The classic group through the interface of all group types."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minibroker_protocol.errors import ErrorCode

if TYPE_CHECKING:
    from minibroker.broker.groups.group import Group
    from tests.broker.groups.conftest import Playbook


def test_empty_classic_group_is_idle_and_deletable(play: Playbook) -> None:
    group: Group = play.group
    assert (group.type, group.state_name, group.protocol_type_name) == ("classic", "Empty", "")
    assert (group.epoch, group.members_count, group.is_idle) == (0, 0, True)
    assert group.validate_delete() is ErrorCode.NONE
    assert group.validate_offset_delete() is ErrorCode.NONE


def test_classic_group_with_members_is_not_deletable(play: Playbook) -> None:
    group: Group = play.stable("a", "b").group
    assert (group.state_name, group.protocol_type_name) == ("Stable", "consumer")
    assert (group.epoch, group.members_count, group.is_idle) == (1, 2, False)
    assert group.validate_delete() is ErrorCode.NON_EMPTY_GROUP
    assert group.validate_offset_fetch("unknown", 7) is ErrorCode.NONE


def test_classic_group_of_other_protocol_with_members_keeps_offsets(play: Playbook) -> None:
    group = play.stable("a").group
    assert group.validate_offset_delete() is ErrorCode.NONE
    group.protocol_type = "connect"
    assert group.validate_offset_delete() is ErrorCode.NON_EMPTY_GROUP
