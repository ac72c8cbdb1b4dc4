from __future__ import annotations

from pathlib import Path

from minibroker.broker.log.cleaner.cleaned_segment import CleanedSegment
from minibroker.broker.log.segment import OFFSET_ENTRY, TIME_ENTRY
from minibroker.broker.log.transaction_index import AbortedTransaction, TransactionIndex
from minibroker_protocol.records import Record, build_batch, parse_batch_header

STEM = f"{100:020}"


def test_cleaned_copy_has_all_indexes(tmp_path: Path) -> None:
    (tmp_path / f"{STEM}.log.cleaned").write_bytes(b"of a killed process")
    copy = CleanedSegment(str(tmp_path), 100, index_interval_bytes=1, buffer_bytes=4096)
    data = b""
    for offset in (100, 105, 109):
        data = build_batch([Record(timestamp=offset, key=b"k")], base_offset=offset)
        copy.write(parse_batch_header(data), data, offset)
    aborted = AbortedTransaction(1, 100, 105, 106)
    group = copy.finish([aborted], has_index=False, modified_ms=7000)
    log = tmp_path / f"{STEM}.log.cleaned"
    assert group.size == log.stat().st_size == 3 * len(data)
    assert (group.next_offset, group.max_timestamp, group.aborted_count) == (110, 109, 1)
    assert log.stat().st_mtime == 7
    assert group.inode == log.stat().st_ino
    offsets = (tmp_path / f"{STEM}.index.cleaned").read_bytes()
    assert list(OFFSET_ENTRY.iter_unpack(offsets)) == [(5, len(data)), (9, 2 * len(data))]
    times = (tmp_path / f"{STEM}.timeindex.cleaned").read_bytes()
    assert list(TIME_ENTRY.iter_unpack(times)) == [(105, 5), (109, 9)]
    index = TransactionIndex((tmp_path / f"{STEM}.txnindex.cleaned").read_bytes())
    assert list(index) == [aborted]


def test_empty_transaction_index_replaces_one(tmp_path: Path) -> None:
    copy = CleanedSegment(str(tmp_path), 100, index_interval_bytes=1, buffer_bytes=4096)
    copy.finish([], has_index=True, modified_ms=0)
    assert (tmp_path / f"{STEM}.txnindex.cleaned").read_bytes() == b""
    copy = CleanedSegment(str(tmp_path), 7, index_interval_bytes=1, buffer_bytes=4096)
    copy.close()
    assert not (tmp_path / f"{7:020}.txnindex.cleaned").exists()
