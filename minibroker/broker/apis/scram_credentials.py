"""The requests about SCRAM credentials: describe and alter them.

Converts messages to the records of `metadata.credentials`. Invariant: salts and keys are never
returned, and each user has a result of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from minibroker.broker.apis.base import (
    CLUSTER_DENIED_TEXT,
    CONTROLLER,
    Api,
    Context,
    ControllerScope,
    Owner,
    Requires,
    error_fields,
    without_owner,
)
from minibroker.broker.metadata.credentials import CredentialChange, iterations, users
from minibroker.broker.metadata.image import ChangeRejected
from minibroker.broker.security.acl import Operation
from minibroker.broker.security.scram import MECHANISM_NUMBERS, credential
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialUpsertion,
)
from minibroker_protocol.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from minibroker_protocol.registry import ApiKey

# DescribeUserScramCredentials (50) ----------------------------------------------------------------
#
# The SCRAM mechanisms and iteration counts of users. Version 0. An empty or null list selects all
# users with credentials. Salts and keys are never returned. A user without credentials or one that
# the request repeats gets its own error. In Kafka: ``ScramImage.describe``.


def _describe_credentials(
    ctx: Context, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    counts = Counter(user.name for user in request.users or ())
    if not counts:
        counts = Counter(users(ctx.image))
    return DescribeUserScramCredentialsResponse(
        error_message=None,
        results=[_described_user(ctx, user, times) for user, times in counts.items()],
    )


def _described_user(ctx: Context, user: str, times: int) -> DescribeUserScramCredentialsResult:
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


DESCRIBE_USER_SCRAM_CREDENTIALS = without_owner(
    _describe_credentials,
    key=ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
    versions=(0, 0),
    requires=(Requires(Operation.DESCRIBE, Meaning.CLUSTER, text=CLUSTER_DENIED_TEXT),),
)


# AlterUserScramCredentials (51) -------------------------------------------------------------------
#
# Set and remove SCRAM credentials, independently for each user. Version 0. Clients send salted
# passwords. The stored and server keys are derived from them here, so the salted passwords never
# leave the network processor. The response is sent when every process has applied the credentials.
# In Kafka: ``ScramControlManager.alterCredentials``.


CredentialChanges = tuple[CredentialChange, ...]
UserRejections = dict[str, ChangeRejected | None]


def _split_alteration(
    _ctx: Context, request: AlterUserScramCredentialsRequest
) -> Mapping[Owner, CredentialChanges]:
    deletions = (CredentialChange(one.name, one.mechanism, None) for one in request.deletions)
    return {CONTROLLER: (*deletions, *map(_upsertion, request.upsertions))}


def _upsertion(upsertion: ScramCredentialUpsertion) -> CredentialChange:
    # A credential of an unknown mechanism is rejected later, whatever its keys are.
    mechanism = MECHANISM_NUMBERS.get(upsertion.mechanism, MECHANISM_NUMBERS[1])
    made = credential(
        mechanism, bytes(upsertion.salted_password), bytes(upsertion.salt), upsertion.iterations
    )
    return CredentialChange(upsertion.name, upsertion.mechanism, made)


async def _alter_credentials(scope: ControllerScope, part: CredentialChanges) -> UserRejections:
    """Validate, store, and wait until every process has applied the change."""
    rejections, updates = await scope.cluster.alter_credentials(part)
    await scope.publish(updates)
    return rejections


def _merge_alteration(
    _ctx: Context,
    _request: AlterUserScramCredentialsRequest,
    replies: Mapping[Owner, UserRejections],
) -> AlterUserScramCredentialsResponse:
    return AlterUserScramCredentialsResponse(
        results=[
            AlterUserScramCredentialsResult(
                user=user,
                **error_fields(rejection),
            )
            for user, rejection in replies[CONTROLLER].items()
        ]
    )


def _refuse_alteration(
    request: AlterUserScramCredentialsRequest, error: ErrorCode
) -> AlterUserScramCredentialsResponse:
    names = [one.name for one in request.deletions]
    names += [one.name for one in request.upsertions]
    return AlterUserScramCredentialsResponse(
        results=[
            AlterUserScramCredentialsResult(
                user=user, error_code=error, error_message=CLUSTER_DENIED_TEXT
            )
            for user in dict.fromkeys(names)
        ]
    )


ALTER_USER_SCRAM_CREDENTIALS = Api(
    key=ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
    versions=(0, 0),
    requires=(Requires(Operation.ALTER, Meaning.CLUSTER, refusal=_refuse_alteration),),
    split=_split_alteration,
    execute_at_controller=_alter_credentials,
    merge=_merge_alteration,
)


APIS = (
    DESCRIBE_USER_SCRAM_CREDENTIALS,
    ALTER_USER_SCRAM_CREDENTIALS,
)
