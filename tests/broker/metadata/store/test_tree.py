"""The interface's own helpers: paths, sizes and how sequences are written."""

from __future__ import annotations

import pytest

from minibroker.broker.metadata.store.tree import (
    NODE_MAX_BYTES,
    BadPathError,
    TooLargeError,
    check_data,
    check_path,
    parent_of,
    sequence_text,
)


@pytest.mark.parametrize(
    ("path", "parent"), [("/a", "/"), ("/a/b", "/a"), ("/config/topics/x.y", "/config/topics")]
)
def test_path_has_a_parent(path: str, parent: str) -> None:
    check_path(path)
    assert parent_of(path) == parent


@pytest.mark.parametrize("path", ["", "a", "/a/", "//a", "/a//b", "/./a", "/a/..", "/\0"])
def test_invalid_path_is_rejected(path: str) -> None:
    with pytest.raises(BadPathError) as caught:
        check_path(path)
    assert caught.value.path == path


def test_data_is_bounded() -> None:
    check_data("/a", bytes(NODE_MAX_BYTES))
    with pytest.raises(TooLargeError, match="1000001 bytes are more than the 1000000"):
        check_data("/a", bytes(NODE_MAX_BYTES + 1))


def test_sequences_sort_numerically() -> None:
    assert sequence_text(0) == "0000000000"
    assert sequence_text(9) < sequence_text(10) < sequence_text(2**31 - 1)
