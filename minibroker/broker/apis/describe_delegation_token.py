"""DescribeDelegationToken (41): tokens with their secrets (KIP-48).

Versions 1-3. The request may name owners; a token is described if one of them is its owner or a
renewer, and the caller owns or renews it or has the rights for it. An empty list of owners finds
nothing. In Kafka: ``KafkaApis.handleDescribeTokensRequest``.
"""

from __future__ import annotations

from minibroker.broker.apis.base import SPECIAL, Context, without_owner
from minibroker.broker.apis.delegation_tokens import requests_problem, secret_key
from minibroker.broker.metadata.delegation_tokens import all_tokens
from minibroker.broker.security.delegation_token import DelegationToken, token_hmac
from minibroker.broker.security.principal import Principal
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.describe_delegation_token import (
    DescribedDelegationToken,
    DescribedDelegationTokenRenewer,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from minibroker_protocol.registry import ApiKey


def answer(
    ctx: Context, request: DescribeDelegationTokenRequest
) -> DescribeDelegationTokenResponse:
    """Describe the tokens of the requested owners."""
    problem, key = requests_problem(ctx), secret_key(ctx.settings)
    if problem or not key:
        problem = problem or ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
        return DescribeDelegationTokenResponse(error_code=problem)
    owners = None
    if request.owners is not None:
        owners = [Principal(one.principal_type, one.principal_name) for one in request.owners]
    return DescribeDelegationTokenResponse(
        tokens=[
            _described(token, key)
            for token in all_tokens(ctx.image)
            if owners is None or any(map(token.may_be_changed_by, owners))
        ]
    )


def _described(token: DelegationToken, key: str) -> DescribedDelegationToken:
    return DescribedDelegationToken(
        principal_type=token.owner.kind,
        principal_name=token.owner.name,
        token_requester_principal_type=token.requester.kind,
        token_requester_principal_name=token.requester.name,
        issue_timestamp=token.issued_ms,
        expiry_timestamp=token.expires_ms,
        max_timestamp=token.max_ms,
        token_id=token.token_id,
        hmac=token_hmac(key, token.token_id),
        renewers=[
            DescribedDelegationTokenRenewer(principal_type=kind, principal_name=name)
            for kind, name in token.renewers
        ],
    )


API = without_owner(
    answer,
    key=ApiKey.DESCRIBE_DELEGATION_TOKEN,
    versions=(1, 3),
    requires=SPECIAL,
)
