from __future__ import annotations

import random

import pytest

from minibroker.broker.quotas.entity import DEFAULT, Entity, QuotaTable
from minibroker.broker.quotas.manager import ClientQuotaManager
from minibroker.broker.quotas.types import QuotaType
from minibroker.pipeline.whatif.columns import KINDS, NONE, Sender
from minibroker.pipeline.whatif.proposal import Components, Counting, Proposal, Shares
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
