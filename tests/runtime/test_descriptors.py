"""The limit of open files."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from minibroker.runtime.descriptors import descriptors_max, has_descriptor


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


def test_has_descriptor_is_false_only_at_the_limit() -> None:
    assert has_descriptor()
    with no_descriptor_left():
        assert not has_descriptor()
    assert has_descriptor()
