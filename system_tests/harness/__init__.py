"""Basis of all system tests: brokers as processes, jars, waiting, reading /proc."""
