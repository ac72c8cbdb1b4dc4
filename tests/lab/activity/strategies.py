"""Activity events of all kinds, as processes send them."""

from __future__ import annotations

from hypothesis import strategies as st

from minibroker.lab.activity.events import (
    Check,
    ConnectionActivity,
    ConnectionStep,
    Dropped,
    Request,
    WrittenEvent,
)

TIMES = st.integers(0, 2**60)
COUNTS = st.integers(0, 2**40)
MILLISECONDS = st.integers(0, 2**31 - 1)
NAMES = st.text(max_size=20)
INT16 = st.integers(-(2**15), 2**15 - 1)


def checks() -> st.SearchStrategy[Check]:
    bounds = st.none() | st.floats(0, 1e18)
    return st.tuples(NAMES, NAMES, st.floats(-1e18, 1e18), bounds, MILLISECONDS, TIMES)


def requests() -> st.SearchStrategy[Request]:
    check = st.none() | checks()
    return st.tuples(
        TIMES,
        TIMES,
        st.tuples(NAMES, COUNTS, NAMES, NAMES, NAMES),
        INT16,
        INT16,
        COUNTS,
        COUNTS,
        st.none() | COUNTS,
        st.none() | st.tuples(COUNTS, COUNTS, st.booleans()),
        st.booleans(),
        COUNTS,
        COUNTS,
        COUNTS,
        COUNTS,
        COUNTS,
        st.none() | st.tuples(COUNTS, TIMES, st.none() | COUNTS),
        st.none() | st.tuples(check, check, check, check),
        st.none() | st.tuples(COUNTS, st.none() | COUNTS, st.none() | COUNTS),
        MILLISECONDS,
        INT16,
    )


def happenings() -> st.SearchStrategy[ConnectionActivity]:
    happened = st.sampled_from([kind.value for kind in ConnectionStep])
    peers = st.tuples(NAMES, COUNTS, NAMES)
    return st.tuples(TIMES, TIMES, peers, happened, st.none() | NAMES, st.none() | MILLISECONDS)


def drops() -> st.SearchStrategy[Dropped]:
    return st.tuples(TIMES, TIMES, COUNTS)


def events() -> st.SearchStrategy[WrittenEvent]:
    return requests() | happenings() | drops()
