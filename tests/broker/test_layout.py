"""The roles of a broker, and the order in which they stop."""

from __future__ import annotations

from minibroker.broker.layout import ROLES, role_instances, stop_groups
from minibroker.config import Settings
from minibroker.process.environment import RECORDER

SETTINGS = Settings.from_sources(pairs=["num.network.threads=3", "num.io.threads=2"])


def test_every_thread_of_kafkas_settings_is_a_process_here() -> None:
    names = [instance.name for instance in role_instances(SETTINGS)]
    assert sorted(names) == [
        "acceptor",
        "controller",
        "processor-0",
        "processor-1",
        "processor-2",
        "worker-0",
        "worker-1",
    ]


def test_roles_stop_before_the_roles_they_depend_on() -> None:
    groups = stop_groups(SETTINGS)
    assert groups[0] == ["acceptor"]
    assert groups[1:] == [
        ["processor-0", "processor-1", "processor-2"],
        ["worker-0", "worker-1"],
        ["controller"],
    ]
    together = [name for group in groups for name in group]
    assert sorted(together) == sorted(instance.name for instance in role_instances(SETTINGS))
    assert {instance.role for instance in role_instances(SETTINGS)} == set(ROLES) - {RECORDER}


def test_recorder_stops_after_senders_and_before_workers() -> None:
    pairs = ["activity.enable=true", "num.network.threads=1", "num.io.threads=1"]
    groups = stop_groups(Settings.from_sources(pairs=pairs))
    assert groups == [["acceptor"], ["processor-0"], ["recorder"], ["worker-0"], ["controller"]]


def test_sharded_mode_has_no_acceptor() -> None:
    pairs = ["acceptor.mode=sharded", "num.network.threads=2", "num.io.threads=1"]
    sharded = Settings.from_sources(pairs=pairs)
    names = ["controller", "worker-0", "processor-0", "processor-1"]
    assert [instance.name for instance in role_instances(sharded)] == names
    assert [name for group in stop_groups(sharded) for name in group] == names[2:] + names[1::-1]
