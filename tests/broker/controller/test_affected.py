"""Updates name the topics and resources that they change."""

from __future__ import annotations

from minibroker.broker.controller.affected import affected
from minibroker.broker.metadata.image import (
    BROKER,
    TOPIC,
    BrokerGone,
    Change,
    ConfigChanged,
    PartitionsAdded,
    Topic,
    TopicCreated,
    TopicDeleted,
    Update,
)


def test_changes_of_topics_and_configs_are_named_and_others_are_not() -> None:
    changes: tuple[Change, ...] = (
        TopicCreated(Topic("created", bytes(16), ())),
        TopicDeleted("deleted", bytes(16)),
        PartitionsAdded("grown", ()),
        ConfigChanged(TOPIC, "configured", {}),
        ConfigChanged(BROKER, "1", {}),
        BrokerGone(1),
    )
    assert list(affected(Update(0, 1, changes))) == [
        ("created", None),
        ("deleted", None),
        ("grown", None),
        ("configured", "configured"),
        (None, "1"),
        (None, None),
    ]
