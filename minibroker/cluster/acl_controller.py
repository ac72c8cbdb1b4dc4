"""The controller's changes of ACLs: plan, store, then update the image.

Owns that order for ACLs, as `ClusterController`, which contains it, does for all other metadata. It
must never authorize a change. Invariant: an ACL that could not be stored is in no image. The ACL
methods of Kafka's ``QuorumController``.
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from minibroker.cluster import stored_acls
from minibroker.cluster.acls import Binding, Filter, plan_creation, plan_deletion
from minibroker.cluster.image import AclsChanged, Change, Image, Update
from minibroker.cluster.store.tree import Operation, Store, UnwritableError
from minibroker.cluster.topics import ChangeRejected
from minibroker.security.acl import AclRule, Pattern
from protocol.errors import ErrorCode

Found = list[tuple[Pattern, AclRule]]


class AclController:
    """The half of the controller that keeps access rules."""

    _store: Store
    _image: Image
    _lock: trio.Lock

    async def create_acls(
        self, wanted: Sequence[Binding]
    ) -> tuple[tuple[ChangeRejected | None, ...], list[Update]]:
        """Add rules, each for itself: why not, and the updates to publish."""
        async with self._lock:
            plans = plan_creation(self._image, wanted)
            changes = [plan for plan in plans if isinstance(plan, AclsChanged)]
            refusals = tuple(plan if isinstance(plan, ChangeRejected) else None for plan in plans)
            try:
                return refusals, await self._keep_acls(changes)
            except UnwritableError as error:
                unwritable = ChangeRejected(ErrorCode.KAFKA_STORAGE_ERROR, str(error))
                return tuple(refusal or unwritable for refusal in refusals), []

    async def delete_acls(
        self, wanted: Sequence[Filter]
    ) -> tuple[list[Found | ChangeRejected], list[Update]]:
        """Remove what each filter finds: that, or why it is none, and the updates to publish."""
        async with self._lock:
            answers, changes = plan_deletion(self._image, wanted)
            try:
                return answers, await self._keep_acls(changes)
            except UnwritableError as error:
                unwritable = ChangeRejected(ErrorCode.KAFKA_STORAGE_ERROR, str(error))
                found = [unwritable if isinstance(one, list) and one else one for one in answers]
                return found, []

    async def apply_acls(self, pattern: Pattern) -> list[Update]:
        """Look again at a pattern's rules, which others may have written; `LayoutError`."""
        async with self._lock:
            rules = await stored_acls.load(self._store, pattern)
            return self._advance(self._acl_differences({pattern: rules}))

    async def apply_all_acls(self) -> list[Update]:
        """Take over the ACLs of all patterns."""
        async with self._lock:
            kept = dict.fromkeys(self._image.acls, tuple[AclRule, ...]())
            async for pattern, rules in stored_acls.load_all(self._store):
                kept[pattern] = rules
            return self._advance(self._acl_differences(kept))

    def _acl_differences(self, kept: dict[Pattern, tuple[AclRule, ...]]) -> list[AclsChanged]:
        known = self._image.acls
        return [
            AclsChanged(pattern, rules)
            for pattern, rules in kept.items()
            if set(rules) != set(known.get(pattern, ()))
        ]

    async def _keep_acls(self, changes: Sequence[AclsChanged]) -> list[Update]:
        if not changes:
            return []
        for path in stored_acls.PERSISTENT_PATHS:
            await self._store.ensure(path)
        return await self._commit(await stored_acls.told_steps(self._store, changes), changes)

    async def _commit(
        self, operations: Sequence[Operation], changes: Sequence[Change]
    ) -> list[Update]:
        raise NotImplementedError

    def _advance(self, changes: Sequence[Change]) -> list[Update]:
        raise NotImplementedError
