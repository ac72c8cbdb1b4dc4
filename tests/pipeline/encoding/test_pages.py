from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minibroker.pipeline.encoding import pages
from minibroker.pipeline.encoding.footer import (
    Chunk,
    Codec,
    Column,
    Encoding,
    Page,
    Physical,
    RowGroup,
    whole_file,
)
from minibroker.pipeline.encoding.values import BLOCK, put_texts, renumber, texts_bytes

HOW = {
    pages.WHOLE: (Physical.INT64, Encoding.DELTA_BINARY_PACKED, pa.int64()),
    pages.NARROW: (Physical.INT32, Encoding.DELTA_BINARY_PACKED, pa.int32()),
    pages.WORDS: (Physical.DOUBLE, Encoding.PLAIN, pa.float64()),
    pages.BITS: (Physical.BOOLEAN, Encoding.PLAIN, pa.bool_()),
    pages.PLACES: (Physical.BYTE_ARRAY, Encoding.RLE_DICTIONARY, pa.string()),
}
OF = {
    pages.WHOLE: st.integers(-(2**63), 2**63 - 1) | st.integers(-9, 9),
    pages.NARROW: st.integers(-(2**31), 2**31 - 1) | st.integers(-9, 9),
    pages.WORDS: st.floats(allow_nan=False),
    pages.BITS: st.booleans(),
    pages.PLACES: st.integers(0, 10**6).map(str) | st.sampled_from(["", "a", "ä" * 20]),
}
CHOSEN: dict[int, list[Any]] = {
    pages.WHOLE: [2**63 - 1, -(2**63), 5, -5, 0, 10**12],
    pages.NARROW: [2**31 - 1, -(2**31), 5, -5, 0, 10**6],
    pages.WORDS: [0.0, 1.5, -1e300, 5e-324, float("inf")],
    pages.BITS: [True, False, False],
    pages.PLACES: ["", "a", "ä" * 20, "b" * 9, "c", "d", "e", "f", "g"],
}
OUTER_LACKS = "outer lacks"


def bits(there: Sequence[bool]) -> Any:
    return np.packbits([*there, *[False] * 64], bitorder="little")


def as_words(how: int, values: list[Any]) -> Any:
    if how == pages.WORDS:
        return np.array(values, np.float64).view(np.int64)
    return np.array(values, np.int64)


def chunk_of(how: int, values: list[Any], path: tuple[str, ...]) -> Chunk:
    """A column of values, some of which are None, or ``OUTER_LACKS`` if they are in an object."""
    physical, encoding, _ = HOW[how]
    there = [each is not None and each is not OUTER_LACKS for each in values]
    real = [each for each, real in zip(values, there, strict=True) if real]
    dictionary, width = None, 0
    room = np.full(len(real) + pages.SPARE, -1, np.int64)  # The former content does not matter.
    if how == pages.PLACES:
        texts = sorted(set(real)) or ["none"]
        room[: len(real)] = [texts.index(each) for each in real]
        which = np.empty(max(len(real), 1), np.int32)
        found = renumber(room, len(real), np.full(len(texts), -1, np.int32), which)
        encoded = [text.encode() for text in texts]
        ends = np.cumsum([0, *map(len, encoded)])
        content = np.frombuffer(b"".join(encoded) + bytes(8), np.uint8)
        out = np.empty(texts_bytes(which[:found], ends) + 8, np.uint8)
        size = put_texts(which, found, content, ends, out)
        dictionary = Page(out[:size].tobytes(), size, found, Encoding.PLAIN)
        width = max(int(found - 1).bit_length(), 1)
    else:
        room[: len(real)] = as_words(how, real)
    out = np.full(pages.page_bytes(len(values)) + 1, 77, np.uint8)
    outer, inner = bits([each is not OUTER_LACKS for each in values]), bits(there)
    nested = len(path) > 1
    size = pages.put_page(how, width, nested, outer, inner, len(values), room, len(real),
                          np.empty(BLOCK, np.int64), out)  # fmt: skip
    assert out[-1] == 77, "it wrote behind its room"
    data = Page(out[:size].tobytes(), size, len(values), encoding)
    nulls = len(values) - len(real)
    return Chunk(Column(path, physical), Codec.UNCOMPRESSED, dictionary, data, nulls, None)


