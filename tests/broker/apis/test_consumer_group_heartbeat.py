"""ConsumerGroupHeartbeat is refused with the error that makes clients fail."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.broker.apis.consumer_group_heartbeat import API
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest


@pytest.mark.parametrize("version", [0, 1])
async def test_consumer_group_heartbeat_is_unsupported_version(apis: Any, version: int) -> None:
    response = await apis.ask(API, ConsumerGroupHeartbeatRequest(group_id="g"), version)
    assert apis.asked == {}
    assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert "group.protocol=classic" in response.error_message
