"""Operations are declared with their functions."""

from __future__ import annotations

from typing import Any, cast

from minibroker.lab.control.clock import ClockChange, ClockView
from minibroker.lab.control.cluster import Health
from minibroker.lab.control.operation import Answer, ApiOperation, Operations, Text
from minibroker.lab.control.quotas import QuotaQuery


async def delete_topic() -> None:
    """Represents the function of an operation."""


ROW = ApiOperation("DELETE", "/v1/topics/{name}", None, delete_topic)
WITHOUT = ROW._replace(path="/v1/topics")


def test_operation_is_named_and_described_after_its_function() -> None:
    assert ROW.name == "delete_topic"
    assert ROW.summary == "Represents the function of an operation."


def test_operation_with_parameter_matches_any_value() -> None:
    assert (ROW.parameter, WITHOUT.parameter) == ("name", None)
    assert ROW.matches_path("/v1/topics/cats")
    assert not ROW.matches_path("/v1/groups/cats")
    assert WITHOUT.matches_path("/v1/topics")
    assert not WITHOUT.matches_path("/v1/topics/cats")


def test_parameter_may_be_in_the_middle_of_a_path() -> None:
    row = ROW._replace(path="/v1/faults/{fault_id}/wait")
    assert row.parameter == "fault_id"
    assert row.matches_path("/v1/faults/1/wait")
    assert not row.matches_path("/v1/faults/1")


def test_types_of_an_operation_are_those_of_its_function() -> None:
    declared = Operations()
    unknown: Any = None

    async def get_lag(context: Unknown, name: str, query: QuotaQuery) -> ClockView:  # type: ignore[name-defined]  # noqa: F821
        return cast("ClockView", unknown)

    async def add_lag(context: Unknown, change: ClockChange) -> Health | Answer:  # type: ignore[name-defined]  # noqa: F821
        return cast("Health", unknown)

    async def remove_lag(context: Unknown, name: str) -> None:  # type: ignore[name-defined]  # noqa: F821
        """Represents the function of an operation."""

    async def get_lags(context: Unknown) -> Text:  # type: ignore[name-defined]  # noqa: F821
        return cast("Text", unknown)

    declared.add("GET", "/v1/lags/{name}")(get_lag)
    declared.add("POST", "/v1/lags", status=201)(add_lag)
    declared.add("DELETE", "/v1/lags/{name}")(remove_lag)
    declared.add("GET", "/lags", media_type="text/plain")(get_lags)
    found = [(each.answer, each.body, each.query, each.status) for each in declared]
    assert found == [
        (ClockView, None, QuotaQuery, 200),
        (Health, ClockChange, None, 201),
        (None, None, None, 204),
        ("text/plain", None, None, 200),
    ]
