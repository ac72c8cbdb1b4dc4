"""Configs of groups and client metrics: errors, encoded names, and the number of resources."""

from __future__ import annotations

from dataclasses import replace

import pytest

from minibroker.broker.metadata.configs import (
    Alteration,
    ConfigOperation,
    Op,
    plan_alteration,
    valid_config,
)
from minibroker.broker.metadata.image import CLIENT_METRICS, GROUP, ConfigChanged, Image
from minibroker.broker.metadata.resource_configs import (
    NAME_MAX,
    RESOURCES_MAX,
    resource_config,
    resource_names,
    resource_problem,
)
from minibroker.broker.metadata.topics import ChangeRejected
from minibroker.broker.settings import Settings
from minibroker_protocol.errors import ErrorCode

SETTINGS = Settings.from_sources()
SESSION = {"consumer.session.timeout.ms": "50000"}
IMAGE = replace(Image(), configs={(GROUP, "a%2Fb"): SESSION, (CLIENT_METRICS, "m"): {"a": "b"}})


def error(kind: str, name: str, config: dict[str, str], image: Image = IMAGE) -> int:
    problem = resource_problem(image, SETTINGS, kind, name, config)
    return ErrorCode.NONE if problem is None else problem.code


@pytest.mark.parametrize(
    ("kind", "name", "config", "code"),
    [
        (GROUP, "g", SESSION, ErrorCode.NONE),
        (GROUP, "", SESSION, ErrorCode.INVALID_REQUEST),
        (GROUP, "g", {"a": "b"}, ErrorCode.INVALID_CONFIG),
        (GROUP, "/" * NAME_MAX, SESSION, ErrorCode.INVALID_REQUEST),
        (CLIENT_METRICS, "m", {"interval.ms": "1000"}, ErrorCode.NONE),
        (CLIENT_METRICS, "", {}, ErrorCode.INVALID_REQUEST),
        (CLIENT_METRICS, "m", {"a": "b"}, ErrorCode.INVALID_REQUEST),
        (CLIENT_METRICS, "m", {"interval.ms": "1"}, ErrorCode.INVALID_REQUEST),
        (CLIENT_METRICS, "m", {"interval.ms": "x"}, ErrorCode.INVALID_CONFIG),
        (CLIENT_METRICS, "m", {"match": "a"}, ErrorCode.INVALID_CONFIG),
    ],
)
def test_resource_config_is_rejected_with_kafkas_error(
    kind: str, name: str, config: dict[str, str], code: ErrorCode
) -> None:
    assert error(kind, name, config) == code


def test_number_of_resources_is_limited() -> None:
    full = {(CLIENT_METRICS, f"m{n}"): SESSION for n in range(RESOURCES_MAX[CLIENT_METRICS])}
    image = replace(Image(), configs=full)
    config = {"interval.ms": "1000"}
    assert error(CLIENT_METRICS, "more", config, image) == ErrorCode.POLICY_VIOLATION
    assert error(CLIENT_METRICS, "m0", config, image) == ErrorCode.NONE
    assert error(CLIENT_METRICS, "more", {}, image) == ErrorCode.NONE
    assert error(GROUP, "g", SESSION, image) == ErrorCode.NONE


def test_names_of_resources_are_decoded() -> None:
    assert resource_names(IMAGE, GROUP) == ["a/b"]
    assert resource_config(IMAGE, GROUP, "a/b") == SESSION
    assert resource_config(IMAGE, GROUP, "c") == {}


def test_alteration_of_a_group_changes_single_configs() -> None:
    steps = (ConfigOperation("consumer.heartbeat.interval.ms", Op.SET, "6000"),)
    plan = plan_alteration(IMAGE, SETTINGS, Alteration(GROUP, "a/b", steps))
    config = {**SESSION, "consumer.heartbeat.interval.ms": "6000"}
    assert plan == ConfigChanged(GROUP, "a%2Fb", config)
    removal = (ConfigOperation("consumer.session.timeout.ms", Op.DELETE),)
    plan = plan_alteration(IMAGE, SETTINGS, Alteration(GROUP, "a/b", removal))
    assert plan == ConfigChanged(GROUP, "a%2Fb", {})


@pytest.mark.parametrize("op", [Op.APPEND, Op.SUBTRACT])
def test_config_of_a_group_cannot_be_appended_to(op: Op) -> None:
    steps = (ConfigOperation("streams.rack.aware.assignment.tags", op, "a"),)
    plan = plan_alteration(IMAGE, SETTINGS, Alteration(GROUP, "g", steps))
    assert isinstance(plan, ChangeRejected)
    assert plan.code == ErrorCode.INVALID_CONFIG


def test_stored_configs_that_are_invalid_are_ignored() -> None:
    assert valid_config(GROUP, {**SESSION, "a": "b", "share.isolation.level": "c"}) == SESSION
    stored = {"interval.ms": "1000", "match": "a", "b": "c"}
    assert valid_config(CLIENT_METRICS, stored) == {"interval.ms": "1000"}
