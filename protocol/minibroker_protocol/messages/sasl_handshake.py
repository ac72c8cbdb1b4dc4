"""SaslHandshake (API key 17): choose a SASL mechanism.

Versions 0 to 1, none of them in the compact encoding.
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, array, field
from minibroker_protocol.types import INT16, STRING


class SaslHandshakeRequest(Message, api_key=17, versions="0-1"):
    mechanism: str = field(STRING)


class SaslHandshakeResponse(Message, api_key=17, versions="0-1"):
    error_code: int = field(INT16, means=Meaning.ERROR)
    mechanisms: list[str] = field(array(STRING))
