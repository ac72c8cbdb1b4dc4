from __future__ import annotations

import pytest

from minibroker.cli.errors import CliError, ExitCode, Refused, TooFew, Unreachable, check
from protocol.errors import ErrorCode


def test_no_error_is_no_exception() -> None:
    check("topic cats", 0)


def test_a_refusal_says_what_why_and_how_to_mend_it() -> None:
    with pytest.raises(Refused) as caught:
        check("topic cats", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert str(caught.value).startswith("topic cats: UNKNOWN_TOPIC_OR_PARTITION (")
    assert "minibroker topics create" in str(caught.value)


def test_the_broker_s_own_words_are_passed_on() -> None:
    refusal = Refused("topic cats", ErrorCode.INVALID_PARTITIONS, "must be larger than 0")
    assert str(refusal) == "topic cats: INVALID_PARTITIONS: must be larger than 0"


def test_exit_codes_tell_causes_apart() -> None:
    assert CliError.exit_code == ExitCode.REFUSED == 1
    assert Unreachable.exit_code == ExitCode.UNREACHABLE == 3
    assert TooFew.exit_code == ExitCode.TOO_FEW == 5
