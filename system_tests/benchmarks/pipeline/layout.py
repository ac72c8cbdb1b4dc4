"""Where an event lies in the activity table, said a second time, without Spark.

Owns Spark's ``hash`` of texts (Murmur3 by four bytes, and the rest byte by byte), so that a table
can be written as ingest would write it, at the speed of Arrow. Invariant: the same as
``pmod(hash(user, client_id), buckets)`` in Spark, which a test holds it to.
"""

from __future__ import annotations

from typing import Final

BUCKETS: Final = 16
SEED: Final = 42
_MASK: Final = 0xFFFFFFFF


def _rotated(value: int, by: int) -> int:
    return (value << by | value >> (32 - by)) & _MASK


def _mixed(state: int, word: int) -> int:
    word = _rotated(word * 0xCC9E2D51 & _MASK, 15) * 0x1B873593 & _MASK
    return (_rotated(state ^ word, 13) * 5 + 0xE6546B64) & _MASK


def spark_hash(text: str | None, seed: int = SEED) -> int:
    """Spark's hash of a text, or of one more column after others; as an unsigned number."""
    if text is None:
        return seed
    data = text.encode()
    state, whole = seed, len(data) // 4 * 4
    for at in range(0, whole, 4):
        state = _mixed(state, int.from_bytes(data[at : at + 4], "little"))
    for byte in data[whole:]:
        state = _mixed(state, (byte if byte < 128 else byte - 256) & _MASK)
    state ^= len(data)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        state = (state ^ state >> shift) * factor & _MASK
    return state ^ state >> 16


def bucket_of(*columns: str | None) -> int:
    """The bucket of an event: of its user and client-id, or of its address."""
    state = SEED
    for column in columns:
        state = spark_hash(column, state)
    return (state - (1 << 32) if state >> 31 else state) % BUCKETS
