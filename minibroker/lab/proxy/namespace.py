"""A namespace: the frames of its clients, in which names get a prefix, and ACLs of these names.

Owns the translation of frames between a client and the broker, and the requests that a client's
request about ACLs needs. It must never know connections, nor which namespaces exist. Invariant:
what a client names gets the prefix, what a response names loses it, and what a response says about
other names and ACLs is removed, so a client sees and changes its own namespace only. Kafka has no
equivalent.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from minibroker.broker.metadata.acls import as_filter, check_filter, find
from minibroker.broker.security.acl import (
    WILDCARD,
    AclRule,
    Acls,
    Operation,
    Pattern,
    PatternType,
    Permission,
    Resource,
)
from minibroker.lab.namespaces import NAMES, PATTERNS, TRANSLATED, PrefixedNames
from minibroker.lab.proxy.exchange import UnexpectedFrame, rewrite
from minibroker_protocol import registry
from minibroker_protocol.compiler import decode, encode
from minibroker_protocol.entities import marked_fields
from minibroker_protocol.errors import ErrorCode, UnsupportedVersion
from minibroker_protocol.messages.api_versions import ApiVersionsResponse
from minibroker_protocol.messages.create_acls import (
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)
from minibroker_protocol.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from minibroker_protocol.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from minibroker_protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from minibroker_protocol.registry import ApiKey, ApiSchema
from minibroker_protocol.schema import Message, Struct
from minibroker_protocol.wire import decode_request_header

_CLUSTER: Final = "it concerns the whole cluster"
_BROKERS: Final = "clients do not send it"

NOT_OFFERED: Final = {
    ApiKey.DESCRIBE_QUORUM: _CLUSTER,
    ApiKey.UPDATE_FEATURES: _CLUSTER,
    ApiKey.UNREGISTER_BROKER: _CLUSTER,
    ApiKey.WRITE_TXN_MARKERS: _BROKERS,
    ApiKey.LEADER_AND_ISR: _BROKERS,
    ApiKey.STOP_REPLICA: _BROKERS,
    ApiKey.UPDATE_METADATA: _BROKERS,
    ApiKey.CONTROLLED_SHUTDOWN: _BROKERS,
    ApiKey.ENVELOPE: _BROKERS,
}
"""APIs that are not offered in a namespace, and why."""


class NamespaceNames(PrefixedNames):
    """The names of one namespace."""

    def __init__(self, prefix: str) -> None:
        super().__init__(prefix)
        self.acls: Final = NamespaceAcls(prefix)
        """Serves `ACL_APIS`, whose frames are not translated here."""

    # Frames -------------------------------------------------------------------------------------

    def request(self, api_key: int, version: int, frame: bytes) -> bytes:
        """The frame of a request for the broker. Raises ``UnexpectedFrame``, ``ProtocolError``."""
        if api_key in NOT_OFFERED:
            raise UnexpectedFrame(f"{ApiKey(api_key).name} is not offered in a namespace")
        schema = _schema(api_key, version)
        if schema is None or not _translates(schema.request, version):
            return frame
        _, at = decode_request_header(frame)
        request = decode(schema.request, version, frame, at)
        self.to_broker(request, version)
        return frame[:at] + encode(request, version)

    def response(self, api_key: int, version: int, frame: bytes) -> bytes:
        """The frame of a response for the client. Raises ``ProtocolError``."""
        if api_key == ApiKey.API_VERSIONS:
            return rewrite(api_key, version, frame, _remove_apis)
        schema = _schema(api_key, version)
        if (
            schema is None
            or api_key in ACL_APIS
            or not marked_fields(schema.response, version, TRANSLATED)
        ):
            return frame
        return rewrite(api_key, version, frame, self._change)

    def _change(self, response: Struct, version: int) -> bool:
        self.to_client(response, version)
        return True


def _schema(api_key: int, version: int) -> ApiSchema | None:
    """The schema of an API in a version; None if the broker rejects it."""
    try:
        schema = registry.schema(api_key)
    except UnsupportedVersion:
        return None
    return schema if schema.valid_versions.has(version) else None


def _translates(request: type[Struct], version: int) -> bool:
    has_names = marked_fields(request, version, NAMES | PATTERNS)
    return bool(has_names) or request is DescribeTopicPartitionsRequest


def _remove_apis(response: ApiVersionsResponse, _: int) -> bool:
    response.api_keys = [each for each in response.api_keys if each.api_key not in NOT_OFFERED]
    return True


# ACLs ---------------------------------------------------------------------------------------------

ACL_APIS: Final = frozenset({ApiKey.CREATE_ACLS, ApiKey.DESCRIBE_ACLS, ApiKey.DELETE_ACLS})
"""APIs that are served here; all have the same versions."""

NAMED_RESOURCES: Final = frozenset({Resource.TOPIC, Resource.GROUP, Resource.TRANSACTIONAL_ID})
"""Types of resources whose names have the prefix of a namespace."""

_SHARED_RESOURCES: Final = frozenset({Resource.CLUSTER, Resource.DELEGATION_TOKEN, Resource.USER})
_SHARED: Final = "A namespace has ACLs of topics, groups and transactional ids only."

Ask = Callable[[Message], Awaitable[Any]]
"""Sends a request to the broker, and returns its response."""


def is_about_acls(api_key: int, version: int) -> bool:
    """Whether a request is one of `ACL_APIS`, in a version that the broker does not reject."""
    return api_key in ACL_APIS and registry.schema(api_key).valid_versions.has(version)


class NamespaceAcls:
    """The ACLs of one namespace.

    A filter cannot select the names with a prefix, so all ACLs are requested, and those of the
    namespace are described or deleted one by one.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    async def serve(self, request: Message, ask: Ask) -> Message:
        """Return the response to a request of one of `ACL_APIS`."""
        if isinstance(request, CreateAclsRequest):
            return await self._create(request, ask)
        if isinstance(request, DescribeAclsRequest):
            return await self._describe(request, ask)
        assert isinstance(request, DeleteAclsRequest)
        return await self._delete(request, ask)

    # Patterns -----------------------------------------------------------------------------------

    def at_broker(self, name: str, kind: int) -> tuple[str, int]:
        """The name and type at the broker of a pattern; an empty name, which is invalid, stays."""
        if name == WILDCARD and kind == PatternType.LITERAL:
            return self._prefix, PatternType.PREFIXED
        return (self._prefix + name if name else name), kind

    def at_client(self, pattern: Pattern) -> Pattern | None:
        """The pattern as clients of the namespace see it; None if it is not of the namespace."""
        if pattern.resource not in NAMED_RESOURCES or not pattern.name.startswith(self._prefix):
            return None
        name = pattern.name.removeprefix(self._prefix)
        if not name and pattern.type is PatternType.PREFIXED:
            return Pattern(pattern.resource, WILDCARD)
        own = pattern._replace(name=name)
        return own if self.at_broker(name, pattern.type) == pattern[1:] else None

    # Requests -----------------------------------------------------------------------------------

    async def _create(self, request: CreateAclsRequest, ask: Ask) -> CreateAclsResponse:
        passed = [each for each in request.creations if each.resource_type not in _SHARED_RESOURCES]
        for each in passed:
            each.resource_name, each.resource_pattern_type = self.at_broker(
                each.resource_name, each.resource_pattern_type
            )
        response = CreateAclsResponse()
        if passed or not request.creations:
            response = await ask(CreateAclsRequest(creations=passed))
        results = iter(response.results)
        response.results = [
            AclCreationResult(error_code=int(ErrorCode.INVALID_REQUEST), error_message=_SHARED)
            if each.resource_type in _SHARED_RESOURCES
            else next(results)
            for each in request.creations
        ]
        return response

    async def _describe(self, request: DescribeAclsRequest, ask: Ask) -> DescribeAclsResponse:
        wanted = as_filter(request, request.resource_type_filter)
        # Zero is invalid, and rejected by the broker.
        request.resource_type_filter = min(wanted.resource, Resource.ANY)
        request.pattern_type_filter = min(wanted.pattern_type, PatternType.ANY)
        request.resource_name_filter = None
        response: DescribeAclsResponse = await ask(request)
        found: dict[Pattern, list[AclRule]] = {}
        for pattern, rule in find(self._own(response), wanted):
            found.setdefault(pattern, []).append(rule)
        response.resources = [
            DescribeAclsResource(
                resource_type=pattern.resource,
                resource_name=pattern.name,
                pattern_type=pattern.type,
                acls=[_description(rule) for rule in rules],
            )
            for pattern, rules in found.items()
        ]
        return response

    def _own(self, response: DescribeAclsResponse) -> Acls:
        """The ACLs of the namespace in a response of the broker."""
        own: dict[Pattern, tuple[AclRule, ...]] = {}
        for each in response.resources:
            kinds = Resource(each.resource_type), PatternType(each.pattern_type)
            pattern = self.at_client(Pattern(kinds[0], each.resource_name, kinds[1]))
            if pattern is not None:
                own[pattern] = tuple(map(_rule, each.acls))
        return own

    async def _delete(self, request: DeleteAclsRequest, ask: Ask) -> DeleteAclsResponse:
        described: DescribeAclsResponse = await ask(_ALL_ACLS)
        if described.error_code:
            failed = DeleteAclsFilterResult(
                error_code=described.error_code, error_message=described.error_message
            )
            return DeleteAclsResponse(filter_results=[failed] * len(request.filters))
        own = self._own(described)
        wanted = [as_filter(each, each.resource_type_filter) for each in request.filters]
        found = [check_filter(each) or list(find(own, each)) for each in wanted]
        selected = list(
            dict.fromkeys(acl for acls in found if isinstance(acls, list) for acl in acls)
        )
        response = DeleteAclsResponse()
        if selected:
            filters = [self._exact(*acl) for acl in selected]
            response = await ask(DeleteAclsRequest(filters=filters))
        results = dict(zip(selected, response.filter_results, strict=True))
        response.filter_results = [
            DeleteAclsFilterResult(matching_acls=_matching(acls, results), error_message=None)
            if isinstance(acls, list)
            else DeleteAclsFilterResult(error_code=acls.code, error_message=acls.text)
            for acls in found
        ]
        return response

    def _exact(self, pattern: Pattern, rule: AclRule) -> DeleteAclsFilter:
        """A filter that only one ACL matches."""
        name, kind = self.at_broker(pattern.name, pattern.type)
        return DeleteAclsFilter(
            resource_type_filter=pattern.resource,
            resource_name_filter=name,
            pattern_type_filter=kind,
            principal_filter=rule.principal,
            host_filter=rule.host,
            operation=rule.operation,
            permission_type=rule.permission,
        )


