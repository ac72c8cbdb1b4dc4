"""A persona is shown by its name, e.g. as the value of the setting."""

from __future__ import annotations

from minibroker.broker.settings.persona import Behaviour, Persona


def test_persona_is_shown_by_its_name() -> None:
    behaviour = Behaviour("all", "muted", 0, 0, "")
    persona = Persona("kafka-2.8", "source", {}, None, behaviour, {})
    assert str(persona) == "kafka-2.8"
