"""The pictures of docs/guides/pipeline.md are of the present report."""

from __future__ import annotations

import pytest

from system_tests.harness.screenshots import DOCS, is_current
from system_tests.pipeline.pictures import PICTURES, REPORT


@pytest.mark.parametrize("picture", PICTURES)
def test_picture_is_current(picture: str) -> None:
    assert is_current(DOCS / picture, REPORT), "take it again: make screenshots"
