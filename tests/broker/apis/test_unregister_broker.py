"""UnregisterBroker: other brokers are not registered, and this one stays."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.broker.apis.unregister_broker import API
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.unregister_broker import UnregisterBrokerRequest


@pytest.mark.parametrize(
    ("broker_id", "error"),
    [
        (7, ErrorCode.BROKER_ID_NOT_REGISTERED),
        (-1, ErrorCode.BROKER_ID_NOT_REGISTERED),
        (1, ErrorCode.INVALID_REQUEST),
    ],
)
async def test_no_broker_can_be_unregistered(apis: Any, broker_id: int, error: ErrorCode) -> None:
    response = await apis.ask(API, UnregisterBrokerRequest(broker_id=broker_id), 0)
    assert response.error_code == error
    assert response.error_message
