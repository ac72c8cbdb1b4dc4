"""The limit of open files, and the descriptor that is kept for when it is reached."""

from __future__ import annotations

import errno
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from minibroker.runtime.descriptors import OUT_OF_DESCRIPTORS, Reserve, descriptors_max


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """Lower this process's limit to the descriptors that are open now."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_descriptors_max_is_the_soft_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert descriptors_max() == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda _: unlimited)
    assert descriptors_max() == sys.maxsize


def test_reserve_when_spent_frees_one_descriptor_and_takes_it_back() -> None:
    reserve = Reserve()
    with no_descriptor_left():
        with pytest.raises(OSError, match="Too many open files") as caught:
            os.dup(0)
        assert caught.value.errno in OUT_OF_DESCRIPTORS
        with reserve.spent() as has_one:
            assert has_one
            os.close(os.dup(0))
        with pytest.raises(OSError, match="Too many open files"):
            os.dup(0)
    reserve.close()


def test_reserve_that_could_not_be_refilled_is_refilled_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    reserve = Reserve()
    with monkeypatch.context() as context:
        context.setattr(os, "open", fail)
        with reserve.spent() as has_one:
            assert has_one
        with reserve.spent() as has_one:
            assert not has_one
    with reserve.spent() as has_one:
        assert not has_one
    with reserve.spent() as has_one:
        assert has_one
    reserve.close()
    reserve.close()
