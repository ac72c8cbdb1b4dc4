"""``minibroker acls``: list, add and remove ACLs.

Owns the options and the ACLs that they stand for. It must never decide what an ACL allows.
Invariant: ``remove`` prints each ACL that the broker removed. Options, and the ACLs of
``--producer`` and ``--consumer``, are those of Kafka's ``kafka-acls.sh``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from itertools import product
from typing import Any, Final, NamedTuple

import click

from minibroker.broker.security.acl import (
    CLUSTER_NAME,
    WILDCARD,
    Operation,
    PatternType,
    Permission,
    Resource,
)
from minibroker.cli.access import bootstrap_option
from minibroker.cli.commands import CommandGroup, examples
from minibroker.cli.output import InvalidUsage, emit, json_line, note, table
from minibroker.client.connection import BootstrapServers
from minibroker.client.errors import check
from minibroker.client.kafka_client import KafkaClient
from minibroker_protocol.messages.create_acls import (
    AclCreation,
    CreateAclsRequest,
    CreateAclsResponse,
)
from minibroker_protocol.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from minibroker_protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse

HEADINGS: Final = ("RESOURCE", "NAME", "PATTERN", "PRINCIPAL", "HOST", "OPERATION", "PERMISSION")

OPERATIONS: Final = {
    operation.name.title().replace("_", ""): operation
    for operation in Operation
    if operation > Operation.ANY
}
"""Operations by the names of Kafka's tool, e.g. ``DescribeConfigs``."""

PATTERN_TYPES: Final = {kind.name.lower(): kind for kind in PatternType if kind > 0}

_TOPIC, _GROUP, _ID = Resource.TOPIC, Resource.GROUP, Resource.TRANSACTIONAL_ID
ROLES: Final[dict[str, dict[Resource, tuple[Operation, ...]]]] = {
    "producer": {
        _TOPIC: (Operation.WRITE, Operation.DESCRIBE, Operation.CREATE),
        _ID: (Operation.WRITE, Operation.DESCRIBE),
    },
    "consumer": {_TOPIC: (Operation.READ, Operation.DESCRIBE), _GROUP: (Operation.READ,)},
}
"""What producers and consumers do, by type of resource."""


class Acl(NamedTuple):
    """An ACL, in Kafka's order of its elements."""

    resource_type: Resource
    name: str
    pattern_type: PatternType
    principal: str
    host: str
    operation: Operation
    permission: Permission

    def row(self) -> tuple[str, ...]:
        """Return the texts of the elements."""
        return tuple(part.name if isinstance(part, IntEnum) else part for part in self)


class AclResources(NamedTuple):
    """The resources of a command; names are None for any resource."""

    resources: tuple[tuple[Resource, str | None], ...]
    pattern_type: PatternType


app = CommandGroup("acls", help="List, add and remove ACLs.", no_args_is_help=True)

LIST_EXAMPLES = examples(
    "minibroker acls list",
    "minibroker acls list --topic orders --resource-pattern-type match",
    "minibroker acls list --principal User:alice --json",
)
ADD_EXAMPLES = examples(
    "minibroker acls add --allow-principal User:alice --producer --topic orders",
    "minibroker acls add --allow-principal User:bob --consumer --topic orders --group audit",
    "minibroker acls add --allow-principal User:eve --operation Read --topic log- "
    "--resource-pattern-type prefixed",
    "minibroker acls add --deny-principal User:mallory --deny-host 10.0.0.7 --topic '*'",
)
REMOVE_EXAMPLES = examples(
    "minibroker acls remove --allow-principal User:alice --producer --topic orders",
    "minibroker acls remove --topic orders",
    "minibroker acls remove --topic log- --resource-pattern-type prefixed --json",
    after="Without a principal, all ACLs of the resources are removed.",
)

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object per ACL.")


