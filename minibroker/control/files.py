"""The console's files, as they lie in the folder ``console`` beside this module.

Owns which files there are, what they are to a browser, and what they may do there. Must never
know what is in them, nor HTTP beyond two headers. The invariant: only a file named here is read,
and a page made of them can fetch nothing from anywhere but this broker. They are read when asked
for, so that a broker nobody looks at pays nothing for them. Nothing of Kafka's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from minibroker.control.backend import NotFound

FOLDER: Final = Path(__file__).parent / "console"

_SCRIPT: Final = "text/javascript"

MEDIA_TYPES: Final = {
    "index.html": "text/html",
    "stage.css": "text/css",
    "style.css": "text/css",
    "quotas.css": "text/css",
    "icon.svg": "image/svg+xml",
    "dom.js": _SCRIPT,
    "flights.js": _SCRIPT,
    "layout.js": _SCRIPT,
    "main.js": _SCRIPT,
    "model.js": _SCRIPT,
    "panels.js": _SCRIPT,
    "polling.js": _SCRIPT,
    "quotas.js": _SCRIPT,
    "room.js": _SCRIPT,
    "stage.js": _SCRIPT,
    "usage.js": _SCRIPT,
    "views.js": _SCRIPT,
    "words.js": _SCRIPT,
}

HEADERS: Final = {
    # Whatever a client calls itself, nothing of it can run here, and nothing leaves for elsewhere.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "referrer-policy": "no-referrer",
}


def read(name: str) -> tuple[bytes, str]:
    """A file's content and media type; ``NotFound`` if it isn't one of the console's."""
    media_type = MEDIA_TYPES.get(name)
    if media_type is None:
        raise NotFound("NO_SUCH_FILE", f"the console has no file {name[:100]!r}", "See /console.")
    return (FOLDER / name).read_bytes(), media_type
