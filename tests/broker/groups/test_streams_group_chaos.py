"""Members of a streams group that lose answers, die and return: their tasks converge all the same.

As in Kafka, an answer that gives tasks is not repeated within an epoch, so a member that has lost
one rejoins in the end. `StreamsPlay` checks after each event that no active task has two owners,
and that a group that is loaded is the one that was written.
"""

from __future__ import annotations

import random

import pytest

from minibroker.broker.groups.events import Restored, Tasks
from minibroker.broker.groups.streams_group import StreamsGroup
from minibroker.broker.groups.streams_topology import InternalTopic, StreamsTopology, Subtopology
from minibroker_protocol.errors import ErrorCode
from tests.broker.groups.streams_play import OK, StreamsPlay, limits, tasks

TOPOLOGY = StreamsTopology(
    0,
    (
        Subtopology("0", source_topics=("t",), changelogs=(InternalTopic("log"),)),
        Subtopology("1", source_topics=("t",)),
    ),
)
ALL = tasks(0, 1, 2, 3) | tasks(0, 1, 2, 3, subtopology="1")
FENCED = (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID)
STEPS = 150


class Thread:
    """A member that follows the protocol: it has what it was given last."""

    def __init__(self, play: StreamsPlay, name: str, process: str) -> None:
        self.play = play
        self.name = name
        self.process = process
        self.rejoin()

    def rejoin(self) -> None:
        self.has_lost = False
        self.epoch = 0
        self.owned = Tasks()

    def beat(self, *, is_lost: bool = False) -> None:
        """Send a heartbeat, whose answer may be lost."""
        joins = self.epoch == 0
        result = self.play.beat(
            self.name,
            self.epoch,
            owned=None if joins else self.owned,
            **{"topology": TOPOLOGY, "process_id": self.process} if joins else {},
        )
        if is_lost:
            self.has_lost = True
            return
        if result.error in FENCED:
            self.rejoin()
            return
        assert result.error is OK, result
        self.epoch = result.member_epoch
        self.owned = self.owned if result.tasks is None else result.tasks


@pytest.mark.parametrize("standby_replicas", [0, 1])
def test_tasks_converge_after_any_interleaving(seed: int, standby_replicas: int) -> None:
    rng = random.Random(f"{seed} {standby_replicas}")
    play = StreamsPlay(limits(standby_replicas=standby_replicas))
    play.create("log", 4)
    threads: dict[str, Thread] = {}
    for step in range(STEPS):
        action = rng.randrange(12)
        if action == 0 and len(threads) < 5:
            name = f"m{step}"
            threads[name] = Thread(play, name, rng.choice("pqr"))
        elif not threads:
            continue
        elif action == 1:
            leave(threads, rng.choice(list(threads)), play)
        elif action == 2:
            rng.choice(list(threads.values())).rejoin()
        elif action == 3:
            restart(play)
        elif action == 4:
            play.wait(rng.uniform(0, 20))
        else:
            rng.choice(list(threads.values())).beat(is_lost=rng.random() < 0.2)
    threads = threads or {"last": Thread(play, "last", "p")}
    settle(play, threads)
    held = [each.owned.active for each in threads.values()]
    assert sum(map(len, held)) == len(ALL)
    assert frozenset().union(*held) == ALL
    processes = len({each.process for each in threads.values()})
    copies = sum(len(each.owned.standby) for each in threads.values())
    assert copies == (4 if standby_replicas and processes > 1 else 0)


def leave(threads: dict[str, Thread], name: str, play: StreamsPlay) -> None:
    play.beat(name, -1)
    del threads[name]


def restart(play: StreamsPlay) -> None:
    records = tuple(play.stored.records.values())
    if records:
        play.group = StreamsGroup.restore("g", records, play.limits, str, play.time)
        play.handle(Restored())


def settle(play: StreamsPlay, threads: dict[str, Thread]) -> None:
    """Let all send heartbeats; members that do not exist any more expire."""
    for each in threads.values():
        if each.has_lost:
            each.rejoin()
    for _ in range(30):
        play.wait(3)
        for each in threads.values():
            each.beat()
    assert play.group.state_name == "Stable"
