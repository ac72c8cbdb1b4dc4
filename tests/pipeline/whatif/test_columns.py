from __future__ import annotations

import numpy as np
import pyarrow as pa

from minibroker.lab.activity.events import ActivityKind
from minibroker.pipeline.whatif.columns import (
    EXEMPT,
    FETCHES,
    KINDS,
    MUTATES,
    NEVER,
    NONE,
    PRODUCES,
    REPEATED,
    STRICT,
    UNTHROTTLED,
    Lives,
    Sender,
    Senders,
    codes,
    longs,
    more_pending,
    new_answers,
    new_minutes,
    new_pending,
    new_tally,
    of_kind,
    requests_of,
)
from tests.pipeline.whatif.activity import (
    METADATA,
    connection_row,
    request_row,
    requests_table,
    table,
)
from tests.pipeline.whatif.oracle import Event

# Memory layout -----------------------------------------------------------------------------------


def test_grown_pending_keeps_its_lists() -> None:
    pending = more_pending(new_pending(), 2, 1)
    assert pending.head.tolist() == [0, NONE]
    pending.head[1] = 0  # the first item is taken
    pending.head[0] = 1
    more = more_pending(pending, 3, 2)
    assert more.head.tolist() == [2, 0, NONE]
    free, found = int(more.head[0]), []
    while free != NONE:
        found.append(free)
        free = int(more.items[free, 2])
    assert found == [2, 3, 4, 1]


def test_without_more_room_the_free_items_stay() -> None:
    pending = more_pending(new_pending(), 1, 0)
    assert more_pending(pending, 0, 5).head.tolist() == [0] + [NONE] * 5


def test_new_state_is_empty() -> None:
    assert new_tally(3).shape[:2] == (3, len(KINDS))
    assert new_minutes(5)[0, 0] == 0
    assert set(new_answers(2).throttles[:, 1].tolist()) == {NONE}


# Conversion of events ----------------------------------------------------------------------------


def test_event_is_converted_to_quota_amounts() -> None:
    events = [
        Event(0, 10, what="produce", size=100, exempt=True, checked_ns=10_000_000),
        Event(1, 11, what="fetch", size=50, throttle_ms=9, late_ns=5_000_000, late_clock_ms=12),
        Event(2, 12, what="mutate", permits=3, strict=True),
        Event(3, 13, "v"),
    ]
    found = requests_of(requests_table(events), Senders(), delays=False)
    assert found.flags.tolist() == [PRODUCES | EXEMPT, FETCHES | REPEATED, MUTATES | STRICT, 0]
    assert found.amount.tolist() == [100, 50, 3, 0]
    assert (found.checked[0], found.late[1]) == (1.0, 0.5)
    assert found.late_ms.tolist() == [NEVER, 12, NEVER, NEVER]
    assert found.group.tolist() == [0, 0, 0, 1]
    assert found.throttled_ms.tolist() == [0, 9, 0, 0]
    assert (found.wall_ms - found.ms).tolist() == [1_700_000_000_000] * 4


def test_sampled_request_is_scaled_up() -> None:
    row = request_row(Event(0, 10, what="produce", size=100, checked_ns=10**7)) | {"sample": 0.25}
    found = requests_of(table([row]), Senders(), delays=False)
    assert (found.amount[0], found.checked[0]) == (400, 4)


def test_changes_were_counted_when_the_controller_did() -> None:
    check = {"user": "u", "client_id": "", "rate": 1.0, "bound": 1.0, "throttle_ms": 5}
    row = request_row(Event(0, 100, what="mutate", permits=2))
    row["mutation"] = check | {"clock_ms": 93}
    refused = request_row(Event(1, 100, what="mutate", permits=2, strict=True))
    refused["mutations_refused"] = 2
    asked = refused | {"api_key": METADATA, "sequence": 2}
    found = requests_of(table([row, refused, asked]), Senders(), delays=False)
    assert found.lag_ms.tolist() == [7, 0, 0]
    wanted = [MUTATES, MUTATES | STRICT | REPEATED, MUTATES | STRICT | UNTHROTTLED]
    assert found.flags.tolist() == wanted


