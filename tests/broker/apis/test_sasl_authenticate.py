"""SaslAuthenticate is rejected without SASL."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.broker.apis.sasl_authenticate import API
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.sasl_authenticate import SaslAuthenticateRequest


@pytest.mark.parametrize("version", range(3))
async def test_authenticate_on_open_connection_is_illegal_sasl_state(
    apis: Any, version: int
) -> None:
    response = await apis.ask(API, SaslAuthenticateRequest(auth_bytes=b"x"), version)
    assert response.error_code == ErrorCode.ILLEGAL_SASL_STATE
