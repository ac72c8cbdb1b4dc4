"""Whole brokers with transactions: producers, copy jobs, readers, compaction, and kills.

Transactions of versions 0 and 2 write to several topics while any role is killed. In the end no
committed record is lost or doubled, no aborted one is seen, and no transaction is torn.
``make sim-transactions SEEDS=100`` runs many seeds; a failure names its seed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from itertools import zip_longest
from pathlib import Path
from random import Random
from typing import Final

import pytest
import trio
from trio.testing import MockClock

from minibroker.broker.tasks import TaskBroker
from minibroker.config import Settings
from minibroker.runtime.clock import SimulatedClock
from minibroker.storage.cleaner.checkpoint import CLEANER_CHECKPOINT
from protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from protocol.messages.find_coordinator import FindCoordinatorRequest
from tests.simulation.actors import Actor, FaultInjector
from tests.simulation.history import Partition
from tests.simulation.lag import LaggingTransport
from tests.simulation.surroundings import World
from tests.simulation.transactional import (
    COPIES,
    SOURCE,
    STATES,
    TOPICS,
    CopyJob,
    Reader,
    SourceProducer,
    Transaction,
    TransactionalClient,
    Written,
)
from tests.simulation.world import layout, logged_errors, scheduled_by

RUNS: Final = 24
CALM_S: Final = 10.0
ROOT: Final = Path(__file__).parents[2]
SETTINGS: Final = (
    "log.segment.bytes=2048",
    "offsets.topic.segment.bytes=2048",
    "transaction.state.log.segment.bytes=2048",
    "offsets.topic.num.partitions=4",
    "transaction.state.log.num.partitions=4",
    "log.cleaner.backoff.ms=200",
    "log.cleaner.min.cleanable.ratio=0.1",
    "log.cleaner.delete.retention.ms=2000",
)


class Outcome:
    """What became of a run."""

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self.transcript: list[str] = []
        self.cleaned: set[str] = set()
        self.transactions: list[Transaction] = []


async def prepare(world: World) -> None:
    """Create the topics, of which one is compacted."""
    maker = Actor(world, "maker")
    compacted = [CreatableTopicConfig(name="cleanup.policy", value="compact")]
    topics = [
        CreatableTopic(
            name=name,
            num_partitions=count,
            replication_factor=1,
            configs=compacted if name == STATES else [],
        )
        for name, count in TOPICS.items()
    ]
    await maker.until(lambda: maker.ask(CreateTopicsRequest(topics=topics), (2, 7)))
    await maker.until(lambda: maker.ask(FindCoordinatorRequest(key="x", key_type=1), (1, 2)))


async def play(world: World, outcome: Outcome) -> None:
    await prepare(world)
    producers = [SourceProducer(world, f"producer-{n}", (0, 2, 2)[n]) for n in range(3)]
    job = CopyJob(world, "copier", Random(f"{world.seed} copier").choice((0, 2)))
    readers = [Reader(world, f"reader-{n}") for n in range(2)]
    async with trio.open_nursery() as nursery:
        for each in (job, *readers):
            nursery.start_soon(each.run)
        nursery.start_soon(FaultInjector(world, "breaker").run)
        async with trio.open_nursery() as at_work:
            for producer in producers:
                at_work.start_soon(producer.run)
        world.faults_ended = True
        await trio.sleep(CALM_S)
        world.may_end = True
    last = Reader(world, "last")
    await last.read_to_end()
    outcome.transactions = [each for client in (*producers, job) for each in client.transactions]
    outcome.wrong += judge(producers, job, readers, last)


def judge(
    producers: Iterable[TransactionalClient], job: CopyJob, readers: Iterable[Reader], last: Reader
) -> list[str]:
    """Compare what the last reader has seen with what clients did and what others have seen."""
    clients = (*producers, job)
    transactions = [each for client in clients for each in client.transactions]
    wrong = [problem for reader in readers for problem in differing(reader, last)]
    wrong += [problem for each in transactions for problem in torn(each, last)]
    known = {written for each in transactions for written in each.written}
    seen = {each for found in last.seen.values() for each in found.values()}
    wrong += [f"{each} was written in no transaction" for each in seen - known]
    for index in range(TOPICS[SOURCE]):
        sources, copies = (
            [each.value for each in in_order(last, (topic, index))] for topic in (SOURCE, COPIES)
        )
        for number, (source, copied) in enumerate(zip_longest(sources, copies)):
            if source != copied:
                wrong.append(f"copy {number} of partition {index} is {copied}, not {source}")
                break
    return wrong + lost_states(producers, last)


def in_order(reader: Reader, partition: Partition) -> list[Written]:
    return [each for _, each in sorted(reader.seen[partition].items())]


def differing(reader: Reader, last: Reader) -> list[str]:
    """Differences between the records of two readers below the position of the first."""
    wrong = []
    for partition, end in reader.positions.items():
        seen = set(reader.seen[partition].values())
        final = {each for each in last.seen[partition].values() if each.offset < end}
        missing = set() if partition[0] == STATES else seen - final
        wrong += [f"{reader.name} saw {each}, which is gone" for each in missing]
        wrong += [f"{reader.name} did not see {each}" for each in final - seen]
    return wrong


def torn(transaction: Transaction, last: Reader) -> list[str]:
    """Whether a transaction is seen although aborted, or not completely although committed."""
    kept = [each for each in transaction.written if each.partition[0] != STATES]
    found = [last.seen[each.partition].get(each.offset) == each for each in kept]
    if transaction.committed is None and all(found) and found:
        transaction.committed = True
    if transaction.committed:
        return [f"lost: {each}" for each, is_found in zip(kept, found, strict=True) if not is_found]
    states = [each for each in transaction.written if each.partition[0] == STATES]
    seen = [each for each, is_found in zip(kept, found, strict=True) if is_found]
    seen += [each for each in states if last.seen[each.partition].get(each.offset) == each]
    return [f"version {transaction.version} aborted, but seen: {each}" for each in seen]


def lost_states(producers: Iterable[TransactionalClient], last: Reader) -> list[str]:
    """Keys whose last committed value is not in the compacted topic."""
    newest: dict[bytes | None, Written] = {}
    for producer in producers:
        for transaction in producer.transactions:
            for each in transaction.written if transaction.committed else ():
                if each.partition[0] == STATES and (
                    each.key not in newest or newest[each.key].offset < each.offset
                ):
                    newest[each.key] = each
    seen = last.seen[STATES, 0]
    return [f"lost state: {each}" for each in newest.values() if seen.get(each.offset) != each]


def cleaned_topics(directory: Path) -> set[str]:
    files = directory.glob(f"*/{CLEANER_CHECKPOINT}")
    return {path.parent.name.rpartition("-")[0] for path in files}


def simulate(seed: int) -> Outcome:
    """One whole run in a trio run of its own."""
    mock = MockClock(autojump_threshold=0)
    outcome = Outcome()

    async def main() -> None:
        with tempfile.TemporaryDirectory() as directory:
            clock = SimulatedClock(mock)
            broker = TaskBroker(
                Settings.from_sources(pairs=[*SETTINGS, *layout(seed)]),
                Path(directory),
                clock=clock,
                seed=seed,
                transport=LaggingTransport(Random(f"{seed} lag")),
            )
            world = World(broker, clock, seed)
            async with trio.open_nursery() as nursery:
                await nursery.start(broker.run)
                await play(world, outcome)
                await broker.wait_ready()
                await broker.stop()
            outcome.cleaned = cleaned_topics(Path(directory))
            outcome.transcript = world.transcript
            outcome.wrong += map(str, world.history.anomalies)

    with scheduled_by(seed), logged_errors() as errors:
        trio.run(main, clock=mock)
    outcome.wrong += errors
    return outcome


@pytest.mark.parametrize("run", range(RUNS))
def test_transactions_are_neither_lost_nor_torn(seed: int, run: int) -> None:
    outcome = simulate(seed + run)
    again = f"make sim-transactions SEED={seed + run} SEEDS=1 shows it again"
    assert outcome.wrong == [], again
    results = Counter(each.committed for each in outcome.transactions)
    assert results[True] > 20
    assert results[False] > 5
    assert outcome.cleaned >= {STATES, "__transaction_state"}


def test_seed_repeats_a_run_of_transactions(seed: int) -> None:
    here = simulate(seed).transcript
    there = subprocess.run(
        [sys.executable, "-m", "tests.simulation.test_transactions", str(seed), "1", "-v"],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": str(seed % 1000 + 1)},
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    assert there[: len(here)] == here


def main() -> int:
    """Run seeds from a first one on: arguments are the seed, the number, and -v for transcripts."""
    first, count = int(sys.argv[1]), int(sys.argv[2])
    failed = 0
    for seed in range(first, first + count):
        outcome = simulate(seed)
        if "-v" in sys.argv:
            sys.stdout.write("\n".join(outcome.transcript) + "\n")
        for problem in outcome.wrong:
            sys.stdout.write(f"seed {seed}: {problem}\n")
        failed += bool(outcome.wrong)
    sys.stdout.write(f"{count} seeds from {first} on, {failed} with problems\n")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
