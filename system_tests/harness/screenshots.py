"""Screenshots of docs, each of which names the page that it shows.

Owns the text chunk of a PNG file that has a digest of the page's files. It must never know what a
picture shows. Invariant: a picture is current as long as no file of its page has changed.
"""

from __future__ import annotations

import hashlib
from io import BytesIO
from pathlib import Path
from typing import Final

from PIL import Image
from PIL.PngImagePlugin import PngInfo

DOCS: Final = Path(__file__).parents[2] / "docs"
DIGEST: Final = "Page digest"


def digest(page: Path) -> str:
    """Return the digest of the files in the folder of a page."""
    found = hashlib.sha256()
    for file in sorted(page.iterdir()):
        if file.is_file():
            content = file.read_bytes()
            found.update(f"{file.name} {len(content)}\n".encode() + content)
    return found.hexdigest()


def save(png: bytes, picture: Path, page: Path) -> None:
    """Save a screenshot of a page."""
    chunks = PngInfo()
    chunks.add_text(DIGEST, digest(page))
    with Image.open(BytesIO(png)) as image:
        small = image.convert("RGB").quantize(256)  # Half the size, and no difference to be seen.
    small.save(picture, pnginfo=chunks, optimize=True)


def is_current(picture: Path, page: Path) -> bool:
    """Whether no file of the page has changed since the picture was taken."""
    with Image.open(picture) as image:
        return image.info.get(DIGEST) == digest(page)
