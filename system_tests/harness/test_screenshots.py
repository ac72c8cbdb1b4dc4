"""A screenshot is current until a file of its page changes."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

from PIL import Image

from system_tests.harness.screenshots import is_current, save


def test_picture_is_current_until_its_page_changes(tmp_path: Path) -> None:
    page, picture, png = tmp_path / "page", tmp_path / "picture.png", BytesIO()
    page.mkdir()
    style = page / "style.css"
    style.write_text("a { color: red }")
    Image.new("RGB", (2, 1), "red").save(png, "PNG")
    save(png.getvalue(), picture, page)
    assert is_current(picture, page)
    style.write_text("a { color: blue }")
    assert not is_current(picture, page)
    style.write_text("a { color: red }")
    assert is_current(picture, page)
    style.rename(page / "other.css")
    assert not is_current(picture, page)
    picture.write_bytes(png.getvalue())
    assert not is_current(picture, page), "it has no digest"
