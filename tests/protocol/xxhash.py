"""The checksums of LZ4 and Zstandard frames, with the seed 0."""

from __future__ import annotations

import struct
from typing import Final

_MASK: Final = 0xFFFFFFFF


def xxh32(data: bytes) -> int:
    """XXH32 with the seed 0, the checksum of LZ4 frames."""
    prime1, prime2, prime3, prime4, prime5 = (
        *(2654435761, 2246822519, 3266489917),
        *(668265263, 374761393),
    )

    def rotated(value: int, bits: int) -> int:
        value &= _MASK
        return value << bits | value >> 32 - bits

    position = len(data) // 16 * 16
    if position:
        lanes = [prime1 + prime2, prime2, 0, -prime1]
        for number, (word,) in enumerate(struct.iter_unpack("<I", data[:position])):
            lane = lanes[number % 4] + word * prime2
            lanes[number % 4] = rotated(lane, 13) * prime1 & _MASK
        hashed = sum(map(rotated, lanes, (1, 7, 12, 18)))
    else:
        hashed = prime5
    hashed += len(data)
    for (word,) in struct.iter_unpack("<I", data[position : len(data) // 4 * 4]):
        hashed = rotated(hashed + word * prime3, 17) * prime4
    for byte in data[len(data) // 4 * 4 :]:
        hashed = rotated(hashed + byte * prime5, 11) * prime1
    hashed &= _MASK
    hashed = (hashed ^ hashed >> 15) * prime2 & _MASK
    hashed = (hashed ^ hashed >> 13) * prime3 & _MASK
    return hashed ^ hashed >> 16


def xxh64(data: bytes) -> int:
    """XXH64 with the seed 0, whose low 32 bits are the checksum of Zstandard frames."""
    mask = (1 << 64) - 1
    prime1, prime2, prime3, prime4, prime5 = (
        *(0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9),
        *(0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5),
    )

    def rotated(value: int, bits: int) -> int:
        value &= mask
        return value << bits & mask | value >> 64 - bits

    def mixed(lane: int, word: int) -> int:
        return rotated(lane + word * prime2, 31) * prime1 & mask

    position = len(data) // 32 * 32
    if position:
        lanes = [prime1 + prime2, prime2, 0, -prime1]
        for number, (word,) in enumerate(struct.iter_unpack("<Q", data[:position])):
            lanes[number % 4] = mixed(lanes[number % 4], word)
        hashed = sum(map(rotated, lanes, (1, 7, 12, 18)))
        for lane in lanes:
            hashed = (hashed ^ mixed(0, lane)) * prime1 + prime4 & mask
    else:
        hashed = prime5
    hashed = hashed + len(data) & mask
    while position + 8 <= len(data):
        (word,) = struct.unpack_from("<Q", data, position)
        hashed = rotated(hashed ^ mixed(0, word), 27) * prime1 + prime4 & mask
        position += 8
    if position + 4 <= len(data):
        (word,) = struct.unpack_from("<I", data, position)
        hashed = rotated(hashed ^ word * prime1 & mask, 23) * prime2 + prime3 & mask
        position += 4
    for byte in data[position:]:
        hashed = rotated(hashed ^ byte * prime5 & mask, 11) * prime1 & mask
    hashed = (hashed ^ hashed >> 33) * prime2 & mask
    hashed = (hashed ^ hashed >> 29) * prime3 & mask
    return hashed ^ hashed >> 32
