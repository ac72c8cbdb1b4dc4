"""The find_anomalies itself, on histories with one thing wrong each."""

from __future__ import annotations

from system_tests.faults.history import Entry, History, Mark, Place, find_anomalies


def clean() -> History:
    """Two keys on two partitions, three records each, all acknowledged and consumed."""
    history = History()
    for key in range(2):
        for sequence in range(3):
            entry = Entry(Place(key, sequence), Mark(key, sequence))
            history.sent.add(entry.mark)
            history.acknowledged[entry.mark] = entry.place
            history.log.append(entry)
            history.consumed.setdefault(f"consumer-{key}", []).append(entry)
    return history


def test_clean_history_is_clean() -> None:
    assert not find_anomalies(clean())


def test_acknowledged_record_missing_from_log_is_lost() -> None:
    history = clean()
    gone = history.log.pop(1)
    anomalies = find_anomalies(history)
    assert anomalies.lost == [gone.mark]
    assert "1 lost" in str(anomalies)


def test_failed_record_may_be_in_log_or_missing() -> None:
    history = clean()
    history.sent |= {Mark(0, 3), Mark(0, 4)}
    history.failed = {Mark(0, 3): "timed out", Mark(0, 4): "timed out"}
    history.log.append(Entry(Place(0, 3), Mark(0, 3)))
    assert not find_anomalies(history)


def test_duplicate_is_one_record_at_two_places() -> None:
    history = clean()
    history.log.append(Entry(Place(0, 3), Mark(0, 2)))
    assert find_anomalies(history).duplicate == [Mark(0, 2)]
    assert not find_anomalies(history, allow_duplicates=True)


def test_nonmonotonic_is_a_number_that_falls_along_the_log() -> None:
    history = clean()
    history.log[1], history.log[2] = (
        Entry(Place(0, 1), Mark(0, 2)),
        Entry(Place(0, 2), Mark(0, 1)),
    )
    history.acknowledged[Mark(0, 1)], history.acknowledged[Mark(0, 2)] = Place(0, 2), Place(0, 1)
    history.consumed["consumer-0"] = history.log[:3]
    assert find_anomalies(history).nonmonotonic == [Entry(Place(0, 2), Mark(0, 1))]


def test_only_duplicates_may_be_dropped() -> None:
    history = clean()
    history.log.append(Entry(Place(0, 3), Mark(0, 0)))
    assert not find_anomalies(history, allow_duplicates=True)
    history.sent |= {Mark(0, 5), Mark(0, 4)}
    history.log += [Entry(Place(0, 4), Mark(0, 5)), Entry(Place(0, 5), Mark(0, 4))]
    assert find_anomalies(history, allow_duplicates=True).nonmonotonic == [
        Entry(Place(0, 5), Mark(0, 4))
    ]


def test_record_passed_over_by_consumer_is_skipped() -> None:
    history = clean()
    passed_over = history.consumed["consumer-0"].pop(1)
    assert find_anomalies(history).skipped == [passed_over]


def test_record_beyond_consumer_position_is_not_skipped() -> None:
    history = clean()
    history.consumed["consumer-0"].pop()
    assert not find_anomalies(history)


def test_rereading_after_committed_offset_is_accepted() -> None:
    history = clean()
    history.consumed["consumer-1"] += history.consumed["consumer-1"][1:]
    assert not find_anomalies(history)


def test_record_never_sent_is_invented() -> None:
    history = clean()
    history.log.append(Entry(Place(1, 3), Mark(7, 0)))
    assert find_anomalies(history).invented == [Entry(Place(1, 3), Mark(7, 0))]


def test_record_at_unacknowledged_offset_is_misplaced() -> None:
    history = clean()
    history.acknowledged[Mark(1, 2)] = Place(0, 2)
    assert find_anomalies(history).misplaced == [Mark(1, 2)]
