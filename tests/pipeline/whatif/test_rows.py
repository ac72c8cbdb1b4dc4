from __future__ import annotations

from pyspark.sql.pandas.types import from_arrow_schema

from minibroker.broker.quotas.types import DEFAULT, Entity, QuotaTable, QuotaType
from minibroker.pipeline.whatif.addresses import Addresses, Arrivals
from minibroker.pipeline.whatif.columns import Lives, Sender, new_minutes
from minibroker.pipeline.whatif.proposal import Counting, Proposal
from minibroker.pipeline.whatif.replay import Replay
from minibroker.pipeline.whatif.rows import OUTCOME, OutcomeRows, merged
from tests.pipeline.whatif.activity import connection_row, request_row, requests_table, table
from tests.pipeline.whatif.oracle import Event


def test_row_reports_throttled_sender_time_and_quota() -> None:
    bounds = {QuotaType.PRODUCE: {Entity("a%20b", DEFAULT): 1024.0}}
    run = Replay([Proposal("p", QuotaTable(bounds, 4))], Counting())
    run.feed(requests_table([Event(0, 60_000, "a b", what="produce", size=20480, broker=7)]))
    whole, minute = sorted(
        (row for batch in run.end() for row in batch.to_pylist()),
        key=lambda row: row["start_us"] or 0,
    )
    at_us = 1_700_000_060_000_000
    assert {name: value for name, value in whole.items() if value is not None} == {
        "proposal": "p", "loop": "open", "broker": 7, "user": "a b", "client_id": "c",
        "quota_type": "producer_byte_rate", "quota_entity": "users/a%20b/clients/<default>",
        "quota_user": "a%20b", "quota_client_id": "c", "bound": 1024.0, "requests": 1,
        "throttled": 1, "throttle_ms": 10_000, "throttle_ms_max": 10_000, "first_us": at_us,
        "last_us": at_us,
    }  # fmt: skip
    assert (minute["start_us"], minute["throttle_ms"]) == (at_us - at_us % 60_000_000, 10_000)
    assert minute["requests"] is None


def test_throttled_address_has_its_own_rows() -> None:
    addresses = Addresses(Proposal("p", ip_default=5.0), Counting())
    rows = [connection_row(n, 1000, n, "10.0.0.1") for n in range(51)]
    arrivals = Arrivals(Lives(), 1000)
    assert arrivals.add(table(rows)) == []
    addresses.feed(arrivals.rest(), [0])
    addresses.settle([0])
    out = OutcomeRows(closed=True)
    out.addresses(addresses)
    whole, minute = (row for batch in out.take() for row in batch.to_pylist())
    assert (whole["ip"], whole["quota_entity"], whole["bound"]) == ("10.0.0.1", "ips/<default>", 5)
    assert (whole["requests"], whole["throttled"], whole["loop"]) == (51, 1, "closed")
    assert minute["throttle_ms"] == 200


def test_rows_are_returned_once() -> None:
    out = OutcomeRows(closed=False)
    minutes = new_minutes(1)
    minutes[0, 0], minutes[1] = 1, [0, 2, 5, 1, 9]
    out.minutes(Proposal("p"), [Sender(1, 0, "u", "c")], minutes)
    assert [batch.num_rows for batch in out.take()] == [1]
    assert list(out.take()) == []


def test_rows_of_two_lives_of_a_broker_become_one() -> None:
    bounds = {QuotaType.PRODUCE: {Entity(client=DEFAULT): 100.0}}
    run = Replay([Proposal("p", QuotaTable(bounds, 1))], Counting())
    events = [Event(n, 60_000 + n, what="produce", size=20_000) for n in range(3)]
    run.feed(requests_table(events[:2]))
    run.feed(table([{**request_row(events[2]), "clock_ms": 5, "started_us": 7}]))
    minutes = list(run.hour())
    rows = list(run.end())
    assert sum(batch.num_rows for batch in minutes) == sum(batch.num_rows for batch in rows) == 2
    [minute] = [row for batch in merged(minutes) for row in batch.to_pylist()]
    [whole] = [row for batch in merged(rows) for row in batch.to_pylist()]
    longest_ms = max(row["throttle_ms_max"] for batch in rows for row in batch.to_pylist())
    assert (minute["throttled"], minute["requests"]) == (3, None)
    assert (whole["throttled"], whole["requests"], whole["throttle_ms_max"]) == (3, 3, longest_ms)
    assert minute["throttle_ms"] == whole["throttle_ms"] > longest_ms
    assert list(merged([])) == []


def test_spark_and_arrow_agree_on_the_columns() -> None:
    assert from_arrow_schema(OUTCOME).fieldNames() == OUTCOME.names
