from __future__ import annotations

import pickle

from minibroker.broker.log.cleaner.batch_filter import LastRecord
from minibroker.broker.log.cleaner.task import CleaningTask, SourceSegment
from minibroker.broker.log.transaction_index import AbortedTransaction


def test_task_is_plain_data() -> None:
    groups = ((SourceSegment(0, 1, 2),),)
    aborted = (AbortedTransaction(1, 2, 3, 4),)
    task = CleaningTask("d", groups, 0, 1, 2, 3, 4, 5, 6, {1: LastRecord(2, 3)}, aborted)
    assert pickle.loads(pickle.dumps(task)) == task
