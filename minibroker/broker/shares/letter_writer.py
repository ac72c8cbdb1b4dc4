"""Writes dead letters to the queues of share groups, one task for each share partition with some.

Owns what is still to be written, in the order of the decisions, and the figures about it. It must
never decide what is a dead letter. Each round checks the queue again, as its configs may change,
reads the source if records are copied, and appends one batch to the queue, which may be at another
worker. Invariant: letters are reported as done once, after they are in the queue or all attempts
have failed; what a kill interrupts is written again when the share partition is loaded, so a record
may be in the queue twice, but is never archived before. Kafka's ``ShareGroupDLQStateManager``.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Final, NamedTuple

import trio

from minibroker.broker.groups.hooks import OnState
from minibroker.broker.log.errors import LogError
from minibroker.broker.log.replica_manager import Partition
from minibroker.broker.metadata.image import EMPTY, TOPIC, Image
from minibroker.broker.settings import Settings, topics
from minibroker.broker.shares.dead_letters import (
    NOTHING_COPIED,
    Attempts,
    CopiedRecords,
    LetterSource,
    build_letters,
    copied_records,
    queue_of,
    queue_problem,
    without,
)
from minibroker.broker.shares.share_partition import DeadLetters
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.records import iter_batches

_logger = logging.getLogger(__name__)

READ_BYTES_MAX: Final = 1024 * 1024
"""Bytes that are read at a time to copy records, as in Kafka."""

_RETRIED: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.TOPIC_ALREADY_EXISTS,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    }
)


class WriteOutcome(NamedTuple):
    """Whether a batch was appended, or a queue created."""

    error: ErrorCode = ErrorCode.NONE
    text: str = ""


class QueueEnvironment(NamedTuple):
    """What the writer uses of its worker."""

    settings: Callable[[], Settings]
    """The settings in force."""
    image: Callable[[], Image]
    now: Callable[[], float]
    wall_ms: Callable[[], int]
    random: Callable[[], float]
    partition: Callable[[str, int], Partition | None]
    """Opens a partition of this worker. Raises LogError."""
    append: Callable[[str, int, bytes], Awaitable[WriteOutcome]]
    """Appends a batch to a partition of any worker. An error of NETWORK_EXCEPTION may go away."""
    create_queue: Callable[[str], Awaitable[WriteOutcome]]
    """Creates a topic, which is in the image then."""
    on_state: OnState
    """Gets the offsets of dead letters, and the queue that has them."""


class LettersKey(NamedTuple):
    """A share partition with dead letters."""

    source: LetterSource
    topic_id: bytes


class _Failed(Exception):
    """Letters cannot be written."""


class LetterWriter:
    """The dead letters of one worker; ``run`` must be running."""

    def __init__(
        self,
        env: QueueEnvironment,
        archive: Callable[[LettersKey, DeadLetters], Awaitable[None]],
    ) -> None:
        self._env = env
        self._archive = archive
        self._pending: dict[LettersKey, deque[DeadLetters]] = {}
        self._nursery: trio.Nursery | None = None
        self.written: Counter[str] = Counter()
        """Records that were written, by group."""
        self.failed: Counter[str] = Counter()
        """Records that are archived and in no queue, by group."""

    def add(self, key: LettersKey, letters: Iterable[DeadLetters]) -> None:
        """Write letters that are not being written yet."""
        pending = self._pending.get(key)
        known = sorted(pending or ())
        added = [part for each in letters for part in without(each, known)]
        if not added:
            return
        if pending is not None:
            pending.extend(added)
            return
        self._pending[key] = deque(added)
        if self._nursery is not None:
            self._nursery.start_soon(self._write_all, key, self._pending[key])

    def forget_all(self) -> None:
        """Forget what is still to be written, because logs are replaced."""
        self._pending.clear()

    async def run(self) -> None:
        """Write letters until cancelled."""
        async with trio.open_nursery() as self._nursery:
            for key, pending in self._pending.items():
                self._nursery.start_soon(self._write_all, key, pending)
            await trio.sleep_forever()

    async def _write_all(self, key: LettersKey, pending: deque[DeadLetters]) -> None:
        source = key.source
        while pending and self._pending.get(key) is pending:
            letters = pending[0]
            queue, problem = None, ""
            try:
                queue = await self._write(source, letters)
            except _Failed as failed:
                problem = str(failed)
            if self._pending.get(key) is not pending:
                return
            self._report(source, letters, queue, problem)
            await self._archive(key, letters)
            pending.popleft()
        if self._pending.get(key) is pending:
            del self._pending[key]

    def _report(
        self, source: LetterSource, letters: DeadLetters, queue: str | None, problem: str
    ) -> None:
        """Count and note letters that are in a queue, or could not be written."""
        group_id, topic, index = source
        name, offsets = f"{group_id}:{topic}-{index}", f"{letters.first}-{letters.last}"
        count = letters.last - letters.first + 1
        (self.failed if queue is None else self.written)[group_id] += count
        self._env.on_state("dead_letters", name, offsets, queue)
        if problem:
            _logger.error(
                "offsets %s of share partition %s could not be written to the dead-letter queue, "
                "proceeding to ARCHIVED regardless: %s",
                offsets,
                name,
                problem,
            )

    async def _write(self, source: LetterSource, letters: DeadLetters) -> str:
        """Write letters, in as many batches as are needed; return the queue. Raises _Failed."""
        attempts = Attempts(self._env.random)
        copied: CopiedRecords | None = None
        while True:
            problem = queue_problem(self._env.image(), self._env.settings(), source.group_id)
            if problem:
                raise _Failed(problem)
            queue = queue_of(self._env.image(), source.group_id)
            if queue.topic not in self._env.image().topics:
                outcome = await self._env.create_queue(queue.topic)
                if queue.topic in self._env.image().topics:
                    continue
            else:
                bytes_max = self._batch_bytes_max(queue.topic)
                if copied is None:
                    copied = CopiedRecords(NOTHING_COPIED, letters.last)
                    if queue.copies_records:
                        batches = self._batches(source, letters)
                        copied = copied_records(batches, letters.first, letters.last, bytes_max)
                batch = build_letters(source, letters, copied, bytes_max, self._env.wall_ms())
                partitions = len(self._env.image().topics[queue.topic].partitions)
                outcome = await self._env.append(
                    queue.topic, source.partition % partitions, batch.records
                )
                if outcome.error is ErrorCode.NONE:
                    if batch.last >= letters.last:
                        return queue.topic
                    attempts.succeeded()
                    letters, copied = letters._replace(first=batch.last + 1), None
                    continue
            await self._wait(attempts, outcome)

    async def _wait(self, attempts: Attempts, outcome: WriteOutcome) -> None:
        """Wait until the next attempt. Raises _Failed if there is none."""
        if outcome.error is not ErrorCode.NONE and outcome.error not in _RETRIED:
            raise _Failed(outcome.text or outcome.error.name)
        again_at = attempts.failed(self._env.now())
        if again_at is None:
            raise _Failed(f"all attempts have failed: {outcome.text or outcome.error.name}")
        await trio.sleep_until(again_at)

    def _batch_bytes_max(self, topic: str) -> int:
        overrides = self._env.image().configs.get((TOPIC, topic), EMPTY)
        return topics.topic_value(self._env.settings(), overrides, topics.MAX_MESSAGE_BYTES)

    def _batches(self, source: LetterSource, letters: DeadLetters) -> Iterator[memoryview]:
        """Yield batches that have the records of letters, as far as they can be read."""
        first = letters.first
        while first <= letters.last:
            try:
                partition = self._env.partition(source.topic, source.partition)
                if partition is None or first >= partition.high_watermark:
                    return
                found = partition.read(first, READ_BYTES_MAX, min_one=True)
                data = memoryview(b"" if found is None else found.load())
            except (LogError, OSError) as error:
                _logger.warning("records of dead letters cannot be read: %s", error)
                return
            read_from = first
            for at, header in iter_batches(data):
                yield data[at : at + header.size]
                first = header.next_offset
            if first == read_from:
                return
