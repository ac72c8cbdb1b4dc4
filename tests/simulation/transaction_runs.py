"""Runs of whole brokers with transactions: a safety phase with faults, then a liveness phase.

Owns the start, the two phases and the verdict of a run, and the command that runs many seeds. In
the safety phase, rules of the fault schema are drawn at random, roles are killed, and the clock is
advanced, while producers, a copy job and readers work and topics are cleaned. In the liveness phase
all rules are removed, and every client must come to its end within ``LIVENESS_S``. Invariant: the
transcript depends on the seed alone. ``make sim-transactions SEEDS=100`` runs many seeds; a failure
names its seed.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from random import Random
from time import perf_counter
from traceback import format_exception
from typing import Final

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
from tests.simulation.actors import IMPATIENT_S, Actor, FaultInjector
from tests.simulation.kills import EndKiller
from tests.simulation.lag import LaggingTransport
from tests.simulation.random_rules import RuleInjector
from tests.simulation.sometimes import SEEDS_MIN, counted, never_taken, table
from tests.simulation.surroundings import World
from tests.simulation.transaction_verdict import judge
from tests.simulation.transactional import (
    STATES,
    TOPICS,
    CopyJob,
    Reader,
    SourceProducer,
    Transaction,
)
from tests.simulation.world import layout, logged_errors, scheduled_by

SAFETY_PAUSES: Final = (40, 100, 200)
"""Lengths of the safety phase in pauses, because faults advance the clock; the seed chooses one."""
LIVENESS_S: Final = 60.0
"""Time in which every client must come to its end when all faults have ended."""
CALM_S: Final = 3.0
"""Time in which copies, cleanings and completions of transactions follow."""
SETTINGS: Final = (
    "log.segment.bytes=2048",
    "offsets.topic.segment.bytes=2048",
    "transaction.state.log.segment.bytes=2048",
    "offsets.topic.num.partitions=4",
    "transaction.state.log.num.partitions=4",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms=1000",
    "max.incremental.fetch.session.cache.slots=1",
    "log.cleaner.backoff.ms=200",
    "log.cleaner.min.cleanable.ratio=0.1",
    "log.cleaner.delete.retention.ms=2000",
)
ADVANCES_MS: Final = (100, 3000, 125_000)
"""Clock changes: the longest makes fetch sessions old enough to be evicted."""
KILL_TICKS_MAX: Final = (5, 20, 60)
"""Longest pauses between kills, of which the seed chooses one. A killed controller has no rules."""
MEMORY: Final = "/dev/shm"


class Outcome:
    """What became of a run."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.wrong: list[str] = []
        self.transcript: list[str] = []
        self.cleaned: set[str] = set()
        self.transactions: list[Transaction] = []
        self.counts: Counter[str] = Counter()

    @property
    def digest(self) -> str:
        """Hash of the transcript: equal for equal seeds."""
        return hashlib.blake2b("\n".join(self.transcript).encode(), digest_size=8).hexdigest()

    @property
    def again(self) -> str:
        """What to call to see it again."""
        return (
            f"make sim-transactions SEED={self.seed} SEEDS=1 ARGS=-v shows seed {self.seed} again"
        )


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


class Cast:
    """The clients of one run."""

    def __init__(self, world: World) -> None:
        self.producers = [SourceProducer(world, f"producer-{n}", (0, 2, 2)[n]) for n in range(3)]
        self.job = CopyJob(world, "copier", Random(f"{world.seed} copier").choice((0, 2)))
        self.readers = [Reader(world, f"reader-{n}", with_session=n > 0) for n in range(3)]
        self.unfinished: set[str] = set()
        self.ended = trio.Event()

    @property
    def writers(self) -> list[SourceProducer | CopyJob]:
        return [*self.producers, self.job]

    async def run(self, actor: Actor) -> None:
        """Let a client act until it ends."""
        self.unfinished.add(actor.name)
        await actor.run()
        self.unfinished.remove(actor.name)
        if not self.unfinished:
            self.ended.set()


async def play(world: World, outcome: Outcome) -> None:
    await prepare(world)
    cast = Cast(world)
    names = tuple(each.name for each in cast.writers)
    rules = RuleInjector(world, "rules", tuple(TOPICS), names)
    breaker = FaultInjector(world, "breaker")
    breaker.advances_ms = ADVANCES_MS
    breaker.ticks_max = breaker.random.choice(KILL_TICKS_MAX)
    killers = (breaker, EndKiller(world, "end-killer"))
    world.loses_responses = True
    async with trio.open_nursery() as nursery:
        for each in (cast.job, *cast.readers):
            nursery.start_soon(cast.run, each)
        async with trio.open_nursery() as at_work:
            for producer in cast.producers:
                at_work.start_soon(cast.run, producer)
            await disturb(world, (rules, *killers))
            await rules.heal()
            nursery.start_soon(expect_progress, world, cast, nursery.cancel_scope)
        await trio.sleep(CALM_S)
        world.may_end = True
    last = Reader(world, "last")
    if not world.history.anomalies:
        with trio.move_on_after(LIVENESS_S) as reading:
            await last.read_to_end()
        if reading.cancelled_caught:
            world.history.wrong("no progress", "a transaction is open at the end")
        outcome.wrong += judge(cast.producers, cast.job, cast.readers, last)
        outcome.wrong += world.operations.anomalies()
    outcome.transactions = [each for client in cast.writers for each in client.transactions]