def resource_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that name resources."""
    for option in (
        click.option(
            "--resource-pattern-type",
            "pattern_type",
            default="literal",
            metavar="TYPE",
            help="literal or prefixed; to list and remove also any, or match.",
        ),
        click.option("--cluster", is_flag=True, help="The cluster."),
        click.option("--delegation-token", multiple=True, metavar="ID", help="A token."),
        click.option("--transactional-id", multiple=True, metavar="ID", help="An id, or '*'."),
        click.option("--group", multiple=True, metavar="GROUP", help="A group, or '*'."),
        click.option("--topic", multiple=True, metavar="TOPIC", help="A topic, or '*'."),
    ):
        command = option(command)
    return command


def rule_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that name principals, hosts and operations."""
    for option in (
        click.option("--consumer", is_flag=True, help="Read and Describe --topic, Read --group."),
        click.option(
            "--idempotent", is_flag=True, help="With --producer: IdempotentWrite on the cluster."
        ),
        click.option("--producer", is_flag=True, help="Write, Describe and Create --topic."),
        click.option(
            "--operation",
            multiple=True,
            metavar="OPERATION",
            help=f"{', '.join(OPERATIONS)}. [default: All]",
        ),
        click.option("--deny-host", multiple=True, metavar="IP", help="Its host. [default: *]"),
        click.option("--allow-host", multiple=True, metavar="IP", help="Its host. [default: *]"),
        click.option(
            "--deny-principal", multiple=True, metavar="TYPE:NAME", help="Denied, e.g. User:bob."
        ),
        click.option(
            "--allow-principal", multiple=True, metavar="TYPE:NAME", help="Allowed, or User:*."
        ),
    ):
        command = option(command)
    return command


@app.command("list", epilog=LIST_EXAMPLES)
@bootstrap_option
@click.option("--principal", multiple=True, metavar="TYPE:NAME", help="Only of this principal.")
@resource_options
@json_option
def list_(servers: BootstrapServers, principal: Sequence[str], as_json: bool, **named: Any) -> None:
    """List ACLs: all, or those of some resources."""
    selection = read_selection(named)
    found: set[Acl] = set()
    with KafkaClient(*servers) as client:
        for (kind, name), of in product(
            selection.resources or ((Resource.ANY, None),), principal or (None,)
        ):
            request = DescribeAclsRequest(
                resource_type_filter=kind,
                resource_name_filter=name,
                pattern_type_filter=selection.pattern_type if name else PatternType.ANY,
                principal_filter=of,
                host_filter=None,
                operation=Operation.ANY,
                permission_type=Permission.ANY,
            )
            found.update(_described(client.send(request, DescribeAclsResponse)))
    _show(sorted(found), as_json=as_json)
    if not found and not as_json:
        note("no ACLs; add one with `minibroker acls add`")


def _described(reply: DescribeAclsResponse) -> Iterator[Acl]:
    check("ACLs", reply.error_code, reply.error_message)
    for resource in reply.resources:
        for rule in resource.acls:
            yield _acl(resource.resource_type, resource.resource_name, resource.pattern_type, rule)


def _acl(kind: int, name: str, pattern_type: int, rule: Any) -> Acl:
    return Acl(
        Resource(kind),
        name,
        PatternType(pattern_type),
        rule.principal,
        rule.host,
        Operation(rule.operation),
        Permission(rule.permission_type),
    )


@app.command("add", epilog=ADD_EXAMPLES)
@bootstrap_option
@rule_options
@resource_options
@json_option
def add(servers: BootstrapServers, as_json: bool, **given: Any) -> None:
    """Add ACLs."""
    acls = read_acls(given)
    request = CreateAclsRequest(
        creations=[
            AclCreation(
                resource_type=acl.resource_type,
                resource_name=acl.name,
                resource_pattern_type=acl.pattern_type,
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation,
                permission_type=acl.permission,
            )
            for acl in acls
        ]
    )
    with KafkaClient(*servers) as client:
        reply = client.send(request, CreateAclsResponse, client.metadata([]).controller_id)
    for acl, result in zip(acls, reply.results, strict=True):
        check(f"ACL of {acl.principal}", result.error_code, result.error_message)
    _show(acls, as_json=as_json)


@app.command("remove", epilog=REMOVE_EXAMPLES)
@bootstrap_option
@rule_options
@resource_options
@json_option
def remove(servers: BootstrapServers, as_json: bool, **given: Any) -> None:
    """Remove ACLs, and print those that were removed."""
    request = DeleteAclsRequest(filters=list(read_filters(given)))
    removed: set[Acl] = set()
    with KafkaClient(*servers) as client:
        reply = client.send(request, DeleteAclsResponse, client.metadata([]).controller_id)
    for result in reply.filter_results:
        check("ACLs", result.error_code, result.error_message)
        for acl in result.matching_acls:
            check(f"ACL of {acl.principal}", acl.error_code, acl.error_message)
            removed.add(_acl(acl.resource_type, acl.resource_name, acl.pattern_type, acl))
    _show(sorted(removed), as_json=as_json)
    if not removed:
        note("no ACL matches: --operation is All unless given; see `minibroker acls list`")


def _show(acls: Sequence[Acl], *, as_json: bool) -> None:
    if as_json:
        for acl in acls:
            emit(json_line(dict(zip(Acl._fields, acl.row(), strict=True))))
    elif acls:
        emit(table(HEADINGS, [acl.row() for acl in acls]))


