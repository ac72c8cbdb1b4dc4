"""Ledgers of each kind, and quota tables."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from minibroker.broker.quotas.ledger import QuotaLedger
from minibroker.broker.quotas.manager import (
    AnyLedger,
    ClientQuotaManager,
)
from minibroker.broker.quotas.types import Entity, QuotaTable, QuotaType
from tests.broker.quotas.oracle import OracleLedger

MakeLedger = Callable[[int, int], AnyLedger]


def make_shared(samples: int, window_ms: int) -> AnyLedger:
    return QuotaLedger(samples, window_ms, shared=True)


def make_own(samples: int, window_ms: int) -> AnyLedger:
    return QuotaLedger(samples, window_ms, shared=False)


@pytest.fixture(params=[OracleLedger, make_own, make_shared], ids=["oracle", "own", "shared"])
def make(request: pytest.FixtureRequest) -> MakeLedger:
    made: MakeLedger = request.param
    return made


@pytest.fixture
def quotas(make: MakeLedger) -> ClientQuotaManager:
    return ClientQuotaManager(make(11, 1000))


def table(
    kind: QuotaType, *bounds: tuple[Entity, float], defaults: float | None = None
) -> QuotaTable:
    static = {} if defaults is None else {kind: defaults}
    kinds = 0
    for entity, _ in bounds:
        kinds |= entity.bit
    return QuotaTable({kind: dict(bounds)}, kinds, static)
