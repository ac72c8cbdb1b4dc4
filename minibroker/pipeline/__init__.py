"""Batch and streaming jobs over the activity log: usage, quota recommendations, what-if results.

The only package that may import pyspark; it needs the extra ``minibroker[spark]`` and a JVM.
"""
