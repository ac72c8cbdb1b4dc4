from __future__ import annotations

from pathlib import Path

import pytest

from minibroker.broker.log.cleaner.checkpoint import (
    CLEANER_CHECKPOINT,
    has_cleaner_checkpoint,
    read_cleaner_checkpoint,
    write_cleaner_checkpoint,
)


def test_checkpoint_has_kafka_format(tmp_path: Path) -> None:
    directory = str(tmp_path)
    assert not has_cleaner_checkpoint(directory)
    assert read_cleaner_checkpoint(directory) is None
    write_cleaner_checkpoint(directory, "t", 3, 42)
    assert (tmp_path / CLEANER_CHECKPOINT).read_text() == "0\n1\nt 3 42\n"
    assert read_cleaner_checkpoint(directory) == 42


@pytest.mark.parametrize("text", ["", "1\n1\nt 3 42\n", "0\n1\nt 3\n", "0\n2\nt 3 4\n", "\xff"])
def test_damaged_checkpoint_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / CLEANER_CHECKPOINT).write_bytes(text.encode("latin-1"))
    assert read_cleaner_checkpoint(str(tmp_path)) is None
    assert has_cleaner_checkpoint(str(tmp_path))
