"""Requested ACLs: invalid ones, matches of filters, and what remains."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.broker.metadata.acls import (
    Binding,
    Filter,
    check_binding,
    check_filter,
    find,
    plan_acl_creation,
    plan_acl_deletion,
)
from minibroker.broker.metadata.image import AclsChanged, ChangeRejected, Image, apply
from minibroker.broker.security.acl import (
    AclRule,
    Operation,
    Pattern,
    PatternType,
    Permission,
    Resource,
)

GOOD = Binding(2, "cats", 3, "User:alice", "*", 3, 3)
ANY = Filter(1, None, 1, None, None, 1, 1)


def made(*bindings: Binding) -> Image:
    image = Image()
    for plan in plan_acl_creation(image, bindings).changes:
        assert isinstance(plan, AclsChanged)
        image = apply(image, plan)
    return image


def test_rule_is_kept_once() -> None:
    image = made(GOOD, GOOD, GOOD._replace(operation=4))
    rules = (
        AclRule("User:alice", "*", Operation.READ, Permission.ALLOW),
        AclRule("User:alice", "*", Operation.WRITE, Permission.ALLOW),
    )
    assert image.acls == {Pattern(Resource.TOPIC, "cats"): rules}


@pytest.mark.parametrize(
    "wrong",
    [
        {"resource": 1},
        {"resource": 0},
        {"resource": 9},
        {"pattern_type": 1},
        {"pattern_type": 2},
        {"operation": 1},
        {"operation": 99},
        {"permission": 1},
        {"name": ""},
        {"host": ""},
        {"principal": "alice"},
        {"resource": 4, "name": "another-cluster"},
        {"resource": 4, "name": "*"},
    ],
)
def test_invalid_acl_is_rejected_and_valid_one_created(wrong: dict[str, Any]) -> None:
    rejections, changes = plan_acl_creation(Image(), [GOOD._replace(**wrong), GOOD])
    assert isinstance(rejections[0], ChangeRejected)
    assert rejections[1] is None
    assert [type(change) for change in changes] == [AclsChanged]
    assert isinstance(check_binding(GOOD._replace(**wrong)), ChangeRejected)


IMAGE = made(
    GOOD,
    GOOD._replace(name="ca", pattern_type=4),
    GOOD._replace(name="*", principal="User:bob", permission=2),
    GOOD._replace(resource=3, host="10.0.0.1", operation=8),
)


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        (ANY, {"cats", "ca", "*", "cats group"}),
        (ANY._replace(resource=2), {"cats", "ca", "*"}),
        (ANY._replace(resource=3), {"cats group"}),
        (ANY._replace(name="cats"), {"cats", "cats group"}),
        (ANY._replace(name="cats", pattern_type=2, resource=2), {"cats", "ca", "*"}),
        (ANY._replace(name="dogs", pattern_type=PatternType.MATCH), {"*"}),
        (ANY._replace(name="*", pattern_type=PatternType.MATCH), {"*"}),
        (ANY._replace(pattern_type=PatternType.PREFIXED), {"ca"}),
        (ANY._replace(name="ca", pattern_type=PatternType.LITERAL), set()),
        (ANY._replace(principal="User:bob"), {"*"}),
        (ANY._replace(host="10.0.0.1"), {"cats group"}),
        (ANY._replace(operation=8), {"cats group"}),
        (ANY._replace(permission=2), {"*"}),
    ],
)
def test_acl_filter_matches_expected_patterns(wanted: Filter, names: set[str]) -> None:
    found = {
        f"{pattern.name} group" if pattern.resource is Resource.GROUP else pattern.name
        for pattern, _ in find(IMAGE.acls, wanted)
    }
    assert found == names
    assert check_filter(wanted) is None


def test_matching_acls_are_deleted_and_invalid_filter_rejected() -> None:
    answers, changes = plan_acl_deletion(
        IMAGE, [ANY._replace(resource=2), ANY._replace(operation=99)]
    )
    assert isinstance(answers[0], list)
    assert len(answers[0]) == 3
    assert isinstance(answers[1], ChangeRejected)
    image = IMAGE
    for change in changes:
        image = apply(image, change)
    assert [pattern.resource for pattern in image.acls] == [Resource.GROUP]
