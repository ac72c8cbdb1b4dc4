"""Stored generations of a classic group, by their fields in order."""

from __future__ import annotations

from minibroker.broker.groups.records import GroupMetadataValue, MemberMetadata


def stored_member(*values: object) -> MemberMetadata:
    """Return a member: ids, client, timeouts (rebalance, session), subscription and assignment."""
    names = ["member_id", "group_instance_id", "client_id", "client_host"]
    names += ["rebalance_timeout", "session_timeout", "subscription", "assignment"]
    fields = dict(zip(names, values, strict=True))
    return MemberMetadata(**fields)  # type: ignore[arg-type]


def stored_group(*values: object, members: tuple[MemberMetadata, ...] = ()) -> GroupMetadataValue:
    """Return a generation: protocol type, generation, protocol, leader, and time of the state."""
    names = ("protocol_type", "generation", "protocol", "leader", "current_state_timestamp")
    fields = dict(zip(names, values, strict=True))
    return GroupMetadataValue(**fields, members=list(members))  # type: ignore[arg-type]
