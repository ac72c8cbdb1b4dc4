"""The view of clients, topics and groups: rates, order, and what fits a terminal."""

from __future__ import annotations

import json
from typing import Any

from minibroker.cli.screen import Emphasis, Line, ViewSize
from minibroker.cli.top import Look, TopFigures, compare, read_values, render_top

PAGE = """\
# HELP minibroker_requests_total Requests answered.
# TYPE minibroker_requests_total counter
minibroker_requests_total{{api="Produce",result="ok"}} {requests}
minibroker_requests_total{{api="Fetch",result="error"}} {errors}
minibroker_record_bytes_in_total {bytes_in}
minibroker_topic_bytes_in_total{{topic="orders"}} {bytes_in}
minibroker_topic_records_in_total{{topic="orders"}} {errors}
minibroker_log_size_bytes{{topic="orders",partition="0"}} 2048
minibroker_log_size_bytes{{topic="orders",partition="1"}} 1024
minibroker_log_size_bytes{{topic="audit",partition="0"}} 9000
minibroker_log_size_bytes{{topic="empty",partition="0"}} 0
minibroker_group_lag{{group="shop",topic="orders",partition="0"}} 3
minibroker_group_lag{{group="shop",topic="orders",partition="1"}} 4000
minibroker_group_lag{{group="a",topic="orders",partition="1"}} 1
minibroker_process_idle_ratio{{process="worker-0"}} 0.75
minibroker_log_dir_free_bytes{{directory="/data"}} 1048576
minibroker_log_dir_total_bytes{{directory="/data"}} 4194304
minibroker_process_up{{process="worker-0"}} 1
"""


def connection(client_id: str | None, state: str, api: str | None = None) -> dict[str, Any]:
    return {
        "client_id": client_id,
        "principal": "User:alice",
        "software_name": "lib",
        "software_version": "1",
        "state": state,
        "in_flight": api,
    }


CONNECTIONS = {
    "total": 4,
    "processors": [
        {
            "connections": [
                connection("quiet", "reading"),
                connection("quiet", "muted", "Fetch"),
                connection("loud\x1b[2J", "throttled"),
                connection(None, "reading"),
            ]
        }
    ],
}


def use(client_id: str, throttle_ms: float | None) -> dict[str, Any]:
    measured = {"rate": 2048.0, "quota": 1024.0, "throttle_ms": throttle_ms}
    return {"type": "produce", "user": "al%2Bice", "client_id": client_id, **measured}


QUOTAS = {"uses": [use("idle", None), use("some", 5), use("loud", 250)]}


def look(at_s: float, **counts: int) -> Look:
    return Look(at_s, read_values(PAGE.format(**counts)), CONNECTIONS, QUOTAS)


def figures() -> TopFigures:
    before = look(10.0, requests=100, errors=0, bytes_in=0)
    return compare(before, look(12.0, requests=300, errors=6, bytes_in=4096))


def text(lines: list[Line]) -> list[str]:
    return ["".join(piece.text for piece in line).rstrip() for line in lines]


def test_rates_are_differences_by_elapsed_time() -> None:
    broker = figures().broker
    assert (broker.requests, broker.errors, broker.bytes_in) == (103.0, 3.0, 2048.0)
    assert broker.busy == {"worker-0": 0.25}


def test_counters_of_a_restarted_broker_are_no_negative_rates() -> None:
    before = look(10.0, requests=100, errors=0, bytes_in=100)
    assert compare(before, look(12.0, requests=1, errors=0, bytes_in=0)).broker.requests == 0


def test_view_shows_throttled_clients_busy_topics_and_lag_first() -> None:
    assert text(render_top(figures(), ViewSize())) == [
        "4 connections, 103 requests/s, 3.0 errors/s",
        "in 2.0 KiB/s, 0 records/s; out 0 B/s",
        "busy: worker-0 25%; disk 1.0 MiB of 4.0 MiB free",
        "",
        "THROTTLED  USER    CLIENT-ID      RATE     QUOTA    TIME",
        "produce    al+ice  loud       2048 B/s  1024 B/s  250 ms",
        "produce    al+ice  some       2048 B/s  1024 B/s    5 ms",
        "",
        "CLIENT-ID    USER   CONNECTIONS  THROTTLED  DOING               SOFTWARE",
        "loud\\x1b[2J  alice            1          1  1 throttled         lib 1",
        "quiet        alice            2          0  1 reading, 1 Fetch  lib 1",
        "-            alice            1          0  1 reading           lib 1",
        "",
        "TOPIC      IN/S  RECORDS/S  OUT/S     SIZE",
        "orders  2.0 KiB        3.0    0 B  3.0 KiB",
        "audit       0 B          0    0 B  8.8 KiB",
        "",
        "GROUP  TOPIC     LAG",
        "shop   orders  4,003",
        "a      orders      1",
    ]


def test_small_terminal_gets_parts_of_every_section() -> None:
    lines = text(render_top(figures(), ViewSize(columns=40, lines=19)))
    assert len(lines) <= 19
    assert max(map(len, lines)) <= 40
    first_words = {line.split()[0] for line in lines if line}
    assert {"THROTTLED", "CLIENT-ID", "TOPIC", "GROUP"} <= first_words
    assert "…" in lines


def test_throttles_are_emphasized() -> None:
    paints = {
        piece.text: piece.paint for line in render_top(figures(), ViewSize()) for piece in line
    }
    assert paints["250 ms"] is Emphasis.WARNING


def test_idle_broker_says_what_there_is_not() -> None:
    values = read_values("")
    nothing = Look(0.0, values, {"total": 0, "processors": []}, {"uses": []})
    lines = text(render_top(compare(nothing, nothing), ViewSize()))
    assert "no client is throttled" in lines
    assert "no topics with records" in lines


def test_top_of_a_broker_is_printed_once(
    command: Any, minibroker_topic: str, minibroker_group: str
) -> None:
    command("produce", minibroker_topic, "a", "b")
    read = ("--group", minibroker_group, "--from-beginning", "--max-messages", "1")
    command("consume", minibroker_topic, *read, "--timeout", "5")
    found = json.loads(command("top", "--json", "--interval", "0.1").stdout)
    row = {"group": minibroker_group, "topic": minibroker_topic, "lag": 1}
    assert row in found["groups"]
    assert minibroker_topic in {each["topic"] for each in found["topics"]}
    assert "requests/s" in command("top", "--once", "--interval", "0.1").stdout
