"""The controller's changes of ACLs: plan, store, then update the image.

Owns that order for ACLs, as `ClusterController`, which contains it, does for all other metadata. It
must never authorize a change. Invariant: an ACL that could not be stored is in no image. The ACL
methods of Kafka's ``QuorumController``.
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from minibroker.broker.metadata import stored_acls
from minibroker.broker.metadata.acls import Binding, Filter, plan_creation, plan_deletion
from minibroker.broker.metadata.image import AclsChanged, Change, Image, Update
from minibroker.broker.metadata.outcomes import unavailable_rejection
from minibroker.broker.metadata.store.tree import Operation, Store, UnavailableError
from minibroker.broker.metadata.topics import ChangeRejected
from minibroker.broker.security.acl import AclRule, Pattern

MatchingAcls = list[tuple[Pattern, AclRule]]


class AclController:
    """Part of the controller that changes ACLs."""

    _store: Store
    _image: Image
    _lock: trio.Lock

    async def create_acls(
        self, requested: Sequence[Binding]
    ) -> tuple[tuple[ChangeRejected | None, ...], list[Update]]:
        """Add ACLs independently; return the rejections and the updates to publish."""
        async with self._lock:
            plans = plan_creation(self._image, requested)
            changes = [plan for plan in plans if isinstance(plan, AclsChanged)]
            rejections = tuple(plan if isinstance(plan, ChangeRejected) else None for plan in plans)
            try:
                return rejections, await self._store_acls(changes)
            except UnavailableError as error:
                unavailable = unavailable_rejection(error)
                return tuple(rejection or unavailable for rejection in rejections), []

    async def delete_acls(
        self, requested: Sequence[Filter]
    ) -> tuple[list[MatchingAcls | ChangeRejected], list[Update]]:
        """Delete the ACLs that match each filter; return them or a rejection, and the updates."""
        async with self._lock:
            answers, changes = plan_deletion(self._image, requested)
            try:
                return answers, await self._store_acls(changes)
            except UnavailableError as error:
                unavailable = unavailable_rejection(error)
                found = [unavailable if isinstance(one, list) and one else one for one in answers]
                return found, []

    async def apply_acls(self, pattern: Pattern) -> list[Update]:
        """Apply the stored ACLs of a pattern, which another program may have written.

        Raises `LayoutError`.
        """
        async with self._lock:
            rules = await stored_acls.load(self._store, pattern)
            return self._advance(self._acl_differences({pattern: rules}))

    async def apply_all_acls(self) -> list[Update]:
        """Apply the stored ACLs of all patterns."""
        async with self._lock:
            stored = dict.fromkeys(self._image.acls, tuple[AclRule, ...]())
            async for pattern, rules in stored_acls.load_all(self._store):
                stored[pattern] = rules
            return self._advance(self._acl_differences(stored))

    def _acl_differences(self, stored: dict[Pattern, tuple[AclRule, ...]]) -> list[AclsChanged]:
        current = self._image.acls
        return [
            AclsChanged(pattern, rules)
            for pattern, rules in stored.items()
            if set(rules) != set(current.get(pattern, ()))
        ]

    async def _store_acls(self, changes: Sequence[AclsChanged]) -> list[Update]:
        if not changes:
            return []
        for path in stored_acls.PERSISTENT_PATHS:
            await self._store.ensure(path)
        return await self._commit(
            await stored_acls.steps_with_notifications(self._store, changes), changes
        )

    async def _commit(
        self, operations: Sequence[Operation], changes: Sequence[Change]
    ) -> list[Update]:
        raise NotImplementedError

    def _advance(self, changes: Sequence[Change]) -> list[Update]:
        raise NotImplementedError
