"""DescribeUserScramCredentials (50): the SCRAM mechanisms and iteration counts of users.

Version 0. An empty or null list selects all users with credentials. Salts and keys are never
returned. A user without credentials or one that the request repeats gets its own error. In Kafka:
``ScramImage.describe``.
"""

from __future__ import annotations

from collections import Counter

from minibroker.broker.apis.base import CLUSTER_DENIED_TEXT, Context, Requires, without_owner
from minibroker.broker.metadata.credentials import iterations, users
from minibroker.broker.security.acl import Operation
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from minibroker_protocol.registry import ApiKey


def answer(
    ctx: Context, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    """Describe each user independently."""
    counts = Counter(user.name for user in request.users or ())
    if not counts:
        counts = Counter(users(ctx.image))
    return DescribeUserScramCredentialsResponse(
        error_message=None, results=[_result(ctx, user, times) for user, times in counts.items()]
    )


def _result(ctx: Context, user: str, times: int) -> DescribeUserScramCredentialsResult:
    result = DescribeUserScramCredentialsResult(user=user, error_message=None)
    found = iterations(ctx.image, user)
    if times > 1:
        result.error_code = ErrorCode.DUPLICATE_RESOURCE
        text = "Cannot describe SCRAM credentials for the same user twice in a single request: "
        result.error_message = text + user
    elif not found:
        result.error_code = ErrorCode.RESOURCE_NOT_FOUND
        text = "Attempt to describe a user credential that does not exist: "
        result.error_message = text + user
    else:
        result.credential_infos = [
            CredentialInfo(mechanism=number, iterations=count) for number, count in found.items()
        ]
    return result


API = without_owner(
    answer,
    key=ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
    versions=(0, 0),
    requires=(Requires(Operation.DESCRIBE, Meaning.CLUSTER, text=CLUSTER_DENIED_TEXT),),
)
