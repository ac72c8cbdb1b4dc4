"""Share sessions of one network processor: what each member of a share group fetches.

Owns the partitions and the epoch of each session. It must never know records or owners. A session
belongs to a member of a group and to a connection, and ends with it: then the records that the
member has acquired are released. Invariant: a member has at most one session, and only a request
with the session's epoch continues it. Kafka's ``ShareSession`` and ``ShareSessionCache``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.types import Uuid

INITIAL_EPOCH: Final = 0
"""Epoch of a request that opens a session."""
FINAL_EPOCH: Final = -1
"""Epoch of a request that ends a session."""
_EPOCH_MAX: Final = 2**31 - 1

TopicIdPartition = tuple[Uuid, int]


class MemberKey(NamedTuple):
    """A member of a share group."""

    group_id: str
    member_id: str


class ShareSession:
    """The session of one member."""

    def __init__(self, key: MemberKey, connection: str, partitions: Iterable[TopicIdPartition]):
        self.key = key
        self.connection = connection
        self.epoch = 1
        """The epoch of the next request."""
        self.unreported: dict[TopicIdPartition, bool] = dict.fromkeys(partitions, False)
        """Partitions in the order in which they are fetched; true if the next response must have
        the partition, because it is new or had an error.
        """

    def advance(self) -> None:
        """Expect the next epoch."""
        self.epoch = 1 if self.epoch == _EPOCH_MAX else self.epoch + 1

    def update(
        self, added: Iterable[TopicIdPartition], removed: Iterable[TopicIdPartition]
    ) -> None:
        """Add and remove partitions."""
        for each in added:
            self.unreported.setdefault(each, True)
        for each in removed:
            self.unreported.pop(each, None)

    def reports(self, partition: TopicIdPartition, *, has_records: bool, failed: bool) -> bool:
        """Whether the response has a partition; note that it has."""
        if partition not in self.unreported:
            return has_records or failed
        is_reported = has_records or failed or self.unreported[partition]
        if has_records:  # It is fetched after the others next time.
            del self.unreported[partition]
        self.unreported[partition] = failed
        return is_reported

    def rotated(self, epoch: int) -> list[TopicIdPartition]:
        """The partitions, in each epoch with another one first."""
        partitions = list(self.unreported)
        if len(partitions) < 2:
            return partitions
        first = (epoch - 1) % len(partitions) if epoch > 0 else 0
        return partitions[first:] + partitions[:first]


class ShareSessionCache:
    """The sessions by member."""

    def __init__(self, sessions_max: int, processor: int) -> None:
        self._sessions_max = sessions_max
        self.processor = processor
        """The index of the network processor."""
        self._sessions: dict[MemberKey, ShareSession] = {}
        self._by_connection: dict[str, dict[MemberKey, None]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, key: MemberKey, epoch: int) -> ShareSession | ErrorCode:
        """The session that a request with an epoch may continue or end, or the error."""
        session = self._sessions.get(key)
        if session is None:
            return ErrorCode.SHARE_SESSION_NOT_FOUND
        if epoch not in (FINAL_EPOCH, session.epoch):
            return ErrorCode.INVALID_SHARE_SESSION_EPOCH
        return session

    def begin(
        self, key: MemberKey, connection: str, partitions: Iterable[TopicIdPartition]
    ) -> ShareSession | ErrorCode:
        """Open a session instead of the former one of the member."""
        self.end(key)
        if len(self._sessions) >= self._sessions_max:
            return ErrorCode.SHARE_SESSION_LIMIT_REACHED
        session = self._sessions[key] = ShareSession(key, connection, partitions)
        self._by_connection.setdefault(connection, {})[key] = None
        return session

    def end(self, key: MemberKey) -> None:
        """End the session of a member, if there is one."""
        session = self._sessions.pop(key, None)
        if session is None:
            return
        keys = self._by_connection[session.connection]
        del keys[key]
        if not keys:
            del self._by_connection[session.connection]

    def disconnected(self, connection: str) -> list[MemberKey]:
        """End the sessions of a connection; return their members."""
        keys = list(self._by_connection.get(connection, ()))
        for key in keys:
            self.end(key)
        return keys

    def clear(self) -> None:
        """End all sessions."""
        self._sessions.clear()
        self._by_connection.clear()
