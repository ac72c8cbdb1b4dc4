from __future__ import annotations

import pickle
from pathlib import Path

from minibroker.broker.log.slices import FileSlice


def test_file_slice_loads_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"0123456789")
    piece = FileSlice(str(path), 2, 5)
    assert (len(piece), piece.load()) == (5, b"23456")
    assert FileSlice(str(path), 8, 5).load() == b"89"


def test_file_slice_can_be_pickled_and_compares_by_value() -> None:
    piece = FileSlice("/x", 2, 1 << 30)
    copy = pickle.loads(pickle.dumps(piece))
    assert copy == piece
    assert hash(copy) == hash(piece)
    assert copy != FileSlice("/x", 3, 1 << 30)
    assert repr(copy) == "FileSlice('/x', 2, 1073741824)"
