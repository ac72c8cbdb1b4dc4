"""Delegation tokens: created, renewed, expired and described, by clients that may and may not."""

from __future__ import annotations

from typing import Any, Final

from minibroker_protocol.messages.create_delegation_token import (
    CreatableRenewers,
    CreateDelegationTokenRequest,
)
from minibroker_protocol.messages.describe_delegation_token import (
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
)
from minibroker_protocol.messages.expire_delegation_token import ExpireDelegationTokenRequest
from minibroker_protocol.messages.renew_delegation_token import RenewDelegationTokenRequest
from system_tests.peers.conversation import SendRequest

NOW: Final = -1
"""A period that ends a token."""

LIFETIMES: Final = (-1, 0, 1, 3_600_000, 2**31, 2**62)
PERIODS: Final = (-2, 0, 1000, 10**12, 2**62)


def created(
    *renewers: tuple[str, str], lifetime_ms: int = -1, owner: tuple[str, str] | None = None
) -> CreateDelegationTokenRequest:
    return CreateDelegationTokenRequest(
        owner_principal_type=owner and owner[0],
        owner_principal_name=owner and owner[1],
        renewers=[
            CreatableRenewers(principal_type=kind, principal_name=name) for kind, name in renewers
        ],
        max_lifetime_ms=lifetime_ms,
    )


def described(*owners: tuple[str, str]) -> DescribeDelegationTokenRequest:
    return DescribeDelegationTokenRequest(
        owners=[
            DescribeDelegationTokenOwner(principal_type=kind, principal_name=name)
            for kind, name in owners
        ]
    )


def tokens(ask: SendRequest) -> None:
    secrets = []
    for version in (1, 2, 3):
        made = _create(ask, f"made, {version}", created(), version)
        secrets.append(made.hmac)
        _renew_and_expire(ask, f"{version}", made.hmac, version)
    for lifetime_ms in LIFETIMES:
        request = created(lifetime_ms=lifetime_ms)
        secrets.append(_create(ask, f"for {lifetime_ms} ms", request, 3).hmac)
    for name, request in {
        "renewed by another": created(("User", "bob")),
        "renewed by two": created(("User", "bob"), ("User", "carol")),
        "renewed by a group": created(("Group", "g")),
        "renewed by nothing": created(("", "")),
        "renewed by a user without a name": created(("User", "")),
        "for another": created(owner=("User", "bob")),
        "for a group": created(owner=("Group", "g")),
        "for a user without a name": created(owner=("User", "")),
        "for a name without a type": created(owner=("", "bob")),
    }.items():
        secrets.append(_create(ask, name, request, 3).hmac)
    for version in (1, 2, 3):
        for label, owners in {
            "of one": [("User", "alice")],
            "of another": [("User", "bob")],
            "of two": [("User", "bob"), ("User", "alice")],
            "of a group": [("Group", "g")],
            "of no name": [("User", "")],
        }.items():
            ask(f"{label}, {version}", described(*owners), version)
        ask(f"of none, {version}", described(), version)
        everything = DescribeDelegationTokenRequest(owners=None)
        ask(f"all, {version}", everything, version)
    for number, secret in enumerate(secrets):
        ended = ExpireDelegationTokenRequest(hmac=secret, expiry_time_period_ms=NOW)
        ask(f"ended {number}", ended, 2)
    ask("none left", DescribeDelegationTokenRequest(owners=None), 3)


def _create(
    ask: SendRequest, label: str, request: CreateDelegationTokenRequest, version: int
) -> Any:
    made = ask(label, request, version)
    issued = made.issue_timestamp_ms
    lives = made.max_timestamp_ms - issued, made.expiry_timestamp_ms - issued
    ask.answers[f"{label}, lives"] = lives
    return made


def _renew_and_expire(ask: SendRequest, about: str, secret: bytes, version: int) -> None:
    version = min(version, 2)
    for number, unknown in enumerate((b"", b"x", secret[:-1], secret + b"x")):
        request = RenewDelegationTokenRequest(hmac=unknown, renew_period_ms=1000)
        ask(f"unknown {number} renewed, {about}", request, version)
        gone = ExpireDelegationTokenRequest(hmac=unknown, expiry_time_period_ms=1000)
        ask(f"unknown {number} expired, {about}", gone, version)
    for period_ms in PERIODS:
        renewed = RenewDelegationTokenRequest(hmac=secret, renew_period_ms=period_ms)
        ask(f"renewed for {period_ms}, {about}", renewed, version)
    for period_ms in (2**62, 3_600_000):
        expired = ExpireDelegationTokenRequest(hmac=secret, expiry_time_period_ms=period_ms)
        ask(f"expires in {period_ms}, {about}", expired, version)


CONVERSATIONS: Final = (tokens,)
