from __future__ import annotations

from minibroker.broker.log.appended import Appended, appended_before
from minibroker.broker.log.producers import BatchMetadata


def test_duplicate_gets_offsets_and_timestamp_of_earlier_append() -> None:
    batch = BatchMetadata(last_sequence=11, last_offset=41, offset_delta=1, timestamp=7)
    assert appended_before(batch, 5) == Appended(40, 41, 7, 5, duplicate=True)
