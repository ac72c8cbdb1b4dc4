"""Log lines: one event, one bounded line, for any input of clients."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.metrics.definitions import CLOSED, CloseReason
from minibroker.broker.metrics.log import (
    BURST,
    EVENTS_MAX,
    LINE_MAX,
    ROOT,
    WINDOW_S,
    Admission,
    ConnectionCloses,
    EventLog,
    RepeatLimiter,
    configure,
    format_line,
)
from minibroker.broker.metrics.metrics import ProcessMetrics

WALL_MS = 1_700_000_000_123


class Written(io.StringIO):
    def lines(self) -> list[str]:
        return self.getvalue().splitlines()


class Seconds:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def real() -> Seconds:
    return Seconds()


@pytest.fixture
def written(real: Seconds) -> Iterator[Written]:
    logger = logging.getLogger(ROOT)
    before = (logger.handlers[:], logger.level, logger.propagate)
    stream = Written()
    configure("processor-0", lambda: WALL_MS, stream=stream, real=real)
    yield stream
    logger.handlers[:], logger.level, logger.propagate = before


def test_log_line_has_time_process_level_message_and_fields(written: Written) -> None:
    EventLog("network").info("listening", listener="PLAINTEXT", port=9092)
    assert written.lines() == [
        "2023-11-14T22:13:20.123Z processor-0 INFO listening listener=PLAINTEXT port=9092"
    ]


def test_debug_events_are_logged_at_debug_level_only(written: Written, real: Seconds) -> None:
    log = EventLog("network")
    log.debug("quiet")
    assert written.lines() == []
    configure("p", lambda: WALL_MS, stream=written, level=logging.DEBUG, real=real)
    log.debug("quiet")
    assert len(written.lines()) == 1


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("plain/1.2:3", "plain/1.2:3"),
        ("two words", '"two words"'),
        ("", '""'),
        ("a\nFAKE line", '"a\\nFAKE line"'),
        ("\x1b[31m", '"\\u001b[31m"'),
        ("a=b", '"a=b"'),
        ("\ud800", '"\\ud800"'),
        (None, "None"),
    ],
)
def test_field_values_are_escaped(value: object, shown: str) -> None:
    assert format_line(0, "p", "INFO", "m", {"k": value}).endswith(f" m k={shown}\n")


def test_timestamp_beyond_year_9999_is_capped() -> None:
    assert format_line(10**18, "p", "INFO", "m", {}) == "9999-12-31T23:59:59.999Z p INFO m\n"


@given(st.text(), st.dictionaries(st.sampled_from("abc"), st.text(max_size=3000)))
def test_log_line_is_single_and_of_limited_length(message: str, fields: dict[str, str]) -> None:
    line = format_line(0, "p", "INFO", message, fields)
    assert len(line) <= LINE_MAX
    assert len(line.splitlines()) == 1
    assert line.endswith("\n")


def test_failure_is_logged_with_its_code_location(written: Written) -> None:
    try:
        raise KeyError("gone")
    except KeyError as error:
        EventLog("apis").failure("request failed", error, api="Fetch")
    (line,) = written.lines()
    assert "ERROR request failed api=Fetch error=\"KeyError: 'gone'\" at=" in line.replace("\\", "")
    assert "Traceback" not in line


def test_exception_of_other_logger_is_logged_in_one_line(written: Written) -> None:
    try:
        raise ValueError("x")
    except ValueError:
        logging.getLogger(f"{ROOT}.other").exception("went wrong")
    (line,) = written.lines()
    assert "went wrong error=ValueError('x') at=" in line


def test_repeated_events_are_limited_and_omissions_counted(written: Written, real: Seconds) -> None:
    log = EventLog("network")
    for number in range(100):
        log.warning("bad frame", client=number)
    assert len(written.lines()) == BURST
    assert 'repeats="left out for 10 s"' in written.lines()[-1]
    real.now = WINDOW_S
    log.warning("bad frame", client=100)
    assert written.lines()[-1].endswith(f"client=100 left_out={100 - BURST}")


def test_closed_log_stream_is_ignored(real: Seconds, written: Written) -> None:
    written.close()
    EventLog("network").warning("nobody listens")


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 5)), max_size=200))
def test_repeat_limiter_admits_at_most_two_bursts_per_window(
    steps: list[tuple[int, float]],
) -> None:
    limiter, now = RepeatLimiter(), 0.0
    logged: dict[str, list[float]] = {}
    for event, wait in steps:
        now += wait
        if limiter.admit(str(event), now) is not None:
            logged.setdefault(str(event), []).append(now)
    for times in logged.values():
        for first, at in enumerate(times):
            assert sum(at <= t < at + WINDOW_S for t in times[first:]) <= 2 * BURST


def test_repeat_limiter_evicts_least_recently_seen_event() -> None:
    limiter = RepeatLimiter()
    for _ in range(BURST):
        limiter.admit("old", 0)
    assert limiter.admit("old", 0) is None
    for number in range(EVENTS_MAX):
        limiter.admit(f"new {number}", 0)
    assert limiter.admit("old", 0) == Admission(0, False)
    assert len(limiter._seen) == EVENTS_MAX


def test_closed_connections_are_counted_and_faulty_ones_logged(written: Written) -> None:
    metrics = ProcessMetrics("processor-0")
    closes = ConnectionCloses(metrics, EventLog("network"))
    closes.closed("PLAINTEXT", CloseReason.CLIENT_CLOSED, client="127.0.0.1:5")
    closes.closed("PLAINTEXT", CloseReason.FRAME_TOO_LARGE, client="127.0.0.1:6", size=2**30)
    closes.refused("PLAINTEXT", CloseReason.LIMIT, client="127.0.0.1:7")
    counters = metrics.snapshot().counters
    assert {labels[1] for name, labels in counters if name == CLOSED.name} == {
        "client_closed",
        "frame_too_large",
        "limit",
    }
    # A thread of a library may log something of an earlier test now.
    lines = [line for line in written.lines() if " WARNING connection " in line]
    assert [line.split(" WARNING ")[1] for line in lines] == [
        "connection closed: frame_too_large listener=PLAINTEXT client=127.0.0.1:6 size=1073741824",
        "connection refused: limit listener=PLAINTEXT client=127.0.0.1:7",
    ]


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        (("127.0.0.1", 5000), "127.0.0.1:5000"),
        (("::1", 5000, 0, 0), "[::1]:5000"),
        (("a", "b"), "a,b"),
    ],
)
def test_address_is_formatted_as_host_and_port(address: tuple[object, ...], shown: str) -> None:
    line = format_line(0, "p", "INFO", "m", {"client": address})
    assert line.rstrip("\n").endswith(f" client={shown}")
