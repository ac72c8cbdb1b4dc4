"""A row of the table of operations."""

from __future__ import annotations

from minibroker.lab.control.operation import ApiOperation


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
