"""ListPartitionReassignments: nothing ever moves."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.broker.apis.list_partition_reassignments import API
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)


@pytest.mark.parametrize(
    "topics", [None, [], [ListPartitionReassignmentsTopics(name="t", partition_indexes=[0])]]
)
async def test_list_of_reassignments_is_empty(apis: Any, topics: Any) -> None:
    response = await apis.ask(API, ListPartitionReassignmentsRequest(topics=topics), 0)
    assert (response.error_code, response.error_message) == (ErrorCode.NONE, None)
    assert response.topics == []
