"""Applies ACLs that other programs write to the config store.

Owns the notifications of both of Kafka's ACL trees, as `ConfigChanges` owns those of configs. It
must never know what an ACL means. Invariant: an ACL that cannot be read leaves the others in force.
Kafka's ``ZkAclChangeStore``.
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

    async def _read_all(self) -> list[Update]:
        for path in PERSISTENT_PATHS:
            await self._store.ensure(path)
        try:
            return await self._cluster.apply_all_acls()
        except LayoutError as error:
            self._log.warning("ACLs cannot be read; the others stay in force", why=error)
            return []

    async def _read_change(self, path: str, data: bytes) -> list[Update]:
        return await self._cluster.apply_acls(decode_change(path, data))


class PrefixedAclChanges(AclChanges):
    """Notifications of ACLs with prefixed patterns."""

    root = CHANGES[PatternType.PREFIXED]
