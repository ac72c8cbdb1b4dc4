"""Recorded streams are split into frames, and their names are found."""

from __future__ import annotations

from minibroker_protocol.compiler import encode
from minibroker_protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from minibroker_protocol.wire import RequestHeader, encode_request_header
from system_tests.attack.mutations import frame
from system_tests.attack.recording import FRAMES_OF_A_KIND_MAX, Recorder, split_frames, words_of

VERSION = 12
TOPIC_ID = bytes(range(16))


def metadata_frame(*names: str) -> bytes:
    topics = [MetadataRequestTopic(name=name, topic_id=TOPIC_ID) for name in names]
    request = MetadataRequest(topics=topics)
    header = RequestHeader(3, VERSION, 1, "client")
    return frame(encode_request_header(header) + encode(request, VERSION))


def test_stream_is_split_into_complete_frames_and_a_rest() -> None:
    first, second = frame(b"abc"), frame(b"")
    assert split_frames(first + second + b"\0\0") == ([first, second], b"\0\0")
    assert split_frames(first[:-1]) == ([], first[:-1])


def test_request_words_are_its_strings_and_ids() -> None:
    words = words_of([metadata_frame("orders", "payments"), frame(b"garbage")])
    assert words.strings == ["orders", "payments"]
    assert words.uuids == [TOPIC_ID]


def test_recorder_keeps_a_few_frames_of_each_kind() -> None:
    recorder = Recorder()
    for number in range(FRAMES_OF_A_KIND_MAX + 5):
        recorder.add(metadata_frame(f"topic-{number}"))
    recorder.add(frame(b"\0\x12\0\0 another kind"))
    assert len(recorder.frames) == FRAMES_OF_A_KIND_MAX + 1
