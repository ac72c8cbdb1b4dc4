"""The commands of every page, run from top to bottom as a reader runs them."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path

import pytest

from system_tests.conftest import without_toolchain
from system_tests.guides.blocks import ROOT, blocks_of, pages
from system_tests.guides.plan import (
    ALONGSIDE,
    BEFORE,
    ELSEWHERE,
    FILES,
    IN_CHECKOUT,
    NOT_RUN,
    REPLACED,
    Place,
    Reason,
)
from system_tests.guides.reader import Reader
from system_tests.guides.script import is_at, pages_to_run, script_of
from system_tests.harness.jars import ToolchainMissing, kafka_tools, zookeeper_jars

pytestmark = pytest.mark.minibroker

PLACES = {**NOT_RUN, **BEFORE, **ALONGSIDE}


def tools_for(page: str) -> dict[str, str]:
    """Where Kafka's and ZooKeeper's programs are, if the page names one."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = {}
    try:
        if "kafka-configs.sh" in text:
            found["TOOLS_OF_KAFKA"] = kafka_tools()
        if "zookeeper-jars" in text:
            found["TOOLS_OF_KAFKA_2_8"] = kafka_tools("2.8")
            found["ZOOKEEPER_JARS"] = str(zookeeper_jars())
    except ToolchainMissing as missing:
        without_toolchain(missing)
    return found


@pytest.mark.parametrize("page", pages_to_run())
def test_commands_of_page_run_from_top_to_bottom(page: str, tmp_path: Path) -> None:
    try:
        reader = Reader(tmp_path, tools_for(page), in_checkout=page in IN_CHECKOUT)
    except ToolchainMissing as missing:
        without_toolchain(missing)
        raise
    ran = reader.run(script_of(page))
    print(ran.printed)
    assert ran.code == 0, f"{ran.block or page} ended with {ran.code}"
    assert "Traceback (most recent call last)" not in ran.printed


@pytest.mark.parametrize("place", PLACES, ids=lambda place: f"{place.page}: {place.beginning}")
def test_block_of_a_table_is_on_its_page(place: Place) -> None:
    found = [block for block in blocks_of(place.page) if block.is_shell and is_at(block, place)]
    assert len(found) == 1


@pytest.mark.parametrize("reason", dict.fromkeys(NOT_RUN.values()), ids=lambda reason: reason.text)
def test_block_that_is_not_run_cannot_be_run(reason: Reason) -> None:
    assert reason.holds(), "these blocks can be run here: take them out of NOT_RUN"


@pytest.mark.parametrize("page", REPLACED)
def test_replaced_texts_are_on_their_page(page: str) -> None:
    texts = "".join(block.text for block in blocks_of(page) if block.is_shell)
    assert [written for written in REPLACED[page] if written not in texts] == []


def test_pages_of_the_tables_exist() -> None:
    known = set(pages())
    assert {*IN_CHECKOUT, *REPLACED, *FILES} - known == set()
    unmatched = [
        pattern for pattern in ELSEWHERE if not any(fnmatch(page, pattern) for page in known)
    ]
    assert unmatched == []
    assert [test for test in ELSEWHERE.values() if not (ROOT / test).is_file()] == []
