from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from minibroker.cli import dissect as command
from minibroker.cli.app import app
from minibroker.cli.dissect import from_content, from_hex, read_source
from minibroker.cli.output import InvalidUsage
from minibroker_protocol.compiler import encode
from minibroker_protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
)
from minibroker_protocol.records import Record, build_batch
from minibroker_protocol.wire import RequestHeader, encode_request_header, encode_response_header

FRAME = encode_request_header(RequestHeader(18, 3, 7, "foo")) + encode(
    ApiVersionsRequest(client_software_name="a", client_software_version="1"), 3
)


@pytest.mark.parametrize("text", ["001f", "00 1F\n", "00:1f", "0x00, 0x1f", " 00\t1f "])
def test_hex_is_decoded_in_every_notation(text: str) -> None:
    assert from_hex(text) == b"\x00\x1f"
    assert from_content(text.encode()) == b"\x00\x1f"


def test_odd_number_of_hex_digits_is_rejected() -> None:
    with pytest.raises(InvalidUsage, match="3 digits"):
        from_hex("001")


def test_raw_bytes_are_not_decoded() -> None:
    assert from_content(FRAME) == FRAME
    assert from_content(b"") == b""


def test_frame_is_read_from_file_hex_or_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "frame.bin"
    file.write_bytes(FRAME)
    assert read_source(str(file)) == FRAME
    assert read_source(FRAME.hex()) == FRAME
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(FRAME.hex().encode())))
    assert read_source("-") == FRAME


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("nowhere.bin", "No such file or directory"),
        ("/", "Is a directory"),
        ("/proc/self/mem", "Input/output error"),
        ("\udcff\udcfe", "No such file or directory"),
        ("not hex" * 1000, "File name too long"),
    ],
)
def test_source_that_is_neither_file_nor_hex_is_rejected(source: str, problem: str) -> None:
    with pytest.raises(InvalidUsage, match=f"not hex, and as a file it cannot be read: {problem}"):
        read_source(source)


def test_hex_may_be_longer_than_a_file_name() -> None:
    assert read_source("00" * 5000) == bytes(5000)


def test_too_large_input_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "large.log"
    monkeypatch.setattr(command, "INPUT_BYTES_MAX", len(FRAME))
    file.write_bytes(FRAME)
    assert read_source(str(file)) == FRAME
    file.write_bytes(FRAME + b"0")
    with pytest.raises(InvalidUsage, match=f"more than {len(FRAME)} bytes; dissect a part of it"):
        read_source(str(file))


def test_tree_contains_fields_and_offsets() -> None:
    result = CliRunner().invoke(app, ["dissect", FRAME.hex()])
    assert result.exit_code == 0
    assert re.search(r"^ *4 .*correlation_id: 7$", result.output, re.MULTILINE)
    assert "client_software_name" in result.output


def test_response_is_decoded_with_the_given_api() -> None:
    answer = encode_response_header(18, 3, 7) + encode(
        ApiVersionsResponse(api_keys=[ApiVersion(api_key=0, min_version=3, max_version=12)]), 3
    )
    arguments = ["dissect", answer.hex(), "--api", "ApiVersions", "--api-version", "3"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0
    assert "max_version" in result.output


def test_damaged_input_changes_the_exit_code() -> None:
    assert CliRunner().invoke(app, ["dissect", FRAME[:-3].hex()]).exit_code == 1


def test_undecodable_request_suggests_the_api_option() -> None:
    hint = "--api NAME --api-version NUMBER"
    assert hint not in CliRunner().invoke(app, ["dissect", FRAME.hex()]).stderr
    assert hint in CliRunner().invoke(app, ["dissect", FRAME[:-3].hex()]).stderr
    command = ["dissect", FRAME.hex(), "--api", "Metadata", "--api-version", "12"]
    assert hint not in CliRunner().invoke(app, command).stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--api", "Metadata"], "belong together"),
        (["--api", "Metadate", "--api-version", "1"], "no API is called"),
    ],
)
def test_invalid_options_are_rejected(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(app, ["dissect", FRAME.hex(), *arguments])
    assert isinstance(result.exception, InvalidUsage)
    assert words in str(result.exception)


def test_examples_of_dissect_help_work() -> None:
    examples = re.findall(r"dissect ([0-9a-f ]{8,})$", command.EXAMPLES, re.MULTILINE)
    assert len(examples) == 2
    for example in examples:
        assert CliRunner().invoke(app, ["dissect", *example.split()]).exit_code == 0


def test_all_frames_of_a_file_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "frames.bin"
    path.write_bytes(2 * (len(FRAME).to_bytes(4, "big") + FRAME))
    done = CliRunner().invoke(app, ["dissect", str(path)])
    assert done.exit_code == 0
    assert done.stdout.count("ApiVersionsRequest") == 2


def test_log_segment_is_shown_with_its_records(tmp_path: Path) -> None:
    path = tmp_path / f"{0:020d}.log"
    batch = build_batch([Record(timestamp=1, value=b"purr")])
    path.write_bytes(batch)
    done = CliRunner().invoke(app, ["dissect", str(path)])
    assert done.exit_code == 0
    assert "log segment" in done.stdout
    assert "purr" in done.stdout
    path.write_bytes(batch + batch[:-1])
    assert CliRunner().invoke(app, ["dissect", str(path)]).exit_code == 1


def test_many_digits_before_other_bytes_are_no_hex() -> None:
    content = b"a" * 100_000 + b"g"
    assert from_content(content) == content


def test_dissection_as_json_has_the_tree_of_each_frame() -> None:
    result = CliRunner().invoke(app, ["dissect", FRAME.hex(), "--json"])
    (frame,) = map(json.loads, result.stdout.splitlines())
    assert frame["problem"] is None
    names = [child["name"] for child in frame["tree"]["children"]]
    assert "request header" in names
