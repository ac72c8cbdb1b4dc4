"""Follows what others write of access rules into the config store.

Owns the same for rules as `ConfigChanges` for configs, one for each of Kafka's two trees; what a
rule means is ``security.acl``'s to know.  The invariant: rules that cannot be read leave those in
force that could, as nothing else may be assumed of them.  Echoes ``ZkAclChangeStore``.
"""

from __future__ import annotations

from minibroker.cluster.image import Update
from minibroker.cluster.layout import LayoutError
from minibroker.cluster.stored_acls import CHANGES, PERSISTENT_PATHS, decode_change
from minibroker.controller.config_changes import ConfigChanges
from minibroker.security.acl import PatternType


class AclChanges(ConfigChanges):
    """One controller's eye on the notices of literal patterns."""

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
    """The same of prefixed patterns."""

    root = CHANGES[PatternType.PREFIXED]
