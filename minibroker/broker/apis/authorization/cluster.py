"""Authorization checks of configs, quotas, credentials, ACLs, the cluster, and broker requests.

Defines the operation that each request requires, and whether its response reports the error per
item or once at the top level. Invariant: errors are per item where Kafka reports them per item.
Kafka has these checks in ``ConfigAdminManager``, ``AclApis`` and ``KafkaApis``.
"""

from __future__ import annotations

from typing import Any, Final

from minibroker.broker.apis import controlled_shutdown as shutdown
from minibroker.broker.apis import leader_and_isr as leaders
from minibroker.broker.apis import stop_replica as stop
from minibroker.broker.apis import update_metadata as update
from minibroker.broker.apis.authorization.authorizer_check import ERRORS, Finish, require_cluster
from minibroker.broker.apis.authorization.topics import cluster_operations
from minibroker.broker.apis.base import Context
from minibroker.broker.apis.config_alteration import GROUP_TYPE, TOPIC_TYPE
from minibroker.broker.apis.operations import NOT_ASKED
from minibroker.broker.security.acl import CLUSTER_NAME, Operation, Resource
from minibroker_protocol.messages.alter_client_quotas import (
    AlterClientQuotasResponse,
    AlterClientQuotasResponseEntryData,
)
from minibroker_protocol.messages.alter_configs import AlterConfigsResourceResponse
from minibroker_protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
)
from minibroker_protocol.messages.create_acls import AclCreationResult, CreateAclsResponse
from minibroker_protocol.messages.delete_acls import DeleteAclsFilterResult, DeleteAclsResponse
from minibroker_protocol.messages.describe_acls import DescribeAclsResponse
from minibroker_protocol.messages.describe_client_quotas import DescribeClientQuotasResponse
from minibroker_protocol.messages.describe_configs import DescribeConfigsResult
from minibroker_protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsResponse,
)
from minibroker_protocol.messages.incremental_alter_configs import (
    AlterConfigsResourceResponse as IncrementalResourceResponse,
)

_TEXT: Final = "Cluster authorization failed."


def _config_resource(kind: int, name: str) -> tuple[Resource, str]:
    """Resource that must be authorized for a config resource of this type."""
    if kind == TOPIC_TYPE:
        return Resource.TOPIC, name
    if kind == GROUP_TYPE:
        return Resource.GROUP, name
    return Resource.CLUSTER, CLUSTER_NAME


def _config_check(operation: Operation, make: Any, field: str) -> Any:
    """Build the check of a config request.

    ``make`` is the class of the result of one resource, ``field`` the response's list of them.
    """

    def check(ctx: Context, request: Any) -> Finish | None:
        permitted, rejected = [], []
        for asked in request.resources:
            resource, name = _config_resource(asked.resource_type, asked.resource_name)
            if ctx.allows(operation, resource, name):
                permitted.append(asked)
            else:
                rejected.append((asked, ERRORS[resource]))
        if not rejected:
            return None
        request.resources = permitted

        def finish(response: Any) -> Any:
            getattr(response, field).extend(
                make(
                    error_code=error,
                    error_message=None,
                    resource_type=asked.resource_type,
                    resource_name=asked.resource_name,
                )
                for asked, error in rejected
            )
            return response

        return finish

    return check


describe_configs: Final = _config_check(
    Operation.DESCRIBE_CONFIGS, DescribeConfigsResult, "results"
)
alter_configs: Final = _config_check(
    Operation.ALTER_CONFIGS, AlterConfigsResourceResponse, "responses"
)
incremental_alter_configs: Final = _config_check(
    Operation.ALTER_CONFIGS, IncrementalResourceResponse, "responses"
)


def describe_cluster(ctx: Context, _request: Any) -> Finish:
    """Allow every caller; fill in the authorized operations if the request asks for them."""

    def finish(response: Any) -> Any:
        if response.cluster_authorized_operations != NOT_ASKED:
            response.cluster_authorized_operations = cluster_operations(ctx)
        return response

    return finish


describe_client_quotas: Final = require_cluster(
    Operation.DESCRIBE_CONFIGS,
    lambda _, error: DescribeClientQuotasResponse(
        error_code=error, error_message=_TEXT, entries=None
    ),
)
alter_client_quotas: Final = require_cluster(
    Operation.ALTER_CONFIGS,
    lambda request, error: AlterClientQuotasResponse(
        entries=[
            AlterClientQuotasResponseEntryData(
                error_code=error, error_message=_TEXT, entity=entry.entity
            )
            for entry in request.entries
        ]
    ),
)
describe_user_scram_credentials: Final = require_cluster(
    Operation.DESCRIBE,
    lambda _, error: DescribeUserScramCredentialsResponse(error_code=error, error_message=_TEXT),
)
alter_user_scram_credentials: Final = require_cluster(
    Operation.ALTER,
    lambda request, error: AlterUserScramCredentialsResponse(
        results=[
            AlterUserScramCredentialsResult(user=user, error_code=error, error_message=_TEXT)
            for user in dict.fromkeys(one.name for one in (*request.deletions, *request.upsertions))
        ]
    ),
)
describe_acls: Final = require_cluster(
    Operation.DESCRIBE,
    lambda _, error: DescribeAclsResponse(error_code=error, error_message=_TEXT),
)
create_acls: Final = require_cluster(
    Operation.ALTER,
    lambda request, error: CreateAclsResponse(
        results=[
            AclCreationResult(error_code=error, error_message=_TEXT) for _ in request.creations
        ]
    ),
)
delete_acls: Final = require_cluster(
    Operation.ALTER,
    lambda request, error: DeleteAclsResponse(
        filter_results=[
            DeleteAclsFilterResult(error_code=error, error_message=_TEXT) for _ in request.filters
        ]
    ),
)

leader_and_isr: Final = require_cluster(Operation.CLUSTER_ACTION, leaders.error_response)
stop_replica: Final = require_cluster(Operation.CLUSTER_ACTION, stop.error_response)
update_metadata: Final = require_cluster(Operation.CLUSTER_ACTION, update.error_response)
controlled_shutdown: Final = require_cluster(Operation.CLUSTER_ACTION, shutdown.error_response)
