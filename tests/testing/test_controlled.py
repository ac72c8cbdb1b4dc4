"""Handles of a process that is ready, over a control API that nothing asks."""

from __future__ import annotations

from typing import Self

import pytest

from minibroker.testing.controlled import Controlled


class Fake(Controlled):
    _what = "broker"
    starts = 0

    def start(self) -> Self:
        self.starts += 1
        port = 9000 + self.starts
        self._ready = {"bootstrap_servers": "a:1", "control_url": f"http://127.0.0.1:{port}"}
        return self

    def stop(self) -> None:
        self._forget_ready()


def test_handles_are_those_of_the_process_that_is_ready() -> None:
    fake = Fake()
    with fake as started:
        assert started is fake
        assert fake.bootstrap_servers == "a:1"
        first = fake.control, fake.faults, fake.journal
        assert (fake.control, fake.faults, fake.journal) == first
        assert fake.faults.url == fake.control_url == "http://127.0.0.1:9001"
    with fake:
        assert all(
            now is not before
            for now, before in zip((fake.control, fake.faults, fake.journal), first, strict=True)
        )
        assert fake.faults.url == "http://127.0.0.1:9002"


@pytest.mark.parametrize("name", ["bootstrap_servers", "control_url", "control", "faults"])
def test_nothing_can_be_used_before_the_start_and_after_the_end(name: str) -> None:
    fake = Fake()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="the broker is not running"):
            getattr(fake, name)
        with fake:
            pass
