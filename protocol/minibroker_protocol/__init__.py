"""Kafka's wire protocol, as an independent library.

Owns the bytes: message schemas for every API and version, the codecs generated from them, frames,
headers, record batches, compression, error codes and the dissector. It must never know a broker or
client, and does no I/O: bytes in, objects out, and back. Kafka's
``org.apache.kafka.common.{protocol,message,record}``.
"""