def file_of(how: int, *groups: list[Any], path: tuple[str, ...] = ("x",)) -> bytes:
    made = [RowGroup(len(values), [chunk_of(how, values, path)]) for values in groups]
    return whole_file((Column(path, HOW[how][0]),), made)


def column(how: int, *, nested: bool) -> st.SearchStrategy[list[Any]]:
    """Values of which some come many times one after the other."""
    lacks = st.sampled_from([None, OUTER_LACKS] if nested else [None])
    runs = st.tuples(OF[how] | lacks, st.sampled_from([1, 1, 2, 7, 8, 9, 30, 140]))
    mixed = st.lists(OF[how] | lacks, max_size=40)
    parts = st.lists(runs.map(lambda run: [run[0]] * run[1]) | mixed, min_size=1, max_size=6)
    return parts.map(lambda found: [each for part in found for each in part]).filter(len)


@settings(deadline=None)
@given(st.sampled_from(list(HOW)).flatmap(
    lambda how: st.tuples(st.just(how), column(how, nested=False), column(how, nested=False))
))  # fmt: skip
def test_written_column_is_read_back(made: tuple[int, list[Any], list[Any]]) -> None:
    how, *groups = made
    found = pq.read_table(io.BytesIO(file_of(how, *groups)))
    assert found.schema.equals(pa.schema([("x", HOW[how][2])]))
    assert found["x"].to_pylist() == [each for values in groups for each in values]


@settings(deadline=None)
@given(st.sampled_from(list(HOW)).flatmap(
    lambda how: st.tuples(st.just(how), column(how, nested=True))
))  # fmt: skip
def test_written_nested_column_is_read_back(made: tuple[int, list[Any]]) -> None:
    how, values = made
    found = pq.read_table(io.BytesIO(file_of(how, values, path=("o", "x"))))
    assert found["o"].to_pylist() == [
        None if each is OUTER_LACKS else {"x": each} for each in values
    ]


@pytest.mark.parametrize("how", HOW)
def test_another_reader_reads_the_same(how: int, tmp_path: Path) -> None:
    chosen = CHOSEN[how]
    values = [*chosen, None, None, *[chosen[0]] * 300, None, *chosen * 3]
    file = tmp_path / "x.parquet"
    file.write_bytes(file_of(how, values, [None] * 9))
    rows = duckdb.execute("select x from read_parquet(?)", [str(file)]).fetchall()
    assert [row[0] for row in rows] == [*values, *[None] * 9]


@pytest.mark.parametrize("how", [pages.WHOLE, pages.NARROW])
@pytest.mark.parametrize("count", [127, 128, 129, 130, 4097])
def test_the_largest_page_has_room(how: int, count: int) -> None:
    most = 63 if how == pages.WHOLE else 31
    chance = np.random.default_rng(1)
    values = chance.integers(-(2**most), 2**most - 1, count, endpoint=True).tolist()
    there = chance.random(count) < 0.5
    values += [each if real else None for each, real in zip(values, there, strict=True)]
    found = pq.read_table(io.BytesIO(file_of(how, values)))
    assert found["x"].to_pylist() == values


def test_rows_without_any_value_are_a_page_of_levels() -> None:
    out = np.zeros(64, np.uint8)
    size = pages.put_page(
        pages.NOTHING, 0, False, bits([False] * 100), bits([False] * 100), 100,
        np.zeros(pages.SPARE, np.int64), 0, np.empty(BLOCK, np.int64), out,
    )  # fmt: skip
    assert out[:size].tobytes() == b"\x03\0\0\0" + b"\xc8\x01\0"


def test_the_same_all_along_takes_no_room() -> None:
    size = len(file_of(pages.PLACES, ["a"] * 10_000)) - len(file_of(pages.PLACES, ["a"]))
    assert size < 20
    assert len(file_of(pages.WHOLE, list(range(0, 7 * 10_000, 7)))) < 800
