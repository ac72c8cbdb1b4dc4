"""Static files of the console, from the folder ``console`` next to this module.

Owns the list of files, their media types and their security headers. Must never know their content,
nor HTTP beyond two headers. The invariant: only files listed here are read, and the page can load
nothing from other hosts. Files are read on request, so they cost nothing if the console is not
used. Kafka has no counterpart.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from minibroker.lab.control.backend import NotFound

FOLDER: Final = Path(__file__).parent / "console"

_SCRIPT: Final = "text/javascript"

MEDIA_TYPES: Final = {
    "index.html": "text/html",
    "stage.css": "text/css",
    "style.css": "text/css",
    "quotas.css": "text/css",
    "requests.css": "text/css",
    "faults.css": "text/css",
    "icon.svg": "image/svg+xml",
    "dom.js": _SCRIPT,
    "faults.js": _SCRIPT,
    "flights.js": _SCRIPT,
    "layout.js": _SCRIPT,
    "main.js": _SCRIPT,
    "model.js": _SCRIPT,
    "panels.js": _SCRIPT,
    "polling.js": _SCRIPT,
    "quotas.js": _SCRIPT,
    "requests.js": _SCRIPT,
    "room.js": _SCRIPT,
    "stage.js": _SCRIPT,
    "trace.js": _SCRIPT,
    "usage.js": _SCRIPT,
    "views.js": _SCRIPT,
    "words.js": _SCRIPT,
}

HEADERS: Final = {
    # No text from a client, such as its client id, can run as a script or load from other hosts.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "referrer-policy": "no-referrer",
}


def read(name: str) -> tuple[bytes, str]:
    """Return a file's content and media type; raise ``NotFound`` if it is not listed."""
    media_type = MEDIA_TYPES.get(name)
    if media_type is None:
        raise NotFound("NO_SUCH_FILE", f"the console has no file {name[:100]!r}", "See /console.")
    return (FOLDER / name).read_bytes(), media_type
