"""DescribeLogDirs (API key 35): describe the log directories of a broker.

Versions 1 to 5, in the compact encoding from 2 on.

What changed:
  3  response adds error_code
  4  response adds total_bytes, usable_bytes
  5  response adds is_cordoned
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import BOOLEAN, INT16, INT32, INT64, STRING


class DescribableLogDirTopic(Struct):
    topic: str = field(STRING, means=Meaning.TOPIC)
    partitions: list[int] = field(array(INT32), means=Meaning.PARTITION)


class DescribeLogDirsRequest(Message, api_key=35, versions="1-5", flexible="2+"):
    topics: list[DescribableLogDirTopic] | None = field(
        array(DescribableLogDirTopic), nullable="0+"
    )


class DescribeLogDirsPartition(Struct):
    partition_index: int = field(INT32, means=Meaning.PARTITION)
    partition_size: int = field(INT64)
    offset_lag: int = field(INT64)
    is_future_key: bool = field(BOOLEAN)


class DescribeLogDirsTopic(Struct):
    name: str = field(STRING, means=Meaning.TOPIC)
    partitions: list[DescribeLogDirsPartition] = field(array(DescribeLogDirsPartition))


class DescribeLogDirsResult(Struct):
    error_code: int = field(INT16, means=Meaning.ERROR)
    log_dir: str = field(STRING, means=Meaning.LOG_DIR)
    topics: list[DescribeLogDirsTopic] = field(array(DescribeLogDirsTopic))
    total_bytes: int = field(INT64, versions="4+", default=-1)
    usable_bytes: int = field(INT64, versions="4+", default=-1)
    is_cordoned: bool = field(BOOLEAN, versions="5+")


class DescribeLogDirsResponse(Message, api_key=35, versions="1-5", flexible="2+"):
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME, obeyed="1+")
    error_code: int = field(INT16, means=Meaning.ERROR, versions="3+")
    results: list[DescribeLogDirsResult] = field(array(DescribeLogDirsResult))
