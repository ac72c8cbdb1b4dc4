"""Rules for configs of groups and client metrics: names, values and numbers of resources.

Owns the validation of these alterations. It must never store anything or know a message. Invariant:
a resource's key in the image is its name in the encoding of users' names, because a name may have a
slash and the store has a node for it. Kafka's ``ControllerConfigurationValidator``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from minibroker.broker.metadata.image import CLIENT_METRICS, EMPTY, GROUP, Image
from minibroker.broker.metadata.topics import ChangeRejected
from minibroker.broker.quotas.entity import desanitize, sanitize
from minibroker.broker.settings import Settings
from minibroker.broker.settings.client_metrics import InvalidSubscription, check_client_metrics
from minibroker.broker.settings.groups import group_problem
from minibroker.broker.settings.types import BadValueError
from minibroker_protocol.errors import ErrorCode

RESOURCES_MAX: Final[Mapping[str, int]] = {GROUP: 10_000, CLIENT_METRICS: 100}
"""How many resources of each kind may have configs: every process keeps them in memory."""

NAME_MAX: Final = 255
"""Characters of a name, as encoded: it is the name of a node."""

_UNNAMED: Final[Mapping[str, str]] = {
    GROUP: "Default group resources are not allowed.",
    CLIENT_METRICS: "Subscription name can't be empty",
}


def resource_config(image: Image, kind: str, name: str) -> Mapping[str, str]:
    """What is set for a group or a subscription of client metrics, by its real name."""
    return image.configs.get((kind, sanitize(name)), EMPTY)


def resource_names(image: Image, kind: str) -> list[str]:
    """The real names of groups or client metrics with configs, sorted."""
    return sorted(desanitize(name) for known, name in image.configs if known == kind)


def resource_problem(
    image: Image, settings: Settings, kind: str, name: str, config: Mapping[str, str]
) -> ChangeRejected | None:
    """Why a group or client metrics cannot have this config, or None if it can."""
    if not name:
        return ChangeRejected(ErrorCode.INVALID_REQUEST, _UNNAMED[kind])
    key = sanitize(name)
    if len(key) > NAME_MAX:
        text = f"The name is longer than {NAME_MAX} characters"
        return ChangeRejected(ErrorCode.INVALID_REQUEST, text)
    known = sum(each == kind for each, _ in image.configs)
    if config and (kind, key) not in image.configs and known >= RESOURCES_MAX[kind]:
        text = f"Only {RESOURCES_MAX[kind]} resources of this type can have configs"
        return ChangeRejected(ErrorCode.POLICY_VIOLATION, text)
    if kind == GROUP:
        problem = group_problem(settings, config)
        return ChangeRejected(ErrorCode.INVALID_CONFIG, problem) if problem else None
    try:
        check_client_metrics(config)
    except InvalidSubscription as error:
        return ChangeRejected(ErrorCode.INVALID_REQUEST, str(error))
    except BadValueError as error:
        return ChangeRejected(ErrorCode.INVALID_CONFIG, str(error))
    return None
