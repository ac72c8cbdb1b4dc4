"""Kafka's error codes, against kio's copy of Kafka's table; the newer ones are of Kafka 4.4."""

from __future__ import annotations

import pickle

import pytest
from kio.schema.errors import ErrorCode as KioErrorCode

from minibroker_protocol.errors import DecodeError, ErrorCode

NEWER = {
    ("GROUP_DELETION_FAILED", 134),
    ("STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED", 135),
    ("CONTROLLER_ID_NOT_REGISTERED", 136),
}
"""Not in kio; none of them is retriable."""
KIOS = [code for code in ErrorCode if (code.name, code.value) not in NEWER]


def test_error_codes_and_names_match_kafka() -> None:
    known = {(code.name.upper(), int(code)) for code in KioErrorCode}
    assert {(code.name, code.value) for code in ErrorCode} == known | NEWER


def test_newer_errors_are_not_retriable() -> None:
    assert not any(ErrorCode(code).retriable for _, code in NEWER)


@pytest.mark.parametrize("code", KIOS, ids=lambda code: code.name)
def test_retriable_errors_match_kafka(code: ErrorCode) -> None:
    assert code.retriable == KioErrorCode(int(code)).retriable


def test_only_errors_without_possible_append_are_definite() -> None:
    assert ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER.definite
    assert ErrorCode.NOT_ENOUGH_REPLICAS.definite
    assert not ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND.definite
    assert not ErrorCode.REQUEST_TIMED_OUT.definite


def test_unknown_error_code_is_described_by_number() -> None:
    assert ErrorCode.describe(3) == "UNKNOWN_TOPIC_OR_PARTITION"
    assert ErrorCode.describe(9999) == "error 9999"


def test_decode_error_has_offset_and_can_be_pickled() -> None:
    error = pickle.loads(pickle.dumps(DecodeError("name is cut short", 12)))
    assert str(error) == "name is cut short (at byte 12)"
    assert (error.what, error.offset) == ("name is cut short", 12)
