from __future__ import annotations

import pytest

from minibroker.cli.errors import CliError, Refused, TooFew, Unreachable, check
from protocol.errors import ErrorCode


def test_no_error_is_no_exception() -> None:
    check("topic cats", 0)


def test_a_refusal_says_what_why_and_how_to_mend_it() -> None:
    with pytest.raises(Refused) as caught:
        check("topic cats", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert str(caught.value).startswith("topic cats: UNKNOWN_TOPIC_OR_PARTITION (")
    assert "minibroker topics create" in str(caught.value)


def test_an_offset_that_is_not_there_says_where_to_look() -> None:
    refusal = Refused("cats-0", ErrorCode.OFFSET_OUT_OF_RANGE)
    assert "minibroker topics describe" in str(refusal)


def test_the_broker_s_own_words_are_passed_on() -> None:
    refusal = Refused("topic cats", ErrorCode.INVALID_PARTITIONS, "must be larger than 0")
    assert str(refusal) == "topic cats: INVALID_PARTITIONS: must be larger than 0"


def test_exit_codes_are_the_ones_that_scripts_rely_on() -> None:
    codes = [int(error.exit_code) for error in (CliError, Refused, Unreachable, TooFew)]
    assert codes == [1, 1, 3, 5]
