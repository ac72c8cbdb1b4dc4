"""Common part of DescribeAcls and DeleteAcls: the filter of a request, and an error of both.

Converts a message to a `Filter`. Invariant: a null in a request is a null in the filter, which
matches anything. In Kafka: ``AclBindingFilter``.
"""

from __future__ import annotations

from typing import Any, Final

from minibroker.broker.metadata.acls import Filter
from minibroker.broker.metadata.image import ChangeRejected
from minibroker_protocol.errors import ErrorCode

DISABLED: Final = ChangeRejected(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")


def as_filter(message: Any, resource_type: int) -> Filter:
    """Filter of a request or of one of its elements."""
    return Filter(
        resource_type,
        message.resource_name_filter,
        message.pattern_type_filter,
        message.principal_filter,
        message.host_filter,
        message.operation,
        message.permission_type,
    )
