"""Offsets through each client: beginning and end, by time, committed and taken up again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest

from system_tests.clients.model import Client, Record, Stored, drain
from system_tests.harness.waiting import wait_until

Names = Callable[[str], str]
BEGAN_MS = 1_700_000_000_000


def test_offsets_by_time(client: Client, fresh: Names) -> None:
    topic = fresh("by-time")
    client.create_topic(topic)
    for i in range(10):  # a batch each, so that the search looks between batches and inside one
        client.produce(topic, [Record(None, b"", (), BEGAN_MS + 1000 * i)])
    inside = [Record(None, b"", (), BEGAN_MS + 20_000 + i) for i in range(10)]
    client.produce(topic, inside, codec="gzip")

    assert client.offset_at(topic, 0, BEGAN_MS - 5000) == 0
    assert client.offset_at(topic, 0, BEGAN_MS) == 0
    assert client.offset_at(topic, 0, BEGAN_MS + 1) == 1
    assert client.offset_at(topic, 0, BEGAN_MS + 4000) == 4
    assert client.offset_at(topic, 0, BEGAN_MS + 4001) == 5
    assert client.offset_at(topic, 0, BEGAN_MS + 20_007) == 17
    assert client.offset_at(topic, 0, BEGAN_MS + 20_010) is None


def test_group_resumes_where_it_committed(client: Client, fresh: Names) -> None:
    topic, group = fresh("resume"), fresh("group")
    client.create_topic(topic)
    client.produce(topic, [Record(None, b"%d" % i) for i in range(10)])

    first = client.join(group, topic)
    assert [each.offset for each in drain(first, 10)] == [*range(10)]
    assert first.committed(topic, 0) is None
    first.commit()
    assert first.committed(topic, 0) == 10
    first.close()

    client.produce(topic, [Record(None, b"later")])
    second = client.join(group, topic)
    assert [(each.offset, each.value) for each in drain(second, 1)] == [(10, b"later")]
    second.close()


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_group_without_offsets_follows_auto_offset_reset(
    client: Client, start: str, fresh: Names
) -> None:
    topic = fresh("start")
    client.create_topic(topic)
    client.produce(topic, [Record(None, b"old")])
    seen: list[Stored] = []
    with closing(client.join(fresh("group"), topic, start=start)) as member:
        # Nothing reports when the member has its position, so new records are produced constantly.
        def something_new() -> bool:
            client.produce(topic, [Record(None, b"new")])
            seen.extend(member.poll())
            return any(each.value == b"new" for each in seen)

        wait_until(something_new, "a record to come", pause_s=0)
    assert (seen[0].offset == 0) == (start == "earliest")
    assert [each.offset for each in seen] == [*range(seen[0].offset, seen[-1].offset + 1)]
