"""What DescribeAcls and DeleteAcls share: a filter as requests have it, and a refusal of both.

Owns the way from a message to a `Filter`; it must never look at a rule.  The invariant: a null in a
request is a null in the filter, which means any.  Echoes ``AclBindingFilter``.
"""

from __future__ import annotations

from typing import Any, Final

from minibroker.cluster.acls import Filter
from minibroker.cluster.topics import ChangeRejected
from protocol.errors import ErrorCode

DISABLED: Final = ChangeRejected(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")


def as_filter(given: Any, resource_type: int) -> Filter:
    """The filter in a request or a part of it."""
    return Filter(
        resource_type,
        given.resource_name_filter,
        given.pattern_type_filter,
        given.principal_filter,
        given.host_filter,
        given.operation,
        given.permission_type,
    )
