"""One member of a group: its protocols, its assignment and its waiting requests.

It must never know the group's state or make decisions about the group. Invariant: a member never
waits for a join and a sync at the same time. A client can't send heartbeats while it waits for a
response, so its session does not expire then, except for a new member. Kafka's counterpart is
``ClassicGroupMember``.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from minibroker.broker.groups.events import JoinedMember, MemberImage, Protocols, Waiter


@dataclass(slots=True, kw_only=True)
class ClassicMember:
    """A member. ``expires_at`` is the end of its session without another heartbeat."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    join_waiter: Waiter | None = None
    sync_waiter: Waiter | None = None
    is_new: bool = False
    expires_at: float | None = None

    @property
    def is_static(self) -> bool:
        return self.group_instance_id is not None

    @property
    def awaits_join(self) -> bool:
        return self.join_waiter is not None

    @property
    def may_expire(self) -> bool:
        """Whether the member may be removed when its session times out."""
        return self.is_new or (self.join_waiter is None and self.sync_waiter is None)

    def metadata(self, protocol_name: str) -> bytes:
        """The member's metadata for the protocol; ``KeyError`` if it does not support it."""
        for name, metadata in self.protocols:
            if name == protocol_name:
                return metadata
        raise KeyError(protocol_name)

    def vote(self, candidates: Collection[str]) -> str:
        """The member's most preferred candidate. It must support at least one of them."""
        return next(name for name, _ in self.protocols if name in candidates)

    def joined(self, protocol_name: str) -> JoinedMember:
        return JoinedMember(self.member_id, self.group_instance_id, self.metadata(protocol_name))

    def image(self, protocol_name: str, assignment: bytes) -> MemberImage:
        return MemberImage(
            member_id=self.member_id,
            group_instance_id=self.group_instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            session_timeout_ms=self.session_timeout_ms,
            subscription=self.metadata(protocol_name),
            assignment=assignment,
        )


def restore_member(image: MemberImage, protocol_name: str) -> ClassicMember:
    """Create a member from its image, which contains only the selected protocol."""
    return ClassicMember(
        member_id=image.member_id,
        group_instance_id=image.group_instance_id,
        client_id=image.client_id,
        client_host=image.client_host,
        session_timeout_ms=image.session_timeout_ms,
        rebalance_timeout_ms=image.rebalance_timeout_ms,
        protocols=((protocol_name, image.subscription),),
        assignment=image.assignment,
    )
