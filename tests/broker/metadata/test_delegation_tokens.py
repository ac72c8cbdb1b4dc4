"""Plans for delegation tokens: limits, lookups by HMAC, and removals."""

from __future__ import annotations

from dataclasses import replace

import pytest

from minibroker.broker.metadata import delegation_tokens
from minibroker.broker.metadata.configs import valid_config
from minibroker.broker.metadata.delegation_tokens import (
    TokenChange,
    all_tokens,
    find_token,
    plan_expiry,
    plan_removals,
    plan_renewal,
    plan_token,
    token_lifetimes,
)
from minibroker.broker.metadata.image import (
    DELEGATION_TOKEN,
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
from minibroker.broker.settings import Settings
from minibroker_protocol.errors import ErrorCode

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
    monkeypatch.setattr(delegation_tokens, "TOKENS_MAX", 1)
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
