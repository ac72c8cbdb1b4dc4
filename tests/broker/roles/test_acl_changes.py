"""Rules that others write into the store are followed, in both of Kafka's trees."""

from __future__ import annotations

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from minibroker.broker.metadata.acls import ACL_CHANGES, acl_path, encode_acl_change, encode_acls
from minibroker.broker.metadata.controller import ClusterController
from minibroker.broker.metadata.store.sqlite import MEMORY, SqliteStore
from minibroker.broker.roles.metadata_publisher import (
    NOTIFICATION_RETENTION_S,
    AclChanges,
    PrefixedAclChanges,
)
from minibroker.broker.security.acl import (
    AclRule,
    Operation,
    Pattern,
    PatternType,
    Permission,
    Resource,
)
from tests.broker.roles.followed_store import FollowedStore, start_cluster

RULE = AclRule("User:alice", "*", Operation.READ, Permission.ALLOW)
LITERAL = Pattern(Resource.TOPIC, "cats")
PREFIXED = Pattern(Resource.TOPIC, "ca", PatternType.PREFIXED)


class ControllerWithStore(FollowedStore[SqliteStore]):
    def __init__(self, store: SqliteStore, cluster: ClusterController) -> None:
        super().__init__(store, cluster)
        self.followers = [
            kind(store, cluster, self.publish, trio.current_time)
            for kind in (AclChanges, PrefixedAclChanges)
        ]

    async def write(self, pattern: Pattern, data: bytes | None = None) -> None:
        path = acl_path(pattern)
        await self.store.ensure(path.rpartition("/")[0])
        await self.store.create(path, encode_acls([RULE]) if data is None else data)

    async def write_notification(self, pattern: Pattern, data: bytes | None = None) -> None:
        notice = encode_acl_change(pattern) if data is None else data
        await self.store.create(
            f"{ACL_CHANGES[pattern.type]}/acl_changes_", notice, sequential=True
        )
        await wait_all_tasks_blocked()


async def new_controller() -> ControllerWithStore:
    store = SqliteStore(MEMORY)
    return ControllerWithStore(store, await start_cluster(store))


async def start_watching(controller: ControllerWithStore, nursery: trio.Nursery) -> None:
    for follower in controller.followers:
        nursery.start_soon(follower.run)
    await wait_all_tasks_blocked()


async def test_both_trees_are_followed(nursery: trio.Nursery) -> None:
    controller = await new_controller()
    await controller.write(LITERAL)
    await start_watching(controller, nursery)
    assert controller.image.acls == {LITERAL: (RULE,)}
    await controller.write(PREFIXED)
    await controller.write_notification(PREFIXED)
    assert controller.image.acls == {LITERAL: (RULE,), PREFIXED: (RULE,)}
    await controller.store.delete(acl_path(LITERAL))
    await controller.write_notification(LITERAL)
    assert controller.image.acls == {PREFIXED: (RULE,)}


async def test_unreadable_acl_node_keeps_current_acls(nursery: trio.Nursery) -> None:
    controller = await new_controller()
    await start_watching(controller, nursery)
    await controller.write(LITERAL)
    await controller.write_notification(LITERAL)
    await controller.store.set(acl_path(LITERAL), b"nonsense")
    await controller.write_notification(LITERAL)
    await controller.write_notification(LITERAL, b"nonsense")
    assert controller.image.acls == {LITERAL: (RULE,)}


async def test_unreadable_acl_node_does_not_block_startup(nursery: trio.Nursery) -> None:
    controller = await new_controller()
    await controller.write(LITERAL, b"nonsense")
    await start_watching(controller, nursery)
    await controller.write(PREFIXED)
    await controller.write_notification(PREFIXED)
    assert controller.image.acls == {PREFIXED: (RULE,)}


async def test_old_notices_are_removed(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    controller = await new_controller()
    await start_watching(controller, nursery)
    await controller.write_notification(LITERAL)
    await trio.sleep(NOTIFICATION_RETENTION_S + 1)
    await controller.write_notification(LITERAL)
    assert len(await controller.store.children(ACL_CHANGES[PatternType.LITERAL])) == 1
