from __future__ import annotations

import random
from pathlib import Path

import pytest

from minibroker.broker.quotas.manager import ClientQuotaManager
from minibroker.broker.quotas.types import DEFAULT, Entity, QuotaTable, QuotaType
from minibroker.pipeline.errors import BadInput
from minibroker.pipeline.whatif.columns import KINDS, NONE, Sender
from minibroker.pipeline.whatif.proposal import (
    Components,
    Counting,
    Proposal,
    Shares,
    counting_of,
    proposals_of,
    settings_of,
)
from tests.broker.quotas.oracle import OracleLedger
from tests.pipeline.whatif import random_workload

PRODUCE = QuotaType.PRODUCE


@pytest.mark.parametrize("seed", range(30))
def test_senders_share_counters_as_in_the_broker(seed: int) -> None:
    proposal = random_workload.proposal(random.Random(seed), most=6)
    quotas = ClientQuotaManager(OracleLedger(11, 1000))
    quotas.set_table(proposal.table)
    for user in random_workload.USERS:
        for client in random_workload.CLIENTS:
            for kind in KINDS:
                share = quotas.share(kind, (user, client), 0)
                found = proposal.share(kind, user, client)
                if share.bound is None or not quotas.bits[kind]:
                    assert found is None
                else:
                    assert found == (share.group.tags, share.bound)


def test_restarted_broker_counts_from_zero() -> None:
    table = QuotaTable({PRODUCE: {Entity("u"): 5.0}}, 2)
    shares = Shares(Proposal("p", table), Counting(counted_from_ms={1: 99}))
    for life, client in ((0, "a"), (0, "b"), (1, "a")):
        shares.add(Sender(1, life, "u", client))
    sharing = shares.sharing()
    assert sharing.counter[:, 0].tolist() == [0, 0, 1]
    assert sharing.counter[:, 1].tolist() == [NONE] * 3
    assert sharing.bound[:, 0].tolist() == [5.0] * 3
    assert sharing.counted_from_ms.tolist() == [99] * 3


def test_senders_sharing_transitively_form_one_component() -> None:
    found = Components()
    senders = [Sender(0, 0, "u", str(n)) for n in range(5)]
    for sender, keys in zip(senders, ("a", "b", "ab", "c", "c"), strict=True):
        found.add(sender, keys)
    assert found.roots() == [0, 0, 0, 3, 3]
    found.join(4, 1)
    assert found.roots() == [0] * 5
    assert found.add(senders[2], "z") == 2


def test_address_uses_own_rate_or_default() -> None:
    proposal = Proposal("p", ips={"10.0.0.1": 0.0}, ip_default=7.0)
    assert (proposal.of_ip("10.0.0.1"), proposal.of_ip("10.0.0.2")) == (0.0, 7.0)
    assert Proposal("p").of_ip("10.0.0.1") is None


def test_shared_counter_has_equal_key_for_all_senders() -> None:
    table = QuotaTable({PRODUCE: {Entity(client=DEFAULT): 5.0}}, 1)
    proposal = Proposal("p", table)
    assert list(proposal.counters_of("u", "c")) == list(proposal.counters_of("v", "c"))
    assert list(proposal.counters_of("u", "c")) != list(proposal.counters_of("u", "d"))
    assert list(Proposal("p").counters_of("u", "c")) == []


# Quota files and settings ------------------------------------------------------------------------

LINE = "--alter --entity-type users --entity-name alice --add-config producer_byte_rate=10\n"
IP = "--alter --entity-type ips --entity-default --add-config connection_creation_rate=3\n"


def written(path: Path, text: str) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return str(path)


def test_file_and_the_settings_make_a_proposal(tmp_path: Path) -> None:
    path = written(tmp_path / "now.quotas", LINE + IP)
    (found,) = proposals_of([path], settings_of(["quota.consumer.default=77"]))
    assert found.name == "now.quotas"
    assert found.ip_default == 3
    share = found.share(QuotaType.PRODUCE, "alice", "x")
    assert share is not None
    assert share[1].value == 10
    share = found.share(QuotaType.FETCH, "bob", "x")
    assert share is not None
    assert share[1].value == 77


def test_counting_reflects_broker_settings() -> None:
    assert counting_of(settings_of([])) == Counting()
    pairs = [
        "quota.window.num=5",
        "quota.throttle.mode=delay",
        "connection.ip.throttle.recheck=false",
    ]
    found = counting_of(settings_of(pairs))
    assert (found.quota_window_num, found.delays, found.rechecks) == (5, True, False)
    assert (found.remembered_ms, found.terms(closed=True).closed) == (6000, True)


def test_files_of_same_name_are_named_by_path(tmp_path: Path) -> None:
    paths = [written(tmp_path / folder / "q", LINE) for folder in "ab"]
    assert [found.name for found in proposals_of(paths, settings_of([]))] == paths


def test_bad_input_reports_reason_and_place(tmp_path: Path) -> None:
    path = written(tmp_path / "q", "--alter --nonsense\n")
    with pytest.raises(BadInput, match="q:1: --nonsense is not allowed"):
        proposals_of([path], settings_of([]))
    with pytest.raises(BadInput, match="cannot be read as a quota file"):
        proposals_of([str(tmp_path / "none")], settings_of([]))
    with pytest.raises(BadInput, match="given twice"):
        proposals_of([path, path], settings_of([]))
    with pytest.raises(BadInput, match=r"quota\.window\.num"):
        settings_of(["quota.window.num=0"])
