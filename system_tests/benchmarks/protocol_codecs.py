"""Speed of encoding and decoding, compared with construct's own ``.compile()``.

Run with ``python system_tests/benchmarks/protocol_codecs.py``. A Metadata response of 50 topics
with 6 partitions each is decoded and encoded by generated code and by construct compiling the same
tree; also by construct compiling a plain declaration of the same bytes, which has no nulls, no
compact encoding and no bounds and so can be flattened. Then a Produce request of one partition with
its header, the cost of generating a codec, and of importing. Prints medians of several runs.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import construct as cs

from minibroker_protocol import compiler, wire
from minibroker_protocol.compiler import decoding, encoding
from minibroker_protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from minibroker_protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from minibroker_protocol.schema import construct_for

RUNS = 9
TOPICS, PARTITIONS = 50, 6
PLAIN_VERSION = 1  # the newest version that a plain construct declaration can describe
REQUIRED_SPEEDUP = 10
REQUIRED_PRODUCE_US = 12


def plain_metadata() -> Any:
    """Metadata version 1 as one would write it with construct alone."""
    text = cs.PascalString(cs.Int16ub, "utf8")
    numbers = cs.PrefixedArray(cs.Int32sb, cs.Int32sb)
    broker = cs.Struct("node_id" / cs.Int32sb, "host" / text, "port" / cs.Int32sb, "rack" / text)
    partition = cs.Struct(
        "error_code" / cs.Int16sb,
        "partition_index" / cs.Int32sb,
        "leader_id" / cs.Int32sb,
        "replica_nodes" / numbers,
        "isr_nodes" / numbers,
    )
    topic = cs.Struct(
        "error_code" / cs.Int16sb,
        "name" / text,
        "is_internal" / cs.Flag,
        "partitions" / cs.PrefixedArray(cs.Int32sb, partition),
    )
    return cs.Struct(
        "brokers" / cs.PrefixedArray(cs.Int32sb, broker),
        "controller_id" / cs.Int32sb,
        "topics" / cs.PrefixedArray(cs.Int32sb, topic),
    )


def metadata() -> MetadataResponse:
    brokers = [
        MetadataResponseBroker(node_id=node, host=f"broker-{node}.example", port=9092, rack="r")
        for node in range(3)
    ]
    topics = [
        MetadataResponseTopic(
            name=f"topic-{number}",
            topic_id=bytes(range(16)),
            partitions=[
                MetadataResponsePartition(
                    partition_index=index,
                    leader_id=1,
                    leader_epoch=3,
                    replica_nodes=[1, 2, 3],
                    isr_nodes=[1, 2, 3],
                )
                for index in range(PARTITIONS)
            ],
        )
        for number in range(TOPICS)
    ]
    return MetadataResponse(brokers=brokers, cluster_id="x" * 22, controller_id=1, topics=topics)


def median_us(work: Callable[[], object], number: int) -> float:
    """Median over `RUNS` runs of `number` calls each, in microseconds a call."""
    runs = timeit.repeat(work, number=number, repeat=RUNS)
    return statistics.median(runs) / number * 1e6


def report(what: str, value: float, unit: str = "us") -> None:
    print(f"{what:<58}{value:>10.1f} {unit}")


def measure_metadata(version: int) -> float:
    """Print both ways' figures; by how much generated code is faster, the smaller of two."""
    message = metadata()
    tree = construct_for(MetadataResponse, version)
    data = compiler.encode(message, version)
    view = memoryview(bytearray(data))
    decode = compiler.decoder(MetadataResponse, version)
    encode = compiler.encoder(MetadataResponse, version)
    compiled = tree.compile()
    print(f"\nMetadata response v{version}, {len(data)} bytes")
    decoded = median_us(lambda: decode(data), 50)
    encoded = median_us(lambda: encode(message), 50)
    slow_decoded = median_us(lambda: compiled.parse(data), 2)
    slow_encoded = median_us(lambda: compiled.build(message), 2)
    report("  decode, generated", decoded)
    report("  decode, generated, from a memoryview", median_us(lambda: decode(view), 50))
    report("  decode, construct's .compile() of the tree", slow_decoded)
    report("  encode, generated", encoded)
    report("  encode, construct's .compile() of the tree", slow_encoded)
    report("  generated code decodes faster by", slow_decoded / decoded, "x")
    report("  generated code encodes faster by", slow_encoded / encoded, "x")
    return min(slow_decoded / decoded, slow_encoded / encoded)


