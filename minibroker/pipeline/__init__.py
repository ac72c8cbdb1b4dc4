"""From what brokers saw to decisions: measured use, fitting quotas, what other quotas would do.

The only package that may import pyspark; it needs the extra ``minibroker[spark]`` and a JVM.
"""
