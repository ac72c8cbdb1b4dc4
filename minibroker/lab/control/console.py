"""The console, the index and the OpenAPI description, as the control API serves them.

Owns the list of the console's files in the folder ``console`` next to this module, with their media
types and security headers. Must never know their content, nor an operation on a broker. The
invariant: only files listed here are read, and the page can load nothing from other hosts. Files
are read on request, so they cost nothing if the console is not used. Kafka has no counterpart.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from minibroker.lab.control.operation import ApiContext, Operations, Redirect, Text
from minibroker.lab.errors import NotFound

CONSOLE: Final = "/console"

FOLDER: Final = Path(__file__).parent / "console"

_SCRIPT: Final = "text/javascript"

MEDIA_TYPES: Final = {
    "index.html": "text/html",
    "stage.css": "text/css",
    "style.css": "text/css",
    "quotas.css": "text/css",
    "requests.css": "text/css",
    "faults.css": "text/css",
    "data.css": "text/css",
    "icon.svg": "image/svg+xml",
    "dom.js": _SCRIPT,
    "faults.js": _SCRIPT,
    "flights.js": _SCRIPT,
    "groups.js": _SCRIPT,
    "layout.js": _SCRIPT,
    "main.js": _SCRIPT,
    "messages.js": _SCRIPT,
    "model.js": _SCRIPT,
    "panels.js": _SCRIPT,
    "plots.js": _SCRIPT,
    "polling.js": _SCRIPT,
    "quotas.js": _SCRIPT,
    "records.js": _SCRIPT,
    "requests.js": _SCRIPT,
    "room.js": _SCRIPT,
    "stage.js": _SCRIPT,
    "topics.js": _SCRIPT,
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


INDEX_OPERATIONS: Final = Operations()
CONSOLE_OPERATIONS: Final = Operations()


@INDEX_OPERATIONS.add("GET", "/", media_type="text/plain")
async def get_index(context: ApiContext) -> Redirect | Text:
    """List the operations; redirect a browser to the console."""
    lines = [f"{each.method:<6} {each.path:<24} {each.summary}" for each in context.operations]
    text = Text("\n".join([*lines, ""]).encode(), "text/plain")
    has_console = any(each.path == CONSOLE for each in context.operations)
    return Redirect(CONSOLE, text) if has_console else text


@CONSOLE_OPERATIONS.add("GET", CONSOLE, media_type="text/html")
async def get_console(context: ApiContext) -> Text:
    """Return the console, a page that shows connections in real time."""
    return await get_console_file(context, "index.html")


@CONSOLE_OPERATIONS.add(
    "GET", "/console/{name}", media_type="*/*", errors={404: "There is no file with this name."}
)
async def get_console_file(_: ApiContext, name: str) -> Text:
    """Return a file of the console."""
    media_type = MEDIA_TYPES.get(name)
    if media_type is None:
        raise NotFound("NO_SUCH_FILE", f"the console has no file {name[:100]!r}", "See /console.")
    return Text((FOLDER / name).read_bytes(), media_type, HEADERS)


@INDEX_OPERATIONS.add("GET", "/openapi.json", media_type="application/json")
async def get_description(context: ApiContext) -> Text:
    """Return the OpenAPI description of this API."""
    # Imported with the first request, because most brokers never get one.
    from minibroker.lab.control.operation import description

    content = json.dumps(description(context.operations), indent=1).encode()
    return Text(content, "application/json")