async def disturb(world: World, actors: Iterable[Actor]) -> None:
    """The safety phase: faults for a time that the seed chooses."""
    async with trio.open_nursery() as nursery:
        for each in actors:
            nursery.start_soon(each.run)
        timer = Actor(world, "safety")
        for _ in range(timer.random.choice(SAFETY_PAUSES)):
            await timer.pause(2)
        world.faults_ended = True
        world.tell_end_sent()


async def expect_progress(world: World, cast: Cast, scope: trio.CancelScope) -> None:
    """The liveness phase: end the run if a client has not come to its end in time."""
    world.record("liveness", "begins")
    deadline = trio.current_time() + LIVENESS_S
    await trio.sleep(IMPATIENT_S)  # Until responses that were lost before are given up.
    world.loses_responses = False
    with trio.move_on_at(deadline):
        await cast.ended.wait()
    for name in sorted(cast.unfinished):
        world.history.wrong("no progress", f"{name} has not ended {LIVENESS_S} s after the faults")
    if cast.unfinished:
        scope.cancel()


def cleaned_topics(directory: Path) -> set[str]:
    files = directory.glob(f"*/{CLEANER_CHECKPOINT}")
    return {path.parent.name.rpartition("-")[0] for path in files}


def simulate(seed: int) -> Outcome:
    """One whole run in a trio run of its own."""
    mock = MockClock(autojump_threshold=0)
    outcome = Outcome(seed)

    async def main() -> None:
        with tempfile.TemporaryDirectory(dir=memory_directory()) as directory:
            clock = SimulatedClock(mock)
            broker = TaskBroker(
                Settings.from_sources(pairs=[*SETTINGS, *layout(seed)]),
                Path(directory),
                clock=clock,
                seed=seed,
                transport=LaggingTransport(Random(f"{seed} lag")),
            )
            world = World(broker, clock, seed)
            outcome.transcript, outcome.counts = world.transcript, world.counts
            with counted(world.counts):
                async with trio.open_nursery() as nursery:
                    await nursery.start(broker.run)
                    await play(world, outcome)
                    await broker.wait_ready()
                    await broker.stop()
            outcome.cleaned = cleaned_topics(Path(directory))
            outcome.wrong += map(str, world.history.anomalies)

    with scheduled_by(seed), logged_errors() as errors:
        try:
            trio.run(main, clock=mock)
        except Exception as error:  # noqa: BLE001 - a crash of the broker is a result, too
            outcome.wrong.append("".join(format_exception(error)))
    outcome.wrong += errors
    return outcome


def memory_directory() -> str | None:
    """A directory in memory, if there is one: most of the time of a run would be spent on disk."""
    return MEMORY if os.access(MEMORY, os.W_OK) else None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run seeds from a first one on."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("first", type=int, help="the first seed")
    parser.add_argument("count", type=int, help="the number of seeds")
    parser.add_argument("-v", "--verbose", action="store_true", help="print transcripts")
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count(), help="processes")
    chosen = parser.parse_args(arguments)
    seeds = range(chosen.first, chosen.first + chosen.count)
    counts: Counter[str] = Counter()
    failed: list[int] = []
    started = perf_counter()
    with ProcessPoolExecutor(min(chosen.jobs, chosen.count)) as pool:
        for outcome in pool.map(simulate, seeds):
            counts += outcome.counts
            if chosen.verbose:
                sys.stdout.write("\n".join(outcome.transcript) + "\n")
            for problem in outcome.wrong:
                sys.stdout.write(f"seed {outcome.seed}: {problem}\n")
            if outcome.wrong:
                failed.append(outcome.seed)
                sys.stdout.write(f"{outcome.again}\n")
                sys.stdout.flush()
            if chosen.count == 1:
                sys.stdout.write(f"seed {outcome.seed}: hash {outcome.digest}\n")
    missing = never_taken(counts) if chosen.count >= SEEDS_MIN else []
    sys.stdout.write(f"{table(counts)}\n")
    for path in missing:
        sys.stdout.write(f"never in {chosen.count} seeds: {path}\n")
    rate = chosen.count / (perf_counter() - started)
    sys.stdout.write(
        f"{chosen.count} seeds from {chosen.first} on, {rate:.2f} a second, "
        f"{len(failed)} with problems: {failed}\n"
    )
    return 1 if failed or missing else 0


if __name__ == "__main__":
    raise SystemExit(main())
