"""A page that fails is found, and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from system_tests.conftest import without_toolchain
from system_tests.guides.blocks import Block, parse
from system_tests.guides.reader import Reader
from system_tests.harness.jars import ToolchainMissing
from system_tests.harness.processes import is_running

PAGE = """A page

```sh
echo one
```

1. A list

   ```python
   if True:
       pass
   ```
"""


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    try:
        return Reader(tmp_path, {})
    except ToolchainMissing as missing:
        without_toolchain(missing)
        raise


def at(line: int) -> Block:
    return Block("page.md", line, "sh", "")


def test_blocks_of_page_have_places_and_no_indentation() -> None:
    assert parse("page.md", PAGE) == [
        Block("page.md", 4, "sh", "echo one\n"),
        Block("page.md", 10, "python", "if True:\n    pass\n"),
    ]


def test_failed_command_is_found_with_its_block(reader: Reader) -> None:
    ran = reader.run([(at(1), "value=1"), (at(2), "echo $value; false"), (at(3), "echo never")])
    assert (ran.code, ran.block, ran.printed) == (1, at(2), "1\n")


def test_failing_request_of_curl_is_found(reader: Reader) -> None:
    start = "minibroker start --control 127.0.0.1:8080"
    ran = reader.run([(None, start), (at(1), "curl $control_url/v1/topics/none")])
    assert (ran.code, ran.block) == (22, at(1))


def test_program_that_ends_with_an_error_is_found(reader: Reader) -> None:
    ran = reader.run([(at(1), "minibroker start --set num.partition=3")])
    assert (ran.code, ran.block) == (4, at(1))


def test_processes_end_with_their_page(reader: Reader) -> None:
    ran = reader.run([(at(1), "sleep 600 & echo $!")])
    assert ran.code == 0
    assert not is_running(int(ran.printed))


def test_second_broker_takes_the_port_of_the_first(reader: Reader) -> None:
    ran = reader.run([(at(1), "minibroker start"), (at(2), "minibroker start")])
    assert ran.code == 0, ran.printed
    assert ran.printed.count("127.0.0.1:9092") == 2
