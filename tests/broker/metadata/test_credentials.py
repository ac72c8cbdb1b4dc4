"""Changes of SCRAM credentials in the image; a user's quotas are unaffected."""

from __future__ import annotations

from dataclasses import replace

import pytest

from minibroker.broker.metadata import credentials
from minibroker.broker.metadata.configs import valid_config
from minibroker.broker.metadata.credentials import (
    CredentialChange,
    TokenChange,
    all_tokens,
    find_token,
    iterations,
    plan_credentials,
    plan_expiry,
    plan_removals,
    plan_renewal,
    plan_token,
    shapes,
    token_lifetimes,
    users,
)
from minibroker.broker.metadata.image import (
    DELEGATION_TOKEN,
    USER,
    ChangeRejected,
    ConfigChanged,
    Image,
    apply,
)
from minibroker.broker.security.delegation_token import (
    DelegationToken,
    encode_token,
    issue,
    token_hmac,
)
from minibroker.broker.security.principal import Principal
from minibroker.broker.security.scram import Credential, CredentialShape, credential_text
from minibroker.broker.settings import Settings
from minibroker_protocol.errors import ErrorCode

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
    monkeypatch.setattr(credentials, "TOKENS_MAX", 1)
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
