"""Local APIs with delegation tokens, and the requests of their users."""

from __future__ import annotations

from typing import Any, Final

from minibroker.broker.apis.registry import APIS
from minibroker.broker.security.principal import Principal
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

ALICE, BOB, EVE = (Principal("User", name) for name in ("alice", "bob", "eve"))
NOW_MS: Final = 1_700_000_000_000
HOUR_MS: Final = 3_600_000
PROVEN: Final = "OUTSIDE"
"""A listener with SASL."""
SETTINGS: Final = (
    "listeners=PLAINTEXT://127.0.0.1:0,OUTSIDE://127.0.0.1:0",
    "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,OUTSIDE:SASL_PLAINTEXT",
    "listener.name.outside.sasl.enabled.mechanisms=SCRAM-SHA-256",
)
KEY: Final = "delegation.token.secret.key=k"


async def ask(
    apis: Any, principal: Principal, request: Any, version: int = 2, listener: str = PROVEN
) -> Any:
    """The response to a request, as the registry serves it."""
    apis.principal = principal
    return await apis.ask(APIS[type(request).__api_key__], request, version, listener)


async def create(
    apis: Any, *renewers: Principal, owner: Principal | None = None, lifetime_ms: int = -1
) -> Any:
    """Alice creates a token."""
    request = CreateDelegationTokenRequest(
        renewers=[CreatableRenewers(principal_type=k, principal_name=n) for k, n in renewers],
        owner_principal_type=owner.kind if owner else None,
        owner_principal_name=owner.name if owner else None,
        max_lifetime_ms=lifetime_ms,
    )
    return await ask(apis, ALICE, request, 3)


async def renew(apis: Any, principal: Principal, hmac: bytes, period_ms: int = -1) -> Any:
    request = RenewDelegationTokenRequest(hmac=hmac, renew_period_ms=period_ms)
    return await ask(apis, principal, request)


async def expire(apis: Any, principal: Principal, hmac: bytes, period_ms: int = -1) -> Any:
    request = ExpireDelegationTokenRequest(hmac=hmac, expiry_time_period_ms=period_ms)
    return await ask(apis, principal, request)


async def describe(apis: Any, principal: Principal, *owners: Principal, every: bool = True) -> Any:
    wanted = [DescribeDelegationTokenOwner(principal_type=k, principal_name=n) for k, n in owners]
    request = DescribeDelegationTokenRequest(owners=None if every and not owners else wanted)
    return await ask(apis, principal, request, 3)