def test_with_kept_answers_the_first_check_counts() -> None:
    check = {"user": "u", "client_id": "", "rate": 1.0, "bound": 1.0, "throttle_ms": 50}
    row = request_row(Event(0, 150, what="produce", size=5))
    row["produce"], row["request"] = check | {"clock_ms": 100}, check | {"clock_ms": 150}
    found = requests_of(table([row]), Senders(), delays=True)
    assert (found.ms[0], found.wall_ms[0]) == (100, 1_700_000_000_100)


def test_unread_columns_are_empty() -> None:
    events = requests_table([Event(0, 10, what="produce", size=100, checked_ns=5)])
    some = events.drop_columns(["request_bytes", "checked_ns", "mutations", "late_clock_ms"])
    found = requests_of(some, Senders(), delays=False)
    assert (found.amount[0], found.checked[0], found.late_ms[0]) == (0, 0, NEVER)
    assert longs(some, "nothing", 3).tolist() == [3]


def test_of_kind_selects_rows_at_any_position() -> None:
    rows = [request_row(Event(0, 1)), connection_row(1, 1, 5, "10.0.0.1"), request_row(Event(2, 1))]
    found = of_kind(table(rows), ActivityKind.REQUEST)
    assert found.column("sequence").to_pylist() == [0, 2]
    assert len(of_kind(table(rows[:1]), ActivityKind.CONNECTION)) == 0
    one = of_kind(table(rows), ActivityKind.CONNECTION)
    assert one.column("sequence").to_pylist() == [1]


def test_codes_number_plain_and_dictionary_texts_alike() -> None:
    plain = pa.table({"user": pa.chunked_array([["a", None], ["b", "a"]])})
    for source in (plain, plain.set_column(0, "user", plain["user"].dictionary_encode())):
        numbers, texts = codes(source, "user")
        assert [texts[number] for number in numbers] == ["a", "", "b", "a"]


def groups(senders: Senders, events: list[Event]) -> list[int]:
    found: list[int] = requests_of(requests_table(events), senders, delays=False).group.tolist()
    return found


def test_senders_keep_their_numbers_from_batch_to_batch() -> None:
    senders = Senders()
    events = [Event(0, 10, "u"), Event(1, 11, "v"), Event(2, 12, "u"), Event(3, 13, broker=1)]
    assert groups(senders, events) == [0, 1, 0, 2]
    assert groups(senders, events[::-1]) == [2, 0, 1, 0]
    assert senders.all[2] == Sender(1, 1, "u", "c")
    assert groups(senders, []) == []
    assert senders.number(senders.all[0]._replace(user="w")) == 3


def test_restarted_broker_is_shown_as_alive() -> None:
    lives = Lives()
    brokers, started = np.array([1, 1, 2, 1, 1]), np.array([100, 100, 100, 101, 100])
    assert lives.of(brokers, started).tolist() == [0, 0, 1, 2, 0]
    assert lives.of(brokers[:1], started[3:4]).tolist() == [2]
    assert lives.brokers() == [1, 2, 1]


def test_each_broker_start_gets_its_own_number() -> None:
    lives = Lives()
    numbers = np.array([1 << 30, 5, 5, (1 << 30) + 1])
    started = np.array([0, 0, 60_000, 0])
    assert lives.of(numbers, started).tolist() == [0, 1, 2, 3]
    assert lives.of(numbers[1:], started[1:]).tolist() == [1, 2, 3]
    assert lives.of(np.array([1, 0]), started[:2]).tolist() == [4, 5]
    assert lives.of(numbers[1:3], started[1:3]).tolist() == [1, 2]
    assert lives.of(numbers[2:1:-1], started[2:1:-1]).tolist() == [2]
