"""The roles of a broker, and the order in which they stop."""

from __future__ import annotations

from minibroker.broker.process.environment import RECORDER
from minibroker.broker.settings import Settings
from minibroker.launch.layout import ROLES, process_plans, stop_groups

SEPARATE = ("process.mode=separate", "num.network.threads=3", "num.io.threads=2")


def settings(*pairs: str) -> Settings:
    return Settings.from_sources(pairs=pairs)


def names(of: Settings) -> list[str]:
    return [plan.name for plan in process_plans(of)]


def test_every_thread_of_kafkas_settings_is_a_process_if_they_are_separate() -> None:
    assert sorted(names(settings(*SEPARATE))) == [
        "acceptor",
        "controller",
        "processor-0",
        "processor-1",
        "processor-2",
        "worker-0",
        "worker-1",
    ]


def test_processor_and_worker_with_the_same_number_share_a_process_by_default() -> None:
    assert names(settings()) == ["controller", "combined-0", "acceptor"]
    plans = process_plans(settings("num.network.threads=3", "num.io.threads=2"))
    assert {plan.name: [instance.name for instance in plan.roles] for plan in plans} == {
        "controller": ["controller"],
        "combined-0": ["processor-0", "worker-0"],
        "combined-1": ["processor-1", "worker-1"],
        "processor-2": ["processor-2"],
        "acceptor": ["acceptor"],
    }


def test_roles_stop_before_the_roles_they_depend_on() -> None:
    separate = settings(*SEPARATE)
    groups = stop_groups(separate)
    assert groups == [
        ["acceptor"],
        ["processor-0", "processor-1", "processor-2"],
        ["worker-0", "worker-1"],
        ["controller"],
    ]
    together = [name for group in groups for name in group]
    assert sorted(together) == sorted(names(separate))
    roles = {instance.role for plan in process_plans(separate) for instance in plan.roles}
    assert roles == set(ROLES) - {RECORDER}


def test_recorder_stops_after_senders_and_before_workers() -> None:
    groups = stop_groups(settings("activity.enable=true", "process.mode=separate"))
    assert groups == [["acceptor"], ["processor-0"], ["recorder"], ["worker-0"], ["controller"]]


def test_recorder_stops_together_with_the_combined_processes_that_send_to_it() -> None:
    groups = stop_groups(settings("activity.enable=true", "num.network.threads=2"))
    together = ["processor-1", "combined-0", "recorder"]
    assert groups == [["acceptor"], together, ["controller"]]
    groups = stop_groups(settings("num.io.threads=2"))
    assert groups == [["acceptor"], ["combined-0"], ["worker-1"], ["controller"]]


def test_sharded_mode_has_no_acceptor() -> None:
    sharded = settings("acceptor.mode=sharded", "num.network.threads=2")
    assert names(sharded) == ["controller", "combined-0", "processor-1"]
    assert stop_groups(sharded) == [["processor-1", "combined-0"], ["controller"]]
