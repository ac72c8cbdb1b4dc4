from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq

from minibroker.pipeline.filing import FOOTER, file_events, pack
from minibroker.pipeline.layout import COUNTED, QUARANTINED
from tests.pipeline.made import events


def batch(values: list[bytes | None], damage: dict[int, str] | None = None) -> pa.RecordBatch:
    count = len(values)
    return pa.RecordBatch.from_pydict(
        {
            "topic": ["t"] * count,
            "partition": pa.array([3] * count, pa.int32()),
            "offset": list(range(count)),
            "value": pa.array(values, pa.binary()),
            "damage": pa.array([(damage or {}).get(at) for at in range(count)], pa.string()),
        }
    )


def files(*batches: pa.RecordBatch) -> tuple[dict[str, pa.Table], int]:
    placed = file_events("host:9092", 99)(iter(batches))
    found = {row["place"]: row["content"] for made in pack(placed) for row in made.to_pylist()}
    counted = int(found.pop(COUNTED))
    return {
        place: pq.read_table(io.BytesIO(content + FOOTER)) for place, content in found.items()
    }, counted


def test_all_batches_of_a_place_become_one_file() -> None:
    found, count = files(batch(list(events(100, 1))), batch(list(events(100, 2, start=100))))
    assert count == 200
    assert QUARANTINED not in found
    sequences = [number for table in found.values() for number in table["sequence"].to_pylist()]
    assert sorted(sequences) == list(range(200))


def test_what_is_malformed_goes_aside_with_its_place_and_reason() -> None:
    good = events(3, 1)
    found, _ = files(batch([good[0], b"junk", None, good[1], b"torn", good[2]], {4: "cut off"}))
    aside = found.pop(QUARANTINED).to_pylist()
    assert sum(table.num_rows for table in found.values()) == 3
    assert {(row["offset"], row["raw"], row["reason"].split(":")[0]) for row in aside} == {
        (1, b"junk", "not JSON"),
        (2, None, "it has no value"),
        (4, b"torn", "cut off"),
    }
    assert {(row["source"], row["topic"], row["partition"], row["found_ms"]) for row in aside} == {
        ("host:9092", "t", 3, 99)
    }


def test_nothing_makes_no_file() -> None:
    assert files(batch([])) == files() == ({}, 0)
