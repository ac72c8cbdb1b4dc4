"""Runs of whole brokers under random faults: a safety phase, then a liveness phase.

Owns the start, the two phases and the verdict of a run. In the safety phase, rules of the fault
schema are drawn at random, roles are killed, and the clock is advanced, while clients with
transactions and members of a consumer group work, and logs are cleaned. In the liveness phase all
rules are removed, and every client must come to its end, and every group be stable, within
``LIVENESS_S``. Invariant: the transcript depends on the seed alone. ``many_seeds`` runs many.
"""

from __future__ import annotations

import gc
import hashlib
import os
import signal
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from traceback import format_exception
from typing import Final

import trio
from trio.testing import MockClock

from minibroker.broker.log.checkpoint import CLEANER_CHECKPOINT
from minibroker.broker.settings import Settings
from minibroker.launch.tasks import TaskBroker
from minibroker.runtime.clock import SimulatedClock
from tests.simulation.actors import IMPATIENT_S, Actor, FaultInjector
from tests.simulation.casts import Cast, make_casts
from tests.simulation.kills import MomentKiller
from tests.simulation.lag import LaggingTransport
from tests.simulation.random_rules import RuleInjector, RuleTargets
from tests.simulation.run_plan import RunPlan, draw_plan
from tests.simulation.sometimes import counted
from tests.simulation.surroundings import World
from tests.simulation.world import layout, logged_errors, scheduled_by