_ALL_ACLS: Final = DescribeAclsRequest(
    resource_type_filter=Resource.ANY,
    resource_name_filter=None,
    pattern_type_filter=PatternType.ANY,
    principal_filter=None,
    host_filter=None,
    operation=Operation.ANY,
    permission_type=Permission.ANY,
)


def _rule(acl: AclDescription) -> AclRule:
    return AclRule(
        acl.principal, acl.host, Operation(acl.operation), Permission(acl.permission_type)
    )


def _description(rule: AclRule) -> AclDescription:
    return AclDescription(
        principal=rule.principal,
        host=rule.host,
        operation=rule.operation,
        permission_type=rule.permission,
    )


def _matching(
    acls: Sequence[tuple[Pattern, AclRule]],
    results: dict[tuple[Pattern, AclRule], DeleteAclsFilterResult],
) -> list[DeleteAclsMatchingAcl]:
    """The ACLs that a filter has deleted, or failed to; one that was gone before is neither."""
    return [
        DeleteAclsMatchingAcl(
            error_code=result.error_code,
            error_message=result.error_message,
            resource_type=pattern.resource,
            resource_name=pattern.name,
            pattern_type=pattern.type,
            principal=rule.principal,
            host=rule.host,
            operation=rule.operation,
            permission_type=rule.permission,
        )
        for pattern, rule in acls
        for result in (results[pattern, rule],)
        if result.error_code or result.matching_acls
    ]
