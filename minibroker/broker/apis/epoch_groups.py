"""What the APIs of groups whose members have epochs do alike: describe such groups.

The types of these groups are consumer groups (KIP-848), share groups (KIP-932) and streams groups
(KIP-1071). It must never know the fields of one type. Invariant: each group of a request is in the
response, in its order, with a description or with an error. Kafka's ``GroupCoordinatorService``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from minibroker.broker.apis.base import (
    SPECIAL,
    Api,
    Context,
    Owner,
    WorkerScope,
    all_results,
    parts_by_owner,
)
from minibroker.broker.apis.unserved import Unserved
from minibroker.broker.security.acl import GROUP_OPERATIONS, OPERATIONS_NOT_ASKED
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.registry import ApiKey

ShownT = TypeVar("ShownT", bound=tuple[Any, ...])


class GroupProtocol(NamedTuple):
    """A type of groups, and whether the broker serves it now."""

    name: str
    unserved: Unserved
    is_served: Callable[[Context], bool]


class NotDescribed(NamedTuple):
    """Why a group has no description."""

    error: ErrorCode
    text: str = ""


def describe_api(
    key: ApiKey,
    *,
    versions: tuple[int, int],
    protocol: GroupProtocol,
    find: Callable[[WorkerScope, str], ShownT | None],
    response_type: type,
    group_type: type,
    fields: Callable[[ShownT], Mapping[str, Any]],
) -> Api[Any, Any, Any, Any]:
    """Return the API that describes groups of a type.

    ``find`` returns the description that a worker has of a group of this type, and ``fields`` the
    fields of ``group_type`` with it, except for group id, errors and authorized operations.
    """

    def split(ctx: Context, request: Any) -> Mapping[Owner, tuple[str, ...]]:
        if not protocol.is_served(ctx):
            return {}
        return parts_by_owner(
            (ctx.group_owner(each), each) for each in dict.fromkeys(request.group_ids) if each
        )

    def describe(scope: WorkerScope, part: Iterable[str]) -> dict[str, ShownT | NotDescribed]:
        return {each: find(scope, each) or _missing(scope, protocol.name, each) for each in part}

    def merge(
        ctx: Context,
        request: Any,
        replies: Mapping[Owner, Mapping[str, ShownT | NotDescribed]],
    ) -> Any:
        missing = NotDescribed(ErrorCode.INVALID_GROUP_ID)
        if not protocol.is_served(ctx):
            ctx.unserved = protocol.unserved
            missing = NotDescribed(ErrorCode.UNSUPPORTED_VERSION, protocol.unserved.text)
        found = all_results(replies)
        operations = (
            GROUP_OPERATIONS if request.include_authorized_operations else OPERATIONS_NOT_ASKED
        )

        def group(group_id: str) -> Any:
            shown = found.get(group_id, missing)
            if isinstance(shown, NotDescribed):
                return group_type(
                    group_id=group_id, error_code=shown.error, error_message=shown.text or None
                )
            return group_type(group_id=group_id, authorized_operations=operations, **fields(shown))

        return response_type(groups=[group(each) for each in request.group_ids])

    return Api(
        key=key, versions=versions, requires=SPECIAL, split=split, execute=describe, merge=merge
    )


def _missing(scope: WorkerScope, name: str, group_id: str) -> NotDescribed:
    if scope.groups.has(group_id):
        return NotDescribed(
            ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a {name} group."
        )
    error = scope.groups.missing_group_error(group_id)
    is_missing = error is ErrorCode.GROUP_ID_NOT_FOUND
    return NotDescribed(error, f"Group {group_id} not found." if is_missing else "")
