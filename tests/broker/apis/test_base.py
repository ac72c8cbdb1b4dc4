"""Topics are found by name or id depending on the version, with the error of each."""

from __future__ import annotations

from typing import Any

from minibroker.broker.apis.group_offsets import unknown_topic
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.types import ZERO_UUID


async def test_topic_is_found_by_name_or_id(group_apis: Any) -> None:
    ctx = group_apis.context(8, 10)
    topic_id = ctx.image.topics["t"].topic_id
    assert ctx.topic_name("t", ZERO_UUID, ids_since=11) == "t"
    assert ctx.topic_name("nope", topic_id, ids_since=11) is None
    assert ctx.topic_name("", topic_id, ids_since=10) == "t"
    assert ctx.topic_name("t", ZERO_UUID, ids_since=10) is None


def test_unknown_topic_error_depends_on_name_or_id() -> None:
    assert unknown_topic(None, by_id=True) is ErrorCode.UNKNOWN_TOPIC_ID
    assert unknown_topic("t", by_id=True) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert unknown_topic(None, by_id=False) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
