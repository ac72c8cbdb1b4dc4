"""The verdict on a transactional run: what clients did against what they saw.

Owns the comparison of transactions, readers, copies and the compacted topic. Pure. Invariant: a
record of a committed transaction is seen by all, one of an aborted transaction by none, and the
newest committed value of each key remains in a compacted topic.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest

from tests.simulation.history import Partition
from tests.simulation.transactional import (
    COPIED_BY,
    COPIES,
    SOURCE,
    STATES,
    TOPICS,
    CopyJob,
    Reader,
    Transaction,
    TransactionalClient,
    Written,
)


def judge_transactions(
    producers: Iterable[TransactionalClient], job: CopyJob, readers: Iterable[Reader], last: Reader
) -> list[str]:
    """Compare what the last reader has seen with what clients did and what others have seen."""
    clients = (*producers, job)
    transactions = [each for client in clients for each in client.transactions]
    wrong = [problem for reader in readers for problem in differing(reader, last)]
    wrong += [problem for each in transactions for problem in torn(each, last)]
    known = {written for each in transactions for written in each.written}
    seen = {each for found in last.seen.values() for each in found.values()}
    wrong += [f"{each} was written in no transaction" for each in seen - known]
    for index in range(TOPICS[SOURCE]):
        sources, copies = (
            [each.value for each in in_order(last, (topic, index))] for topic in (SOURCE, COPIES)
        )
        copies = [each.partition(COPIED_BY)[0] for each in copies]
        for number, (source, copied) in enumerate(zip_longest(sources, copies)):
            if source != copied:
                wrong.append(f"copy {number} of partition {index} is {copied}, not {source}")
                break
    return wrong + lost_states(producers, last)


def in_order(reader: Reader, partition: Partition) -> list[Written]:
    return [each for _, each in sorted(reader.seen[partition].items())]


def differing(reader: Reader, last: Reader) -> list[str]:
    """Differences between the records of two readers below the position of the first."""
    wrong = []
    for partition, end in reader.positions.items():
        seen = set(reader.seen[partition].values())
        final = {each for each in last.seen[partition].values() if each.offset < end}
        missing = set() if partition[0] == STATES else seen - final
        wrong += [f"{reader.name} saw {each}, which is gone" for each in missing]
        wrong += [f"{reader.name} did not see {each}" for each in final - seen]
    return wrong


def torn(transaction: Transaction, last: Reader) -> list[str]:
    """Whether a transaction is seen although aborted, or not completely although committed."""
    kept = [each for each in transaction.written if each.partition[0] != STATES]
    found = [last.seen[each.partition].get(each.offset) == each for each in kept]
    if transaction.committed is None and all(found) and found:
        transaction.committed = True
    if transaction.committed:
        return [f"lost: {each}" for each, is_found in zip(kept, found, strict=True) if not is_found]
    states = [each for each in transaction.written if each.partition[0] == STATES]
    seen = [each for each, is_found in zip(kept, found, strict=True) if is_found]
    seen += [each for each in states if last.seen[each.partition].get(each.offset) == each]
    return [f"version {transaction.version} aborted, but seen: {each}" for each in seen]


def lost_states(producers: Iterable[TransactionalClient], last: Reader) -> list[str]:
    """Keys whose last committed value is not in the compacted topic."""
    newest: dict[bytes | None, Written] = {}
    for producer in producers:
        for transaction in producer.transactions:
            for each in transaction.written if transaction.committed else ():
                if each.partition[0] == STATES and (
                    each.key not in newest or newest[each.key].offset < each.offset
                ):
                    newest[each.key] = each
    seen = last.seen[STATES, 0]
    return [f"lost state: {each}" for each in newest.values() if seen.get(each.offset) != each]
