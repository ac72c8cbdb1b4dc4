"""The console's files are all there, and nothing else can be read."""

from __future__ import annotations

import re

import httpx
import pytest

from minibroker.control.backend import NotFound
from minibroker.control.files import FOLDER, MEDIA_TYPES, read


def test_every_file_of_the_folder_is_served_and_no_other() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(MEDIA_TYPES)


@pytest.mark.parametrize(
    "name", ["", "..", "../files.py", "nothing.js", "\0", "style.css/", "x" * 999]
)
def test_what_is_not_named_is_not_read(name: str) -> None:
    with pytest.raises(NotFound) as refused:
        read(name)
    assert len(refused.value.message) < 200


@pytest.mark.parametrize("name", sorted(MEDIA_TYPES))
def test_a_file_names_no_other_place(name: str) -> None:
    content = read(name)[0].decode()
    named = set(re.findall(r"https?://[^\s\"']+", content))
    assert named <= {"http://www.w3.org/2000/svg"}  # the name of a language, fetched by nobody


async def test_the_page_and_its_files_come_with_their_types_and_bounds(
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
    refused = await client.get("/console/%2e%2e/files.py")
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "NO_SUCH_FILE")
