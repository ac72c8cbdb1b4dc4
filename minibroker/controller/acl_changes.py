"""Applies ACLs that other programs write to the config store.

Owns for ACLs what `ConfigChanges` owns for configs, for each of Kafka's two trees. It must never
know what an ACL means. Invariant: an ACL that cannot be read leaves the others in force. Echoes
``ZkAclChangeStore``.
"""

from __future__ import annotations

from minibroker.cluster.image import Update
from minibroker.cluster.layout import LayoutError
from minibroker.cluster.stored_acls import CHANGES, PERSISTENT_PATHS, decode_change
from minibroker.controller.config_changes import ConfigChanges
from minibroker.security.acl import PatternType


class AclChanges(ConfigChanges):
    """Notifications of ACLs with literal patterns."""

    root = CHANGES[PatternType.LITERAL]

    async def _whole(self) -> list[Update]:
        for path in PERSISTENT_PATHS:
            await self._store.ensure(path)
        try:
            return await self._cluster.take_over_all_acls()
        except LayoutError as error:
            self._log.warning("access rules cannot be read, others stay in force", why=error)
            return []

    async def _told_of(self, path: str, data: bytes) -> list[Update]:
        return await self._cluster.take_over_acls(decode_change(path, data))


class PrefixedAclChanges(AclChanges):
    """Notifications of ACLs with prefixed patterns."""

    root = CHANGES[PatternType.PREFIXED]
