"""Topics are found by name or id depending on the version, with the error of each."""

from __future__ import annotations

from typing import Any

from minibroker.broker.apis.topic_names import requested_name, unknown_topic
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.types import ZERO_UUID


async def test_topic_is_found_by_name_or_id(group_apis: Any) -> None:
    ctx = group_apis.context(8, 10)
    topic_id = ctx.image.topics["t"].topic_id
    assert requested_name(ctx, "t", ZERO_UUID, by_id=False) == "t"
    assert requested_name(ctx, "nope", topic_id, by_id=False) is None
    assert requested_name(ctx, "", topic_id, by_id=True) == "t"
    assert requested_name(ctx, "t", ZERO_UUID, by_id=True) is None


def test_unknown_topic_error_depends_on_name_or_id() -> None:
    assert unknown_topic(None, by_id=True) is ErrorCode.UNKNOWN_TOPIC_ID
    assert unknown_topic("t", by_id=True) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert unknown_topic(None, by_id=False) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
