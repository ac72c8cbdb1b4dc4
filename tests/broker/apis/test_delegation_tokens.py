"""Connections that may not send requests about delegation tokens."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.broker.apis.delegation_tokens import requests_problem
from minibroker.broker.security.principal import ANONYMOUS, Principal
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.create_delegation_token import CreateDelegationTokenRequest
from minibroker_protocol.messages.describe_delegation_token import DescribeDelegationTokenRequest
from minibroker_protocol.messages.expire_delegation_token import ExpireDelegationTokenRequest
from minibroker_protocol.messages.renew_delegation_token import RenewDelegationTokenRequest
from tests.broker.apis.conftest import ApisMaker
from tests.broker.apis.tokens import ALICE, KEY, PROVEN, SETTINGS, ask

NOT_ALLOWED = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
REQUESTS = (
    CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=-1),
    RenewDelegationTokenRequest(hmac=b"x", renew_period_ms=-1),
    ExpireDelegationTokenRequest(hmac=b"x", expiry_time_period_ms=-1),
    DescribeDelegationTokenRequest(owners=None),
)


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("by_token", [False, True])
async def test_request_without_proven_identity_is_not_allowed(
    make_apis: ApisMaker, request_: Any, by_token: bool
) -> None:
    apis = await make_apis(*SETTINGS, KEY)
    apis.by_token = by_token
    response = await ask(apis, ALICE, request_, 2, PROVEN if by_token else "PLAINTEXT")
    assert response.error_code == NOT_ALLOWED
    assert apis.asked == {}
    for name in ("issue_timestamp_ms", "expiry_timestamp_ms"):
        assert getattr(response, name, -1) == -1


@pytest.mark.parametrize(
    ("principal", "error"), [(ANONYMOUS, NOT_ALLOWED), (ALICE, ErrorCode.NONE)]
)
async def test_client_with_tls_needs_a_certificate(
    make_apis: ApisMaker, principal: Principal, error: ErrorCode
) -> None:
    protocols = "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,OUTSIDE:SSL"
    listeners = "listeners=PLAINTEXT://127.0.0.1:0,OUTSIDE://127.0.0.1:0"
    apis = await make_apis(listeners, protocols, KEY, "ssl.keystore.location=x.pem")
    apis.principal = principal
    assert requests_problem(apis.context(38, 3, PROVEN)) == error
