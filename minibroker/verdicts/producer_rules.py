"""Rule: the sequence numbers of an idempotent producer have no gap.

Owns the last sequence number of each producer and partition. It must never look at records.
Invariant: a batch that is sent again changes nothing, and the first number that the journal has is
judged only if the journal has the producer's start. KIP-98.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from minibroker.verdicts.exchanges import ObservedExchange, batches_of, requested_partitions
from minibroker.verdicts.situations import BehaviorRule, Severity, Situation
from minibroker.verdicts.traffic import ClientTraffic
from protocol.errors import ErrorCode
from protocol.records import NO_SEQUENCE, BatchHeader
from protocol.registry import ApiKey

PRODUCERS_MAX: Final = 100_000
"""Producers and partitions whose last sequence number is kept."""

SEQUENCES: Final = 2**31
"""Number of sequence numbers; they wrap."""


class _LastBatch(NamedTuple):
    next_sequence: int
    entry: int


def _observe(traffic: ClientTraffic) -> Iterator[Situation]:
    started: set[tuple[int, int]] = set()
    last: dict[tuple[int, int, str], _LastBatch] = {}
    for exchange in traffic.of_api(ApiKey.INIT_PRODUCER_ID, ApiKey.PRODUCE):
        if exchange.key is ApiKey.INIT_PRODUCER_ID:
            response = exchange.response
            if response is not None and response["error_code"] == ErrorCode.NONE:
                started.add((response["producer_id"], response["producer_epoch"]))
            continue
        if exchange.request is None:
            started.clear()  # Its batches are unknown.
            last.clear()
        for subject, fields in requested_partitions(exchange):
            for batch in batches_of(fields["records"]):
                if batch.has_producer_id and batch.base_sequence != NO_SEQUENCE:
                    yield from _judged(exchange, subject, batch, started, last)


def _judged(
    exchange: ObservedExchange,
    subject: str,
    batch: BatchHeader,
    started: set[tuple[int, int]],
    last: dict[tuple[int, int, str], _LastBatch],
) -> Iterator[Situation]:
    producer = (batch.producer_id, batch.producer_epoch)
    key = (*producer, subject)
    entry = exchange.sent.sequence
    known = last.get(key)
    following = (batch.last_sequence + 1) % SEQUENCES
    expected = None if known is None else known.next_sequence
    if known is None and producer in started:
        expected = 0
    if expected is not None:
        ahead = (batch.base_sequence - expected) % SEQUENCES
        evidence = (entry,) if known is None else (known.entry, entry)
        if 0 < ahead < SEQUENCES // 2:
            yield Situation(
                evidence,
                f"sequence {batch.base_sequence} of producer {producer[0]} (epoch {producer[1]}) "
                f"in {subject}, and {expected} was next",
            )
        elif ahead:
            return  # The batch was sent before.
        else:
            yield Situation(evidence)
    if known is not None or len(last) < PRODUCERS_MAX:
        last[key] = _LastBatch(following, entry)


RULES: Final = (
    BehaviorRule(
        "sequence-numbers",
        "The sequence numbers of an idempotent producer start with 0 and have no gap.",
        "KIP-98",
        Severity.ERROR,
        "a batch of an idempotent producer",
        _observe,
    ),
)
