"""The pictures of docs/guides/console.md are of the present console."""

from __future__ import annotations

import pytest

from system_tests.console.pictures import CONSOLE, PICTURES, Picture
from system_tests.harness.screenshots import DOCS, is_current


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.file)
def test_picture_is_current(picture: Picture) -> None:
    assert is_current(DOCS / picture.file, CONSOLE), "take it again: make screenshots"
