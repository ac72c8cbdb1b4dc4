"""Hostile request frames over all API keys and versions.

Owns the mix: extreme but valid requests, damaged ones, damaged recordings of real clients, and
bytes that are no request. It knows no sockets. The invariant: one seed, one set of words and one
set of recordings give the same frames in the same order, so that a harmful one can be made again.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator, Sequence
from typing import Final

from minibroker_protocol import registry
from minibroker_protocol.compiler import encode
from minibroker_protocol.registry import ApiKey, ApiSchema
from minibroker_protocol.wire import RequestHeader, encode_request_header
from system_tests.attack.mutations import frame, mutated, wrong_length
from system_tests.attack.values import Words, message

CLIENT_IDS: Final = ("hostile", "", None, "x" * 200, "\N{SNOWMAN}", "line\nbreak")
API_KEYS: Final = tuple(ApiKey)

_UNDECLARED_KEYS: Final = (-(2**15), -1, 93, 1000, 2**15 - 1)
_GARBAGE_BYTES: Final = (1, 3, 4, 5, 17, 200, 5000)


def hostile_frames(
    seed: object, words: Words | None = None, recorded: Sequence[bytes] = ()
) -> Iterator[bytes]:
    """Yield frames without end. ``recorded`` are frames that real clients sent."""
    dice = random.Random(repr(seed))
    words = words or Words()
    while True:
        kind = dice.random()
        if kind < 0.1:
            yield garbage(dice)
        elif recorded and kind < 0.45:
            yield mutated(dice.choice(recorded), recorded, dice)
        elif kind < 0.7:
            yield extreme_request(dice, words)
        else:
            yield mutated(extreme_request(dice, words), recorded, dice)


def extreme_request(dice: random.Random, words: Words) -> bytes:
    """A valid request of any API and version, with extreme values."""
    api = registry.schema(dice.choice(API_KEYS))
    low, high = api.valid_versions
    return request_frame(api, dice.randint(low, high), dice, words)


def request_frame(api: ApiSchema, version: int, dice: random.Random, words: Words) -> bytes:
    """A valid request of one API and version, with extreme values."""
    correlation = dice.choice((0, 1, -1, 2**31 - 1))
    header = RequestHeader(api.key, version, correlation, dice.choice(CLIENT_IDS))
    return frame(
        encode_request_header(header) + encode(message(api.request, version, dice, words), version)
    )


def garbage(dice: random.Random) -> bytes:
    """Bytes that are no request: bare, framed, behind a good header, or of an unknown API."""
    data = dice.randbytes(dice.choice(_GARBAGE_BYTES))
    kind = dice.randrange(5)
    if kind == 0:
        return data
    if kind == 1:
        return frame(data)
    if kind == 2:
        return wrong_length(data, dice)
    key = dice.choice(API_KEYS) if kind == 3 else dice.choice(_UNDECLARED_KEYS)
    return frame(struct.pack(">hhih", key, dice.randrange(20), 7, 1) + b"x" + data)
