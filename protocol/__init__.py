"""Kafka's wire protocol, as a library of its own.

It owns the bytes: message schemas for every API and version, the codecs generated from them,
frames, headers, record batches, compression, error codes and the dissector. It knows nothing of
any broker or client built on it, and does no I/O: bytes in, objects out, and back.
Kafka's home of the same things is ``org.apache.kafka.common.{protocol,message,record}``.
"""
