from __future__ import annotations

import pytest

from minibroker.lab.control.backend import Backend
from minibroker.lab.control.schema import InvalidJson, parse
from minibroker.lab.control.snapshot_shapes import SNAPSHOT_NAME, SnapshotCreation, SnapshotsBackend


def test_backend_has_snapshots() -> None:
    assert SnapshotsBackend in Backend.__mro__


def test_name_is_optional_and_bounded() -> None:
    assert parse(SnapshotCreation, {}) == SnapshotCreation(None)
    assert parse(SnapshotCreation, {"name": "a-1"}) == SnapshotCreation("a-1")
    with pytest.raises(InvalidJson):
        parse(SnapshotCreation, {"name": "a" * 65})


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a.b", "a b", "a\n", "ä"])
def test_name_cannot_be_a_path(name: str) -> None:
    assert SNAPSHOT_NAME.fullmatch(name) is None
