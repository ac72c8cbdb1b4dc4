"""One member of a group: what it supports, what it was assigned, what it waits for.

It must never know the group's state, nor decide anything about it. Invariant: it never waits for
a join and for an assignment at the same time. A new member may expire while it waits, a known one
may not: as long as a client waits for us, it can't send heartbeats. Kafka's
``ClassicGroupMember``.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from minibroker.coordinator.events import JoinedMember, MemberImage, Protocols, Waiter


@dataclass(slots=True, kw_only=True)
class Member:
    """A member and the deadline by which it must be heard of."""

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
        """Whether silence counts against it."""
        return self.is_new or (self.join_waiter is None and self.sync_waiter is None)

    def metadata(self, protocol_name: str) -> bytes:
        """What it said along with that protocol; ``KeyError`` if it does not support it."""
        for name, metadata in self.protocols:
            if name == protocol_name:
                return metadata
        raise KeyError(protocol_name)

    def vote(self, candidates: Collection[str]) -> str:
        """The candidate that it likes best; at least one must be among its protocols."""
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


def restored(image: MemberImage, protocol_name: str) -> Member:
    """A member as the log knew it: of its protocols, only the chosen one was kept."""
    return Member(
        member_id=image.member_id,
        group_instance_id=image.group_instance_id,
        client_id=image.client_id,
        client_host=image.client_host,
        session_timeout_ms=image.session_timeout_ms,
        rebalance_timeout_ms=image.rebalance_timeout_ms,
        protocols=((protocol_name, image.subscription),),
        assignment=image.assignment,
    )
