"""Common part of AlterConfigs and IncrementalAlterConfigs.

Defines the numbers of resource types and validates a request as a whole; ``cluster.configs``
validates the settings. Invariant: a resource that a request names twice is not changed, and the
response has one result per resource, in the order of the request. In Kafka:
``ConfigAdminManager.preprocess``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from minibroker.broker.apis.base import ControllerScope
from minibroker.broker.metadata.configs import Alteration, ConfigOperation, hosts_in_overrides
from minibroker.broker.metadata.image import (
    BROKER,
    BROKER_LOGGER,
    CLIENT_METRICS,
    GROUP,
    TOPIC,
    ChangeRejected,
)
from minibroker.runtime.hosts import unresolvable
from minibroker_protocol.errors import ErrorCode

TOPIC_TYPE: Final = 2
BROKER_TYPE: Final = 4
BROKER_LOGGER_TYPE: Final = 8
CLIENT_METRICS_TYPE: Final = 16
GROUP_TYPE: Final = 32

_KINDS: Final = {
    TOPIC_TYPE: TOPIC,
    BROKER_TYPE: BROKER,
    BROKER_LOGGER_TYPE: BROKER_LOGGER,
    CLIENT_METRICS_TYPE: CLIENT_METRICS,
    GROUP_TYPE: GROUP,
}

LEFT_OUT: Final = (
    "settings of a broker that Kafka does not have, which plug-ins would read: they are refused",
    "numbers of threads: they are processes here, and their number is that of the start",
    "alter.config.policy.class.name: a policy is a Java class",
)


class ConfigChange(NamedTuple):
    """Requested change of one resource; the type is the client's and not validated yet."""

    resource_type: int
    resource_name: str
    operations: tuple[ConfigOperation, ...]


Rejections = tuple[ChangeRejected | None, ...]
"""Error of each change or None, in the order of the request."""

Answer = TypeVar("Answer")


def results(
    make: Callable[..., Answer], resources: Sequence[Any], rejections: Rejections
) -> list[Answer]:
    """One result per resource, in the order of the request; ``make`` is the class of a result."""
    return [
        make(
            error_code=rejection.code if rejection else ErrorCode.NONE,
            error_message=rejection.text if rejection else None,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )
        for resource, rejection in zip(resources, rejections, strict=True)
    ]


async def alter_configs(
    scope: ControllerScope,
    requested: tuple[ConfigChange, ...],
    *,
    replace: bool,
    validate_only: bool,
) -> Rejections:
    """Validate, store, and wait until every process has applied the changes.

    With ``replace`` they replace all configs that were set before.
    """
    rejections = _invalid_changes(requested, replace=replace)
    valid = [change for change in requested if change not in rejections]
    alterations = [
        Alteration(_KINDS[kind], name, operations, replace) for kind, name, operations in valid
    ]
    outcome = await scope.cluster.alter_configs(
        alterations,
        unresolvable=await unresolvable(hosts_in_overrides(alterations)),
        unusable_keys=scope.unusable_keys,
        validate_only=validate_only,
    )
    await scope.publish(outcome.updates)
    answers: dict[ConfigChange, ChangeRejected | None] = {
        **rejections,
        **dict(zip(valid, outcome.rejections, strict=True)),
    }
    return tuple(answers[change] for change in requested)


def _invalid_changes(
    requested: tuple[ConfigChange, ...], *, replace: bool
) -> dict[ConfigChange, ChangeRejected]:
    # Levels of loggers are changed one by one only.
    known = _KINDS.keys() - {BROKER_LOGGER_TYPE} if replace else _KINDS.keys()
    times = Counter((change.resource_type, change.resource_name) for change in requested)
    found = {}
    for change in requested:
        if times[change.resource_type, change.resource_name] > 1:
            text = "Each resource must appear at most once."
            found[change] = ChangeRejected(ErrorCode.INVALID_REQUEST, text)
        elif change.resource_type not in known:
            text = f"Unknown resource type {change.resource_type}"
            found[change] = ChangeRejected(ErrorCode.INVALID_REQUEST, text)
    return found
