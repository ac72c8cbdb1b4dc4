"""CreateDelegationToken (API key 38): create a token for a principal.

Versions 1 to 3, in the compact encoding from 2 on.

What changed:
  3  request adds owner_principal_type, owner_principal_name; response adds
     token_requester_principal_type, token_requester_principal_name
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import BYTES, INT16, INT32, INT64, NULLABLE_STRING, STRING


class CreatableRenewers(Struct):
    principal_type: str = field(STRING)
    principal_name: str = field(STRING, means=Meaning.PRINCIPAL_NAME)


class CreateDelegationTokenRequest(Message, api_key=38, versions="1-3", flexible="2+"):
    owner_principal_type: str | None = field(NULLABLE_STRING, versions="3+")
    owner_principal_name: str | None = field(
        NULLABLE_STRING, means=Meaning.PRINCIPAL_NAME, versions="3+"
    )
    renewers: list[CreatableRenewers] = field(array(CreatableRenewers))
    max_lifetime_ms: int = field(INT64)


class CreateDelegationTokenResponse(Message, api_key=38, versions="1-3", flexible="2+"):
    error_code: int = field(INT16, means=Meaning.ERROR)
    principal_type: str = field(STRING)
    principal_name: str = field(STRING, means=Meaning.PRINCIPAL_NAME)
    token_requester_principal_type: str = field(STRING, versions="3+")
    token_requester_principal_name: str = field(STRING, means=Meaning.PRINCIPAL_NAME, versions="3+")
    issue_timestamp_ms: int = field(INT64)
    expiry_timestamp_ms: int = field(INT64)
    max_timestamp_ms: int = field(INT64)
    token_id: str = field(STRING, means=Meaning.TOKEN)
    hmac: bytes = field(BYTES, secret=True)
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME)
