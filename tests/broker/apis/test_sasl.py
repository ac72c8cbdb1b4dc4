"""SASL requests outside of authentication are rejected."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.broker.apis.sasl import SASL_AUTHENTICATE, SASL_HANDSHAKE
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from minibroker_protocol.messages.sasl_handshake import SaslHandshakeRequest


@pytest.mark.parametrize("version", range(2))
async def test_handshake_on_open_connection_is_illegal_sasl_state(apis: Any, version: int) -> None:
    response = await apis.ask(SASL_HANDSHAKE, SaslHandshakeRequest(mechanism="PLAIN"), version)
    assert response.error_code == ErrorCode.ILLEGAL_SASL_STATE


# Sasl authenticate --------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(3))
async def test_authenticate_on_open_connection_is_illegal_sasl_state(
    apis: Any, version: int
) -> None:
    response = await apis.ask(SASL_AUTHENTICATE, SaslAuthenticateRequest(auth_bytes=b"x"), version)
    assert response.error_code == ErrorCode.ILLEGAL_SASL_STATE
