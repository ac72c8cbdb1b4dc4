"""One run: a complete broker of tasks, its clients and faults, on a mock clock with a seed.

Owns the start and the end of a run and its transcript: every response of any client, with the
virtual time. Invariant: the transcript depends on the seed alone, not on the machine, the hash seed
or the real time. ``python -m tests.simulation.world 7`` prints that of seed 7.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import trio
from trio.testing import MockClock

from minibroker.broker.tasks import TaskBroker
from minibroker.config import Settings
from minibroker.runtime.clock import SimulatedClock
from tests.simulation.actors import (
    Actor,
    Admin,
    Consumer,
    FaultInjector,
    OffsetObserver,
    Producer,
    fetch_request,
    values,
)
from tests.simulation.history import Anomaly, Log, Partition, judge
from tests.simulation.lag import LaggingTransport
from tests.simulation.members import Member
from tests.simulation.surroundings import TOPICS, World

CALM_S: Final = 15.0
"""Time without kills in which all must come right: sessions end, groups settle."""
SETTINGS: Final = ("group.initial.rebalance.delay.ms=100", "log.segment.bytes=4096")


async def read_logs(world: World) -> Log:
    """All values by partition and offset, as a new client reads them."""
    reader = Consumer(world, "reader")
    ids = {topic: await reader.topic_id(topic) for topic in world.topics}
    log: dict[Partition, dict[int, str]] = {partition: {} for partition in world.partitions}
    while True:
        ends = {partition: len(found) for partition, found in log.items()}
        request = fetch_request(ends, ids, wait_ms=0, bytes_min=0)
        response = await reader.until(partial(reader.ask, request, (12, 12)))
        for topic in response.responses:
            for found in topic.partitions:
                log[topic.topic, found.partition_index].update(values(found.records))
        if ends == {partition: len(found) for partition, found in log.items()}:
            return log


async def play(world: World, producers: int, *, breaks: bool) -> list[Anomaly]:
    """Let the actors act until producers are done and all is calm; return the anomalies."""
    admin = Admin(world, "maker")
    for topic, partitions in TOPICS.items():
        await admin.create(topic, partitions)
    makers = [Producer(world, f"producer-{n}") for n in range(producers)]
    others: list[Actor] = [Admin(world, "admin"), OffsetObserver(world, "observer")]
    others += [Consumer(world, f"consumer-{n}") for n in range(2)]
    others += [Member(world, f"member-{n}") for n in range(3)]
    async with trio.open_nursery() as nursery:
        for actor in others:
            nursery.start_soon(actor.run)
        async with trio.open_nursery() as at_work:
            if breaks:
                nursery.start_soon(FaultInjector(world, "breaker").run)
            for maker in makers:
                at_work.start_soon(maker.run)
        world.faults_ended = True
        await trio.sleep(CALM_S)
        world.may_end = True
    return judge(world.history, await read_logs(world))


class Run:
    """What became of a run."""

    def __init__(self, world: World, anomalies: list[Anomaly]) -> None:
        self.transcript = world.transcript
        self.history = world.history
        self.anomalies = anomalies


def simulate(seed: int, *, producers: int = 3, breaks: bool = True) -> Run:
    """One whole run in a trio run of its own."""
    mock = MockClock(autojump_threshold=0)

    async def main() -> Run:
        with tempfile.TemporaryDirectory() as directory:
            clock = SimulatedClock(mock)
            settings = Settings.from_sources(pairs=[*SETTINGS, *layout(seed)])
            broker = TaskBroker(
                settings,
                Path(directory),
                clock=clock,
                seed=seed,
                transport=LaggingTransport(Random(f"{seed} lag")),
            )
            world = World(broker, clock, seed)
            async with trio.open_nursery() as nursery:
                await nursery.start(broker.run)
                anomalies = await play(world, producers, breaks=breaks)
                await broker.wait_ready()
                await broker.stop()
            return Run(world, anomalies)

    with scheduled_by(seed), logged_errors() as errors:
        run = trio.run(main, clock=mock)
    run.anomalies += [Anomaly("logged", error) for error in errors]
    return run


def layout(seed: int) -> list[str]:
    """Settings of one run: few or many processes, and little or much memory for requests."""
    random = Random(f"{seed} layout")
    return [
        f"num.network.threads={random.choice((1, 2, 2, 3))}",
        f"num.io.threads={random.choice((1, 2, 2, 4))}",
        f"process.mode={random.choice(('combined', 'separate'))}",
        f"socket.request.max.bytes={random.choice((65_536, 1 << 20))}",
        f"acceptor.mode={random.choice(('single', 'sharded'))}",
    ]


@contextmanager
def logged_errors() -> Iterator[list[str]]:
    """Return the broker's errors in the log of this context: there should be none."""
    errors: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno >= logging.ERROR:
                fields = getattr(record, "fields", "")
                errors.append(f"{record.getMessage()} {fields} {record.exc_info or ''}")

    logger, collector = logging.getLogger("minibroker"), Collector()
    before = logger.propagate
    logger.addHandler(collector)
    logger.propagate = False
    try:
        yield errors
    finally:
        logger.removeHandler(collector)
        logger.propagate = before


@contextmanager
def scheduled_by(seed: int) -> Iterator[None]:
    """Within this, trio's scheduler takes its chances from ``seed``."""
    scheduler: Any = trio._core._run
    before = scheduler._ALLOW_DETERMINISTIC_SCHEDULING, scheduler._r
    scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True
    scheduler._r = Random(f"{seed} scheduler")
    try:
        yield
    finally:
        scheduler._ALLOW_DETERMINISTIC_SCHEDULING, scheduler._r = before


def main() -> None:
    """Print the transcript of a seed and its anomalies."""
    run = simulate(int(sys.argv[1]))
    sys.stdout.write("\n".join([*run.transcript, *map(str, run.anomalies)]) + "\n")


if __name__ == "__main__":
    main()
