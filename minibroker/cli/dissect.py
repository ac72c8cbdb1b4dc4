"""``minibroker dissect``: print frames and log segments as annotated trees.

Owns the source of the bytes and the output format; `minibroker_protocol.dissect` interprets the
bytes. Invariant: no input causes a traceback; damage is shown in the tree and in the exit code. It
needs no broker. Wireshark's Kafka dissector is similar.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from typing import BinaryIO, Final

import click

from minibroker.cli.commands import Argument, Command, examples
from minibroker.cli.output import ExitCode, InvalidUsage, emit, json_line, note
from minibroker_protocol.dissect import (
    Direction,
    Node,
    api_named,
    dissect,
    dissect_segment,
    frames,
    is_segment,
    render,
)

INPUT_BYTES_MAX: Final = 128 * 1024 * 1024
_SHOWN_MAX: Final = 100
_HEX: Final = re.compile(rb"\s*+(?:(?:0x)?+[0-9a-fA-F][\s:,]*+)++")
_HEX_MARKS: Final = re.compile(r"0x|[\s:,]")

EXAMPLES = examples(
    "minibroker dissect 00120003000000070003666f6f000261023100",
    "minibroker dissect 00 12 00 03 00 00 00 07 00 03 66 6f 6f 00 02 61 02 31 00",
    "minibroker dissect frame.bin",
    "xxd -p frame.bin | minibroker dissect",
    "minibroker dissect answer.bin --api Metadata --api-version 12",
    "minibroker dissect frame.bin --json | jq .tree.children",
    "minibroker dissect data/orders-0/00000000000000000000.log",
    after="""The size before a single frame may be missing; several frames need it. A response
does not contain its API, so name API and version. A log segment is recognized by its first
batch. Exit code 1 means that something is damaged or incomplete.""",
)


@click.command("dissect", cls=Command, epilog=EXAMPLES)
@click.argument(
    "source",
    cls=Argument,
    nargs=-1,
    metavar="[HEX...|FILE]",
    about="The frame; - or nothing reads stdin.",
)
@click.option("--api", metavar="API", help="The API that a response answers: its name or number.")
@click.option("--api-version", type=int, metavar="NUMBER", help="The version of that API.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per frame.")
def dissect_command(
    source: Sequence[str], api: str | None, api_version: int | None, as_json: bool
) -> None:
    """Show what every byte of requests, a response or a log segment means."""
    if (api is None) != (api_version is None):
        raise InvalidUsage("--api and --api-version belong together: a response needs both")
    data = read_source(" ".join(source or "-"))
    try:
        key = None if api is None else api_named(api)
    except ValueError as error:
        raise InvalidUsage(f"--api {api}: {error}") from None
    if key is None and is_segment(data):
        results = [dissect_segment(data)]
        hint = ""
    else:
        direction = Direction.AUTO if key is None else Direction.RESPONSE
        results = [
            dissect(frame, direction=direction, api_key=key, version=api_version)
            for frame in frames(data)
        ]
        hint = "If it is a response, name its API: --api NAME --api-version NUMBER"
    if as_json:
        for result in results:
            emit(json_line({"problem": result.problem, "tree": _node_json(result.root)}))
    else:
        emit("\n\n".join(render(result).rstrip() for result in results))
    if any(result.problem is not None for result in results):
        if key is None and hint:
            note(hint)
        raise click.exceptions.Exit(ExitCode.REFUSED)


def _node_json(node: Node) -> dict[str, object]:
    """Return a node as JSON; ``own_end`` is where its children begin."""
    return {
        "name": node.name,
        "start": node.start,
        "own_end": node.own_end,
        "end": node.end,
        "text": node.text,
        "error": node.error,
        "children": [_node_json(child) for child in node.children],
    }


def read_source(source: str) -> bytes:
    """Read a frame: from hex on the command line, a file or standard input."""
    if source == "-":
        if sys.stdin.isatty():
            note("paste hex, then press Ctrl-D")
        return _read(sys.stdin.buffer, "standard input")
    try:
        with open(source, "rb") as file:
            return _read(file, source)
    except OSError as error:
        if _HEX.fullmatch(os.fsencode(source)):
            return from_hex(source)
        raise InvalidUsage(
            f"{source[:_SHOWN_MAX]}: this is not hex, and as a file it cannot be read: "
            f"{error.strerror}"
        ) from None


def _read(file: BinaryIO, name: str) -> bytes:
    content = file.read(INPUT_BYTES_MAX + 1)
    if len(content) > INPUT_BYTES_MAX:
        raise InvalidUsage(
            f"{name} has more than {INPUT_BYTES_MAX} bytes; dissect a part of it, e.g. "
            "head -c 1000000 FILE | minibroker dissect"
        )
    return from_content(content)


def from_content(content: bytes) -> bytes:
    """Return raw bytes unchanged; decode them if all of them are hex digits."""
    return from_hex(content.decode()) if _HEX.fullmatch(content) else content


def from_hex(text: str) -> bytes:
    """``00 1f``, ``00:1f``, ``0x00,0x1f`` and ``001f`` are the same two bytes."""
    digits = _HEX_MARKS.sub("", text)
    if len(digits) % 2:
        raise InvalidUsage(f"the hex has {len(digits)} digits, an odd number: each byte needs two")
    return bytes.fromhex(digits)
