"""Rules: an idempotent producer numbers its records without gaps, and gives up lost numbers.

Owns the last batches of each producer and partition. It must never know what the broker stores.
Invariant: a batch that is sent again changes nothing, numbers of a batch that was rejected are free
again, and the first number that the journal has is judged only if the journal has the producer's
start. KIP-98 and KIP-360; Kafka's ``TransactionManager``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

from minibroker.lab.verdicts.exchanges import (
    ObservedExchange,
    SentBatch,
    is_retriable,
    requested_partitions,
    returned_partitions,
    sent_batches,
)
from minibroker.lab.verdicts.situations import BehaviorRule, Severity, Situation, duration
from minibroker.lab.verdicts.traffic import ClientTraffic
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.registry import ApiKey

PRODUCERS_MAX: Final = 100_000
"""Producers and partitions whose last batches are kept."""
BATCHES_MAX: Final = 64
"""Last batches of a producer and partition that are compared with later ones."""
FAILURES_MAX: Final = 2
"""Further batches after a lost producer state that are never too many."""

SEQUENCES: Final = 2**31
"""Number of sequence numbers; they wrap."""

APPENDED: Final = frozenset(
    {
        ErrorCode.NONE,
        ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    }
)
"""Results after which the broker has the batch, or may have it."""
STATE_IS_LOST: Final = frozenset(
    {ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER}
)
"""Errors to the next batch after which a producer starts again with a new epoch or id."""


class ProducerBatch(NamedTuple):
    """A batch of an idempotent producer, in one request."""

    exchange: ObservedExchange
    subject: str
    batch: SentBatch

    @property
    def producer(self) -> tuple[int, int, str]:
        """Producer id and epoch, and the partition."""
        header = self.batch.header
        return header.producer_id, header.producer_epoch, self.subject

    @property
    def entry(self) -> int:
        """Sequence number of the request in the journal."""
        return self.exchange.sent.sequence

    @property
    def base(self) -> int:
        """The first sequence."""
        return self.batch.header.base_sequence

    @property
    def following(self) -> int:
        """The sequence after the last one."""
        return (self.batch.header.last_sequence + 1) % SEQUENCES

    @property
    def code(self) -> int | None:
        """The error code of the response; None if there is none."""
        return dict(returned_partitions(self.exchange)).get(self.subject, {}).get("error_code")

    @property
    def is_rejected(self) -> bool:
        """Whether the broker certainly did not append the batch in this request."""
        return self.code is not None and self.code not in APPENDED

    def is_answered_before(self, entry: int) -> bool:
        """Whether the response was sent before an entry of the journal."""
        answer = self.exchange.answer
        return answer is not None and answer.sequence < entry

    def has_sequence(self, sequence: int) -> bool:
        """Whether a record of the batch has a sequence."""
        return (sequence - self.base) % SEQUENCES < (self.following - self.base) % SEQUENCES

    def __str__(self) -> str:
        producer_id, epoch, subject = self.producer
        return f"producer {producer_id} (epoch {epoch}) in {subject}"


class ProducerStart(NamedTuple):
    """An InitProducerId that was answered."""

    producer_id: int
    epoch: int


def _events(traffic: ClientTraffic) -> Iterator[ProducerBatch | ProducerStart | None]:
    """Yield what a client's producers did; None for a Produce that the journal did not keep."""
    for exchange in traffic.of_api(ApiKey.INIT_PRODUCER_ID, ApiKey.PRODUCE):
        if exchange.key is ApiKey.INIT_PRODUCER_ID:
            response = exchange.response
            if response is not None and response["error_code"] == ErrorCode.NONE:
                yield ProducerStart(response["producer_id"], response["producer_epoch"])
            continue
        if exchange.request is None:
            yield None
        for subject, fields in requested_partitions(exchange):
            for batch in sent_batches(fields["records"]):
                if batch.has_sequence:
                    yield ProducerBatch(exchange, subject, batch)


def _observe_sequences(traffic: ClientTraffic) -> Iterator[Situation]:
    started: set[tuple[int, int]] = set()
    recent: dict[tuple[int, int, str], deque[ProducerBatch]] = {}
    for event in _events(traffic):
        if isinstance(event, ProducerStart):
            started.add(event)
        elif event is None:
            started.clear()
            recent.clear()
        else:
            is_first = event.producer not in recent
            if is_first and len(recent) == PRODUCERS_MAX:
                continue
            last = recent.setdefault(event.producer, deque(maxlen=BATCHES_MAX))
            yield from _judged(event, last, is_first and event.producer[:2] in started)


def _judged(sent: ProducerBatch, recent: deque[ProducerBatch], is_new: bool) -> Iterator[Situation]:
    """Judge one batch, and add it to the recent ones unless it was sent before."""
    if recent and _is_forgotten(recent[-1], sent.entry):
        recent.clear()
    expected = recent[-1].following if recent else 0
    ahead = (sent.base - expected) % SEQUENCES if recent or is_new else 0
    if 0 < ahead < SEQUENCES // 2:
        yield Situation(
            (*(each.entry for each in list(recent)[-1:]), sent.entry),
            f"sequence {sent.base} of {sent}, and {expected} was next",
        )
    elif ahead:
        yield from _judged_repetition(sent, recent)
        return
    elif recent or is_new:
        yield Situation((*(each.entry for each in list(recent)[-1:]), sent.entry))
    recent.append(sent)


