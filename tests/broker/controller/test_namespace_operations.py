"""The backend delegates operations on namespaces."""

from __future__ import annotations

from typing import Any

from minibroker.broker.controller.namespace_operations import NamespaceOperations
from minibroker.lab.control.namespace_shapes import NamespaceCreation
from tests.broker.controller.test_snapshot_operations import Recorded


async def test_all_operations_reach_the_namespaces() -> None:
    operations, recorded = NamespaceOperations(), Recorded()
    operations.__dict__["_namespaces"] = recorded
    new = NamespaceCreation("n")
    results: list[Any] = [await operations.open_namespace(new), await operations.namespaces()]
    await operations.remove_namespace("n")
    assert results == ["open_namespace", "namespaces"]
    expected = [("open_namespace", new), ("namespaces",), ("remove_namespace", "n")]
    assert recorded.calls == expected
