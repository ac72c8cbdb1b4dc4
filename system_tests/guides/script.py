"""The script of a page: its blocks with what a reader brings.

Owns the order of what is run. It must never run it. Invariant: the text of a block stays as it is,
except for what `plan.REPLACED` says and a comment that asks for Ctrl-C.
"""

from __future__ import annotations

import re
from fnmatch import fnmatch
from typing import Final

from system_tests.guides.blocks import Block, blocks_of, pages
from system_tests.guides.plan import (
    ALONGSIDE,
    BEFORE,
    BROKER,
    ELSEWHERE,
    FILES,
    NOT_RUN,
    NPM_TEST,
    REPLACED,
    Place,
)

STARTS: Final = re.compile(r"^(minibroker start|make run)\b", re.MULTILINE)


def is_at(block: Block, place: Place) -> bool:
    return block.page == place.page and block.text.startswith(place.beginning)


def is_run_here(block: Block) -> bool:
    """Whether a block of a shell is neither left out nor run by another test."""
    return (
        block.is_shell
        and not block.text.startswith(NPM_TEST)
        and not any(fnmatch(block.page, pattern) for pattern in ELSEWHERE)
        and not any(is_at(block, place) for place in NOT_RUN)
    )


def pages_to_run() -> list[str]:
    """Return the pages of which a block is run."""
    return [page for page in pages() if any(map(is_run_here, blocks_of(page)))]


def script_of(page: str) -> list[tuple[Block | None, str]]:
    """Return what is run for a page; None is for what is on no page."""
    blocks = [block for block in blocks_of(page) if is_run_here(block)]
    script: list[tuple[Block | None, str]] = []
    if not any(STARTS.search(block.text) for block in blocks):
        script.append((None, f"minibroker start --control 127.0.0.1:8080 {BROKER.get(page, '')}"))
    if page in FILES:
        language, name = FILES[page]
        [content] = [block.text for block in blocks_of(page) if block.language == language]
        script.append((None, f"cat > {name} <<'END_OF_FILE'\n{content}END_OF_FILE"))
    for block in blocks:
        script += [(None, does) for place, does in BEFORE.items() if is_at(block, place)]
        script += [
            (None, f"{{ {does}\n}} >> $KEPT/alongside 2>&1 &")
            for place, does in ALONGSIDE.items()
            if is_at(block, place)
        ]
        text = block.text
        for written, read in REPLACED.get(page, {}).items():
            text = text.replace(written, read)
        script.append((block, re.sub(r"#[^\n]*Ctrl-C.*", "; ctrl-c", text)))
    return script
