"""The table of operations is consistent with itself."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature

import pytest

from minibroker.lab.control.clock import ClockChange, turn_clock
from minibroker.lab.control.cluster import get_health
from minibroker.lab.control.operation import Answer, ApiOperation, description
from minibroker.lab.control.operations import OPERATIONS
from minibroker.lab.schema import InvalidJson, parse
from tests.lab.control.conftest import FakeBroker

BY_NAME: Mapping[str, ApiOperation] = {operation.name: operation for operation in OPERATIONS}


@pytest.mark.parametrize("operation", OPERATIONS, ids=BY_NAME)
def test_operation_function_takes_path_body_and_query_parameters(operation: ApiOperation) -> None:
    arguments = list(signature(operation.run).parameters)[1:]
    given = [operation.parameter] if operation.parameter else []
    assert arguments[: len(given)] == given
    assert len(arguments) == len(given) + sum(
        kind is not None for kind in (operation.body, operation.query)
    )


def test_operations_are_unique() -> None:
    assert len({(each.method, each.path) for each in OPERATIONS}) == len(OPERATIONS)
    assert len(BY_NAME) == len(OPERATIONS)


def test_examples_are_accepted() -> None:
    examples = [each for each in OPERATIONS if each.body is not None]
    assert examples
    for operation in examples:
        assert operation.body is not None
        parse(operation.body, operation.example)


def test_path_parameter_may_contain_slashes() -> None:
    topic = BY_NAME["get_topic"]
    assert topic.parameter == "name"
    assert topic.matches_path("/v1/topics/a/b")
    assert not topic.matches_path("/v1/topics")
    assert BY_NAME["list_topics"].parameter is None
    assert BY_NAME["list_topics"].matches_path("/v1/topics")
    assert not BY_NAME["list_topics"].matches_path("/v1/topics/a")


def test_every_response_type_has_description() -> None:
    schemas = description(OPERATIONS)["components"]["schemas"]
    assert len(schemas) > 50
    for name, schema in schemas.items():
        assert schema["description"], name


async def test_empty_clock_change_is_rejected(fake_broker: FakeBroker) -> None:
    with pytest.raises(InvalidJson, match="at least one of advance_ms, freeze and rate"):
        await turn_clock(fake_broker, ClockChange())


async def test_get_health_of_broker_not_ready_is_503(fake_broker: FakeBroker) -> None:
    fake_broker.ready = False
    answer = await get_health(fake_broker)
    assert isinstance(answer, Answer)
    assert answer.status == 503