def read_selection(named: dict[str, Any]) -> AclResources:
    """Read the options that name resources. Raises `InvalidUsage`."""
    pattern_type = PATTERN_TYPES.get(named["pattern_type"])
    if pattern_type is None:
        raise InvalidUsage(
            f"--resource-pattern-type {named['pattern_type']}: must be one of "
            f"{', '.join(PATTERN_TYPES)}"
        )
    resources: list[tuple[Resource, str | None]] = [
        (kind, name)
        for kind in (_TOPIC, _GROUP, _ID, Resource.DELEGATION_TOKEN)
        for name in named[kind.name.lower()]
    ]
    if named["cluster"]:
        resources.append((Resource.CLUSTER, CLUSTER_NAME))
    return AclResources(tuple(resources), pattern_type)


def read_acls(given: dict[str, Any]) -> list[Acl]:
    """Read the options of ``add``. Raises `InvalidUsage`."""
    selection = read_selection(given)
    if selection.pattern_type not in {PatternType.LITERAL, PatternType.PREFIXED}:
        raise InvalidUsage("--resource-pattern-type: an ACL is literal or prefixed")
    acls = list(_acls(given, selection))
    if not acls:
        raise InvalidUsage("say which principal: --allow-principal or --deny-principal")
    return acls


def _acls(given: dict[str, Any], selection: AclResources) -> Iterator[Acl]:
    operations = list(_operations(given, selection))
    for principal, host, permission in _subjects(given):
        for kind, name, operation in operations:
            yield Acl(
                kind, name or "", selection.pattern_type, principal, host, operation, permission
            )


def read_filters(given: dict[str, Any]) -> Iterator[DeleteAclsFilter]:
    """Read the options of ``remove``. Raises `InvalidUsage`."""
    selection = read_selection(given)
    acls = list(_acls(given, selection))
    for acl in acls:
        yield DeleteAclsFilter(
            resource_type_filter=acl.resource_type,
            resource_name_filter=acl.name,
            pattern_type_filter=acl.pattern_type,
            principal_filter=acl.principal,
            host_filter=acl.host,
            operation=acl.operation,
            permission_type=acl.permission,
        )
    if acls:
        return
    if given["operation"] or given["producer"] or given["consumer"]:
        raise InvalidUsage("say whose: --allow-principal or --deny-principal")
    for kind, name in selection.resources:
        yield DeleteAclsFilter(
            resource_type_filter=kind,
            resource_name_filter=name,
            pattern_type_filter=selection.pattern_type,
            principal_filter=None,
            host_filter=None,
            operation=Operation.ANY,
            permission_type=Permission.ANY,
        )


def _subjects(given: dict[str, Any]) -> Iterator[tuple[str, str, Permission]]:
    for permission in (Permission.ALLOW, Permission.DENY):
        word = permission.name.lower()
        principals, hosts = given[f"{word}_principal"], given[f"{word}_host"]
        if hosts and not principals:
            raise InvalidUsage(f"--{word}-host belongs to --{word}-principal")
        for principal, host in product(principals, hosts or (WILDCARD,)):
            yield principal, host, permission


def _operations(
    given: dict[str, Any], selection: AclResources
) -> Iterator[tuple[Resource, str | None, Operation]]:
    """Yield each resource with each operation on it."""
    if not selection.resources:
        raise InvalidUsage("name a resource: --topic, --group, --transactional-id or --cluster")
    roles = [role for word, role in ROLES.items() if given[word]]
    if any(kind not in {kind for kind, _ in selection.resources} for kind in _needed(given)):
        raise InvalidUsage("--producer needs --topic, and --consumer needs --topic and --group")
    operations = [_operation(name) for name in given["operation"]]
    if not roles:
        for (kind, name), operation in product(selection.resources, operations or [Operation.ALL]):
            yield kind, name, operation
        return
    if operations:
        raise InvalidUsage("--producer and --consumer stand for operations: leave out --operation")
    for kind, name in selection.resources:
        for operation in dict.fromkeys(one for role in roles for one in role.get(kind, ())):
            yield kind, name, operation
    if given["idempotent"]:
        yield Resource.CLUSTER, CLUSTER_NAME, Operation.IDEMPOTENT_WRITE


def _needed(given: dict[str, Any]) -> set[Resource]:
    """Return the types of resources that the roles need."""
    topic = {_TOPIC} if given["producer"] or given["consumer"] else set()
    return topic | ({_GROUP} if given["consumer"] else set())


def _operation(text: str) -> Operation:
    for name, operation in OPERATIONS.items():
        if name.lower() == text.lower():
            return operation
    raise InvalidUsage(f"--operation {text}: must be one of {', '.join(OPERATIONS)}")
