"""AlterReplicaLogDirs (API key 34): move replicas between a broker's directories.

Versions 1 to 2, in the compact encoding from 2 on.
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import INT16, INT32, STRING


class AlterReplicaLogDirTopic(Struct):
    name: str = field(STRING, means=Meaning.TOPIC)
    partitions: list[int] = field(array(INT32), means=Meaning.PARTITION)


class AlterReplicaLogDir(Struct):
    path: str = field(STRING, means=Meaning.LOG_DIR)
    topics: list[AlterReplicaLogDirTopic] = field(array(AlterReplicaLogDirTopic))


class AlterReplicaLogDirsRequest(Message, api_key=34, versions="1-2", flexible="2+"):
    dirs: list[AlterReplicaLogDir] = field(array(AlterReplicaLogDir))


class AlterReplicaLogDirPartitionResult(Struct):
    partition_index: int = field(INT32, means=Meaning.PARTITION)
    error_code: int = field(INT16, means=Meaning.ERROR)


class AlterReplicaLogDirTopicResult(Struct):
    topic_name: str = field(STRING, means=Meaning.TOPIC)
    partitions: list[AlterReplicaLogDirPartitionResult] = field(
        array(AlterReplicaLogDirPartitionResult)
    )


class AlterReplicaLogDirsResponse(Message, api_key=34, versions="1-2", flexible="2+"):
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME, obeyed="1+")
    results: list[AlterReplicaLogDirTopicResult] = field(array(AlterReplicaLogDirTopicResult))
