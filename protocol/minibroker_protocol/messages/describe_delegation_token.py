"""DescribeDelegationToken (API key 41): find tokens.

Versions 1 to 3, in the compact encoding from 2 on.

What changed:
  3  response adds token_requester_principal_type, token_requester_principal_name
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import BYTES, INT16, INT32, INT64, STRING


class DescribeDelegationTokenOwner(Struct):
    principal_type: str = field(STRING)
    principal_name: str = field(STRING, means=Meaning.PRINCIPAL_NAME)


class DescribeDelegationTokenRequest(Message, api_key=41, versions="1-3", flexible="2+"):
    owners: list[DescribeDelegationTokenOwner] | None = field(
        array(DescribeDelegationTokenOwner), nullable="0+"
    )


class DescribedDelegationTokenRenewer(Struct):
    principal_type: str = field(STRING)
    principal_name: str = field(STRING, means=Meaning.PRINCIPAL_NAME)


class DescribedDelegationToken(Struct):
    principal_type: str = field(STRING)
    principal_name: str = field(STRING, means=Meaning.PRINCIPAL_NAME)
    token_requester_principal_type: str = field(STRING, versions="3+")
    token_requester_principal_name: str = field(STRING, means=Meaning.PRINCIPAL_NAME, versions="3+")
    issue_timestamp: int = field(INT64)
    expiry_timestamp: int = field(INT64)
    max_timestamp: int = field(INT64)
    token_id: str = field(STRING, means=Meaning.TOKEN)
    hmac: bytes = field(BYTES, secret=True)
    renewers: list[DescribedDelegationTokenRenewer] = field(array(DescribedDelegationTokenRenewer))


class DescribeDelegationTokenResponse(Message, api_key=41, versions="1-3", flexible="2+"):
    error_code: int = field(INT16, means=Meaning.ERROR)
    tokens: list[DescribedDelegationToken] = field(array(DescribedDelegationToken))
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME)
