from __future__ import annotations

import pytest

from minibroker.broker.security.mechanism import AuthenticationFailed, text_of


def test_token_that_is_no_text_is_a_failure_and_no_error() -> None:
    assert text_of("ä".encode()) == "ä"
    with pytest.raises(AuthenticationFailed, match="UTF-8"):
        text_of(b"\xff\x00")
