"""The generators of the attack: everything is reached, everything can be made again."""

from __future__ import annotations

import itertools
import random
import struct
from collections import Counter

import pytest

from minibroker_protocol import registry
from minibroker_protocol.compiler import decode
from minibroker_protocol.errors import DecodeError, UnsupportedVersion
from minibroker_protocol.records import verify_crc
from minibroker_protocol.wire import decode_request_header
from system_tests.attack.batches import KINDS, bomb, full_batch, hostile_batch
from system_tests.attack.frames import API_KEYS, garbage, hostile_frames, request_frame
from system_tests.attack.mutations import DAMAGE, MUTATED_MAX_BYTES, frame, mutated, wrong_length
from system_tests.attack.values import Words, message

WORDS = Words(strings=["orders", "group-1"], uuids=[b"\7" * 16])
REQUEST_MAX_BYTES = 1024 * 1024
BATCH_MAX_BYTES = 1_048_588
"""The default of `message.max.bytes`."""


def take(seed: object, count: int, **more: list[bytes]) -> list[bytes]:
    return list(itertools.islice(hostile_frames(seed, WORDS, **more), count))


def test_hostile_frames_of_one_seed_are_the_same() -> None:
    assert take(1, 300) == take(1, 300)
    assert take(1, 300) != take(2, 300)


def test_hostile_frames_are_smaller_than_a_request_may_be() -> None:
    assert max(map(len, take(3, 3000))) < REQUEST_MAX_BYTES


def test_hostile_frames_with_recordings_contain_mutated_recordings() -> None:
    recorded = [frame(b"\0\x12\0\0\0\0\0\7\xff\xff" + b"recorded" * 4)]
    assert any(b"recorded" in each for each in take(4, 200, recorded=recorded))
    assert not any(b"recorded" in each for each in take(4, 200))


@pytest.mark.parametrize("key", API_KEYS, ids=lambda key: key.name)
def test_extreme_requests_of_each_version_decode(key: int) -> None:
    api = registry.schema(key)
    for version in range(api.valid_versions.low, api.valid_versions.high + 1):
        for seed in range(5):
            made = request_frame(api, version, random.Random(seed), WORDS)
            assert struct.unpack_from(">i", made) == (len(made) - 4,)
            header, at = decode_request_header(made, 4)
            assert (header.api_key, header.api_version) == (key, version)
            decode(api.request, version, made, at)


def test_extreme_values_use_the_words_of_the_broker() -> None:
    api = registry.schema(1)  # Fetch names topics by id
    texts = [repr(message(api.request, 17, random.Random(seed), WORDS)) for seed in range(40)]
    assert any(repr(b"\7" * 16) in text for text in texts)
    metadata = registry.schema(3).request
    texts = [repr(message(metadata, 9, random.Random(seed), WORDS)) for seed in range(40)]
    assert any("orders" in text for text in texts)


def test_hostile_frames_reach_each_api_and_many_are_malformed() -> None:
    reached: Counter[str] = Counter()
    keys = set()
    for each in take(5, 4000):
        try:
            header, at = decode_request_header(each, 4)
            keys.add(header.api_key)
            decode(registry.schema(header.api_key).request, header.api_version, each, at)
            reached["valid"] += 1
        except DecodeError:
            reached["malformed"] += 1
        except UnsupportedVersion:
            reached["unsupported"] += 1
    assert keys >= set(API_KEYS)
    assert min(reached.values()) > 150, reached


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_damage_changes_a_body_and_accepts_any(damage: object) -> None:
    assert callable(damage)
    body = bytes(range(60))
    assert any(damage(body, random.Random(seed)) != body for seed in range(20))
    for size in range(12):
        for seed in range(20):
            damage(body[:size], random.Random(seed))


def test_mutated_frames_are_bounded() -> None:
    large = frame(bytes(MUTATED_MAX_BYTES))
    sizes = [len(mutated(large, [large], random.Random(seed))) for seed in range(200)]
    assert max(sizes) <= MUTATED_MAX_BYTES + 4


def test_wrong_length_is_rejected() -> None:
    for seed in range(100):
        made = wrong_length(b"twenty bytes of bytes", random.Random(seed))
        assert struct.unpack_from(">i", made) != (len(made) - 4,)


def test_garbage_has_every_form() -> None:
    assert len({len(garbage(random.Random(seed))) for seed in range(300)}) > 12


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_hostile_batches_of_one_seed_are_the_same(kind: object) -> None:
    assert callable(kind)
    assert kind(random.Random(6)) == kind(random.Random(6))


def test_most_malformed_batches_have_a_valid_checksum() -> None:
    batches = [hostile_batch(random.Random(seed)) for seed in range(500)]
    right = [each for each in batches if len(each) > 61 and verify_crc(each)]
    assert len(right) > 250


def test_decompression_bombs_are_small_with_valid_checksum() -> None:
    for seed in range(12):
        made = bomb(random.Random(seed))
        assert len(made) < BATCH_MAX_BYTES
        assert verify_crc(made)


def test_full_batch_has_consecutive_records() -> None:
    made = full_batch(random.Random(1))
    assert verify_crc(made)
    assert len(made) < BATCH_MAX_BYTES