def measure_plain() -> None:
    """Print the figures of construct compiling a declaration that it can flatten."""
    data = compiler.encode(metadata(), PLAIN_VERSION)
    compiled = plain_metadata().compile()
    parsed = compiled.parse(data)
    assert compiled.build(parsed) == data, "the plain declaration must say the same bytes"
    print(f"\nThe bytes of v{PLAIN_VERSION} by a plain declaration without nulls and bounds")
    report("  decode, construct's .compile()", median_us(lambda: compiled.parse(data), 5))
    report("  encode, construct's .compile()", median_us(lambda: compiled.build(parsed), 5))


def measure_produce() -> float:
    """Print header plus body of one partition's request, decoded; the slowest version."""
    print("\nProduce request, one partition, 1000 bytes of records, with its header")
    slowest = 0.0
    for version in (7, 9, 13):
        partition = PartitionProduceData(index=3, records=bytes(1000))
        topic = TopicProduceData(
            name="test-topic", topic_id=bytes(range(16)), partition_data=[partition]
        )
        body = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic])
        header = wire.encode_request_header(wire.RequestHeader(0, version, 7, "client-1"))
        view = memoryview(bytearray(header + compiler.encode(body, version)))
        decode = compiler.decoder(ProduceRequest, version)

        def both(view: memoryview = view, decode: Any = decode) -> object:
            _, pos = wire.decode_request_header(view)
            return decode(view, pos)

        taken = median_us(both, 2000)
        report(f"  decode v{version}", taken)
        slowest = max(slowest, taken)
    return slowest


def measure_generation() -> None:
    print("\nGenerating one codec when it is first needed")
    for cls, version in ((ProduceRequest, 9), (MetadataResponse, 12)):
        tree = construct_for(cls, version)
        title = f"{cls.__name__} v{version}"
        for name, module in (("decoder", decoding), ("encoder", encoding)):
            taken = median_us(lambda: module.emit(tree, title).function(), 5)  # noqa: B023
            report(f"  {name} of {title}", taken)


def measure_imports() -> None:
    print("\nImporting, in a fresh interpreter")
    for first, module in (
        ("sys", "construct"),
        ("construct", "minibroker_protocol.registry"),
        ("minibroker_protocol.registry", "minibroker_protocol.compiler"),
        ("minibroker_protocol.compiler", "minibroker_protocol.messages.fetch"),
    ):
        code = (
            f"import {first}, time\nt = time.perf_counter()\nimport {module}\n"
            "print((time.perf_counter() - t) * 1e3)"
        )
        runs = [
            float(subprocess.check_output([sys.executable, "-c", code], cwd=sys.path[0]))
            for _ in range(RUNS)
        ]
        report(f"  {module}, after {first}", statistics.median(runs), "ms")


def main() -> int:
    """Run everything; 1 if a required figure is missed."""
    speedup = min(measure_metadata(PLAIN_VERSION), measure_metadata(12))
    measure_plain()
    produce_us = measure_produce()
    measure_generation()
    measure_imports()
    met = speedup >= REQUIRED_SPEEDUP and produce_us <= REQUIRED_PRODUCE_US
    print(
        f"\nrequired: {REQUIRED_SPEEDUP} x construct's .compile(), Produce in "
        f"{REQUIRED_PRODUCE_US} us: {'met' if met else 'MISSED'}"
    )
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
