"""Where an event lies in the activity table, and the files that are laid there.

Owns the cut into hours and buckets, the order within a file and the file's bytes; it must never
know Spark or a file system. Invariant: an event's place follows from the event alone, so two runs
put it, and a duplicate of it, in the same folder. The bucket is what Spark's own
``pmod(hash(user, client_id), 16)`` is, and of events of connections ``pmod(hash(ip), 16)``.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

BUCKETS: Final = 16
"""Of an hour. A table keeps its number for good, so it is no setting."""
HOUR_US: Final = 3_600_000_000
SORTED_BY: Final = ("user", "client_id", "time_us", "sequence", "broker")
"""Of the rows of a file. With one time and one sequence only brokers are left to differ."""
QUARANTINED: Final = "quarantine"
"""The place of what is malformed."""
COUNTED: Final = "counted"
"""The place of what is no event at all: how many records there were."""
ENTITIES_KEPT: Final = 65_536

_MASK: Final = 0xFFFFFFFF
_SEED: Final = 42


def place_of(hour: int, bucket: int) -> str:
    """The name of an hour (since 1970) and bucket, as 2026-11-20-14.07."""
    day = np.datetime64(hour, "h").astype("datetime64[h]")
    return f"{str(day).replace('T', '-')}.{bucket:02d}"


def folder_of(place: str) -> str:
    """The folder of the activity table that a place stands for."""
    hour, bucket = place.split(".")
    return f"hour={hour}/bucket={bucket}"


def split(table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Cut events into (place, events there)."""
    codes = table["time_us"].to_numpy() // HOUR_US * BUCKETS + buckets(table)
    order = np.argsort(codes, kind="stable")
    ordered = table.take(pa.array(order))
    found, starts = np.unique(codes[order], return_index=True)
    for code, start, end in zip(found, starts, [*starts[1:], len(codes)], strict=True):
        place = place_of(int(code) // BUCKETS, int(code) % BUCKETS)
        yield place, ordered.slice(int(start), int(end - start))


def buckets(table: pa.Table) -> Any:
    """The bucket of each event."""
    ips, ip_codes = _coded(table["ip"])
    users, user_codes = _coded(table["user"])
    clients, client_codes = _coded(table["client_id"])
    pairs, pair_of = np.unique(user_codes * len(clients) + client_codes, return_inverse=True)
    by_pair = np.array(
        [bucket_of(users[pair // len(clients)], clients[pair % len(clients)]) for pair in pairs],
        np.int64,
    )
    by_ip = np.array([bucket_of(ip) for ip in ips], np.int64)
    of_connections = pc.equal(table["kind"], "connection").to_numpy()
    return np.where(of_connections, by_ip[ip_codes], by_pair[pair_of])


def _coded(column: pa.ChunkedArray) -> tuple[list[str | None], Any]:
    encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy().astype(np.int64)


@lru_cache(ENTITIES_KEPT)
def bucket_of(*columns: str | None) -> int:
    """The bucket of texts; a null counts as nothing."""
    state = _SEED
    for column in columns:
        if column is not None:
            state = _murmur(column.encode(), state)
    return (state - (1 << 32) if state >> 31 else state) % BUCKETS


def _murmur(data: bytes, state: int) -> int:
    """Spark's variety of Murmur3: what is left of the words counts byte by byte, with its sign."""
    whole = len(data) // 4 * 4
    words = [int.from_bytes(data[at : at + 4], "little") for at in range(0, whole, 4)]
    for word in (*words, *(int.from_bytes(bytes((b,)), "little", signed=True)
                           for b in data[whole:])):  # fmt: skip
        mixed = (word * 0xCC9E2D51) & _MASK
        mixed = ((mixed << 15 | mixed >> 17) & _MASK) * 0x1B873593 & _MASK
        state ^= mixed
        state = ((state << 13 | state >> 19) * 5 + 0xE6546B64) & _MASK
    state ^= len(data)
    state = (state ^ state >> 16) * 0x85EBCA6B & _MASK
    state = (state ^ state >> 13) * 0xC2B2AE35 & _MASK
    return state ^ state >> 16


def once(table: pa.Table) -> pa.Table:
    """The first of the rows with the same broker and sequence."""
    brokers, sequences = table["broker"].to_numpy(), table["sequence"].to_numpy()
    order = np.lexsort((sequences, brokers))
    again = np.zeros(len(order), np.bool_)
    again[order[1:]] = (np.diff(sequences[order]) == 0) & (np.diff(brokers[order]) == 0)
    return table.filter(pa.array(~again)) if again.any() else table


def file_bytes(place: str, table: pa.Table) -> bytes:
    """A whole Parquet file of what lies at a place: each event once, in order."""
    if place != QUARANTINED:
        table = once(table)
        keys = [(name, "ascending") for name in SORTED_BY]
        table = table.take(pc.sort_indices(table, sort_keys=keys))
    out = io.BytesIO()
    pq.write_table(table, out, compression="zstd")
    return out.getvalue()
