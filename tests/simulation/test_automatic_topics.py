"""Automatic topic creation, with a quota for topic changes."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.simulation.test_quotas import MUTATION, Open, serve

__all__ = ["serve"]


@pytest.mark.parametrize("version", [1, 4, 13])
async def test_automatic_topic_is_not_created_over_the_quota(
    serve: Open, autojump_clock: MockClock, version: int
) -> None:
    async with serve("num.partitions=15") as it:
        await it.set({"user": None}, **{MUTATION: 1})
        client = await it.connect()

        async def ask(*names: str) -> dict[str, int]:
            wanted = [MetadataRequestTopic(name=name) for name in names]
            response = await client.ask(MetadataRequest(topics=wanted), version)
            return {topic.name: topic.error_code for topic in response.topics}

        assert await ask("a", "b") == {"a": 0, "b": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert await ask("b") == {"b": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert it.ms == 0  # no client is throttled
        await trio.sleep(3.999)
        assert await ask("b") == {"b": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        await trio.sleep(0.001)
        assert await ask("b") == {"b": 0}
