from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq

from minibroker.pipeline.encoding.footer import (
    Chunk,
    Codec,
    Column,
    Physical,
    RowGroup,
    nothing,
    whole_file,
)

COLUMNS = (
    Column(("a",), Physical.INT32),
    Column(("o", "b"), Physical.BYTE_ARRAY),
    Column(("o", "c"), Physical.DOUBLE),
)


def chunk(column: Column, rows: int, least: int = 0) -> Chunk:
    """A column without any value."""
    ends = least.to_bytes(4, "little"), (least + 5).to_bytes(4, "little")
    asked = ends if column is COLUMNS[0] else None
    return Chunk(column, Codec.UNCOMPRESSED, None, nothing(rows), rows, asked)


def made(*sizes: int) -> bytes:
    groups = [RowGroup(rows, [chunk(column, rows, rows) for column in COLUMNS]) for rows in sizes]
    return whole_file(COLUMNS, groups)


def test_columns_and_objects_are_those_of_the_schema() -> None:
    found = pq.read_table(io.BytesIO(made(3, 2)))
    kind = pa.struct([("b", pa.string()), ("c", pa.float64())])
    assert found.schema.equals(pa.schema([("a", pa.int32()), ("o", kind)]))
    assert found.to_pylist() == [{"a": None, "o": None}] * 5


def test_footer_describes_row_groups_and_columns() -> None:
    content = made(3, 2)
    told = pq.read_metadata(io.BytesIO(content))
    assert (told.num_rows, told.num_row_groups, told.created_by) == (5, 2, "minibroker")
    at = 4
    for number, rows in enumerate((3, 2)):
        group = told.row_group(number)
        assert group.num_rows == rows
        for place in range(group.num_columns):
            column = group.column(place)
            assert column.data_page_offset == at
            assert column.path_in_schema == ".".join(COLUMNS[place].path)
            at += column.total_compressed_size
        assert group.total_byte_size == sum(
            group.column(place).total_uncompressed_size for place in range(3)
        )
        ends = group.column(0).statistics
        assert (ends.min, ends.max, ends.null_count) == (rows, rows + 5, rows)
        assert group.column(1).statistics is None
    assert at == len(content) - told.serialized_size - 8


def test_of_many_rows_none_has_a_value() -> None:
    found = pq.read_table(io.BytesIO(made(70_000)))
    assert found.num_rows == 70_000
    assert found["o"].null_count == 70_000
