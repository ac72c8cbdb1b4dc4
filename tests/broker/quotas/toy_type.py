"""Adds a quota type by one row and uses it; ``test_types.py`` runs this in a new process.

The row is inserted into the source of ``minibroker.broker.quotas.types`` before any other module is
loaded, as a developer would add it.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Any

ROW = """
    TOY = (
        "Toy",
        QuotaRow(
            config_key="toy_rate",
            unit="toys/s",
            control_name="toy",
            short_name="toy",
            metric="minibroker_quota_toy_rate",
        ),
    )
"""


def add_row() -> None:
    """Load ``minibroker.broker.quotas.types`` with the toy type behind the other rows."""
    name = "minibroker.broker.quotas.types"
    spec = find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    with open(spec.origin, encoding="utf-8") as file:
        rows, end, rest = file.read().partition("\n\nBY_NAME: Final")
    module = ModuleType(name)
    sys.modules[name] = module
    exec(compile(rows + ROW + end + rest, spec.origin, "exec"), module.__dict__)


def use() -> None:
    """Alter, describe, record, enforce, show and explain a quota of the toy type."""
    # Imported after the row was added.
    import trio

    from minibroker.broker.metadata.image import ChangeRejected, Image, apply
    from minibroker.broker.metadata.quotas import (
        Component,
        EffectiveQuotas,
        Match,
        QuotaChange,
        find,
        plan_change,
    )
    from minibroker.broker.quotas.command_lines import parse
    from minibroker.broker.quotas.ledger import QuotaLedger
    from minibroker.broker.quotas.types import BY_KEY, CLIENT_QUOTA_TYPES
    from minibroker.broker.roles.metadata_publisher import read_gauges
    from minibroker.broker.settings import Settings
    from minibroker.lab.control.quotas import QuotaQuery, explain_quota, list_quotas

    toy, who = BY_KEY["toy_rate"], ("alice", "app")
    number = CLIENT_QUOTA_TYPES.index(toy)
    assert parse("--alter --client app --add-config toy_rate=5", "f").lines[0].additions

    altered = plan_change(Image(), QuotaChange((("client-id", "app"),), (("toy_rate", 5.0),)), ())
    assert not isinstance(altered, ChangeRejected), altered
    image = apply(Image(), altered)
    described = find(image, [Component("client-id", Match.EXACT, "app")], strict=True)
    assert list(described) == [({"client-id": "app"}, {"toy_rate": 5.0})]
    refused = plan_change(Image(), QuotaChange((("ip", "::1"),), (("toy_rate", 5.0),)), ())
    assert isinstance(refused, ChangeRejected)

    ledger = QuotaLedger(11, 1000, shared=True)
    in_force = EffectiveQuotas(Settings.from_entries([]), ledger)
    in_force.follow(image)
    quotas = in_force.quotas
    assert quotas.record(number, who, 50, 0).ms == 0
    throttle = quotas.record(number, who, 50, 0)
    assert (throttle.kind, throttle.ms) == (toy, 10_000)
    assert quotas.record(number, ("alice", "other"), 500, 0).ms == 0
    quotas.throttled(throttle, who, 0, 0)

    gauges = read_gauges(ledger, quotas.table, 0)
    assert gauges["minibroker_quota_toy_rate", ("Toy", "", "app")] == 10
    env = SimpleNamespace(
        ledger=ledger, clock=SimpleNamespace(now=lambda: 0.0), settings=Settings.from_entries([])
    )
    broker: Any = SimpleNamespace(env=env, scope=SimpleNamespace(quotas=quotas))
    view = trio.run(list_quotas, broker)
    assert [(each.type, each.client_id, each.throttle_ms) for each in view.throttles] == [
        ("toy", "app", 10_000)
    ]
    question = QuotaQuery(*who, type="toy")
    explained = trio.run(explain_quota, broker, question)
    assert (explained.key, explained.quota, explained.rate) == ("toy_rate", 5, 10)
    assert (explained.path, explained.throttle_ms) == ("/config/clients/app", 10_000)


if __name__ == "__main__":
    add_row()
    use()