LIVENESS_S: Final = 60.0
"""Time in which every client must come to its end when all faults have ended."""
RUN_CPU_S_MAX: Final = 60.0
"""Processor time of a run, of which most take less than a second."""
SETTINGS: Final = (
    "group.initial.rebalance.delay.ms=20",
    "group.min.session.timeout.ms=500",
    "group.consumer.min.session.timeout.ms=1000",
    "group.consumer.session.timeout.ms=1000",
    "group.consumer.min.heartbeat.interval.ms=100",
    "group.consumer.heartbeat.interval.ms=100",
    "group.consumer.assignment.interval.ms=200",
    "group.streams.min.session.timeout.ms=1000",
    "group.streams.session.timeout.ms=1000",
    "group.streams.min.heartbeat.interval.ms=100",
    "group.streams.heartbeat.interval.ms=100",
    "group.streams.assignment.interval.ms=200",
    "group.streams.initial.rebalance.delay.ms=200",
    "group.streams.num.standby.replicas=1",
    "group.streams.topology.description.plugin.class=any",
    "group.share.min.session.timeout.ms=1000",
    "group.share.session.timeout.ms=1000",
    "group.share.min.heartbeat.interval.ms=100",
    "group.share.heartbeat.interval.ms=100",
    "group.share.assignment.interval.ms=200",
    "group.share.min.record.lock.duration.ms=1000",
    "group.share.record.lock.duration.ms=1000",
    "share.coordinator.state.topic.num.partitions=4",
    "share.coordinator.state.topic.segment.bytes=2048",
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
CROWD_SETTINGS: Final = (f"offsets.topic.segment.bytes={1 << 20}",)
"""Settings of runs with many members, whose records do not fit into small segments."""
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
        self.counts: Counter[str] = Counter()

    @property
    def digest(self) -> str:
        """Hash of the transcript: equal for equal seeds."""
        return hashlib.blake2b("\n".join(self.transcript).encode(), digest_size=8).hexdigest()

    @property
    def again(self) -> str:
        """What to call to see it again."""
        return f"make sim-seeds SEED={self.seed} SEEDS=1 ARGS=-v shows seed {self.seed} again"


class Progress:
    """Which clients have not come to their end."""

    def __init__(self) -> None:
        self.unfinished: set[str] = set()
        self.ended = trio.Event()

    async def run(self, actor: Actor) -> None:
        """Let a client act until it ends."""
        self.unfinished.add(actor.name)
        await actor.run()
        actor.has_ended = True
        self.unfinished.remove(actor.name)
        if not self.unfinished:
            self.ended.set()


async def play(world: World, plan: RunPlan, outcome: Outcome) -> None:
    """Play both phases, and note what is wrong."""
    casts = make_casts(world, plan)
    for cast in casts:
        await cast.prepare()
    progress = Progress()
    world.has_rules = plan.has_rules
    async with trio.open_nursery() as nursery:
        for cast in casts:
            for each in cast.others:
                nursery.start_soon(progress.run, each)
        async with trio.open_nursery() as at_work:
            for cast in casts:
                for each in cast.workers:
                    at_work.start_soon(progress.run, each)
            await disturb(world, plan, casts)
            nursery.start_soon(expect_progress, world, progress, nursery.cancel_scope)
        await trio.sleep(plan.length.calm_s)
        world.may_end = True
    world.history.anomalies += world.shares.anomalies
    if world.history.anomalies:
        return
    for cast in casts:
        with trio.move_on_after(LIVENESS_S) as judging:
            outcome.wrong += await cast.verdict()
        if judging.cancelled_caught:
            world.history.wrong("no progress", "the records cannot be read to the end")


async def disturb(world: World, plan: RunPlan, casts: Iterable[Cast]) -> None:
    """The safety phase: faults for a time that the seed chooses."""
    targets = RuleTargets((), (), (), ())
    for cast in casts:
        targets = targets.joined_with(cast.targets)
    rules = RuleInjector(world, "rules", targets)
    breaker = FaultInjector(world, "breaker")
    if plan.has_rules:
        breaker.advances_ms = ADVANCES_MS
    breaker.ticks_max = breaker.random.choice(KILL_TICKS_MAX)
    async with trio.open_nursery() as nursery:
        if plan.has_rules:
            nursery.start_soon(rules.run)
        if plan.has_kills:
            for each in (breaker, MomentKiller(world, "moment-killer")):
                nursery.start_soon(each.run)
        timer = Actor(world, "safety")
        for _ in range(plan.length.pauses):
            await timer.pause(2)
        world.faults_ended = True
        world.reach_moment("")
    await rules.heal()


async def expect_progress(world: World, progress: Progress, scope: trio.CancelScope) -> None:
    """The liveness phase: end the run if a client has not come to its end in time."""
    world.record("liveness", "started")
    deadline = trio.current_time() + LIVENESS_S
    await trio.sleep(IMPATIENT_S)  # Until responses that were lost before are given up.
    world.has_rules = False
    with trio.move_on_at(deadline):
        await progress.ended.wait()
    for name in sorted(progress.unfinished):
        world.history.wrong("no progress", f"{name} has not ended {LIVENESS_S} s after the faults")
    if progress.unfinished:
        scope.cancel()


def count_cleaned(counts: Counter[str], directory: Path) -> None:
    """Count the topics of which a partition was cleaned."""
    files = directory.glob(f"*/{CLEANER_CHECKPOINT}")
    counts.update(f"cleaned {path.parent.name.rpartition('-')[0]}" for path in files)


def simulate(seed: int, plan: RunPlan | None = None) -> Outcome:
    """One whole run in a trio run of its own; by default its plan is drawn."""
    mock = MockClock(autojump_threshold=0)
    outcome = Outcome(seed)
    chosen = plan or draw_plan(seed)

    async def main() -> None:
        with tempfile.TemporaryDirectory(dir=memory_directory()) as directory:
            clock = SimulatedClock(mock)
            broker = TaskBroker(
                Settings.from_sources(
                    pairs=[*SETTINGS, *layout(seed), *(CROWD_SETTINGS if chosen.members else ())]
                ),
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
                    await play(world, chosen, outcome)
                    await broker.wait_ready()
                    await broker.stop()
            count_cleaned(world.counts, Path(directory))
            outcome.wrong += map(str, world.history.anomalies)

    with scheduled_by(seed), logged_errors() as errors, collected_later(), bounded():
        try:
            trio.run(main, clock=mock)
        except Exception as error:  # noqa: BLE001 - a crash of the broker is a result, too
            outcome.wrong.append("".join(format_exception(error)))
    outcome.wrong += errors
    return outcome


class RunTooLong(Exception):
    """A run does not come to its end; the traceback shows where it is."""


@contextmanager
def bounded() -> Iterator[None]:
    """Within this, a run that takes too much processor time raises `RunTooLong`, again and again
    if that is caught.
    """

    def interrupt(*_: object) -> None:
        raise RunTooLong(f"the run has taken {RUN_CPU_S_MAX:g} s of processor time")

    before = signal.signal(signal.SIGVTALRM, interrupt)
    signal.setitimer(signal.ITIMER_VIRTUAL, RUN_CPU_S_MAX, RUN_CPU_S_MAX)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@contextmanager
def collected_later() -> Iterator[None]:
    """Within this, no garbage is collected, which makes a run a tenth faster."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def memory_directory() -> str | None:
    """A directory in memory, if there is one: most of the time of a run would be spent on disk."""
    return MEMORY if os.access(MEMORY, os.W_OK) else None
