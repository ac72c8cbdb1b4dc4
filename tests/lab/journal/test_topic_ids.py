"""A name has the ids of all topics that had it, within a bound."""

from __future__ import annotations

from minibroker.lab.journal.topic_ids import TopicIds


def test_name_has_the_ids_of_topics_that_are_gone() -> None:
    ids = TopicIds()
    ids.learn({b"1": "t", b"2": "u"})
    ids.learn({b"2": "u", b"3": "t"})
    assert ids.of("t") == {b"1", b"3"}
    assert ids.of("u") == {b"2"}
    assert ids.of("none") == frozenset()


def test_ids_that_were_learned_first_are_forgotten() -> None:
    ids = TopicIds(2)
    for topic_id, name in [(b"1", "t"), (b"2", "u"), (b"3", "t"), (b"4", "u")]:
        ids.learn({topic_id: name})
    assert ids.of("t") == {b"3"}
    assert ids.of("u") == {b"4"}
    ids.learn({b"5": "v"})
    assert ids.of("t") == frozenset()
