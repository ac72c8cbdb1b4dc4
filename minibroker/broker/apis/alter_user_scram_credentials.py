"""AlterUserScramCredentials (51): set and remove SCRAM credentials, independently for each user.

Version 0. Clients send salted passwords. The stored and server keys are derived from them here, so
the salted passwords never leave the network processor. The response is sent when every process has
applied the credentials. In Kafka: ``ScramControlManager.alterCredentials``.
"""

from __future__ import annotations

from collections.abc import Mapping

from minibroker.broker.apis.base import (
    CLUSTER_DENIED_TEXT,
    CONTROLLER,
    Api,
    Context,
    ControllerScope,
    Owner,
    Requires,
)
from minibroker.broker.metadata.credentials import CredentialChange
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
from minibroker_protocol.registry import ApiKey

Part = tuple[CredentialChange, ...]
Reply = dict[str, ChangeRejected | None]


def split(_ctx: Context, request: AlterUserScramCredentialsRequest) -> Mapping[Owner, Part]:
    """Send everything to the controller."""
    deletions = (CredentialChange(one.name, one.mechanism, None) for one in request.deletions)
    return {CONTROLLER: (*deletions, *map(_upsertion, request.upsertions))}


def _upsertion(upsertion: ScramCredentialUpsertion) -> CredentialChange:
    # A credential of an unknown mechanism is rejected later, whatever its keys are.
    mechanism = MECHANISM_NUMBERS.get(upsertion.mechanism, MECHANISM_NUMBERS[1])
    made = credential(
        mechanism, bytes(upsertion.salted_password), bytes(upsertion.salt), upsertion.iterations
    )
    return CredentialChange(upsertion.name, upsertion.mechanism, made)


async def execute_at_controller(scope: ControllerScope, part: Part) -> Reply:
    """Validate, store, and wait until every process has applied the change."""
    rejections, updates = await scope.cluster.alter_credentials(part)
    await scope.publish(updates)
    return rejections


def merge(
    _ctx: Context, _request: AlterUserScramCredentialsRequest, replies: Mapping[Owner, Reply]
) -> AlterUserScramCredentialsResponse:
    """One result per user, in the order of the request."""
    return AlterUserScramCredentialsResponse(
        results=[
            AlterUserScramCredentialsResult(
                user=user,
                error_code=rejection.code if rejection else ErrorCode.NONE,
                error_message=rejection.text if rejection else None,
            )
            for user, rejection in replies[CONTROLLER].items()
        ]
    )


def refusal(
    request: AlterUserScramCredentialsRequest, error: ErrorCode
) -> AlterUserScramCredentialsResponse:
    """The same error for each user."""
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


API: Api[AlterUserScramCredentialsRequest, Part, Reply, AlterUserScramCredentialsResponse] = Api(
    key=ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
    versions=(0, 0),
    requires=(Requires(Operation.ALTER, Meaning.CLUSTER, refusal=refusal),),
    split=split,
    execute_at_controller=execute_at_controller,
    merge=merge,
)
