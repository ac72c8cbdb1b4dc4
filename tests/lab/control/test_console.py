"""The console's files are all there, and nothing else can be read."""

from __future__ import annotations

import re

import httpx
import pytest

from minibroker.lab.control.console import FOLDER, MEDIA_TYPES, get_console_file
from minibroker.lab.control.operation import ApiContext
from minibroker.lab.errors import NotFound


def test_every_console_file_is_served_and_no_other() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(MEDIA_TYPES)


@pytest.mark.parametrize(
    "name", ["", "..", "../console.py", "nothing.js", "\0", "style.css/", "x" * 999]
)
async def test_unlisted_file_is_not_found(fake_broker: ApiContext, name: str) -> None:
    with pytest.raises(NotFound) as refused:
        await get_console_file(fake_broker, name)
    assert len(refused.value.message) < 200


@pytest.mark.parametrize("name", sorted(MEDIA_TYPES))
def test_console_files_load_nothing_from_other_hosts(name: str) -> None:
    content = (FOLDER / name).read_text()
    named = set(re.findall(r"https?://[^\s\"']+", content))
    assert named <= {"http://www.w3.org/2000/svg"}  # the name of a language, never fetched


async def test_console_files_have_media_type_and_security_headers(
    client: httpx.AsyncClient,
) -> None:
    page = await client.get("/console")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    for name in re.findall(r"(?:src|href)=\"console/([^\"]+)\"", page.text):
        answer = await client.get(f"/console/{name}")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith(MEDIA_TYPES[name])
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
    refused = await client.get("/console/%2e%2e/console.py")
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "NO_SUCH_FILE")


def luminance(colour: str) -> float:
    """How bright a colour is, as the accessibility guidelines (WCAG 2) reckon it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_console_colours_have_sufficient_contrast(scheme: int) -> None:
    rules = re.findall(r":root \{(.*?)\}", (FOLDER / "style.css").read_text(), re.DOTALL)
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", rules[scheme]))
    for text in ("ink", "muted", "accent", "waiting-ink", "refused-ink"):
        assert contrast(colours[text], colours["panel"]) >= 4.5, text
    for text in ("ink", "muted"):
        assert contrast(colours[text], colours["ground"]) >= 4.5, text
    assert contrast(colours["waiting-ink"], colours["waiting-wash"]) >= 4.5
    for mark in ("busy", "refused"):
        assert contrast(colours[mark], colours["panel"]) >= 3, mark
    # If the fill of a mark is pale, its edge is visible; a waiting one has a text.
    assert contrast(colours["quiet-edge"], colours["panel"]) >= 2
