"""The log cleaner: removes records of compacted logs that a later record of the same key replaces.

Owns the rules of compaction, the cleaned copies of segments, and their swap. It must never know
which process it runs in. Invariant: the last value of each key, the offsets and the order of
records, and everything that is not yet cleanable remain. Echoes Kafka's ``LogCleaner``.
"""
