"""Requested ACLs: invalid ones, matches of filters, and what remains."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from minibroker.broker.metadata import acls
from minibroker.broker.metadata.acls import (
    ACL_PATHS,
    Binding,
    CredentialChange,
    Filter,
    TokenChange,
    acl_path,
    acl_steps,
    all_tokens,
    check_binding,
    check_filter,
    decode_acl_change,
    decode_acls,
    encode_acl_change,
    encode_acls,
    find,
    find_token,
    iterations,
    load_all_acls,
    plan_acl_creation,
    plan_acl_deletion,
    plan_credentials,
    plan_expiry,
    plan_removals,
    plan_renewal,
    plan_token,
    shapes,
    token_lifetimes,
    users,
)
from minibroker.broker.metadata.configs import valid_config
from minibroker.broker.metadata.image import (
    DELEGATION_TOKEN,
    USER,
    AclsChanged,
    ChangeRejected,
    ConfigChanged,
    Image,
    apply,
)
from minibroker.broker.metadata.layout import LayoutError
from minibroker.broker.metadata.store.sqlite import MEMORY, SqliteStore
from minibroker.broker.security.acl import (
    AclRule,
    Operation,
    Pattern,
    PatternType,
    Permission,
    Resource,
)
from minibroker.broker.security.principal import Principal
from minibroker.broker.security.scram import (
    Credential,
    CredentialShape,
    DelegationToken,
    credential_text,
    encode_token,
    issue,
    token_hmac,
)
from minibroker.broker.settings import Settings
from minibroker_protocol.errors import ErrorCode

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


RULE = AclRule("User:alice", "host1", Operation.IDEMPOTENT_WRITE, Permission.ALLOW)
LITERAL = Pattern(Resource.TRANSACTIONAL_ID, "tx")
PREFIXED = Pattern(Resource.TOPIC, "a:b", PatternType.PREFIXED)


def test_nodes_are_kafkas() -> None:
    assert acl_path(LITERAL) == "/kafka-acl/TransactionalId/tx"
    assert acl_path(PREFIXED) == "/kafka-acl-extended/prefixed/Topic/a:b"
    assert acl_path(Pattern(Resource.GROUP, "a/b%")) == "/kafka-acl/Group/a%2Fb%25"
    assert json.loads(encode_acls([RULE])) == {
        "version": 1,
        "acls": [
            {
                "principal": "User:alice",
                "permissionType": "Allow",
                "operation": "IdempotentWrite",
                "host": "host1",
            }
        ],
    }
    assert decode_acls("/p", encode_acls([RULE])) == (RULE,)
    assert decode_acls("/p", b"") == ()


def test_notices_are_kafkas() -> None:
    assert encode_acl_change(LITERAL) == b"TRANSACTIONAL_ID:tx"
    assert json.loads(encode_acl_change(PREFIXED)) == {
        "version": 1,
        "resourceType": "TOPIC",
        "name": "a:b",
        "patternType": "PREFIXED",
    }
    for pattern in (LITERAL, PREFIXED, Pattern(Resource.TOPIC, "a:b")):
        assert decode_acl_change("/p", encode_acl_change(pattern)) == pattern
    assert decode_acl_change("/p", b"Topic:x") == Pattern(Resource.TOPIC, "x")


@pytest.mark.parametrize("data", [b"x", b"{}", b"[]", b"null", b'{"acls":[{}]}', b"Thing:x"])
def test_invalid_acl_nodes_are_rejected_with_their_path(data: bytes) -> None:
    for read in (decode_acls, decode_acl_change):
        with pytest.raises(LayoutError, match="/p"):
            read("/p", data)


async def test_acl_changes_are_stored_and_notified() -> None:
    store = SqliteStore(MEMORY)
    for path in ACL_PATHS:
        await store.ensure(path)
    slashed = Pattern(Resource.GROUP, "a/b%2F")
    changes = [AclsChanged(pattern, (RULE,)) for pattern in (LITERAL, PREFIXED, slashed)]
    await store.multi(await acl_steps(store, changes))
    assert [change async for change in load_all_acls(store)] == [changes[2], changes[0], changes[1]]
    assert len(await store.children("/kafka-acl-changes")) == 2
    assert len(await store.children("/kafka-acl-extended-changes")) == 1
    twice = [AclsChanged(LITERAL, (RULE, RULE)), AclsChanged(LITERAL, ())]
    await store.multi(await acl_steps(store, [*twice, AclsChanged(slashed, ())]))
    assert [change async for change in load_all_acls(store)] == [changes[1]]
    await store.close()


@pytest.mark.parametrize("name", [".", "..", "...", "a\0b", "\x7fü\ufffd", "50%41"])
async def test_acl_of_a_name_that_is_no_part_of_a_path_is_stored(name: str) -> None:
    store = SqliteStore(MEMORY)
    for path in ACL_PATHS:
        await store.ensure(path)
    change = AclsChanged(Pattern(Resource.GROUP, name), (RULE,))
    await store.multi(await acl_steps(store, [change]))
    assert [found async for found in load_all_acls(store)] == [change]
    await store.close()


# ------------------------ Changes of SCRAM credentials in the image; a user's quotas are unaffected


CREDENTIAL = Credential(b"salt", b"stored", b"server", 4096)
QUOTA = {"producer_byte_rate": "1000"}


def set_to(user: str = "a b", mechanism: int = 1, count: int = 4096) -> CredentialChange:
    return CredentialChange(user, mechanism, CREDENTIAL._replace(iterations=count))


def gone(user: str = "a b", mechanism: int = 1) -> CredentialChange:
    return CredentialChange(user, mechanism, None)


def after(image: Image, *wanted: CredentialChange) -> Image:
    for plan in plan_credentials(image, wanted).values():
        assert isinstance(plan, ConfigChanged)
        image = apply(image, plan)
    return image


def test_credential_changes_keep_quotas_of_user() -> None:
    image = apply(Image(), ConfigChanged(USER, "a%20b", QUOTA))
    image = after(image, set_to(), set_to(mechanism=2, count=8192))
    config = image.configs[USER, "a%20b"]
    assert config.items() >= QUOTA.items()
    assert config["SCRAM-SHA-512"].endswith("iterations=8192")
    assert list(users(image)) == ["a b"]
    assert iterations(image, "a b") == {1: 4096, 2: 8192}
    image = after(image, gone(), set_to(mechanism=2, count=5000))
    assert iterations(image, "a b") == {2: 5000}
    image = after(image, gone(mechanism=2))
    assert image.configs[USER, "a%20b"] == QUOTA
    assert list(users(image)) == []


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        ([set_to("")], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([set_to(mechanism=3)], ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ([gone(mechanism=0)], ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ([set_to(count=4095)], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([set_to(count=16385)], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([gone()], ErrorCode.RESOURCE_NOT_FOUND),
        ([set_to(), set_to()], ErrorCode.DUPLICATE_RESOURCE),
        ([set_to(mechanism=2), set_to(count=1)], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([gone(""), gone(""), set_to("")], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([set_to(), gone(), gone(mechanism=3)], ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ([gone(), gone(), set_to(count=1)], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([set_to(), gone()], ErrorCode.DUPLICATE_RESOURCE),
    ],
)
def test_invalid_credential_change_rejects_only_its_user(
    wanted: list[CredentialChange], code: ErrorCode
) -> None:
    plans = plan_credentials(Image(), [*wanted, set_to("other")])
    refusal = plans[wanted[0].user]
    assert isinstance(refusal, ChangeRejected)
    assert refusal.code == code
    assert isinstance(plans["other"], ConfigChanged)


def test_scram_shapes_are_per_mechanism_most_frequent_first() -> None:
    image = after(Image(), set_to("a"), set_to("b", count=8192), set_to("c", count=8192))
    image = after(image, set_to("a", mechanism=2, count=5000))
    image = apply(image, ConfigChanged(USER, "d", {**QUOTA, "SCRAM-SHA-256": "nonsense"}))
    too_few = credential_text(CREDENTIAL._replace(iterations=4095))
    image = apply(image, ConfigChanged(USER, "e", {"SCRAM-SHA-256": too_few}))
    salt = len(CREDENTIAL.salt)
    assert shapes(image, "SCRAM-SHA-256") == (
        CredentialShape(8192, salt, 2),
        CredentialShape(4096, salt, 1),
    )
    assert shapes(image, "SCRAM-SHA-512") == (CredentialShape(5000, salt, 1),)
    assert shapes(Image(), "SCRAM-SHA-256") == ()


SETTINGS = Settings.from_sources(
    pairs=["delegation.token.max.lifetime.ms=100", "delegation.token.expiry.time.ms=10"]
)
ALICE = Principal("User", "alice")


def token(token_id: str, now_ms: int = 0) -> DelegationToken:
    lifetimes = token_lifetimes(SETTINGS)
    return issue(token_id, ALICE, ALICE, (), now_ms=now_ms, requested_ms=-1, lifetimes=lifetimes)


def image_with(*tokens: DelegationToken) -> Image:
    image = Image()
    for one in tokens:
        image = apply(image, ConfigChanged(DELEGATION_TOKEN, one.token_id, encode_token(one)))
    return image


def change(token_id: str, now_ms: int, period_ms: int = -1) -> TokenChange:
    return TokenChange(token_hmac("k", token_id), ALICE, now_ms, period_ms)


def test_tokens_are_found_in_the_image() -> None:
    image = image_with(token("b"), token("a"))
    assert [one.token_id for one in all_tokens(image)] == ["a", "b"]
    assert find_token(image, "a") == token("a")
    assert find_token(image, "c") is None


def test_number_of_tokens_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acls, "TOKENS_MAX", 1)
    assert isinstance(plan_token(Image(), token("a")), ConfigChanged)
    rejection = plan_token(image_with(token("a")), token("b"))
    assert isinstance(rejection, ChangeRejected)
    assert rejection.code == ErrorCode.POLICY_VIOLATION


def test_secret_of_another_key_finds_no_token() -> None:
    rejection = plan_renewal(image_with(token("a")), SETTINGS, "other", change("a", 1))
    assert isinstance(rejection, ChangeRejected)
    assert rejection.code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND


def test_renewal_and_expiry_store_the_token_with_its_new_end() -> None:
    image = image_with(token("a"), token("b"))
    renewed = plan_renewal(image, SETTINGS, "k", change("a", 5))
    assert renewed == ConfigChanged(DELEGATION_TOKEN, "a", encode_token(token("a").expiring(15)))
    assert plan_expiry(image, "k", change("b", 5)) == ConfigChanged(DELEGATION_TOKEN, "b", {})
    ended = plan_expiry(image, "k", change("b", 5, 2))
    assert ended == ConfigChanged(DELEGATION_TOKEN, "b", encode_token(token("b").expiring(7)))


def test_expired_tokens_are_removed() -> None:
    image = image_with(token("a"), token("b", now_ms=50))
    assert plan_removals(image, 11) == [ConfigChanged(DELEGATION_TOKEN, "a", {})]
    assert plan_removals(image, 10) == []


def test_invalid_stored_token_is_ignored() -> None:
    stored = encode_token(token("a"))
    assert valid_config(DELEGATION_TOKEN, stored) == stored
    assert valid_config(DELEGATION_TOKEN, {"owner": "x"}) == {}
    broken = replace(Image(), configs={(DELEGATION_TOKEN, "a"): {"owner": "x"}})
    assert list(all_tokens(broken)) == []
