"""Frames that real clients sent, read and written again without a byte changed.

The files in ``golden/`` name client and version in their first line and hold a frame a line; how
they came about is in ``golden/capture.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from minibroker_protocol import compiler, framing, records, wire
from minibroker_protocol.dissect import dissect
from minibroker_protocol.messages.api_versions import ApiVersionsRequest
from minibroker_protocol.messages.join_group import JoinGroupRequest
from minibroker_protocol.messages.produce import ProduceRequest
from minibroker_protocol.registry import ApiKey, schema
from minibroker_protocol.schema import construct_for


class Golden(NamedTuple):
    client: str
    key: ApiKey
    version: int
    frame: bytes

    def __str__(self) -> str:
        return f"{self.client.split(' ')[0]}-{self.key.name}-{self.version}"


def load() -> list[Golden]:
    found = []
    for path in sorted((Path(__file__).parent / "golden").glob("*.txt")):
        first, *rest = path.read_text().splitlines()
        for line in rest:
            name, version, data = line.split()
            client = first.removeprefix("# ")
            found.append(Golden(client, ApiKey[name], int(version), bytes.fromhex(data)))
    return found


FRAMES = load()


def test_golden_frames_cover_all_clients() -> None:
    assert {golden.client.split(" ")[0] for golden in FRAMES} == {
        "aiokafka",
        "confluent-kafka",
        "kafka-python",
    }
    assert len({golden.key for golden in FRAMES}) >= 14


@pytest.mark.parametrize("golden", FRAMES, ids=str)
def test_frame_of_client_round_trips(golden: Golden) -> None:
    size = framing.frame_size(golden.frame)
    assert size == len(golden.frame) - 4
    header, pos = wire.decode_request_header(golden.frame, 4)
    assert (header.api_key, header.api_version) == (golden.key, golden.version)
    assert header.client_id == "golden"
    request = schema(golden.key).request
    message, end = compiler.decoder(request, golden.version)(golden.frame, pos)
    assert end == len(golden.frame)
    assert b"".join(bytes(c) for c in framing.request_frame(header, message)) == golden.frame  # type: ignore[arg-type]
    assert construct_for(request, golden.version).parse(golden.frame[pos:]) == message


@pytest.mark.parametrize("golden", FRAMES, ids=str)
def test_frame_of_client_is_dissected_without_problem(golden: Golden) -> None:
    dissection = dissect(golden.frame)
    assert dissection.problem is None
    assert dissection.root.find("request_api_key").value == golden.key


@pytest.mark.parametrize("golden", [g for g in FRAMES if g.key is ApiKey.PRODUCE], ids=str)
def test_produce_frame_has_record_sent_by_client(golden: Golden) -> None:
    _, pos = wire.decode_request_header(golden.frame, 4)
    message = compiler.decode(ProduceRequest, golden.version, golden.frame, pos)
    (topic,) = message.topic_data
    (partition,) = topic.partition_data
    assert topic.name == "golden"
    assert partition.records is not None
    (record,) = records.iter_records(partition.records)
    assert (record.key, record.value, record.headers) == (b"key", b"value", (("h", b"v"),))


@pytest.mark.parametrize("golden", [g for g in FRAMES if g.key is ApiKey.JOIN_GROUP], ids=str)
def test_consumer_subscription_is_dissected(golden: Golden) -> None:
    _, pos = wire.decode_request_header(golden.frame, 4)
    message = compiler.decode(JoinGroupRequest, golden.version, golden.frame, pos)
    assert (message.group_id, message.protocol_type) == ("golden-group", "consumer")
    assert dissect(golden.frame).root.find("topics").value == ["golden"]


def test_api_versions_frames_have_client_software_names() -> None:
    names = set()
    for golden in FRAMES:
        if golden.key is ApiKey.API_VERSIONS and golden.version >= 3:
            _, pos = wire.decode_request_header(golden.frame, 4)
            request = compiler.decode(ApiVersionsRequest, golden.version, golden.frame, pos)
            names.add(request.client_software_name)
    assert names == {"confluent-kafka-python", "kafka-python"}
