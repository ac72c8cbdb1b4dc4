"""Groups through each client: two members, rebalances, static members, descriptions."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from system_tests.clients.adapters.confluent import ConfluentClient
from system_tests.clients.conftest import ClientOf
from system_tests.clients.model import (
    HEARTBEAT_MS,
    SESSION_MS,
    Client,
    Code,
    Group,
    Member,
    Record,
    Refused,
    Stored,
    TopicPartition,
    drain,
)
from system_tests.harness.waiting import wait_until

Names = Callable[[str], str]
PARTITIONS = 4


@pytest.fixture
def closer() -> Iterator[ExitStack]:
    """Close the members of a test, last first, also when it failed."""
    with ExitStack() as stack:
        yield stack


class Crew:
    """Some members polled in turn, and everything that any of them was handed."""

    def __init__(self, topic: str) -> None:
        self.members: list[Member] = []
        self.seen: list[Stored] = []
        self.everything = frozenset((topic, index) for index in range(PARTITIONS))

    def poll(self) -> None:
        for member in self.members:
            self.seen.extend(member.poll(0.05))

    def shared_out(self) -> bool:
        """Poll all, then say if each has something and all of it is given to one member each."""
        self.poll()
        shares = [member.assignment() for member in self.members]
        return all(shares) and Counter(part for share in shares for part in share) == Counter(
            self.everything
        )

    def wait_shared_out(self) -> None:
        wait_until(self.shared_out, f"{len(self.members)} members to share the partitions")

    def wait_seen(self, count: int) -> None:
        def enough() -> bool:
            self.poll()
            return len(self.seen) >= count

        wait_until(enough, f"{count} records", pause_s=0)


def produce_to_all(client: Client, topic: str, stem: str, count: int = 25) -> list[bytes]:
    sent = []
    for partition in range(PARTITIONS):
        values = [f"{stem} {partition} {i}".encode() for i in range(count)]
        client.produce(topic, [Record(None, value) for value in values], partition=partition)
        sent += values
    return sent


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_rebalance_loses_and_duplicates_no_record(
    client: Client, assignor: str, fresh: Names, closer: ExitStack
) -> None:
    if assignor == "cooperative-sticky" and not client.has_cooperative:
        pytest.skip(f"does not apply: {client.name} has no cooperative assignor")
    topic, group = fresh("shared"), fresh("group")
    client.create_topic(topic, PARTITIONS)
    crew = Crew(topic)

    def join() -> Member:
        member = client.join(group, topic, assignor=assignor)
        closer.enter_context(closing(member))
        crew.members.append(member)
        return member

    join()
    sent = produce_to_all(client, topic, "alone")
    crew.wait_seen(len(sent))
    crew.wait_shared_out()

    second = join()
    crew.wait_shared_out()
    assert [len(member.assignment()) for member in crew.members] == [2, 2]
    sent += produce_to_all(client, topic, "together")
    crew.wait_seen(len(sent))

    second.commit()
    second.close()
    crew.members.remove(second)
    crew.wait_shared_out()
    sent += produce_to_all(client, topic, "alone again")
    crew.wait_seen(len(sent))
    crew.poll()

    assert Counter(each.value for each in crew.seen) == Counter(sent)
    crew.members[0].commit()
    committed = {part: crew.members[0].committed(topic, part) for part in range(PARTITIONS)}
    assert committed == dict.fromkeys(range(PARTITIONS), 75)


def test_restarted_static_member_causes_no_rebalance(
    client: Client, fresh: Names, closer: ExitStack
) -> None:
    topic, group = fresh("static"), fresh("group")
    client.create_topic(topic, PARTITIONS)
    crew = Crew(topic)
    for name in ("anna", "bert"):
        crew.members.append(client.join(group, topic, instance_id=name))
        closer.enter_context(closing(crew.members[-1]))
    crew.wait_shared_out()
    anna, bert = crew.members
    before, assignments = [member.assignment() for member in crew.members], anna.assignments

    bert.close()
    crew.members[1] = client.join(group, topic, instance_id="bert")
    closer.enter_context(closing(crew.members[1]))
    crew.wait_shared_out()
    assert [member.assignment() for member in crew.members] == before
    assert anna.assignments == assignments


def test_expired_member_loses_its_partitions_to_others(
    client_of: ClientOf, fresh: Names, closer: ExitStack
) -> None:
    client = client_of(ConfluentClient)
    topic, group = fresh("silent"), fresh("group")
    client.create_topic(topic, PARTITIONS)
    crew = Crew(topic)
    for name in ("carl", "dora"):
        crew.members.append(client.join(group, topic, instance_id=name))
        closer.enter_context(closing(crew.members[-1]))
    crew.wait_shared_out()
    # A static member that closes does not leave the group: it is waited for.
    silent_from = time.monotonic()  # but for one heartbeat's pause before
    crew.members.pop().close()
    crew.wait_shared_out()
    waited_ms = (time.monotonic() - silent_from) * 1000
    # Without an end of the session they would wait until it has not polled for five minutes.
    assert SESSION_MS - 2 * HEARTBEAT_MS < waited_ms < 5 * SESSION_MS


def test_static_member_with_same_instance_id_fences_the_old_one(
    client: Client, fresh: Names, closer: ExitStack
) -> None:
    if not client.notices_fencing:
        pytest.skip(f"does not apply: {client.name} names its instance only when it joins")
    topic, group = fresh("double"), fresh("group")
    client.create_topic(topic)
    client.produce(topic, [Record(None, b"v")])
    first = client.join(group, topic, instance_id="only-one")
    closer.enter_context(closing(first))
    drain(first, 1)
    second = client.join(group, topic, instance_id="only-one")
    closer.enter_context(closing(second))
    drain(second, 1)

    def fenced() -> bool:
        try:
            first.poll()
            first.commit()
        except Refused as refused:
            return refused.code == Code.FENCED_INSTANCE_ID
        return False

    wait_until(fenced, "the first to be fenced")


def wait_for_state(client: Client, group: str, state: str) -> Group:
    wait_until(lambda: client.describe_group(group).state == state, f"{group} to be {state}")
    return client.describe_group(group)


def test_groups_are_listed_and_described(client: Client, fresh: Names, closer: ExitStack) -> None:
    topic, group = fresh("described"), fresh("group")
    client.create_topic(topic, PARTITIONS)
    client.produce(topic, [Record(None, b"v")])
    member = client.join(group, topic)
    closer.enter_context(closing(member))
    drain(member, 1)
    member.commit()

    assert group in client.groups()
    described = wait_for_state(client, group, "stable")
    [only] = described.members
    assert only.client_id == client.client_id
    everything: set[TopicPartition] = {(topic, index) for index in range(PARTITIONS)}
    assert only.partitions == everything

    member.close()
    emptied = wait_for_state(client, group, "empty")
    assert emptied.members == ()
    assert group in client.groups()