def _is_forgotten(batch: ProducerBatch, entry: int) -> bool:
    """Whether the broker said that it has no state of the producer: numbers may start again."""
    return batch.code == ErrorCode.UNKNOWN_PRODUCER_ID and batch.is_answered_before(entry)


def _judged_repetition(sent: ProducerBatch, recent: deque[ProducerBatch]) -> Iterator[Situation]:
    """Compare a batch with the earlier one that has its first sequence."""
    for position in range(len(recent) - 1, -1, -1):
        earlier = recent[position]
        if not earlier.has_sequence(sent.base):
            continue
        evidence = (earlier.entry, sent.entry)
        if _has_the_same_records(earlier, sent):
            if earlier.code is None and sent.is_rejected and not is_retriable(sent.code):
                recent[position] = sent
            yield Situation(evidence)
        elif earlier.is_rejected and earlier.is_answered_before(sent.entry):
            recent[position] = sent
            yield Situation(evidence)
        else:
            yield Situation(
                evidence,
                f"sequence {sent.base} of {sent} for other records than before: "
                f"{_description(earlier, sent)}, and then {_description(sent, earlier)}",
            )
        return


def _has_the_same_records(earlier: ProducerBatch, later: ProducerBatch) -> bool:
    """Whether a batch repeats another one: it may be built and compressed again."""
    first, second = earlier.batch.header, later.batch.header
    if first.base_sequence != second.base_sequence or first.record_count != second.record_count:
        return False
    if first.crc == second.crc:
        return True
    records, others = earlier.batch.records(), later.batch.records()
    return records is None or others is None or records == others


def _description(sent: ProducerBatch, other: ProducerBatch) -> str:
    header = sent.batch.header
    count = "1 record" if header.record_count == 1 else f"{header.record_count} records"
    text = f"{count} with the checksum {header.crc:08x}"
    if header.base_timestamp != other.batch.header.base_timestamp:
        text += f" and the timestamp {header.base_timestamp}"
    return f"{text} (correlation id {sent.exchange.sent.correlation_id})"


class _LostState:
    """What a producer did since the broker lost its state."""

    def __init__(self, first: ProducerBatch) -> None:
        self.first = first
        self.later: list[ProducerBatch] = []


def _observe_lost_states(traffic: ClientTraffic) -> Iterator[Situation]:
    next_sequence: dict[tuple[int, int, str], int] = {}
    lost: dict[tuple[int, int, str], _LostState] = {}
    for event in _events(traffic):
        if isinstance(event, ProducerStart):
            continue
        if event is None:
            next_sequence.clear()
            lost.clear()
            continue
        key = event.producer
        state = lost.get(key)
        if event.code not in STATE_IS_LOST:
            if event.code == ErrorCode.NONE:
                if state is not None and not state.first.is_answered_before(event.entry):
                    continue
                lost.pop(key, None)  # The broker has the state after all.
                if len(next_sequence) < PRODUCERS_MAX:
                    next_sequence[key] = event.following
        elif state is None:
            is_next = next_sequence.get(key, 0) == event.base
            if is_next or event.code == ErrorCode.UNKNOWN_PRODUCER_ID:
                lost[key] = _LostState(event)
        elif state.first.is_answered_before(event.entry):
            state.later.append(event)
    for state in lost.values():
        yield _judged_loss(state)


def _judged_loss(state: _LostState) -> Situation:
    answer = state.first.exchange.answer
    assert answer is not None
    code = state.first.code
    if len(state.later) <= FAILURES_MAX:
        return Situation((answer.sequence,))
    took_ms = state.later[-1].exchange.sent_ms - answer.clock_ms
    return Situation(
        (answer.sequence, *(each.entry for each in state.later)),
        f"sent {len(state.later)} more batches of {state.first} within {duration(took_ms)} after "
        f"{ErrorCode.describe(code or 0)}, all in vain",
    )


RULES: Final = (
    BehaviorRule(
        "sequence-numbers",
        "The sequence numbers of an idempotent producer start with 0, have no gap, and are used "
        "for the same records only.",
        "KIP-98",
        Severity.ERROR,
        "a batch of an idempotent producer",
        _observe_sequences,
        "Assign sequences at the moment in which a batch is built, by one owner for each "
        "partition, and keep them for its retries.",
    ),
    BehaviorRule(
        "producer-reset",
        "After UNKNOWN_PRODUCER_ID or OUT_OF_ORDER_SEQUENCE_NUMBER to its next batch, an "
        "idempotent producer continues with a new epoch or producer id, or stops.",
        "KIP-360",
        Severity.ERROR,
        "a producer whose next batch was answered with one of these errors",
        _observe_lost_states,
        "Bump the epoch by InitProducerId, or get a new producer id, and number the batches "
        "that are left from 0.",
    ),
)
