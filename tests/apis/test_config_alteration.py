"""A request's resources as a whole: what is refused before anybody looks at a setting."""

from __future__ import annotations

from typing import Any

from minibroker.apis.config_alteration import (
    BROKER_TYPE,
    TOPIC_TYPE,
    Part,
    Wish,
    execute_at_controller,
)
from minibroker.cluster.configs import Op, Operation

STEP = (Operation("max.connections", Op.SET, "5"),)


async def ask(
    desk: Any, *wishes: Wish, validate_only: bool = False
) -> list[tuple[int, str] | None]:
    part = Part(wishes, replace=False, validate_only=validate_only)
    return list(await execute_at_controller(desk.controller, part))


async def test_each_wish_is_answered_in_its_place(desk: Any) -> None:
    unknown, fine, topic = await ask(
        desk,
        Wish(8, "1", STEP),
        Wish(BROKER_TYPE, "1", STEP),
        Wish(TOPIC_TYPE, "missing", (Operation("retention.ms", Op.SET, "5"),)),
    )
    assert unknown == (42, "Unknown resource type 8")
    assert fine is None
    assert topic is not None
    assert topic[0] == 3
    assert desk.controller.at_processor.configs["brokers", "1"] == {"max.connections": "5"}


async def test_a_resource_named_twice_is_not_touched(desk: Any) -> None:
    other = (Operation("max.connections", Op.SET, "6"),)
    answers = await ask(desk, Wish(BROKER_TYPE, "1", STEP), Wish(BROKER_TYPE, "1", other))
    assert answers == [(42, "Each resource must appear at most once.")] * 2
    assert ("brokers", "1") not in desk.cluster.image.configs


async def test_what_is_only_validated_is_not_done(desk: Any) -> None:
    assert await ask(desk, Wish(BROKER_TYPE, "1", STEP), validate_only=True) == [None]
    assert desk.controller.published == []
