"""SaslHandshake is rejected without SASL."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.broker.apis.sasl_handshake import API
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.sasl_handshake import SaslHandshakeRequest


@pytest.mark.parametrize("version", range(2))
async def test_handshake_on_open_connection_is_illegal_sasl_state(apis: Any, version: int) -> None:
    response = await apis.ask(API, SaslHandshakeRequest(mechanism="PLAIN"), version)
    assert response.error_code == ErrorCode.ILLEGAL_SASL_STATE
